"""Common behaviour of all commands: options, help, version, errors with cause and remedy, exit codes.

The lines of all commands are read by `views/getopt.py`. click prints help, completes, and reports the lines
that are refused.
"""

import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import click

from fgsched import __version__
from fgsched.domain.errors import BadUsage, Exit, FgschedError
from fgsched.domain.text import shown
from fgsched.domain.units import parse_count
from fgsched.views import options as table
from fgsched.views.getopt import Known, UnreadableWord, taken
from fgsched.views.options import COUNT, FLAG, INTEGER, LIST, NUMBER, OPTIONAL, Option, TableCommand, is_value

if TYPE_CHECKING:  # fgq does without
    from fgsched.submission.table import AnyOption

_OUTPUT_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EBADF}

OPERANDS = "operands"  # words that are no options
Operand = str | tuple[str, ...]  # several of a kind, such as JOB; or one of some words

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
            from fgsched.cli.usageerrors import cause_and_remedy  # only needed for these messages

            self.fail(*cause_and_remedy(error, words, name), Exit.USAGE)
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
        reads = self.shortens and not ctx.resilient_parsing
        return super().parse_args(ctx, _canonical(self, ctx, args) if reads else args)

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


def _canonical(command: click.Command, ctx: click.Context, args: list[str]) -> list[str]:
    """Return the words of a line as --name=value, then its operands.

    A line without the value of an option is returned unchanged, for click to report.

    Raises: click.NoSuchOption.
    """
    option_names = _known(command, asks_for_help="--help" in args)
    operands = list[str]()
    try:
        words = [
            f"--{name}" if text is None else f"--{name}={text}"
            for name, text in taken(
                option_names, args, operands, permute=ctx.allow_interspersed_args, is_value=is_value
            )
        ]
    except UnreadableWord as error:
        if error.trouble in ("takes no value", "needs a value"):
            return args
        raise click.NoSuchOption(f"-{error.letter}" if error.letter else f"--{error.name}", ctx=ctx) from None
    return [*words, "--", *operands] if operands else words


def _known(command: click.Command, *, asks_for_help: bool) -> Known:
    params = [param for param in command.params if isinstance(param, click.Option)]
    names = [(name.lstrip("-"), param) for param in params for name in param.opts if name[:2] == "--"]
    letters = [(name[1:], param) for param in params for name in param.opts if name[:2] != "--"]
    first = {param.name: name for name, param in reversed(names)}
    return Known(
        long={name: _ending(param) for name, param in names} | ({"help": ""} if asks_for_help else {}),
        short={letter: first[param.name] for letter, param in letters},
        same={name: param.name or "" for name, param in names},
        never=("help",),
    )


def _ending(param: click.Option) -> str:
    """Return how the value of an option is given, as in `Known.long`."""
    if param.is_flag:
        return ""
    return "?" if isinstance(param.flag_value, str) else "="


def _declaration(row: Option, command: str) -> tuple[list[str], dict[str, Any]]:
    """Return the spellings and the attributes of an option of click."""
    attributes = {
        "is_flag": row.kind == FLAG,
        "multiple": row.kind == LIST,
        "type": _type(row),
        "default": False if row.kind == FLAG else row.default,
        "show_default": row.kind in (INTEGER, NUMBER) and row.default is not None,
        "metavar": row.metavar or None,
        "required": row.is_required,
        "expose_value": bool(row.field),
        "help": row.helps[command],
        "hidden": row.hidden,
    }
    if row.kind == OPTIONAL:
        attributes["flag_value"] = row.bare
    return [*row.spelled.split(), *([row.field] if row.field else [])], attributes


def _type(row: Option) -> Any:
    if row.values:
        return click.Choice(row.values)
    if row.kind == NUMBER:
        return click.FloatRange(*row.limits)
    if row.kind == INTEGER:
        least, most = (None if limit is None else int(limit) for limit in row.limits)
        return click.IntRange(least, most) if row.limits != (None, None) else click.INT
    return parse_count if row.kind == COUNT else None


def click_options(command: str) -> list[click.Parameter]:
    """Return the options of a command of the table as options of click, in the order of its help."""
    declarations = [_declaration(row, command) for row in table.rows_of(command)]
    return [click.Option(spelled, **attributes) for spelled, attributes in declarations]


