"""Common behaviour of all commands: help, version, errors with cause and remedy, exit codes."""

import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TextIO

import click

from fgsched import __version__
from fgsched.domain.errors import BadUsage, Exit, FgschedError
from fgsched.domain.text import shown
from fgsched.views.getopt import Known, UnreadableWord

_OUTPUT_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EBADF}

COLOURS = ("auto", "always", "never")

version_option = click.version_option(
    __version__, "-V", "--version", prog_name="fgsched", message="%(prog)s %(version)s", hidden=True
)


class Friendly(click.Command):
    """A mix-in for click commands. The callback returns the exit status; None is 0."""

    shortens = True  # the names of options can be shortened

    def main(  # type: ignore[override]  # no caller passes more positional arguments
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run the command and exit. `args` defaults to the arguments of the process."""
        name = prog_name or self.name or ""
        is_completion = f"_{name.upper()}_COMPLETE" in os.environ  # a shell asks for completions
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        extra.pop("standalone_mode", None)
        words = list(sys.argv[1:] if args is None else args)
        try:
            if is_completion:
                from fgsched.cli.completing import offer_values  # a command that runs does not need it

                offer_values(self)
                super().main(args, name, **extra)
            sys.exit(self._run(name, words, extra))
        except FgschedError as error:
            self.fail(error.cause, error.remedy, error.exit_code)
        except click.UsageError as error:
            from fgsched.cli.usageerrors import told  # only needed for these messages

            self.fail(*told(error, words, name), Exit.USAGE)
        except (KeyboardInterrupt, click.Abort):
            leave(128 + signal.SIGINT)
        except BrokenPipeError:
            leave(128 + signal.SIGPIPE)
        except Exception as error:
            self._trouble(error, words)

    def _run(self, name: str, words: list[str], extra: dict[str, Any]) -> int:
        try:
            with self.make_context(name, words, **extra) as ctx:
                status = self.invoke(ctx)
        except click.exceptions.Exit as done:  # of --help and --version
            output()  # click ignores that it is closed
            status = done.exit_code
        if sys.stdout is not None:
            sys.stdout.flush()
        return status if isinstance(status, int) else Exit.DONE

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; a long option can be shortened to a beginning that no other option has."""
        return super().parse_args(
            ctx, list(_whole(self, args)) if self.shortens and not ctx.resilient_parsing else args
        )

    def fail(self, cause: str, remedy: str, code: int) -> NoReturn:
        """Print the cause and the remedy, and exit with `code`."""
        warn(self.name or "", cause, remedy)
        leave(code)

    def _trouble(self, error: Exception, words: Sequence[str]) -> NoReturn:
        """Report a full disk, a path among the words that cannot be used, or an internal error, and exit."""
        if isinstance(error, OSError) and _is_named(error.filename, words):
            code = Exit.STORAGE if error.errno in _OUTPUT_TROUBLE else Exit.REFUSED
            self.fail(f"cannot use {shown(os.fsdecode(error.filename))}: {error.strerror}", "", code)
        if isinstance(error, OSError) and error.errno in _OUTPUT_TROUBLE and error.filename is None:
            self.fail(f"cannot write the output: {error.strerror}", "", Exit.STORAGE)
        if os.environ.get("FG_DEBUG") == "1":
            raise error
        what = f"{type(error).__name__}: {error}".partition("\n")[0]
        self.fail(f"internal error: {what}", "FG_DEBUG=1 shows where. Please report it.", Exit.INTERNAL)


def _whole(command: click.Command, args: Iterable[str]) -> Iterator[str]:
    """Yield the arguments with whole names of options, as getopt_long takes them."""
    names = {
        name[2:]: param.name or "" for param in command.params for name in param.opts if name[:2] == "--"
    }
    known = Known(long=dict.fromkeys(names, "?"), short={}, same=names, never=("help",))
    rest = iter(args)
    for word in rest:
        if word == "--":
            yield word
            yield from rest
            return
        given, equals, value = word.partition("=")
        if given.startswith("--"):
            with suppress(UnreadableWord):  # click reports it
                given = f"--{known.whole(given[2:])}"
        yield f"{given}{equals}{value}"


def accepted(flags: str = "", values: str = "") -> Callable[[Any], Any]:
    """Return a decorator that adds options without a meaning on one host: "-a --all,-v --verbose"."""

    def add(function: Any) -> Any:
        for text, is_flag in ((flags, True), (values, False)):
            for group in text.split(","):
                if names := group.split():
                    function = click.option(
                        *names, is_flag=is_flag, expose_value=False, hidden=True, help="Accepted and ignored."
                    )(function)
        return function

    return add


def said_by(name: str) -> str:
    """Return the name by which the present command was called: that of Slurm, or `name`."""
    context = click.get_current_context(silent=True)
    return (context.find_root().info_name if context else None) or name


CLUSTERS = click.option(  # of every command of Slurm; there is one host
    "-M",
    "--clusters",
    "--cluster",
    expose_value=False,
    hidden=True,
    metavar="LIST",
    help="Accepted and ignored.",
)


class Command(Friendly):
    """A command with a help page of one screen: sentence, usage, options, and an example (`epilog`)."""

    _gap = "\n"  # between the sentence and the usage

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.manual = self.name
        version_option(self)

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return None, so that --help is not listed in its own output."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.hidden = True
        return option

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"{(self.help or '').partition(chr(10))[0]}\n{self._gap}")
        self.format_usage(ctx, formatter)
        self.format_options(ctx, formatter)
        example = f"\nExample: {self.epilog}\n" if self.epilog else "\n"
        root = ctx.find_root().command  # called by a name of Slurm, it has no page of that name
        page = root.manual if isinstance(root, Command) else root.name
        formatter.write(f"{example}The whole manual: man {page}\n")


