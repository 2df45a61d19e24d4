"""Read a command line of Slurm, with the messages of getopt_long."""

from collections.abc import Sequence

from fgsched.views.getopt import UnreadableWord, taken
from fgsched.views.options import known_of


class BadLine(Exception):
    """Raised for a command line that is refused; the text is that of getopt_long or of Slurm."""

    def __init__(self, text: str, *, prefix: str | None = None) -> None:
        super().__init__(text)
        self.prefix = prefix  # before the text; None: the name of the command


def parse(commands: str, words: Sequence[str], *, permute: bool) -> tuple[list[tuple[str, str]], list[str]]:
    """Return (option, value) of each option in a line, and the operands. Raises BadLine.

    Args:
        commands: whose options the line has, as the table of options names them.
        permute: options can follow operands, as for squeue; otherwise the first operand ends the options.
    """
    operands = list[str]()
    try:
        given = list(taken(known_of(*commands.split()), words, operands, permute=permute))
    except UnreadableWord as error:
        raise BadLine(_message(error)) from None
    return [(option, (value or "").strip()) for option, value in given], operands


def _message(error: UnreadableWord) -> str:
    match error.trouble:
        case "unknown":
            return f"unrecognized option '--{error.name}'"
        case "unknown letter":
            return f"invalid option -- '{error.letter}'"
        case "ambiguous":
            listed = " ".join(f"'--{name}'" for name in error.fitting)
            return f"option '--{error.name}' is ambiguous; possibilities: {listed}"
        case "takes no value":
            return f"option '--{error.name}' doesn't allow an argument"
        case "needs a value":
            if error.letter:
                return f"option requires an argument -- '{error.letter}'"
            return f"option '--{error.name}' requires an argument"
