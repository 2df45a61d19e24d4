"""`fgsched doctor --recover`: start the recovery of the store, and report its outcome."""

import time
from collections.abc import Iterable
from contextlib import closing

from fgsched.controller.daemon import taken
from fgsched.domain.errors import StorageError
from fgsched.store import Store, files
from fgsched.store.recovering import Recovered, recover
from fgsched.system import generations
from fgsched.system.paths import Paths

_SHOWN = 20  # ids, or ranges of ids, of one kind


def recovered(places: Paths) -> str:
    """Recover the queue if it is damaged, and return a report."""
    with taken(places):
        why = _why(places)
        if not why:
            return f"{places.queue} is whole, and has all its commits: nothing was changed.\n"
        now = time.time()
        known = files.read_marker(places.queue)
        own = places.run / known.queue if known else places.run
        there = places.run.is_dir()
        found = recover(
            places.queue,
            started=generations.last_attempts(own) if there else {},
            beyond=generations.highest_id(places.run, places.run / "none") if there else 0,
            ending=f"damaged-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}",
            now=now,
        )
    return f"{why}\n\n" + "".join(f"{line}\n" for line in _told(places, found))


def _why(places: Paths) -> str:
    """Return the damage of the queue, or "" if it can be opened."""
    try:
        with closing(Store(places.queue)) as store:
            answer = store.check()
    except StorageError as error:
        return error.cause
    return "" if answer == "ok" else f"{places.queue} is damaged: {answer}"


def _told(places: Paths, found: Recovered) -> list[str]:
    saved = ", ".join(f"{count} {table}" for table, count in sorted(found.rows.items())) or "none"
    lines = [f"Recovered into a new queue, {found.name}. Rows that were saved: {saved}."]
    if found.refused:
        bad = ", ".join(f"{count} {table}" for table, count in sorted(found.refused.items()))
        lines.append(f"Rows that were read and make no sense: {bad}.")
    if found.given_up:
        lines.append(f"Tables of which a part could not be looked at: {', '.join(found.given_up)}.")
    if found.doubtful:
        pages = _list(map(str, found.doubtful), len(found.doubtful))
        lines.append(
            f"The write-ahead log was damaged where it has page {pages}: rows there may differ in a few bits."
        )
    if found.commits is None:
        lines.append("How many commits are missing is not known.")
    else:
        lines.append(f"Commits that are missing: {found.commits}.")
    if found.lost:
        ranges = (f"{low}-{high}" if high > low else str(low) for low, high in found.lost)
        lines.append(
            f"Ids without a job: {_list(ranges, len(found.lost))}. The next job gets {found.last_job + 1}."
        )
    if found.held:
        lines.append(
            f"Jobs that waited are held, since they may have run in commits that are missing:"
            f" {_list(map(str, found.held), len(found.held))}."
            " fgctl show job tells more; fgctl release lets one start."
        )
    if found.under_way:
        ran = _list(map(str, found.under_way), len(found.under_way))
        lines.append(
            f"Jobs that ran are over, status unknown: {ran}."
            " What still runs of them goes on; their GPUs are given out once it has ended."
        )
    if found.without_script:
        gone = _list(map(str, found.without_script), len(found.without_script))
        lines.append(f"Jobs that waited and whose scripts are lost are cancelled: {gone}.")
    lines.append(f"The damaged files are kept as {found.kept.parent}/queue.*.{found.kept.suffix[1:]}.")
    return lines


def _list(texts: Iterable[str], count: int) -> str:
    shown = [text for text, _ in zip(texts, range(_SHOWN), strict=False)]
    return ", ".join(shown) + (f" and {count - _SHOWN} more" if count > _SHOWN else "")
