"""Translate directives of other schedulers: of PBS and LSF as `sbatch` reads them, of others as advice."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from fgsched.domain.errors import BadUsage
from fgsched.domain.text import lazy_regex
from fgsched.lifecycle.jobscript import UnreadLine, command_line


class Translation(Struct, frozen=True):
    """What one directive means here."""

    words: tuple[str, ...] = ()  # options of fgsub
    unknown: tuple[str, ...] = ()  # its parts that have no translation


_GPU = lazy_regex(r"(?i)gpu|accel")
_LINKED = ("depend", "-w ")  # parts that say which jobs come first
_FLAGS_OF_BSUB = {"x": "--exclusive", "H": "--hold", "r": "--requeue", "rn": "--no-requeue"}
_COUNT = lazy_regex(r"[0-9]+")


def read(mark: str, words: Sequence[str], place: str) -> Translation:
    """Return the options of a line of PBS or LSF.

    Raises BadUsage for a request of GPUs or a dependency that has no translation: without it, the job would
    run as another one.
    """
    translation = _of_pbs(words) if mark == "#PBS" else _of_lsf(words)
    for part in translation.unknown:
        if _GPU.search(part) or part.lower().startswith(_LINKED) or "depend" in part:
            raise BadUsage(
                f"{place}: {mark} {command_line(words)}: {part} has no translation here",
                "Write it as an option of fgsub, such as #FG --gpus=1 or #FG --dependency=afterok:7;"
                " --ignore-pbs ignores the lines of PBS and LSF.",
            )
    return translation


def asks_for_gpus(line: UnreadLine) -> bool:
    """Tell whether a directive that is not read requests GPUs."""
    is_letter = line.scheduler == "Flux" and re.search(r"(?:^|\s)-g ?[1-9]", line.text)
    return bool(is_letter) or _GPU.search(line.text) is not None


def _translated(
    pairs: Iterator[tuple[str, str]], table: Mapping[str, Callable[[str], Iterator[str]]]
) -> Translation:
    words: list[str] = []
    unknown: list[str] = []
    for name, value in pairs:
        translate = table.get(name)
        options = None if translate is None else list(translate(value))
        if options is None or _UNKNOWN in options:
            unknown.append(f"-{name} {value}".strip())
        for option in options or ():
            if option.startswith(_PART):
                unknown.append(option.removeprefix(_PART))
            elif option != _UNKNOWN:
                words.append(option)
    return Translation(tuple(words), tuple(unknown))


_UNKNOWN = "?"  # the whole option has no translation
_PART = "? "  # this part of it


def _pairs(words: Sequence[str], flags: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield (letters, value) of '-l value' and '-lvalue'; options of `flags` have no value."""
    remainder = list(words)
    while remainder:
        word = remainder.pop(0)
        name = word.lstrip("-")
        if not word.startswith("-") or name in flags:
            yield name, ""
        elif len(name) > 1 and name not in _LONG:
            yield name[0], name[1:]
        else:
            yield name, remainder.pop(0) if remainder else ""


_LONG = frozenset(
    ("oo", "eo", "cwd", "gpu", "env", "app", "sla", "eptl", "Jd", "data", "jsdl", "ext", "Is", "K")
)


def _nothing(value: str) -> Iterator[str]:
    """Translate an option without a meaning here that changes nothing of the job."""
    return iter(())


def _as(option: str) -> Callable[[str], Iterator[str]]:
    """Return a translator to an option with the same value."""
    return lambda value: iter((f"--{option}={value}",))


def _flag(option: str) -> Callable[[str], Iterator[str]]:
    return lambda value: iter((option,))


# -- PBS ---------------------------------------------------------------------------------------------


def _of_pbs(words: Sequence[str]) -> Translation:
    return _translated(_pairs(words, frozenset("hIVXfzE")), _PBS)


def _path_of_pbs(option: str) -> Callable[[str], Iterator[str]]:
    """Return a translator of [host:]path; a directory gets the name of PBS, NAME.oID."""
    ending = "%x.o%j" if option == "output" else "%x.e%j"

    def translate(value: str) -> Iterator[str]:
        path = value.rpartition(":")[2]
        for variable, letter in (("$PBS_JOBID", "%j"), ("^array_index^", "%a"), ("$PBS_JOBNAME", "%x")):
            path = path.replace(variable, letter)
        yield f"--{option}={path}{ending if path.endswith('/') else ''}"

    return translate


