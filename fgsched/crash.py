"""Crash points: the controller kills itself at the point that FG_CRASH_AT names, for tests."""

import os
import signal
from collections.abc import Mapping

_AT, _, _NTH = os.environ.get("FG_CRASH_AT", "").partition(":")
_left = int(_NTH) if _NTH.isdigit() else 1
POINTS = (
    "controller_before_commit",
    "controller_before_commit_is_noted",
    "controller_after_commit",
    "controller_before_launch",
    "controller_after_launch",
    "controller_before_follow",
    "controller_before_answer",
    "controller_after_answer",
    "controller_before_forget",
    "controller_between_result_and_claim",
    "controller_after_forget",
    "controller_before_signal",
    "controller_in_recovery",
)
MOVING = (  # while ended jobs move to the accounts
    "accountant_before_commit",
    "accountant_after_commit",
    "controller_before_sending_jobs",
    "controller_before_deleting_jobs",
    "controller_after_deleting_jobs",
)
MAILING = (  # from the end of a job to the mail about it
    "controller_before_commit",
    "controller_after_commit",
    "controller_before_mail",
    "controller_before_mail_rename",
    "controller_after_mail",
    "mail_before_sending",
    "mail_after_sending",
    "mail_after_noting",
)


def point(name: str) -> None:
    """Die here, as by kill -9, if this is the point (`name:3`: when it is passed the third time)."""
    global _left
    if name == _AT:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def of_successor(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that takes the place of a killed one: it is not killed as well."""
    return {name: value for name, value in environ.items() if name != "FG_CRASH_AT"}