class CommandGroup(Command, click.Group):
    """A command with subcommands. Slurm's subcommands in `unbuilt` are refused as not supported."""

    _gap = ""  # a list of subcommands is long

    def __init__(self, *args: Any, unbuilt: Collection[str] = (), **attributes: Any) -> None:
        super().__init__(*args, no_args_is_help=False, **attributes)
        self._unbuilt = unbuilt

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a subcommand. Raises BadUsage for an unknown or unsupported one."""
        if args[0] in self._unbuilt:
            raise BadUsage(f"{args[0]} is not supported yet")
        return super().resolve_command(ctx, args)


def _is_named(path: object, words: Iterable[str]) -> bool:
    """Return whether a path of an error is one that a person has named, or lies below one."""
    if not isinstance(path, str | bytes):
        return False
    failed = os.path.abspath(os.fsdecode(path))
    named = (value for word in words for value in (word, word.partition("=")[2]) if value)
    return any(failed == whole or failed.startswith(f"{whole}/") for whole in map(os.path.abspath, named))


def run(command: click.Command) -> NoReturn:
    """Run `command` as this process, and end the process without tearing down the interpreter.

    Collecting cycles and freeing every module would take a considerable part of the run time of a command,
    which is some hundredths of a second.
    """
    gc.disable()
    try:
        command.main(prog_name=command.name)
    except SystemExit as done:
        if done.code is not None and not isinstance(done.code, int):
            raise
        status = done.code or 0
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


def warn(name: str, cause: str, remedy: str = "") -> None:
    """Print `fgq: error: cause` and the remedy to standard error; the exit status tells where that fails."""
    with suppress(OSError):
        click.echo(f"{said_by(name)}: error: {cause}" + (f"\n{remedy}" if remedy else ""), err=True)


def output() -> TextIO:
    """Return standard output. Raises OSError if it is closed."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return sys.stdout


def write(text: str) -> None:
    """Write data to standard output."""
    output().write(text)


def leave(code: int) -> NoReturn:
    """Exit after flushing the output streams; errors of the flush are ignored."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        with open(os.devnull, "wb") as nowhere:  # Python tries once more while it ends
            os.dup2(nowhere.fileno(), 1)
    sys.exit(code)
