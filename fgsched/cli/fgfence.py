"""fgfence: run a command with a part of a GPU, without a queue."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import click
import msgspec

from fgsched.cli.command import Command, options_of, run, write
from fgsched.client import find_paths
from fgsched.domain.errors import BadUsage, FgschedError, Refused
from fgsched.domain.job import FENCE_DIR, Demand, FenceReply, FenceRequest
from fgsched.domain.text import BadValue, lazy_regex, quoted
from fgsched.domain.units import split_units
from fgsched.submission import table

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # exit status, as of a shell
_GPUS = lazy_regex(r"(([0-9]{1,4}(-[0-9]{1,4})?|GPU-[0-9a-fA-F-]+)(,|$))+")
_Value = TypeVar("_Value")


def _list(text: str) -> str:
    """Parse a list of GPUs; the last comma makes a list of a single index."""
    if text and not _GPUS.fullmatch(text):
        raise BadValue(text, " is not a list of GPUs, such as 0,2-3 or GPU-<uuid>", label="--gpu-list=")
    return f"{text}," if text else ""


def _parsed(parse: Callable[[str], _Value], text: str | None, label: str) -> _Value | None:
    if text is None:
        return None
    try:
        return parse(text)
    except BadValue as error:
        raise BadValue(text, error.why, label=label) from None


@click.command(
    cls=Command,
    epilog="fgfence --gpus=0.5 python train.py",
    context_settings={"allow_interspersed_args": False},
)
@options_of("fgfence")
@click.argument("words", nargs=-1, metavar="[COMMAND [ARG]...]")
def fgfence(words: tuple[str, ...], **options: Any) -> int:
    """Run a command with a part of a GPU, without a queue."""
    prints, pid, as_json = options["print_env"], options["pid"], options["as_json"]
    if bool(words) == prints:
        raise BadUsage("give a command, or --print-env", "fgfence --gpus=0.5 python train.py")
    if (pid is not None or as_json) and not prints:
        raise BadUsage("--pid and --json belong to --print-env")
    _refuse_inside()
    request = FenceRequest(
        demand=_demand(
            _parsed(table.gpus, options["gpus"], "--gpus="),
            _parsed(table.gpu_memory, options["gpu_mem"], "--gpu-mem="),
        ),
        pid=(pid or os.getppid()) if prints else os.getpid(),
        follows=not prints,
        run=f"{find_paths().own_run(os.environ, os.geteuid())}/fence",
        gpus=_list(options["gpu_list"]),
        compute=options["gpu_compute"],
    )
    variables = _fenced(msgspec.json.encode(request))
    if not prints:
        _execute(words, variables)
    lines = (f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    write(msgspec.json.encode(variables).decode() + "\n" if as_json else "".join(lines))
    return 0


def _refuse_inside() -> None:
    """Refuse a fence within a job or a fence. Raises Refused."""
    from fgsched.system.process import is_inside_job

    folder = os.environ.get(FENCE_DIR, "")
    if (folder and os.path.isdir(folder)) or is_inside_job(os.environ):
        raise Refused(
            "this process is in a fence, or in a job of fgsched: its programs have its limit",
            "Start fgfence outside.",
        )


def _demand(gpus: table.Amount | None, memory: table.GpuMemory | None) -> Demand:
    """Return the demand of the options. Raises BadUsage or BadValue."""
    if gpus is None and memory is None:
        raise BadUsage("say what the command may have: --gpus or --gpu-mem")
    size = memory or table.GpuMemory()
    try:
        count, share = split_units(gpus.size) if gpus else (1, 0)
    except ValueError as error:
        raise BadUsage(f"--gpus={error}") from None
    if not count:
        raise BadUsage("a fence has at least a part of one GPU")
    gpu_type = gpus.gpu_type if gpus else ""
    return Demand(gpus=count, share=share, memory=size.size, memory_part=size.part, gpu_type=gpu_type)


def _fenced(question: bytes) -> dict[str, str]:
    """Start the watcher of a fence, and return the variables of its programs. Raises FgschedError."""
    from fgsched.system.helper import helper_command

    command = helper_command("fgsched.controller.fencing")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as watcher:
        assert watcher.stdin is not None
        assert watcher.stdout is not None
        watcher.stdin.write(question + b"\n")
        watcher.stdin.close()
        line = watcher.stdout.readline()
    if not line:
        raise FgschedError("the watcher of the fence has failed")
    reply = msgspec.json.decode(line, type=FenceReply)
    if reply.cause:
        raise Refused(reply.cause, reply.remedy)
    return dict(reply.environment)


def _execute(words: tuple[str, ...], variables: dict[str, str]) -> NoReturn:
    """Execute the command; exit as a shell does if that fails."""
    sys.stdout.flush()
    try:
        os.execvpe(words[0], words, {**os.environ, **variables})
    except FileNotFoundError:
        why, status = "no such command", _NOT_FOUND
    except OSError as error:
        why, status = error.strerror or str(error), _NOT_EXECUTABLE
    fgfence.fail(f"{quoted(words[0])}: {why}", "", status)


def main() -> None:
    """Run fgfence."""
    run(fgfence)


if __name__ == "__main__":
    main()
