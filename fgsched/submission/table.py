"""The options of a submission: rows of the table of all options, with the parsers of their values."""

import math
import re
import time
from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from fgsched.domain.job import GPU_COMPUTE, NICEST, WHOLE, EarlySignal, Request
from fgsched.domain.text import BadValue, lazy_regex, quoted
from fgsched.domain.times import find_time, parse_duration, parse_time
from fgsched.domain.units import parse_bytes, parse_count, parse_gpus, parse_share, parse_signal, parse_units
from fgsched.lifecycle.arrays import parse_array
from fgsched.lifecycle.constraint import alternatives
from fgsched.lifecycle.containers import parse_image, parse_mounts
from fgsched.lifecycle.dependencies import parse_dependency
from fgsched.lifecycle.enforcement import TIERS
from fgsched.lifecycle.filenames import ALLOWED, unknown
from fgsched.lifecycle.mail import parse_mail_types, usable_addresses
from fgsched.views.options import FLAG, known_of, rows_of

# -- values ----------------------------------------------------------------------------------------


_LONGEST_NAME = 255
_LONGEST_PATH = 4095
_LONGEST_COMMENT = 4096
_RESOURCE = lazy_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_ACCOUNT = lazy_regex(r"[A-Za-z0-9][A-Za-z0-9 _.@-]{0,63}")
_WORD = lazy_regex(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,63}")
LEAST_HOST_MEMORY = 16 << 20  # bytes; in less, not even an interpreter of a script starts reliably
_LEAST_GPU_MEMORY = 256 << 20  # bytes; a smaller number without a unit is a slip
_LATEST_SIGNAL = 65_535  # seconds before the limit


class Amount(Struct, frozen=True):
    """An amount of GPUs, in units of GPUs, fGPUs or shards."""

    unit: str  # "gpu", "fgpu" or "shard"; "none": nothing is said of GPUs
    size: int  # ten-thousandths of the unit
    gpu_type: str = ""
    resources: tuple[tuple[str, int], ...] = ()  # the site's own, beside the GPUs


class GpuMemory(Struct, frozen=True):
    """Memory of each GPU: bytes, or a part of the GPU in ten-thousandths."""

    size: int = 0  # bytes, or ten-thousandths of the GPU's memory
    part: int = 0


class HostMemory(Struct, frozen=True):
    """Host memory of the job, per CPU, or per GPU."""

    per: str  # "job", "cpu" or "gpu"
    size: int  # bytes; 0: all


def flag(text: str) -> bool:
    """Parse the presence of a flag."""
    return True


def no(text: str) -> bool:
    """Parse the presence of a negated flag."""
    return False


def gpus(text: str) -> Amount:
    """Parse [type:]amount of GPUs. Raises BadValue."""
    try:
        gpu_type, count, share = parse_gpus(text.removeprefix("gres/").removeprefix("gpu:").replace("=", ":"))
    except BadValue as error:
        raise BadValue(text, error.why) from None
    return Amount("gpu", count * share, gpu_type)


def fgpu(text: str) -> Amount:
    """Parse an amount in fGPUs. Raises BadValue."""
    return Amount("fgpu", parse_units(text))


def gres(text: str) -> Amount:
    """Parse a list of gpu[:type][:amount], shard:N and NAME[:N]. Raises BadValue."""
    gpus: Amount | None = None
    others: dict[str, int] = {}
    if text.lower() == "none":  # a word of Slurm
        return Amount("none", 0)
    for part in text.split(","):
        name, _, amount = part.removeprefix("gres/").replace("=", ":").partition(":")
        if name in ("gpu", "shard"):
            if gpus is not None:
                raise BadValue(text, " asks for GPUs twice")
            gpus = _gpus(text, name, amount)
        elif not _RESOURCE.fullmatch(name) or not re.fullmatch(r"[0-9]{0,5}", amount) or name in others:
            raise BadValue(text, ": invalid generic resource specification (gpu:AMOUNT, or NAME:N)")
        elif amount != "0":
            others[name] = int(amount or 1)
    return replace(gpus or Amount("none", 0), resources=tuple(sorted(others.items())))


