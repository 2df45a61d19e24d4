"""One call of srun, as data: its tasks, their programs and CPUs, and the variables as Slurm sets them."""

import os
import shlex
from collections.abc import Mapping, Sequence

from msgspec import Struct

from fgsched.domain.text import word_list
from fgsched.gpus import vendors
from fgsched.lifecycle.jobvariables import translated
from fgsched.system.process import umask

_AUTOMATIC = word_list(
    """none no rank rank_ldom sockets cores threads ldoms boards ldom core socket thread board"""
)
_OF_JOB = {  # ours -> Slurm's, for the scripts without SLURM_ variables
    "FG_JOB_ID": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "FG_JOB_NAME": ("SLURM_JOB_NAME",),
    "FG_JOB_PARTITION": ("SLURM_JOB_PARTITION",),
    "FG_JOB_USER": ("SLURM_JOB_USER",),
    "FG_SUBMIT_DIR": ("SLURM_SUBMIT_DIR",),
    "FG_SUBMIT_HOST": ("SLURM_SUBMIT_HOST",),
    "FG_JOB_NODELIST": ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST", "SLURMD_NODENAME"),
    "FG_CPUS_ON_NODE": ("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"),
    "FG_ARRAY_JOB_ID": ("SLURM_ARRAY_JOB_ID",),
    "FG_ARRAY_TASK_ID": ("SLURM_ARRAY_TASK_ID",),
}


