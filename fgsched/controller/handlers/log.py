"""Answer requests for the log of decisions."""

from fgsched.controller.caller import Caller
from fgsched.controller.decisionlog import LEVELS, DecisionLog
from fgsched.protocol import LogLine, LogLines, ShowLog


def shown(log: DecisionLog, caller: Caller, call: ShowLog) -> LogLines:
    """Return the lines in memory that the caller may see: all for operators, else those about own jobs."""
    uid = None if caller.is_operator else caller.uid
    found = log.lines(uid=uid, job=call.job)
    return LogLines(lines=[LogLine(at=one.at, level=LEVELS[one.level], text=one.text) for one in found])