def _gpus(text: str, resource: str, amount: str) -> Amount:
    if resource == "shard":
        if amount and not re.fullmatch(r"[0-9]{1,9}", amount):
            raise BadValue(text, " is not a whole number of shards")
        return Amount("shard", int(amount or 1) * WHOLE)
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_. -]*", amount):
        return Amount("gpu", WHOLE, amount)  # a type alone: one GPU of it
    try:
        return gpus(amount or "1")
    except BadValue as error:
        raise BadValue(text, error.why) from None


def gpu_memory(text: str) -> GpuMemory:
    """Parse GPU memory, as a size or a percentage. Raises BadValue."""
    try:
        if text.endswith("%"):
            return GpuMemory(part=parse_share(text))
        size = parse_bytes(text)
    except BadValue as error:
        raise BadValue(text, error.why.replace(" or T;", " or T, or % of the GPU;")) from None
    if 0 < size < _LEAST_GPU_MEMORY and text[-1].isdecimal():
        from fgsched.gpus import vendors  # fgsub seldom needs them

        context = vendors.of_host().facts.context
        part = f" or {text.rpartition('.')[2]}0%" if re.fullmatch(r"0?\.[1-9]", text) else ""
        raise BadValue(text, f" is in MiB, less than a {context} takes; did you mean {text}G{part}?")
    return GpuMemory(size=size) if size else GpuMemory(part=WHOLE)


def host_memory(per: str) -> Callable[[str], HostMemory]:
    """Return a parser for host memory per "job", "cpu" or "gpu"; it raises BadValue."""

    def parse(text: str) -> HostMemory:
        size = parse_bytes(text)
        if 0 < size < LEAST_HOST_MEMORY and text[-1].isdecimal():
            raise BadValue(text, f" is in MiB, less than a Python takes; did you mean {text}G?")
        return HostMemory(per, size)

    return parse


def gpu_type(text: str) -> str:
    """Parse a part of a GPU model's name. Raises BadValue."""
    if not _WORD.fullmatch(text):
        raise BadValue(text, " is not a GPU type (use part of one model's name, such as a100)")
    return text


def constraint(text: str) -> str:
    """Parse an expression of features. Raises BadValue."""
    alternatives(text)
    return text


def exclusive(text: str) -> str:
    """Parse how the host is shared. Raises BadValue."""
    if text not in ("yes", "user", "mcs", "topo"):
        raise BadValue(text, " is not a way to share (use --exclusive, or --exclusive=user)")
    return text


def tres_per_task(text: str) -> tuple[tuple[str, str], ...]:
    """Parse cpu=N and gres/gpu[:type]=N into options and their values. Raises BadValue."""
    options = []
    for part in text.split(","):
        match = re.fullmatch(r"(cpu|gres/gpu)[=:](?:([A-Za-z][^=:,]*)[=:])?([0-9]{1,6})", part)
        if not match or (match[1] == "cpu" and match[2]):
            raise BadValue(text, ": give cpu=N, gres/gpu=N or gres/gpu:TYPE=N, such as cpu=2,gres/gpu=1")
        gpu_type = f"{match[2]}:" if match[2] else ""
        options.append(("cpus-per-task" if match[1] == "cpu" else "gpus-per-task", gpu_type + match[3]))
    return tuple(options)


def gpu_bind(text: str) -> str:
    """Parse how the tasks of steps are bound to GPUs. Raises BadValue."""
    binding = (
        r"none|closest|single:[1-9]\d{0,3}|per_task:[1-9]\d{0,3}|map_gpu:[\d,*]+|mask_gpu:[0-9a-fA-Fx,*]+"
    )
    if not re.fullmatch(rf"(?:(?:verbose|v|quiet|q),)*(?:{binding})", text):
        kinds = "none, closest, single:N, per_task:N, map_gpu:LIST or mask_gpu:LIST"
        raise BadValue(text, f" is not a binding of GPUs: give {kinds}")
    return text


