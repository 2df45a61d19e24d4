"""Run the equivalent of a Slurm command, with Slurm's name in its messages.

`python -m fgsched.slurm.names squeue -u ann`
"""

import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, NoReturn

from fgsched.cli.command import Command, Operand, OwnCommand, leave
from fgsched.cli.install.slurmnames import NAMES
from fgsched.domain.errors import Exit, FgschedError
from fgsched.domain.text import clean
from fgsched.slurm import scontrol
from fgsched.slurm.getopt import BadLine, in_slurms_words, parse, with_variables
from fgsched.slurm.step import StepRefused
from fgsched.views import documents
from fgsched.views.display import SLURM_VERSION

_WHOLE = ("-f", "--full", "-b", "--batch")


def arguments(name: str, words: Sequence[str]) -> list[str]:
    """Return the arguments for the command of fgsched; it knows by which name it is called."""
    if name == "scontrol":
        return scontrol.arguments(words)
    if name == "sattach":  # JOB.STEP: fgsched attaches to the job
        return _attached(words)
    if name in ("squeue", "sacct"):
        words = [_document_word(word) for word in words]
    if name == "sacct":
        return ["--steps", *words]
    if name == "scancel" and not any(word in _WHOLE or word.startswith("-b") for word in words):
        return ["--children", *words]  # a signal is for the steps; a cancel ignores this
    return list(words)


_DOCUMENT = re.compile(r"--(json|yaml)(?:=(.*))?", re.DOTALL)
_WITH_DOCUMENTS = ("squeue", "sacct", "sinfo", "scontrol")
_NO_PARSER = "Plugin has invalid format or unable to be loaded"


def _document_word(word: str) -> str:
    """Return the option of fgq and fgacct for a document of Slurm; other words stay."""
    match = _DOCUMENT.fullmatch(word)
    return f"--slurm-json={match[1]}:{match[2] or ''}" if match else word


def _has_answered_parsers(name: str, words: Sequence[str]) -> bool:
    """Print the data parsers if a line asks for them. Raises BadLine for one that Slurm does not have."""
    if name not in _WITH_DOCUMENTS:
        return False
    for match in filter(None, map(_DOCUMENT.fullmatch, words)):
        if match[2] == "list":
            print("Possible data_parser plugins:", file=sys.stderr)
            scontrol.write(documents.PARSERS)
            return True
        if documents.slurm_form(match[1], match[2]) is None:
            parser = match[2].removeprefix("data_parser/")
            raise BadLine(
                f"error: load_plugins: unable to find plugin: data_parser/{clean(parser)}\n"
                f"{name}: error: data_parser_g_new: failure loading plugins: {_NO_PARSER}\n"
                f"{name}: error: application/{match[1]} output not supported by"
                f" data_parser/v0.0.{documents.SlurmForm().version}"
            )
    return False


def status_of(name: str, code: int) -> int:
    """Convert an exit status of fgsched to Slurm's: 1, and 255 for a bad option of sbatch."""
    if code == Exit.USAGE:
        return 255 if name == "sbatch" else 1
    refused = (Exit.NO_SUCH_JOB, Exit.NOT_PERMITTED, Exit.UNREACHABLE)
    return 1 if code in refused else code


# What Slurm's sbatch reads as a number or sends to the controller: such an error ends it with 1, not 255.
_BY_CONTROLLER = re.compile(
    r"--(gpus|gpus-per-\w+|gres|array|deadline|dependency|constraint|nodes|ntasks(-per-\w+)?|cpus-per-\w+)="
    r"|^cannot read |exclude each other|memory per GPU needs "
    r"|is empty$|is not a script: |ends with CR LF"
)


