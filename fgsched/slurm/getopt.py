"""Read the lines and input variables of Slurm's names; refuse in the words of getopt_long and of Slurm."""

import re
from collections.abc import Iterable, Mapping, Sequence

from fgsched.views.getopt import UnreadableWord, taken
from fgsched.views.options import FLAG, Option, known_of, rows_of


class BadLine(Exception):
    """Raised for a command line that is refused; the text is that of getopt_long or of Slurm."""

    def __init__(self, text: str, *, prefix: str | None = None, is_output: bool = False) -> None:
        super().__init__(text)
        self.prefix = prefix  # before the text; None: the name of the command
        self.is_output = is_output  # whether Slurm prints it to standard output


def parse(commands: str, words: Sequence[str], *, permute: bool) -> tuple[list[tuple[str, str]], list[str]]:
    """Return (option, value) of each option in a line, and the operands. Raises BadLine.

    Args:
        commands: whose options the line has, as the table of options names them.
        permute: options can follow operands, as for squeue; otherwise the first operand ends the options.
    """
    operands = list[str]()
    try:
        options = list(taken(known_of(*commands.split()), words, operands, permute=permute))
    except UnreadableWord as error:
        raise BadLine(_message(error)) from None
    return [(option, (value or "").strip()) for option, value in options], operands


def _message(error: UnreadableWord) -> str:
    match error.trouble:
        case "unknown":
            return f"unrecognized option '--{error.name}'"
        case "unknown letter":
            return f"invalid option -- '{error.letter}'"
        case "ambiguous":
            listed = " ".join(f"'--{name}'" for name in error.candidates)
            return f"option '--{error.name}' is ambiguous; possibilities: {listed}"
        case "takes no value":
            return f"option '--{error.name}' doesn't allow an argument"
        case "needs a value":
            if error.letter:
                return f"option requires an argument -- '{error.letter}'"
            return f"option '--{error.name}' requires an argument"


def _variables(*names: str, prefixes: Sequence[str]) -> dict[str, Option]:
    """Return {variable: option} of the variables with these beginnings."""
    rows = rows_of(*names)
    return {variable: row for prefix in prefixes for row in rows for variable in row.variables(prefix)}


_OF_STEP = {variable: row for row in rows_of("srun") for variable in row.step_variables()}
_OF_SRUN = {**_OF_STEP, **_variables("srun", prefixes=("SLURM", "SRUN"))}
_OF_SALLOC = _variables("salloc", prefixes=("SALLOC",))
_SINFO = _variables("sinfo", prefixes=("SINFO",))
_READ = {  # the variables of a command, and the commands whose options it has
    "squeue": (_variables("fgq", prefixes=("SQUEUE",)), "fgq squeue"),
    "scancel": (_variables("fgcancel", prefixes=("SCANCEL",)), "fgcancel"),
}
_GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")  # one of them replaces all
_ONE_OF = {"Format": ("format", "Format", "long", "start", "json"), "user": ("user", "me")}


def of_step(environ: Mapping[str, str], typed: Mapping[str, str]) -> dict[str, str]:
    """Return the options of srun inside a job, from its variables and from its command line."""
    return _merged(_OF_STEP, environ, typed)


def of_srun(environ: Mapping[str, str], typed: Mapping[str, str]) -> dict[str, str]:
    """Return the options of srun outside of a job, from its variables and from its command line."""
    return _merged(_OF_SRUN, environ, typed)


def of_salloc(environ: Mapping[str, str], typed: Mapping[str, str]) -> dict[str, str]:
    """Return the options of salloc, from its variables and from its command line."""
    return _merged(_OF_SALLOC, environ, typed)


def of_sinfo(environ: Mapping[str, str], typed: Mapping[str, str]) -> dict[str, str]:
    """Return the options of sinfo, from its variables and from its command line."""
    options = _merged(_SINFO, environ, typed)
    if "Format" in typed and "format" not in typed:
        options.pop("format", None)
    return options


def _merged(
    variables: Mapping[str, Option], environ: Mapping[str, str], typed: Mapping[str, str]
) -> dict[str, str]:
    """Return `typed` and the options of variables that are not empty; an amount of GPUs replaces all."""
    options = {
        row.name: "" if row.kind == FLAG else environ[name]
        for name, row in variables.items()
        if environ.get(name)
    }
    if any(name in typed for name in _GPUS):
        options = {name: text for name, text in options.items() if name not in _GPUS}
    return {**options, **typed}


def with_variables(name: str, words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return a command line of squeue or scancel with the options of its variables before it."""
    if name not in _READ:
        return list(words)
    variables, commands = _READ[name]
    if not any(variable in environ for variable in variables):
        return list(words)
    try:
        options = {option for option, _ in parse(commands, words, permute=True)[0]}
    except BadLine:  # the command refuses it
        return list(words)
    return [*_spelled(variables, environ, options), *words]


def _spelled(variables: Mapping[str, Option], environ: Mapping[str, str], typed: Iterable[str]) -> list[str]:
    """Return the options of variables that the command line does not give."""
    spelled, present = [], set(typed)
    for variable, row in variables.items():
        if variable not in environ or not present.isdisjoint(_ONE_OF.get(row.name, (row.name,))):
            continue
        if row.kind == FLAG:
            spelled.append(f"--{row.name}")
        elif environ[variable]:
            spelled.append(f"--{row.name}={environ[variable]}")
    return spelled


_PHRASES = (
    (r"invalid account: .*|\S+ may not charge account .*|.* is not for account .*",
     "Invalid account or account/partition combination specified"),
    (r"invalid quality of service: .*|\S+ may not use --qos=.*", "Invalid qos specification"),
    (r"invalid partition: .*", "Invalid partition name specified"),
    (r"invalid reservation: .*", "Requested reservation is invalid"),
    (r".*: invalid license specification.*", "Invalid license specification"),
)  # fmt: skip


def in_slurms_words(cause: str) -> str:
    """Replace the reason in the cause of an error by Slurm's text for it; other causes stay."""
    before, colon, reason = cause.rpartition("submission failed: ")
    for pattern, phrase in _PHRASES:
        if re.fullmatch(pattern, reason):
            return f"{before}{colon}{phrase}"
    return cause