def name(text: str) -> str:
    """Parse a job name. Raises BadValue if it is empty or too long."""
    if not text:
        raise BadValue(text, " is not a name")
    if len(text) > _LONGEST_NAME:
        raise BadValue(text, f" is {len(text)} characters; limit {_LONGEST_NAME}")
    return text


def tier(text: str) -> str:
    """Parse an enforcement level. Raises BadValue."""
    if text not in TIERS:
        raise BadValue(text, f": give {', '.join(TIERS[:-1])} or {TIERS[-1]}")
    return text


def gpu_compute(text: str) -> str:
    """Parse a compute-sharing policy. Raises BadValue."""
    if text not in GPU_COMPUTE:
        raise BadValue(text, ": give hard, fair or none")
    return text


def partition(text: str) -> str:
    """Parse a list of partition names. Raises BadValue."""
    if not all(_WORD.fullmatch(name) for name in text.split(",")):
        raise BadValue(text, ": invalid partition name")
    return text


def label(text: str) -> str:
    """Parse the name of an account or QOS. Raises BadValue."""
    if not _ACCOUNT.fullmatch(text):
        raise BadValue(text, " is not a name")
    return text


def tag(text: str) -> str:
    """Parse a tag for the accounts. Raises BadValue."""
    if not 0 < len(text) <= 64 or not text.isprintable():
        raise BadValue(text, " is not a tag of at most 64 characters")
    return text


def reservation(text: str) -> str:
    """Parse the name of a reservation. Raises BadValue."""
    if not 0 < len(text) <= 64 or not text.isprintable() or "," in text:
        raise BadValue(text, " is not the name of a reservation")
    return text


def nice(text: str) -> int:
    """Parse a nice value. Raises BadValue."""
    if not re.fullmatch(r"-?[0-9]{1,10}", text) or abs(int(text)) > NICEST:
        raise BadValue(text, f" is not a number up to {NICEST}")
    return int(text)


def path(text: str) -> str:
    """Parse a path. Raises BadValue if it is empty, too long, or has control characters."""
    if not text:
        raise BadValue(text, " is not a path")
    if len(text.encode("utf-8", "surrogateescape")) > _LONGEST_PATH:
        raise BadValue(text, f" is longer than {_LONGEST_PATH} bytes")
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in text):
        raise BadValue(text, ": control characters are not allowed in a file name")
    return text


def pattern(text: str) -> str:
    """Parse a file name with % patterns. Raises BadValue for an unknown pattern."""
    if items := unknown(path(text)):
        named = " ".join(item if item.isprintable() else ascii(item)[1:-1] for item in items)
        raise BadValue(text, f": unknown {named}; allowed {ALLOWED}")
    return text


def image(text: str) -> str:
    """Parse a container image: a path, or a reference to a registry. Raises BadValue."""
    return parse_image(path(text))


def mounts(text: str) -> str:
    """Parse the mounts of a container; return them unchanged. Raises BadValue."""
    parse_mounts(text)
    return text


def container_directory(text: str) -> str:
    """Parse an absolute directory of a container. Raises BadValue."""
    if not path(text).startswith("/"):
        raise BadValue(text, " is not absolute")
    return text


def open_mode(text: str) -> str:
    """Parse append or truncate. Raises BadValue."""
    if text not in ("append", "truncate", "a", "t"):
        raise BadValue(text, " is not append or truncate")
    return "append" if text[0] == "a" else "truncate"


def comment(text: str) -> str:
    """Parse a comment. Raises BadValue if it is too long."""
    if len(text) > _LONGEST_COMMENT:
        raise BadValue(text, f" is {len(text)} characters; limit {_LONGEST_COMMENT}")
    return text


def anything(text: str) -> str:
    """Accept any text."""
    return text


def command(text: str) -> str:
    """Parse a shell command line. Raises BadValue if it is blank."""
    if not text.strip():
        raise BadValue(text, " is not a command")
    return text