def _resources_of_pbs(value: str) -> Iterator[str]:
    for part in value.split(","):
        name, _, remainder = part.partition("=")
        if name in ("nodes", "select"):
            yield from _chunk_of_pbs(remainder)
        else:
            yield from _resource_of_pbs(name, remainder, part)


def _chunk_of_pbs(value: str) -> Iterator[str]:
    """Translate nodes=1:ppn=4:gpus=1 and select=1:ncpus=4:ngpus=1:mem=8gb."""
    first, *parts = value.split("+")[0].split(":")
    if "+" in value:
        yield f"{_PART}{value}"
    if _COUNT.fullmatch(first) and int(first) != 1:
        yield f"--nodes={first}"
    elif not _COUNT.fullmatch(first):
        yield f"{_PART}{first}"
    for part in parts:
        name, equals, remainder = part.partition("=")
        if equals:
            yield from _resource_of_pbs(name, remainder, part)
        elif name not in _GPU_MODES:
            yield f"{_PART}{part}"


_GPU_MODES = ("shared", "exclusive_process", "exclusive_thread", "default", "reseterr")


def _resource_of_pbs(name: str, value: str, part: str) -> Iterator[str]:
    if name in ("gpus", "ngpus"):
        yield f"--gpus={value.partition(':')[0]}"
    elif name in ("ppn", "mpiprocs", "procs"):
        yield f"--ntasks-per-node={value}"
    elif name == "ncpus":
        yield f"--cpus-per-task={value}"
    elif name == "walltime":
        yield f"--time={_slurm_walltime(value)}"
    elif name == "mem":
        yield f"--mem={_memory(value)}"
    elif name == "pmem":
        yield f"--mem-per-cpu={_memory(value)}"
    elif name not in ("place", "ompthreads", "cput", "vmem", "pvmem", "file", "nice"):
        yield f"{_PART}{part}"


def _slurm_walltime(value: str) -> str:
    """Return a walltime, which is in seconds if it has no colon; days can be a fourth number."""
    days, *remainder = value.split(":") if value.count(":") == 3 else ("", value)
    if days:
        return f"{days}-{':'.join(remainder)}"
    return f"{value}s" if _COUNT.fullmatch(value) else value


def _memory(value: str) -> str:
    """Return a size of PBS: bytes without a unit, 8gb, 500mb, 1000kb."""
    size = value.lower()
    if _COUNT.fullmatch(size.removesuffix("b")):
        return f"{-(-int(size.removesuffix('b')) // 1024)}K"
    return size


_MAIL = {"a": "FAIL", "b": "BEGIN", "e": "END"}


def _mail_of_pbs(value: str) -> Iterator[str]:
    if "n" in value:
        yield "--mail-type=NONE"
    elif events := [_MAIL[letter] for letter in value if letter in _MAIL]:
        yield f"--mail-type={','.join(events)}"


def _attributes_of_pbs(value: str) -> Iterator[str]:
    """Translate -W depend=afterok:7,umask=022; a dependency can have further parts after commas."""
    name, _, remainder = value.partition("=")
    if name == "depend":
        yield f"--dependency={remainder}"
    elif name not in ("umask", "sandbox", "stagein", "stageout"):
        yield f"{_PART}-W {value}"


def _begin_of_pbs(value: str) -> Iterator[str]:
    """Translate [[CC]YYMMDD]hhmm, of which only the whole date and the time alone are unambiguous."""
    if re.fullmatch(r"[0-9]{4}", value):
        yield f"--begin={value[:2]}:{value[2:]}"
    elif re.fullmatch(r"[0-9]{12}", value):
        yield f"--begin={value[:4]}-{value[4:6]}-{value[6:8]}T{value[8:10]}:{value[10:]}"
    else:
        yield _UNKNOWN


def _requeue_of_pbs(value: str) -> Iterator[str]:
    yield "--no-requeue" if value.startswith("n") else "--requeue"


