"""The help: keys, words, how to end."""

from collections.abc import Sequence

from msgspec import Struct

from fgsched.web.visit import Visit


class HelpPage(Struct, frozen=True):
    """The context of the page."""

    keys: Sequence[tuple[Sequence[str], str]]
    words: Sequence[tuple[str, str]]


_HELP = HelpPage(
    keys=(
        (("g", "n"), "Now"),
        (("g", "q"), "Queue"),
        (("g", "s"), "Submit"),
        (("/",), "search in the queue"),
        (("j",), "next row"),
        (("k",), "row before"),
        (("Enter",), "open the row"),
        (("c",), "cancel the job of the page, after a question"),
        (("?",), "this help"),
    ),
    words=(
        ("share", "The fraction of a GPU that a job requests."),
        (
            "charged",
            "The part of a GPU that counts as used by a job: the larger of its share and its memory.",
        ),
        ("active", "Charged, and a process of the job computes."),
        ("held-idle", "Charged, and processes of the job hold memory, but none computes."),
        ("reserved-empty", "Charged, and no process of the job is on the GPU."),
        ("free", "Charged to no job."),
        ("external", "Used by processes that belong to no job."),
        ("down", "The GPU takes no jobs, or did not answer."),
        ("reason", "Why a job waits, or how it ended."),
        ("by", "The latest time at which a job starts if all others run up to their time limits."),
    ),
)


def context(data: None, visit: Visit) -> HelpPage:
    """Return the context of the page; it is the same for every reader."""
    return _HELP
