"""One call of srun, as data: its tasks, their programs and CPUs, and the variables as Slurm sets them."""

import os
import shlex
from collections.abc import Mapping, Sequence

from msgspec import Struct

from fgsched.domain.text import word_list
from fgsched.gpus import vendors
from fgsched.lifecycle.jobvariables import translated

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


class SrunStep(Struct, frozen=True, kw_only=True):
    """One call of srun."""

    command: tuple[str, ...]
    programs: tuple[tuple[str, ...], ...] = ()  # of each task, with --multi-prog
    tasks: int = 1
    cpus: int = 1  # of each task
    has_cpus: bool = False  # an option or the job said how many
    gpus: int = 0  # of the step; 0: all GPUs of the job
    gpus_each: int = 0  # of each task; 0: each has those of the step
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


def _numbers(words: list[str], base: int, text: str) -> list[int]:
    """Return the numbers of a list; 2*3 means 2,2,2. Raises StepRefused."""
    limit = _MOST if base == 10 else 1 << _MOST
    numbers = []
    for word in words:
        one, star, count = word.partition("*")
        try:
            number, times = int(one, base), int(count) if star else 1
        except ValueError:
            raise _refusal(text) from None
        if not (0 <= number < limit and 0 < times <= _MOST and (number or base == 10)):
            raise _refusal(text)
        numbers += [number] * times
    return numbers


def _for_tasks(masks: list[int], tasks: int) -> tuple[int, ...]:
    """Return a mask for each task; a short list begins again."""
    return tuple(masks[task % len(masks)] for task in range(tasks))


def _refusal(text: str) -> StepRefused:
    return StepRefused(f"srun: error: Invalid --cpu-bind argument: {text}", 1)


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
    return _exported(step.export, environ) | {
        **{twin: environ[name] for name, twins in _OF_JOB.items() if name in environ for twin in twins},
        **dict.fromkeys(("SLURM_STEP_ID", "SLURM_STEPID"), str(number)),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), tasks),
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), tasks),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"), "1"),
        **dict.fromkeys(("SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST"), "127.0.0.1"),
        "SLURM_NODEID": "0",
        "SLURM_GTIDS": ",".join(map(str, range(step.tasks))),
        **({"SLURM_CPUS_PER_TASK": str(step.cpus)} if step.has_cpus else {}),
        "SLURM_STEP_NAME": step.name,
        "SLURM_CLUSTER_NAME": "fgsched",
        **(_of_gpus(",".join(gpus), environ) if gpus else {}),
    }


def _of_gpus(words: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the GPUs of a step: the words that select them, and the indices on the host."""
    selection = vendors.of_job(environ).facts.selection
    return {selection: words, "SLURM_STEP_GPUS": translated(words, environ, "FG_JOB_GPUS")}


def of_task(base: Mapping[str, str], task: int) -> dict[str, str]:
    """Return the variables of one task."""
    return {**base, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)}


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
