"""Read a command line as getopt_long does: unique beginnings of names, optional values, operands."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct


class BadLine(Exception):
    """Raised for a command line that is refused; the text is that of getopt_long or of Slurm."""

    def __init__(self, text: str, *, prefix: str | None = None) -> None:
        super().__init__(text)
        self.prefix = prefix  # before the text; None: the name of the command


class Options(Struct, frozen=True):
    """The options of one command: 'name' is a flag, 'name=' takes a value, 'name?' can have one."""

    long: Mapping[str, str]  # name -> "", "=" or "?"
    short: Mapping[str, str]  # letter -> name


def options(names: str, short: str) -> Options:
    """Return options from 'ntasks= label kill-on-bad-exit?' and 'n:ntasks l:label'."""
    long = {one.rstrip("=?"): one[len(one.rstrip("=?")) :] for one in names.split()}
    return Options(long, dict(pair.split(":") for pair in short.split()))


def parse(known: Options, words: Sequence[str], *, permute: bool) -> tuple[list[tuple[str, str]], list[str]]:
    """Return (name, value) of each option, and the operands. Raises BadLine.

    Args:
        permute: options can follow operands, as for squeue; otherwise the first operand ends the options.
    """
    found, operands = list[tuple[str, str]](), list[str]()
    rest = iter(words)
    for word in rest:
        if word == "--":
            operands += rest
        elif word.startswith("--"):
            found.append(_long(known, word[2:], rest))
        elif word.startswith("-") and len(word) > 1:
            found += _short(known, word[1:], rest)
        elif permute:
            operands.append(word)
        else:
            operands += [word, *rest]
    return found, operands


def _long(known: Options, word: str, rest: Iterator[str]) -> tuple[str, str]:
    given, equals, value = word.partition("=")
    name = _whole(known, given)
    kind = known.long[name]
    if equals and not kind:
        raise BadLine(f"option '--{name}' doesn't allow an argument")
    if kind == "=" and not equals:
        value = _next(rest, f"option '--{name}' requires an argument")
    return name, value.strip()


def _whole(known: Options, given: str) -> str:
    if given in known.long:
        return given
    fitting = [name for name in known.long if name.startswith(given)]
    if not fitting:
        raise BadLine(f"unrecognized option '--{given}'")
    if len(fitting) > 1:
        listed = " ".join(f"'--{name}'" for name in fitting)
        raise BadLine(f"option '--{given}' is ambiguous; possibilities: {listed}")
    return fitting[0]


def _short(known: Options, letters: str, rest: Iterator[str]) -> Iterator[tuple[str, str]]:
    for at, letter in enumerate(letters, 1):
        if letter not in known.short:
            raise BadLine(f"invalid option -- '{letter}'")
        name = known.short[letter]
        kind = known.long[name]
        if kind:
            value = letters[at:]
            if kind == "=" and not value:
                value = _next(rest, f"option requires an argument -- '{letter}'")
            yield name, value.strip()
            return
        yield name, ""


def _next(rest: Iterator[str], why: str) -> str:
    try:
        return next(rest)
    except StopIteration:
        raise BadLine(why) from None
