"""What every command does alike: help, version, errors as cause and remedy, and never a traceback."""

import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click

from fgsched import __version__
from fgsched.errors import Exit, FgschedError

_OUTPUT_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EBADF}


class Command(click.Command):
    """A command that returns its exit status; None is 0. `epilog` is its example."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        version = click.Option(
            ["-V", "--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            hidden=True,
            callback=_print_version,
            help="Print the version.",
        )
        self.params.append(version)

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Whoever reads the help knows of it already."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.hidden = True
        return option

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One screen: what it does, how it is called, its options, an example, where the rest is told."""
        formatter.write(f"{(self.help or '').partition(chr(10))[0]}\n\n")
        self.format_usage(ctx, formatter)
        self.format_options(ctx, formatter)
        example = f"\nExample: {self.epilog}\n" if self.epilog else "\n"
        formatter.write(f"{example}The whole manual: man {self.name}\n")

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:
        """Run and exit; the process's arguments where none are given."""
        name = prog_name or self.name or ""
        if f"_{name.upper()}_COMPLETE" in os.environ:  # a shell asks for completions
            super().main(args, name, **extra)
        words = list(sys.argv[1:] if args is None else args)
        sys.exit(_status(name, lambda: self._run(name, words, extra)))

    def _run(self, name: str, words: list[str], extra: dict[str, Any]) -> int:
        extra = {key: value for key, value in extra.items() if key != "standalone_mode"}
        try:
            with self.make_context(name, words, **extra) as ctx:
                status = self.invoke(ctx)
        except click.exceptions.Exit as done:
            status = done.exit_code
        if sys.stdout is not None:
            sys.stdout.flush()
        return status if isinstance(status, int) else Exit.DONE


def write(text: str) -> None:
    """Data on standard output; a letter that the terminal does not have becomes a question mark."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    sys.stdout.write(text)


def _status(name: str, run: Callable[[], int]) -> int:
    """The exit status of a run, whatever happened; what went wrong is on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        return run()
    except FgschedError as error:
        return tell(name, error.cause, error.remedy, status=error.exit_code)
    except click.UsageError as error:
        return tell(name, error.format_message(), f"Usage: {name} --help", status=Exit.USAGE)
    except (KeyboardInterrupt, click.Abort):
        return 128 + signal.SIGINT
    except BrokenPipeError:
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno in _OUTPUT_TROUBLE and error.filename is None:
            _discard_output()
            return tell(name, f"cannot write the output: {error.strerror}", status=Exit.STORAGE)
        return _bug(name, error)
    except Exception as error:
        return _bug(name, error)


def tell(name: str, cause: str, remedy: str = "", *, status: int = 0) -> int:
    """`fgq: error: cause` and the remedy on standard error; returns `status`."""
    click.echo(f"{name}: error: {cause}" + (f"\n{remedy}" if remedy else ""), err=True)
    return status


def _bug(name: str, error: Exception) -> int:
    if os.environ.get("FG_DEBUG") == "1":
        raise error
    what = f"{type(error).__name__}: {error}".partition("\n")[0]
    return tell(name, f"internal error: {what}", "FG_DEBUG=1 shows where. Please report it.", status=Exit.INTERNAL)


def _discard_output() -> None:
    """What is still buffered has nowhere to go, and Python must not try again while it ends."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)


def _print_version(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"fgsched {__version__}")
        ctx.exit()