def options_of(command: str) -> Callable[[Any], Any]:
    """Return a decorator that adds the options of a command, such as "fgctl show"."""

    def add(function: Any) -> Any:
        for row in reversed(table.rows_of(command)):
            spelled, attributes = _declaration(row, command)
            function = click.option(*spelled, **attributes)(function)
        return function

    return add


def said_by(name: str) -> str:
    """Return the name by which the present command was called: that of Slurm, or `name`."""
    context = click.get_current_context(silent=True)
    return (context.find_root().info_name if context else None) or name


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


class Listed(Command):
    """A command whose callback gets `options`, a record, and `operands` if it takes any."""

    row: TableCommand[Any]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. click parses only the lines that it has to report, and completes others."""
        if not ctx.resilient_parsing:
            with suppress(table.Unread):
                values, operands = self.row.read(args)
                ctx.params = {"options": values} | self._operands(operands)
                return []
        operand_words = super().parse_args(ctx, args)
        operands = ctx.params.pop(OPERANDS, ())
        ctx.params = {"options": self.row.record(**ctx.params)} | self._operands(operands)
        return operand_words

    def _operands(self, operands: Sequence[str]) -> dict[str, Any]:
        """Return the parameter of the operands, if there is one. Raises Unread for extra words."""
        if any(isinstance(param, click.Argument) for param in self.params):
            return {OPERANDS: tuple(operands)}
        if operands:
            raise table.Unread
        return {}


def listed(
    row: TableCommand[Any], *, epilog: str, operands: str = "", cls: type[Listed] = Listed
) -> Callable[[Callable[..., int]], Listed]:
    """Return a decorator that makes a command with a record; `operands`: how its usage shows them."""

    def made(callback: Callable[..., int]) -> Listed:
        params = click_options(row.name)
        if operands:
            params.append(click.Argument([OPERANDS], nargs=-1, metavar=operands))
        command = click.command(cls=cls, params=params, epilog=epilog)(callback)
        command.row = row
        return command

    return made


class OptionsCommand(click.Command):
    """A command with the options of a submission; its callback gets `settings` and `words`.

    They are parsed by `submission/options.py`, because errors in a header must name the line, and a batch has
    up to ten thousand lines.
    """

    command = "fgsub"
    more: Mapping[str, "AnyOption"] = {}  # options that fgsub does not have

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params = [*click_options(self.command), *self.params]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # completion
            return super().parse_args(ctx, args)
        from fgsched.submission.options import HelpAsked, read

        try:
            settings, words = read(args, self.more)
        except HelpAsked as asked:
            return super().parse_args(ctx, [f"--{asked.answer}"])
        ctx.params = {"settings": settings, "words": words}
        return []


class OwnCommand(Command):
    """A name of Slurm that reads its line itself: never called, it prints its options and completes them."""

    def __init__(self, name: str, *, about: str, usage: str, page: str, operands: Iterable[Operand]) -> None:
        """Describe a name; `usage`: what follows it; `page`: the page of the manual."""
        rows = [row for row in table.rows_of(name) if row.name not in ("help", "usage", "version")]
        arguments = [_argument(number, operand) for number, operand in enumerate(operands, start=1)]
        super().__init__(name, params=[*map(_of_slurm, rows), *arguments], help=about)
        self.manual, self._usage = page, usage

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return what follows the name."""
        return [self._usage]


def _of_slurm(row: Option) -> click.Parameter:
    is_flag = row.kind == FLAG
    return click.Option(row.spelled.split(), is_flag=is_flag, metavar=None if is_flag else "VALUE")


def _argument(number: int, operand: Operand) -> click.Parameter:
    name = [f"operand_{number}"]  # no option has this name
    if isinstance(operand, str):
        return click.Argument(name, nargs=-1, metavar=operand)
    return click.Argument(name, type=click.Choice(operand))


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


def is_for_person() -> bool:
    """Tell whether a person reads standard error."""
    return sys.stderr is not None and sys.stderr.isatty()


def note(name: str, text: str) -> None:
    """Print `fgq: text` to standard error; under a name of Slurm only to a person.

    There it would be silent, and programs read both streams as one.
    """
    called = said_by(name)
    if called.startswith("fg") or is_for_person():
        click.echo(f"{called}: {text}", err=True)


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