def count(text: str) -> int:
    """Parse a positive whole number. Raises BadValue."""
    return parse_count(text)


def array(text: str) -> tuple[str, int]:
    """Parse an array; return (canonical indices, maximum of running tasks). Raises BadValue."""
    return parse_array(text)


def dependency(text: str) -> str:
    """Parse a dependency list into its canonical form. Raises BadValue."""
    return str(parse_dependency(text))


def yes_or_no(text: str) -> str:
    """Parse yes or no. Raises BadValue."""
    if text not in ("yes", "no"):
        raise BadValue(text, " is not yes or no")
    return text


def moment(text: str) -> str:
    """Check a time, which is read in the time zone of the submitter later. Raises BadValue."""
    find_time(text, time.time())
    return text


def begin(text: str) -> int:
    """Parse an earliest start into epoch seconds; 0 for a time in the past. Raises BadValue."""
    now = time.time()
    epoch = parse_time(text, now)
    return math.ceil(epoch) if epoch > now else 0


def deadline(text: str) -> int:
    """Parse a deadline into epoch seconds. Raises BadValue if it has passed."""
    now = time.time()
    epoch = parse_time(text, now)
    if epoch <= now:
        raise BadValue(text, " has passed")
    return int(epoch)


def nodes(text: str) -> int:
    """Parse a number or range of nodes, of which the host is one. Raises BadValue if one is not enough."""
    least, _, most = text.partition("-")
    if not re.fullmatch(r"[0-9]{1,9}", least) or not re.fullmatch(r"[0-9]{0,9}", most):
        raise BadValue(text, " is not a number of nodes")
    if int(least) != 1 or (most and int(most) < 1):
        raise BadValue(
            text, ": fgsched schedules one host; remove it, or ask for more tasks and CPUs of this host"
        )
    return 1


def early_signal(text: str) -> EarlySignal:
    """Parse [B:|C:]SIG[@SEC]; SEC is in seconds before the time limit. Raises BadValue.

    B: sends the signal to the shell only, C: to its children only.
    """
    target, colon, signal_text = text.rpartition(":")
    targets = {"": "all", "B": "shell", "C": "children"}
    named, at, before = signal_text.partition("@")
    if target not in targets or (colon and not target):
        raise BadValue(text, f": {quoted(target + ':')} is not B: (the shell only) or C: (its children only)")
    if at and (not re.fullmatch(r"[0-9]{1,6}", before) or int(before) > _LATEST_SIGNAL):
        raise BadValue(text, f": seconds before the limit are 0 to {_LATEST_SIGNAL}")
    try:
        number = parse_signal(named)
    except BadValue as error:
        raise BadValue(text, error.why) from None
    return EarlySignal(signal=number, before=int(before) if at else 60, target=targets[target])


# -- options ---------------------------------------------------------------------------------------


Value = TypeVar("Value")


class JobOption(Struct, Generic[Value], frozen=True, kw_only=True):
    """One option of a submission: a row of the table of all options, with the parser of its value.

    Options with the same `slot` set the same value; the later source wins.
    """

    name: str  # long, without dashes
    slot: str
    parse: Callable[[str], Value]
    field: str = ""  # of the request, which takes the value; "": the value becomes part of several or of none
    is_flag: bool = False
    variable: str = ""  # of the environment; "": none
    in_scripts: bool = True
    hidden: bool = False  # documented in the manual, not in --help
    bare: str = ""  # its value if it is given without one
    of_call: bool = False  # concerns the whole call, not one job: not in a line of a batch
    commands: Collection[str] = ()  # fgsub, fgrun

    def of(self, value: Value) -> "JobOption[Value]":
        """Return the option for this value: --gres without a GPU uses its own slot."""
        of_others = isinstance(value, Amount) and value.unit == "none"
        return replace(self, slot="gres") if of_others else self


