"""Say what is wrong with a command line that click refuses, in the words of all other messages."""

import re
from collections.abc import Iterable, Sequence

import click

from fgsched.domain.text import shown

_IN_QUOTES = re.compile(r"'((?:[^'\\]|\\.)*)'|\"([^\"]*)\"")
_EXTRA = re.compile(r"\((.*)\)\s*$", re.DOTALL)
_LISTS = ("--jobs", "--job", "--jobid")  # options that take ids of jobs


def cause_and_remedy(error: click.UsageError, words: Sequence[str], name: str) -> tuple[str, str]:
    """Return the cause and the remedy of an error of `click`.

    Args:
        words: the arguments of the process.
        name: of the command.
    """
    context = error.ctx
    path = context.command_path if context else name
    remedy = f"{path} --help lists the options."
    if isinstance(error, click.MissingParameter):
        return _missing(error, context), remedy
    if isinstance(error, click.BadParameter):
        return _bad(error), remedy
    if isinstance(error, click.NoSuchOption):
        return _no_option(error, context), remedy
    text = " ".join(error.format_message().split())
    if isinstance(error, click.BadOptionUsage):
        return f"{error.option_name} {'needs a value' if 'requires' in text else 'takes no value'}", remedy
    if text == "Missing command.":
        return f"{path} needs a command", f"{path} --help lists the commands."
    if text.startswith("No such command"):
        return _no_command(text, context), f"{path} --help lists the commands."
    if text.startswith("Got unexpected extra argument") and (match := _EXTRA.search(text)):
        return _extra(match[1], words, context, remedy)
    return text, remedy


def _options(context: click.Context | None) -> list[click.Option]:
    params = context.command.params if context else []
    return [param for param in params if isinstance(param, click.Option)]


def _named(param: click.Parameter | None, context: click.Context | None) -> str:
    """Return an option by its long name, an argument by its name in the usage."""
    if isinstance(param, click.Option):
        return next((opt for opt in param.opts if opt.startswith("--")), param.opts[0])
    if param is None:
        return "the argument"
    return param.make_metavar(context or click.Context(click.Command(""))).strip("[].")


def _missing(error: click.MissingParameter, context: click.Context | None) -> str:
    path = context.command_path if context else "the command"
    if error.param is not None and isinstance(error.param.type, click.Choice):
        return f"{path} needs {_either(map(str, error.param.type.choices))}"
    return f"{path} needs {_named(error.param, context)}"


def _bad(error: click.BadParameter) -> str:
    """Return the option with its value, and what it takes."""
    text = " ".join(error.message.split())
    label, kind = _named(error.param, error.ctx), error.param.type if error.param else None
    is_option = isinstance(error.param, click.Option)
    match = _IN_QUOTES.match(text)
    value = (match[1] or match[2] or "") if match else text.partition(" ")[0]
    spelled = f"{label}={shown(value)}" if is_option else shown(value)
    if isinstance(kind, click.Choice):
        return f"{spelled} is not {_either(map(str, kind.choices))}"
    if isinstance(kind, click.IntRange):
        return f"{spelled} is not a whole number{_range(kind)}"
    if kind in (click.INT, click.FLOAT):
        return f"{spelled} is not a {'whole ' if kind is click.INT else ''}number"
    return f"{label}: {text}"


def _range(kind: click.IntRange) -> str:
    if kind.min is not None and kind.max is not None:
        return f" from {kind.min} to {kind.max}"
    return f" of at least {kind.min}" if kind.min is not None else f" of at most {kind.max}"


def _either(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _no_option(error: click.NoSuchOption, context: click.Context | None) -> str:
    from difflib import get_close_matches

    word = error.option_name
    names = [opt for option in _options(context) if not option.hidden for opt in option.opts if opt[1] == "-"]
    near = [match for match in get_close_matches(word, names, 1) if match[2] in word[2:4]]
    return f"No such option {shown(word)}" + (f"; did you mean {near[0]}?" if near else "")


def _no_command(text: str, context: click.Context | None) -> str:
    from difflib import get_close_matches

    match = _IN_QUOTES.search(text)
    word = (match[1] or match[2] or "") if match else ""
    group = context.command if context else None
    names = list(group.commands) if isinstance(group, click.Group) else []
    near = get_close_matches(word, names, 1)
    return f"unknown command {shown(word)}" + (f"; did you mean {near[0]}?" if near else "")


def _extra(extra: str, words: Sequence[str], context: click.Context | None, remedy: str) -> tuple[str, str]:
    """Return what to say of words behind the last argument that a command takes."""
    word = extra.split()[0] if extra.split() else extra
    at = list(words).index(word) if word in words else 0
    before = words[at - 1] if at else ""
    flags = {opt for option in _options(context) if option.is_flag for opt in option.opts}
    lists = [opt for option in _options(context) for opt in option.opts if opt in _LISTS]
    cause = f"unexpected extra argument {' '.join(map(shown, extra.split()))}"
    if before in flags:
        cause = f"{before} takes no value; {cause}"
    if lists and word[:1].isdecimal():
        return (
            cause,
            f"Name jobs with {lists[0]}: {context.command_path if context else ''} {lists[0]}={word}",
        )
    return cause, remedy
