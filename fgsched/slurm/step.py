"""One call of srun, as data."""

from msgspec import Struct


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
