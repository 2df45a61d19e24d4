"""The words with which a variable of the vendor selects the GPUs of a job."""

from collections.abc import Mapping, Sequence
from typing import Literal

from fgsched.domain.job import is_instance

VisibleDevices = Literal["numbers", "uuids"]  # of the setting
WORDS = "FG_GPU_DEVICES"  # the words for all GPUs of a job, in the order of FG_GPU_UUIDS and FG_JOB_GPUS


def words_of(
    gpus: Sequence[tuple[int, str]], setting: VisibleDevices, *, hooked: bool, others: str
) -> tuple[str, ...]:
    """Return the word for each GPU of a job.

    With the hook a number is a position among the GPUs of the job, for every library. Without it the driver
    counts the GPUs whose device nodes the job can open, in the order of their indices.

    The driver shows a process one MIG instance, and frameworks count with a library that counts whole GPUs. A
    job with several instances therefore has UUIDs. Without the hook no number selects an instance for sure.

    Args:
        gpus: (index, UUID) of each.
        others: whether the job can open the device nodes of other GPUs: "closed" or "open".
    """
    uuids = tuple(uuid for _, uuid in gpus)
    has_instances = any(map(is_instance, uuids))
    if setting == "uuids" or (has_instances and not (hooked and len(gpus) == 1)):
        return uuids
    indices = sorted(index for index, _ in gpus)
    if hooked:
        return tuple(map(str, range(len(gpus))))
    return tuple(str(indices.index(index) if others == "closed" else index) for index, _ in gpus)


def translated(words: str, environ: Mapping[str, str], into: str) -> str:
    """Return a list of words that select GPUs in a job as another variable of the job lists its GPUs.

    Words that select no GPU of the job are left as they are, and so are all words outside jobs.

    Args:
        into: FG_GPU_UUIDS or FG_JOB_GPUS.
    """
    names = zip(environ.get(WORDS, "").split(","), environ.get(into, "").split(","), strict=False)
    known = {word: name for word, name in names if word and name}
    return ",".join(known.get(word.strip(), word) for word in words.split(",")) if words else ""
