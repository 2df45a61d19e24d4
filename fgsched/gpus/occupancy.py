"""Whose memory is on a card, as far as the driver tells."""

from collections.abc import Container

from fgsched.domain.job import Reading

SLACK = 512 << 20  # bytes of a card that no process explains and that are nobody's: contexts, page tables


def external(reading: Reading, ours: Container[int], slack: int = SLACK) -> int:
    """Bytes that strangers hold: what their processes show, and what no process explains beyond the slack.

    Where the driver does not tell the memory of one of our own processes, the unexplained may be its own
    and is not counted.
    """
    strangers = sum(process.memory for process in reading.processes if process.pid not in ours)
    if any(process.pid in ours and not process.memory for process in reading.processes):
        return strangers
    unexplained = reading.used - sum(process.memory for process in reading.processes)
    return strangers + max(0, unexplained - slack)
