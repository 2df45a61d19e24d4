"""Read a command line of Slurm, with the messages of getopt_long."""

from collections.abc import Sequence

from fgsched.views.getopt import Known, UnreadableWord, taken


class BadLine(Exception):
    """Raised for a command line that is refused; the text is that of getopt_long or of Slurm."""

    def __init__(self, text: str, *, prefix: str | None = None) -> None:
        super().__init__(text)
        self.prefix = prefix  # before the text; None: the name of the command


def parse(known: Known, words: Sequence[str], *, permute: bool) -> tuple[list[tuple[str, str]], list[str]]:
    """Return (name, value) of each option, and the operands. Raises BadLine.

    Args:
        permute: options can follow operands, as for squeue; otherwise the first operand ends the options.
    """
    operands = list[str]()
    try:
        given = list(taken(known, words, operands, permute=permute))
    except UnreadableWord as error:
        raise BadLine(_message(error)) from None
    return [(name, (value or "").strip()) for name, value in given], operands


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