class StepRefused(Exception):
    """Raised for a step that cannot run: the text for standard error, and the exit status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.text, self.status = text, status


class TaskBinding(Struct, frozen=True):
    """The CPUs to which tasks are bound by --cpu-bind."""

    text: str = ""  # the option without its verbosity; "": not given
    masks: tuple[int, ...] = ()  # of the CPUs of each task; (): tasks are not bound
    verbose: bool = False


class GpuBinding(Struct, frozen=True):
    """The GPUs of a step that each task sees, by --gpu-bind or by an amount for each task."""

    text: str = ""  # as SLURM_TRES_BIND has it after "gres/gpu:"; "": not given
    kind: str = ""  # "single", "per_task", "map_gpu" or "mask_gpu"; "": every task sees all
    numbers: tuple[int, ...] = ()

    def positions(self, task: int, gpus: int) -> list[int]:
        """Return the positions of a task's GPUs among those of its step."""
        if not self.kind or not gpus:
            return list(range(gpus))
        number = self.numbers[task % len(self.numbers)]
        if self.kind == "map_gpu":
            return [number]
        if self.kind == "mask_gpu":
            return [gpu for gpu in range(gpus) if number >> gpu & 1]
        if self.kind == "single":
            return [task // number % gpus]
        return sorted({gpu % gpus for gpu in range(task * number, (task + 1) * number)})


class SrunStep(Struct, frozen=True, kw_only=True):
    """One call of srun."""

    command: tuple[str, ...]
    programs: tuple[tuple[str, ...], ...] = ()  # of each task, with --multi-prog
    tasks: int = 1
    cpus: int = 1  # of each task
    has_cpus: bool = False  # an option or the job said how many
    gpus: int | None = None  # of the step; None: all GPUs of the job
    gpu_binding: GpuBinding = GpuBinding()
    has_tasks: bool = False  # an option or the job said how many
    is_exact: bool = False  # has only the CPUs of its tasks
    distribution: str = ""  # "": that of Slurm
    gpus_each: int = 0  # of each task, if an option or the job said so
    variables: Mapping[str, str] = {}  # of its options
    overlaps: bool = False  # shares CPUs and GPUs with other steps
    label: bool = False
    output: str = ""  # pattern; "": that of srun
    error: str = ""
    input: str = ""  # "": to all tasks; "none"; a task's number; or a pattern
    append: bool = False
    directory: str = ""
    export: str = "ALL"
    kill_on_bad_exit: bool = False
    wait: int = 0  # seconds that the other tasks have after the first ended; 0: any
    patience: int = 0  # seconds that it may wait for CPUs and GPUs; 0: any
    binding: TaskBinding = TaskBinding()
    quiet: bool = False
    terminal: bool = False
    name: str = ""
    enters: tuple[str, ...] = ()  # words before the program, which enter a container

    def binds_within(self, gpus: int) -> bool:
        """Tell whether --gpu-bind names only positions that a step with so many GPUs has."""
        binding = self.gpu_binding
        if binding.kind not in ("map_gpu", "mask_gpu"):
            return True
        return all(number < (gpus if binding.kind == "map_gpu" else 1 << gpus) for number in binding.numbers)

    def program(self, task: int) -> tuple[str, ...]:
        """Return the words of a task's program."""
        return self.enters + (self.programs[task] if self.programs else self.command)


_VERBOSE, _QUIET = ("v", "verbose"), ("q", "quiet")
_MOST = 8192  # CPUs


def read_binding(text: str, tasks: int) -> TaskBinding:
    """Return the binding that an option asks for, such as 'verbose,map_cpu:0,2'. Raises StepRefused."""
    words, is_verbose = text.split(","), False
    while words and words[0].lower() in ("", *_VERBOSE, *_QUIET):
        is_verbose = words.pop(0).lower() in _VERBOSE
    kind, colon, first = words[0].partition(":") if words else ("", "", "")
    kind, type_text, listed = kind.lower(), ",".join(words), [first, *words[1:]]
    if kind == "map_cpu" and colon:
        return TaskBinding(
            type_text, _for_tasks([1 << cpu for cpu in _numbers(listed, 10, text)], tasks), is_verbose
        )
    if kind == "mask_cpu" and colon:
        return TaskBinding(type_text, _for_tasks(_numbers(listed, 16, text), tasks), is_verbose)
    if kind in ("map_ldom", "mask_ldom") or all(word.lower() in _AUTOMATIC for word in words):
        return TaskBinding(type_text, (), is_verbose)
    raise _refusal(text)


def _numbers(words: list[str], base: int, text: str, option: str = "--cpu-bind") -> list[int]:
    """Return the numbers of a list; 2*3 means 2,2,2. Raises StepRefused."""
    limit = _MOST if base == 10 else 1 << _MOST
    numbers = []
    for word in words:
        one, star, count = word.partition("*")
        try:
            number, times = int(one, base), int(count) if star else 1
        except ValueError:
            raise _refusal(text, option) from None
        if not (0 <= number < limit and 0 < times <= _MOST and (number or base == 10)):
            raise _refusal(text, option)
        numbers += [number] * times
    return numbers


def _for_tasks(masks: list[int], tasks: int) -> tuple[int, ...]:
    """Return a mask for each task; a short list begins again."""
    return tuple(masks[task % len(masks)] for task in range(tasks))


def _refusal(text: str, option: str = "--cpu-bind") -> StepRefused:
    return StepRefused(f"srun: error: Invalid {option} argument: {text}", 1)


def read_gpu_binding(text: str) -> GpuBinding:
    """Return the binding of a value of --gpu-bind, such as 'verbose,map_gpu:0,1'. Raises StepRefused."""
    words = text.split(",")
    while words and words[0].lower() in ("", *_VERBOSE, *_QUIET):
        words.pop(0)
    kind, _, first = ",".join(words).partition(":")
    if kind in ("", "none", "closest") and not first:
        return GpuBinding(kind)
    if kind not in ("single", "per_task", "map_gpu", "mask_gpu"):
        raise _refusal(text, "--gpu-bind")
    numbers = _numbers(first.split(","), 16 if kind == "mask_gpu" else 10, text, "--gpu-bind")
    if kind in ("single", "per_task") and (len(numbers) != 1 or not numbers[0]):
        raise _refusal(text, "--gpu-bind")
    return GpuBinding(f"{kind}:{first}", kind, tuple(numbers))


def read_programs(command: Sequence[str], tasks: int) -> tuple[tuple[str, ...], ...]:
    """Return the words of each task's program, with %t and %o replaced. Raises StepRefused.

    Args:
        command: the path of the file, and arguments for every program.
        tasks: number of tasks; '*' in the file means the tasks that no other line names.
    """
    path, *more = command
    try:
        with open(path) as file:
            lines = file.read().replace("\\\n", " ").splitlines()
    except OSError as error:
        raise StepRefused(
            f"srun: error: Unable to open configuration file {path}: {error.strerror}", 1
        ) from None
    found: dict[int, tuple[str, ...]] = {}
    others: dict[int, tuple[str, ...]] = {}  # of '*'
    for line in lines:
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:  # a quote that is not closed
            raise StepRefused(f"srun: error: Configuration file {path} invalid: {error}", 1) from None
        if not words:
            continue
        ranks = _ranks(words[0], tasks)
        for offset, task in enumerate(ranks):
            values = {"%t": str(task), "%o": str(offset)}
            programs = others if words[0] == "*" else found
            programs[task] = tuple(_replaced(word, values) for word in words[1:])
    found = {**others, **found}
    missing = [task for task in range(tasks) if not found.get(task)]
    if missing:
        raise StepRefused(
            f"srun: error: Configuration file {path} invalid: no record for task id {missing[0]}", 1
        )
    return tuple((*found[task], *more) for task in range(tasks))


def _ranks(text: str, tasks: int) -> list[int]:
    if text == "*":
        return list(range(tasks))
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise StepRefused(f"srun: error: Configuration file invalid task specification: {text}", 1)
        ranks += range(int(first), int(last or first) + 1)
    return ranks


def _replaced(word: str, values: dict[str, str]) -> str:
    for letter, value in values.items():
        word = word.replace(letter, value)
    return word


def of_step(step: SrunStep, environ: Mapping[str, str], number: int, gpus: list[str]) -> dict[str, str]:
    """Return the variables that all tasks of a step have."""
    tasks = str(step.tasks)
    exported = _exported(step.export, environ)
    for name in _OF_OTHER_STEPS:
        exported.pop(name, None)
    return exported | {
        **{twin: environ[name] for name, twins in _OF_JOB.items() if name in environ for twin in twins},
        **dict.fromkeys(("SLURM_STEP_ID", "SLURM_STEPID"), str(number)),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), tasks),
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), tasks),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"), "1"),
        **dict.fromkeys(("SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST"), "127.0.0.1"),
        "SLURM_NODEID": "0",
        "SLURM_GTIDS": ",".join(map(str, range(step.tasks))),
        "SLURM_DISTRIBUTION": step.distribution or _usual_distribution(step),
        "SLURM_OOM_KILL_STEP": "0",
        "SLURM_UMASK": f"{umask():04o}",
        "SLURM_CLUSTER_NAME": "fgsched",
        **step.variables,
        **_of_binding(step.binding),
        **_of_cpus(step),
        **_of_gpus(gpus, environ),
        **_of_tres(step),
    }