AnyOption = JobOption[Any]
_ROWS = {row.name: row for row in rows_of("fgsub", "fgrun")}


def _option(name: str, parse: Callable[[str], Value]) -> JobOption[Value]:
    """Return the option of a row, with the parser of its value."""
    row = _ROWS[name]
    slot = row.slot or name
    field = row.sets or slot.replace("-", "_")
    return JobOption(
        name=name,
        slot=slot,
        parse=parse,
        field=field if field in Request.__struct_fields__ else "",
        is_flag=row.kind == FLAG,
        variable=next(iter(row.variables("FGSUB")), ""),
        in_scripts=row.in_scripts,
        hidden=row.hidden,
        bare=row.bare,
        of_call=row.of_call,
        commands=row.helps.keys(),
    )


def licenses(text: str) -> tuple[tuple[str, int], ...]:
    """Parse a list of NAME[:N], which are resources of the site. Raises BadValue."""
    resources: dict[str, int] = {}
    for part in re.split("[,;|]", text):
        name, _, amount = part.replace("=", ":").partition(":")
        if not _RESOURCE.fullmatch(name) or not re.fullmatch("[0-9]{0,5}", amount) or name in resources:
            raise BadValue(text, ": invalid license specification (NAME:N)")
        resources[name] = int(amount or 1)
    return tuple(item for item in resources.items() if item[1])


# Options whose values the code asks for by name
GPUS = _option("gpus", gpus)
GPU_MEM = _option("gpu-mem", gpu_memory)
GRES = _option("gres", gres)
LICENSES = _option("licenses", licenses)
GPU_TYPE = _option("gpu-type", gpu_type)
CPUS_PER_TASK = _option("cpus-per-task", count)
MEM = _option("mem", host_memory("job"))
TIME = _option("time", parse_duration)
OPEN_MODE = _option("open-mode", open_mode)
MKDIR = _option("mkdir", flag)
CONTAINER = _option("container", image)
SIGNAL = _option("signal", early_signal)
HOLD = _option("hold", flag)
WAIT = _option("wait", flag)
PARSABLE = _option("parsable", flag)
QUIET = _option("quiet", flag)
JSON = _option("json", flag)
TEST_ONLY = _option("test-only", flag)
EXPLAIN = _option("explain-options", flag)
NTASKS = _option("ntasks", count)
NTASKS_PER_NODE = _option("ntasks-per-node", count)
NTASKS_PER_GPU = _option("ntasks-per-gpu", count)
CPUS_PER_GPU = _option("cpus-per-gpu", count)
MINCPUS = _option("mincpus", count)
_NAMED = (GPUS, GPU_MEM, GRES, LICENSES, GPU_TYPE, CPUS_PER_TASK, MEM, TIME, OPEN_MODE, MKDIR, CONTAINER,
          SIGNAL, HOLD, WAIT, PARSABLE, QUIET, JSON, TEST_ONLY, EXPLAIN, NTASKS, NTASKS_PER_NODE,
          NTASKS_PER_GPU, CPUS_PER_GPU, MINCPUS)  # fmt: skip
# The parsers of all other options that are no flags; of a flag they say what it sets
_PARSERS: dict[str, Callable[[str], Any]] = {
    "fgpu": fgpu, "gpus-per-node": gpus, "gpus-per-task": gpus, "type": gpu_type, "constraint": constraint,
    "tres-per-task": tres_per_task, "gpu-bind": gpu_bind,
    "exclusive": exclusive, "mem-per-cpu": host_memory("cpu"), "mem-per-gpu": host_memory("gpu"),
    "job-name": name, "output": pattern, "error": pattern, "input": pattern, "chdir": path,
    "export": anything, "container-image": image, "container-mounts": mounts,
    "container-workdir": container_directory, "partition": partition, "account": label, "qos": label,
    "wckey": tag, "reservation": reservation, "array": array, "dependency": dependency,
    "kill-on-invalid-dep": yes_or_no, "begin": moment, "deadline": moment, "no-requeue": no, "tier": tier,
    "gpu-compute": gpu_compute, "comment": comment, "mail-type": parse_mail_types,
    "mail-user": usable_addresses, "wrap": command, "batch": path, "no-slurm-env": no,
    "tasks-per-node": count, "nodes": nodes, "jobid": count, "nice": nice,
}  # fmt: skip
_BY_ROW = {option.name: option for option in _NAMED}
_ALL = [_BY_ROW.get(name) or _option(name, _PARSERS.get(name, flag)) for name in _ROWS]
OPTIONS: tuple[AnyOption, ...] = tuple(option for option in _ALL if "fgsub" in option.commands)
FOREGROUND: dict[str, AnyOption] = {  # that only fgrun has
    option.name: option for option in _ALL if "fgsub" not in option.commands
}

