"""Write the page for a wall screen: the present state of the host, readable from four metres."""

from typing import NamedTuple

from fgsched.domain.text import width_of
from fgsched.domain.times import format_time
from fgsched.reports.drawing import DARK, variables
from fgsched.reports.html import environment
from fgsched.reports.layout import cut
from fgsched.reports.model import TimeClass
from fgsched.reports.numbers import duration_text
from fgsched.reports.status import GpuNow, GpuPart, Status, WaitingJob

REFRESH = 60  # seconds after which a browser loads the page again
_COLUMN = 8  # GPUs in one column; more of them are in two
_ROOM = (44, 20)  # characters of a whole GPU's bar, in one column and in two
_NEXT = 5  # pending jobs that are shown
_LEAST = 3  # characters of a label; a shorter one is left out
_NAME = 12  # characters of a user's name among the next jobs


class Block(NamedTuple):
    """One part of a GPU's bar, with its label."""

    kind: TimeClass
    part: float  # of the GPU
    user: str = ""
    note: str = ""


def wall_page(status: Status) -> str:
    """Return the page. If the controller did not answer, the page reports that instead of an old state."""
    page = environment().get_template("wall.html.j2")
    return page.render(
        status=status,
        refresh=REFRESH,
        colours=variables(DARK),
        two=len(status.gpus) > _COLUMN,
        next=[(cut(job.user, _NAME), job.asked, _by(job, status)) for job in status.next[:_NEXT]],
        more=max(0, status.startable - _NEXT),
        classes=status.classes(),
        blocks=blocks,
        down_mark=down_mark,
        clock=format_time(status.at, "%H:%M"),
        day=format_time(status.at, "%a %d %b").replace(" 0", " "),
    )


def blocks(gpu: GpuNow, two: bool) -> list[Block]:
    """Return the parts of a GPU's bar; a label that does not fit is shortened or left out."""
    room = _ROOM[two]
    parts = [_block(share, int(share.share * room) - 1, two) for share in gpu.scaled]
    rest = gpu.classes()
    if (hidden := gpu.charged - sum(share.share for share in gpu.scaled)) >= 0.005:
        parts.append(
            Block(gpu.hidden_kind, hidden, note="others" if hidden * room >= len("others") + 1 else "")
        )
    if gpu.down and rest["down"] > 0:
        parts.append(Block("down", rest["down"], note=cut(f"down: {gpu.down}", int(rest["down"] * room) + 2)))
    elif rest["external"] >= 0.005:
        parts.append(Block("external", rest["external"], note=_outside(int(rest["external"] * room) - 1)))
    return parts


def down_mark(gpu: GpuNow) -> str:
    """Return what stands beside a GPU that takes no jobs while jobs fill its bar; "" if the bar says it."""
    return f"down: {gpu.down}" if gpu.down and gpu.charged else ""


def _outside(room: int) -> str:
    """Return the label of memory of processes outside fgsched; "" if there is no room for it."""
    return next((text for text in ("outside fgsched", "outside") if len(text) <= room), "")


def _block(share: GpuPart, room: int, two: bool) -> Block:
    left = "" if share.left is None or two else duration_text(share.left)
    if left and width_of(share.user) + 1 + len(left) <= room:
        return Block(share.kind, share.share, share.user, left)
    label = share.user if width_of(share.user) <= room else cut(share.user, room) if room >= _LEAST else ""
    return Block(share.kind, share.share, label)


def _by(job: WaitingJob, status: Status) -> str:
    """Return the latest, or the earliest start of a job: "by 17:45", "from Mon 17:45"."""
    if job.start is None:
        return "start unknown"
    same = format_time(job.start, "%Y-%j") == format_time(status.at, "%Y-%j")
    word = "from" if job.is_earliest else "by"
    return f"{word} {format_time(job.start, '%H:%M' if same else '%a %H:%M')}"