_OF_OTHER_STEPS = ("SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "SLURM_TRES_PER_TASK", "SLURM_TRES_BIND")


_OF_OPTIONS = {  # srun's output variables, each set if its option was given
    **{
        name: f"SLURM_{name.upper().replace('-', '_')}"
        for name in (
            "job-name",
            "gpus",
            "gpus-per-node",
            "ntasks-per-node",
            "ntasks-per-core",
            "ntasks-per-socket",
            "threads-per-core",
            "overcommit",
        )
    },
    "tasks-per-node": "SLURM_NTASKS_PER_NODE",
    "ntasks-per-gpu": "SLURM_NTASKS_PER_TRES",
    "label": "SLURM_LABELIO",
}


def by_option(options: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Slurm gives the tasks of a step for the options that were used."""
    return {_OF_OPTIONS[name]: text or "1" for name, text in options.items() if name in _OF_OPTIONS}


_PLURAL = {
    "no": "none",
    **{unit: f"{unit}s" for unit in ("socket", "core", "thread", "ldom", "board")},
}


def _of_binding(binding: TaskBinding) -> dict[str, str]:
    """Return the variables of --cpu-bind; there are none of words that Slurm ignores."""
    kind, colon, listed = binding.text.partition(":")
    kind = _PLURAL.get(kind, kind)
    if not kind or kind.startswith("rank"):
        return {}
    masks = [f"{int(word, 16):X}" for word in listed.split(",")] if kind == "mask_cpu" else []
    listed = ",".join(masks) or listed
    verbosity = "verbose" if binding.verbose else "quiet"
    return {
        "SLURM_CPU_BIND": f"{verbosity},{kind}{colon}{listed}",
        "SLURM_CPU_BIND_VERBOSE": verbosity,
        "SLURM_CPU_BIND_TYPE": f"{kind}{colon}",
        "SLURM_CPU_BIND_LIST": listed,
    }


def _usual_distribution(step: SrunStep) -> str:
    """Return what Slurm names if no option does: one task is dealt out, several fill the node."""
    return "cyclic" if step.tasks == 1 and (step.has_tasks or not step.has_cpus) else "block"


def _of_cpus(step: SrunStep) -> dict[str, str]:
    """Return the variables of the CPUs; without a number for each task the step can use those of the job."""
    each = {"SLURM_CPUS_PER_TASK": str(step.cpus)} if step.has_cpus else {}
    is_exact = step.has_cpus or step.is_exact
    return each | ({"SLURM_CPUS_ON_NODE": str(step.tasks * step.cpus)} if is_exact else {})


def _of_tres(step: SrunStep) -> dict[str, str]:
    """Return the variables of what each task has, which a step inside this one inherits."""
    binding = step.gpu_binding
    each = [f"cpu={step.cpus}"] if step.has_cpus else []
    each += [f"gres/gpu={step.gpus_each}"] if step.gpus_each else []
    bound = dict.fromkeys(("SLURM_TRES_BIND", "SLURMD_TRES_BIND"), f"gres/gpu:{binding.text}")
    return ({"SLURM_TRES_PER_TASK": ",".join(each)} if each else {}) | (bound if binding.text else {})


def _of_gpus(gpus: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the GPUs of a step: the words that select them, and the indices on the host."""
    selection = vendors.of_job(environ).facts.selection
    words = ",".join(gpus)
    if not gpus:
        return {selection: ""}
    indices = translated(words, environ, "FG_JOB_GPUS")
    return {selection: words, "SLURM_STEP_GPUS": indices, "SLURM_GPUS_ON_NODE": str(len(gpus))}


def of_task(step: SrunStep, base: Mapping[str, str], task: int, gpus: Sequence[str]) -> dict[str, str]:
    """Return the variables of one task of a step with these GPUs."""
    variables = {**base, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)}
    if step.gpu_binding.kind and gpus:
        bound = [gpus[gpu] for gpu in step.gpu_binding.positions(task, len(gpus)) if gpu < len(gpus)]
        words = ",".join(bound)
        variables[vendors.of_job(base).facts.selection] = words
        variables["SLURM_STEP_GPUS"] = translated(words, base, "FG_JOB_GPUS")
    return variables


def _exported(text: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that --export selects: ALL, NONE, or names and NAME=value."""
    words = [word for word in text.split(",") if word]
    exported = dict(environ)
    if "ALL" not in words:
        of_gpus = vendors.of_job(environ).facts.prefix or "FG_"
        own_prefixes = ("FG_", "SLURM_", of_gpus, "LD_PRELOAD", "TMPDIR", "PATH", "HOME", "USER")
        exported = {
            name: value for name, value in environ.items() if name.startswith(own_prefixes) or name in words
        }
    assignments = dict(word.split("=", 1) for word in words if "=" in word)
    return exported | {name: os.path.expandvars(value) for name, value in assignments.items()}