OTHER_GRES = replace(GRES, slot="gres")  # --gres without a GPU
IGNORED: AnyOption = JobOption(
    name="ignored", slot="ignored", parse=anything, hidden=True, commands=("fgsub", "fgrun")
)

# Slurm's options that fgsched does not have
_UNBUILT = [row for row in rows_of("sbatch") if not row.helps]
HARMLESS = frozenset(row.name for row in _UNBUILT if row.is_harmless)  # a script works without them
UNBUILT = frozenset(row.name for row in _UNBUILT)
BY_NAME: dict[str, AnyOption] = {option.name: option for option in OPTIONS}
BY_VARIABLE: dict[str, AnyOption] = {option.variable: option for option in OPTIONS if option.variable}
# The input variables of sbatch, and the options that they set. Slurm's other SBATCH_ variables are no input.
BY_SLURM_VARIABLE: dict[str, str] = {
    "SLURM_CLUSTERS": "clusters",
    "SLURM_HINT": "hint",
    **{variable: row.name for row in rows_of("fgsub", "sbatch") for variable in row.variables("SBATCH")},
}
MEANT = {  # what users of other schedulers write, and what has that meaning here
    **dict.fromkeys(("queue", "pool"), "--partition=NAME"),
    **dict.fromkeys(("cpus", "cpu", "cores", "num-cpus", "ncpus"), "--cpus-per-task=N"),
    **dict.fromkeys(("timelimit", "time-limit", "walltime", "max-time", "timeout"), "--time=LIMIT"),
    **dict.fromkeys(("workdir", "cwd", "work-dir", "directory"), "--chdir=DIR"),
    **dict.fromkeys(("vram", "gpu-memory", "gpumem", "gpu-ram"), "--gpu-mem=SIZE"),
    **dict.fromkeys(("share", "fraction", "gpu-share", "gpu-fraction", "num-gpus", "ngpus"), "--gpus=0.5"),
    **dict.fromkeys(("memory", "ram"), "--mem=SIZE"),
    **dict.fromkeys(("dry-run", "dryrun", "check"), "--test-only"),
    **dict.fromkeys(("name", "jobname"), "--job-name=NAME"),
    **dict.fromkeys(("log", "stdout"), "--output=FILE"),
    **dict.fromkeys(("stderr",), "--error=FILE"),
    **dict.fromkeys(("after", "depends", "depends-on"), "--dependency=afterok:JOB"),
    **dict.fromkeys(("env", "environment"), "--export=ALL,NAME=VALUE"),
    **dict.fromkeys(("command", "cmd", "exec"), "--wrap=COMMAND"),
    **dict.fromkeys(("gpu-model", "model", "gputype"), "--gpu-type=TYPE"),
}
_NEVER = {*MEANT, *"abcdefghijklmnopqrstuvwxyz"}  # a letter behind two hyphens is a slip
KNOWN = known_of("fgsub", "sbatch", never=_NEVER, by_slot=True)
KNOWN_IN_FOREGROUND = known_of("fgrun", "fgsub", "sbatch", never=_NEVER, by_slot=True)
ASKS_FOR_HELP = {"help": "help", "h": "help", "usage": "help", "version": "version", "V": "version"}