class _SlurmCommand:
    """Ends a command of fgsched in the words of Slurm."""

    def __init__(self, name: str, command: Command) -> None:
        self._name, self._fail = name, command.fail
        command.name = name

    def fail(self, cause: str, remedy: str, code: int) -> NoReturn:
        prefix, text = _words(self._name, cause, code)
        is_late = _BY_CONTROLLER.search(cause) and "unknown option" not in cause
        is_late = is_late and self._name == "sbatch" and code == Exit.USAGE
        status = 1 if is_late else status_of(self._name, code)
        if prefix is None:
            self._fail(text, remedy, status)
        print(f"{prefix}{text}", *([remedy] if remedy else []), sep="\n", file=sys.stderr)
        leave(status)


def _words(name: str, cause: str, code: int) -> tuple[str | None, str]:
    """Return the text before an error (None: the name of the command), and the error, as Slurm says it."""
    if name == "sbatch" and code == Exit.UNREACHABLE:  # fgsub says before it that the submission failed
        return None, "Unable to contact slurm controller (connect failure)"
    if name in ("squeue", "scontrol") and code == Exit.UNREACHABLE:
        return "slurm_load_jobs error: ", "Unable to contact slurm controller (connect failure)"
    return None, in_slurms_words(cause)


class SlurmName(NamedTuple):
    """A name of Slurm. Without `about` it takes the options of the command of fgsched in `NAMES`."""

    usage: str  # what follows it
    about: str = ""
    page: str = ""  # of the manual
    operands: tuple[Operand, ...] = ()
    is_answered: bool = False  # by the module of this name beside this one, in Slurm's layout


_ENTITIES = ("account", "user", "association", "qos", "cluster")
_REPORTS = ("Utilization", "AccountUtilizationByUser", "UserUtilizationByAccount", "TopUsage")
SLURM_NAMES = {
    "sacct": SlurmName("[OPTION]..."),
    "sacctmgr": SlurmName(
        "[OPTION]... show ENTITY [CONDITION]...",
        "Show accounts, users, associations and qualities of service.",
        "fgsched.toml",
        operands=(("show", "list"), _ENTITIES),
        is_answered=True,
    ),
    "salloc": SlurmName(
        "[OPTION]... [PROGRAM [ARGUMENT]...]",
        "Allocate resources, and run a program or a shell with them.",
        "fgrun",
    ),
    "sattach": SlurmName(
        "[OPTION]... JOB.STEP",
        "Follow a running job: its terminal, or its output files.",
        "fgctl",
        operands=("JOB",),
    ),
    "sbatch": SlurmName("[OPTION]... [SCRIPT [ARGUMENT]...]"),
    "scancel": SlurmName("[OPTION]... [JOB]..."),
    "scontrol": SlurmName("[OPTION]... COMMAND [ARGUMENT]..."),
    "seff": SlurmName(
        "[OPTION]... JOB",
        "Show how much of its request a job used.",
        "fgeff",
        operands=("JOB",),
        is_answered=True,
    ),
    "sinfo": SlurmName("[OPTION]...", "Show partitions and the host.", "fginfo", is_answered=True),
    "sprio": SlurmName("[OPTION]..."),
    "squeue": SlurmName("[OPTION]..."),
    "sreport": SlurmName(
        "[OPTION]... REPORT [CONDITION]...",
        "Sum the accounts of a period.",
        "fgreport",
        operands=(("cluster", "user"), _REPORTS),
        is_answered=True,
    ),
    "srun": SlurmName(
        "[OPTION]... PROGRAM [ARGUMENT]...",
        "Run a program as the tasks of a step; outside a job, as a job.",
        "fgrun",
    ),
    "sshare": SlurmName(
        "[OPTION]...", "Show shares and usage of accounts and users.", "fgshare", is_answered=True
    ),
    "sstat": SlurmName(
        "[OPTION]... JOB[.STEP]...",
        "Show the use of running jobs and steps.",
        "fgstat",
        operands=("JOB",),
        is_answered=True,
    ),
}


def usage_line(name: str) -> str:
    """Return the line that a name prints for --usage."""
    return f"Usage: {name} {SLURM_NAMES[name].usage}\n"