_PBS: dict[str, Callable[[str], Iterator[str]]] = {
    "l": _resources_of_pbs,
    "N": _as("job-name"),
    "o": _path_of_pbs("output"),
    "e": _path_of_pbs("error"),
    "q": _as("partition"),
    "A": _as("account"),
    "t": _as("array"),
    "J": _as("array"),
    "m": _mail_of_pbs,
    "M": _as("mail-user"),
    "a": _begin_of_pbs,
    "h": _flag("--hold"),
    "r": _requeue_of_pbs,
    "v": lambda value: iter((f"--export=ALL,{value}",)),
    "W": _attributes_of_pbs,
    "d": _as("chdir"),
    "w": _as("chdir"),
    **dict.fromkeys("VjkSpPcCuXfz", _nothing),
}


# -- LSF ---------------------------------------------------------------------------------------------


def _of_lsf(words: Sequence[str]) -> Translation:
    return _translated(_pairs(words, frozenset(("x", "H", "r", "rn", "B", "N", "K", "I", "Is", "Ip"))), _LSF)


def _path_of_lsf(option: str) -> Callable[[str], Iterator[str]]:
    """Return a translator of a path in which %J is the job and %I the task."""
    return lambda value: iter((f"--{option}={value.replace('%J', '%j').replace('%I', '%a')}",))


def _limit_of_lsf(value: str) -> Iterator[str]:
    """Translate [hours:]minutes[/host]."""
    hours, _, minutes = value.partition("/")[0].rpartition(":")
    yield f"--time={hours or '0'}:{minutes.zfill(2)}:00" if hours else f"--time={minutes}"


def _name_of_lsf(value: str) -> Iterator[str]:
    """Translate NAME, NAME[1-10] and NAME[1-10]%2."""
    name, bracket, remainder = value.partition("[")
    indices, _, throttle = remainder.partition("]")
    if name:
        yield f"--job-name={name}"
    if bracket:
        yield f"--array={indices}{throttle}"


_GPU_TERMS = ("mode", "mps", "j_exclusive", "block", "glink", "nvlink")


def _gpu_of_lsf(value: str) -> Iterator[str]:
    """Translate -gpu "num=2:gmem=8G:gmodel=A100"; "-" is one GPU."""
    terms = dict(term.partition("=")[::2] for term in value.split(":") if term != "-")
    yield f"--gpus={terms.pop('num', '1').partition('/')[0]}"
    for name, text in terms.items():
        if name == "gmem":
            yield f"--gpu-mem={text}"
        elif name == "gmodel":
            yield f"--gpu-type={text.partition('-')[0]}"
        elif name not in _GPU_TERMS:
            yield f"{_PART}-gpu {name}={text}"


_NGPUS = lazy_regex(r"ngpus(?:_excl_p|_excl_t|_shared|_physical)?=([0-9.]+)")


def _requirement_of_lsf(value: str) -> Iterator[str]:
    """Translate the GPUs of -R "rusage[ngpus_excl_p=1]"; span[hosts=1] has no effect on one host."""
    if match := _NGPUS.search(value):
        yield f"--gpus={match[1]}"
        value = _NGPUS.sub("", value)
    remainder = re.sub(r"span\[(hosts=1|ptile=[0-9]+)\]|rusage\[[\s,:]*\]", "", value).strip()
    if remainder:
        yield f"{_PART}-R {remainder}"


_ENDED = {"done": "afterok", "ended": "afterany", "exit": "afternotok", "started": "after"}


def _dependency_of_lsf(value: str) -> Iterator[str]:
    """Translate done(7) && ended(8); names of jobs and alternatives have no translation."""
    terms = [re.fullmatch(r"(\w+)\(([0-9]+)\)", term.strip()) for term in value.split("&&")]
    if all(term and term[1] in _ENDED for term in terms):
        yield "--dependency=" + ",".join(f"{_ENDED[term[1]]}:{term[2]}" for term in terms if term)
    else:
        yield _UNKNOWN


def _tasks_of_lsf(value: str) -> Iterator[str]:
    yield f"--ntasks={value.partition(',')[0]}"


def _limit_with_unit(value: str) -> Iterator[str]:
    """Translate -M 16GB; the unit of a bare number is a setting of the other site."""
    yield _UNKNOWN if _COUNT.fullmatch(value) else f"--mem={value}"