def command_of(name: str) -> Command:
    """Return the command that lists the options of a name, and completes them."""
    described = SLURM_NAMES[name]
    if not described.about:
        command: Command = getattr(import_module(f"fgsched.cli.{NAMES[name]}"), NAMES[name])
        return command
    return OwnCommand(
        name,
        about=described.about,
        usage=described.usage,
        page=described.page,
        operands=described.operands,
    )


_HARMLESS = ("pty", "quiet", "verbose")  # the terminal of the job is used if it has one


def _attached(words: Sequence[str]) -> list[str]:
    """Return the arguments of fgctl for steps or jobs. Raises BadLine for options about a step's tasks."""
    return ["attach", *_jobs(words)]


def _jobs(words: Sequence[str]) -> list[str]:
    """Return the jobs of the steps, or --help. Raises BadLine for options about a step's tasks."""
    settings, operands = parse("sattach", words, permute=True)
    for name in (name for name, _ in settings if name not in _HARMLESS):
        if name in ("help", "usage"):
            return ["--help"]
        raise BadLine(f"--{name} is not supported yet: fgsched attaches to a job, not to tasks of a step")
    return [word.partition(".")[0] for word in operands]


def main() -> None:
    """Run `fgsched.slurm.names NAME [ARGUMENT]…`."""
    name = sys.argv[1]  # _run replaces sys.argv
    try:
        _run()
    except BadLine as error:
        prefix = f"{name}: " if error.prefix is None else error.prefix
        print(f"{prefix}{error}", file=sys.stdout if error.is_output else sys.stderr)
        sys.exit(1)
    except StepRefused as error:
        print(error.text, file=sys.stderr)
        sys.exit(error.status)
    except BrokenPipeError:
        leave(128 + 13)
    except FgschedError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        leave(status_of(name, error.exit_code))


def _is_described(name: str, words: Sequence[str]) -> bool:
    """Print version, usage, options or completions if the line asks for them; otherwise return False."""
    if words[:1] in (["-V"], ["--version"]):
        scontrol.write(f"slurm-wlm {SLURM_VERSION}\n")
        return True
    if words[:1] not in (["--usage"], ["--help"]) and f"_{name.upper()}_COMPLETE" not in os.environ:
        return False
    if words[:1] == ["--usage"]:
        scontrol.write(usage_line(name))
    else:
        command_of(name).main(list(words), prog_name=name)
    return True


def _run() -> None:
    name, words = sys.argv[1], sys.argv[2:]
    if _is_described(name, words):
        return
    if _has_answered_parsers(name, words):
        return
    if name == "srun":
        from fgsched.slurm import srun

        sys.argv = ["srun", *words]
        srun.main()
        return
    if name == "salloc":
        from fgsched.slurm import outside

        sys.argv = ["salloc", *words]
        sys.exit(outside.salloc(words))
    if name == "scontrol" and (text := scontrol.answer(words, os.environ)) is not None:
        scontrol.write(text)
        return
    words = with_variables(name, words, os.environ)
    if name == "squeue" and any("s" in word for word in words if word.startswith("-")):
        from fgsched.slurm import runningsteps

        if runningsteps.is_asked(words):
            scontrol.write(runningsteps.listed(words))
            return
    if SLURM_NAMES[name].is_answered:
        scontrol.write(import_module(f"fgsched.slurm.{name}").answer(words))
        return
    command_name = NAMES[name]
    command: Command = getattr(import_module(f"fgsched.cli.{command_name}"), command_name)
    sys.argv = [name, *arguments(name, words)]
    command.fail = _SlurmCommand(name, command).fail  # type: ignore[method-assign]
    try:
        command.main(prog_name=name)
    except SystemExit as done:
        if name in ("sbatch", "sattach") or not isinstance(done.code, int):
            raise  # of sattach, and of sbatch with --wait, the status is that of the job
        sys.exit(status_of(name, done.code))


if __name__ == "__main__":
    main()