_LSF: dict[str, Callable[[str], Iterator[str]]] = {
    "q": _as("partition"),
    "W": _limit_of_lsf,
    "n": _tasks_of_lsf,
    "J": _name_of_lsf,
    "o": _path_of_lsf("output"),
    "oo": _path_of_lsf("output"),
    "e": _path_of_lsf("error"),
    "eo": _path_of_lsf("error"),
    "i": _path_of_lsf("input"),
    "M": _limit_with_unit,
    "R": _requirement_of_lsf,
    "gpu": _gpu_of_lsf,
    "u": _as("mail-user"),
    "B": _flag("--mail-type=BEGIN"),
    "N": _flag("--mail-type=END"),
    "w": _dependency_of_lsf,
    "cwd": _as("chdir"),
    "env": lambda value: iter((f"--export={value.replace('all', 'ALL', 1)}",)),
    **{name: _flag(option) for name, option in _FLAGS_OF_BSUB.items()},
    **dict.fromkeys(("P", "G", "L", "app", "sla"), _nothing),
}


# -- the other schedulers ----------------------------------------------------------------------------

_ADVICE: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"(?i)\b(?:n?gpus?(?:-per-\w+)?|gpu_card|gpu_num)(?:/\w+)?[ =:]+([0-9]*\.?[0-9]+)"),
        "--gpus={}",
    ),
    (re.compile(r"(?i)(?:h_rt|walltime|elapse|time|time-limit|time-request)[ =]+([0-9:]+)"), "--time={}"),
    (re.compile(r"(?i)(?:h_vmem|mem_free|mem|memory)[ =]+([0-9.]+[KMGTB]+)"), "--mem={}"),
    (re.compile(r"(?:-pe \w+|--(?:cpus?(?:-per-task)?|cores-per-\w+)[ =]) ?([0-9]+)"), "--cpus-per-task={}"),
    (re.compile(r"--?(?:job-)?name[ =]([\w.-]+)"), "--job-name={}"),
    (re.compile(r"--array[ =]([0-9,:-]+)\b"), "--array={}"),
    (re.compile(r"--queue[ =]([\w.-]+)"), "--partition={}"),
)
_NAME, _NUMBERS, _TIME = r"[\w.-]+", r"[0-9]+", r"[0-9:]+(?![\w.])"
_LETTERS: dict[str, dict[str, tuple[str, str]]] = {  # scheduler -> letter -> (option, form of its value)
    "Grid Engine": {
        "N": ("job-name", _NAME),
        "t": ("array", r"[0-9,:-]+"),
        "q": ("partition", _NAME),
        "A": ("account", _NAME),
    },
    "Cobalt": {"t": ("time", _TIME), "q": ("partition", _NAME), "A": ("account", _NAME)},
    "Flux": {
        "g": ("gpus", _NUMBERS),
        "c": ("cpus-per-task", _NUMBERS),
        "n": ("ntasks", _NUMBERS),
        "t": ("time", _TIME),
        "q": ("partition", _NAME),
    },
    "gflow": {"c": ("cpus-per-task", _NUMBERS)},
    "OAR": {"n": ("job-name", _NAME), "q": ("partition", _NAME)},
    "PJM": {"N": ("job-name", _NAME)},
    "NQS": {"N": ("job-name", _NAME), "q": ("partition", _NAME)},
}


def about(line: UnreadLine) -> tuple[str, str]:
    """Return what an unread line is, and what to write in its place."""
    if not line.scheduler:
        return f"looks like an {line.mark} header but is a comment", f"write {line.mark}"
    what = f"{line.mark} is a directive of {line.scheduler}, which is not read"
    options = _advice(line)
    return what, f"write #FG {options}" if options else "write its options as #FG lines"


def _advice(line: UnreadLine) -> str:
    """Return the options of fgsub that say what a line of another scheduler asks for, or ""."""
    if line.mark in ("#MSUB", "#PBS", "#BSUB"):
        translate = _of_lsf if line.mark == "#BSUB" else _of_pbs
        return command_line(translate(line.text.split()).words)
    matches = ((pattern.search(line.text), option) for pattern, option in _ADVICE)
    words = [option.format(match[1]) for match, option in matches if match]
    for letter, (option, form) in _LETTERS.get(line.scheduler, {}).items():
        if match := re.search(rf"(?:^|\s)-{letter}[ =]?({form})", line.text):
            words.append(f"--{option}={match[1]}")
    return command_line(words)
