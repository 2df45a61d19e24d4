"""Limit the mails about the jobs of one user in an hour, and tell the user with two mails.

One user's array of many tasks would otherwise keep the controller from the requests of all others. Times are
in epoch seconds.
"""

import time
from collections.abc import Iterator

from msgspec import Struct

from fgsched.mail.letters import Message

_HOUR = 3600.0


class Hour(Struct):
    """The mails about the jobs of one user in an hour that begins with the first one."""

    ends_at: float
    to: tuple[str, ...] = ()  # recipients of the first mail that was left out
    count: int = 0  # due, whether sent or left out
    left: int = 0  # left out


class HourlyLimit:
    """Counts mails by uid in memory: a restarted controller begins new hours."""

    def __init__(self) -> None:
        self.most = 0  # 0: no limit
        self._hours: dict[int, Hour] = {}

    def count(self, uid: int, to: tuple[str, ...], now: float) -> Hour | None:
        """Count a mail; return None if it may be sent, else the hour, with the mail among those left out."""
        if not self.most:
            return None
        hour = self._hours.get(uid)
        if hour is None or (now >= hour.ends_at and not hour.left):
            hour = self._hours[uid] = Hour(ends_at=now + _HOUR)
        hour.count += 1
        if hour.count <= self.most:
            return None
        hour.to = hour.to or to
        hour.left += 1
        return hour

    def ended(self, now: float) -> Iterator[tuple[int, Hour]]:
        """Remove the hours that have ended; yield (uid, hour) of those in which mails were left out."""
        for uid, hour in [(uid, hour) for uid, hour in self._hours.items() if hour.ends_at <= now]:
            del self._hours[uid]
            if hour.left:
                yield uid, hour

    def due(self) -> float | None:
        """Return when the first hour ends in which mails were left out; None: there is none."""
        return min((hour.ends_at for hour in self._hours.values() if hour.left), default=None)

    def forget(self) -> None:
        """Begin new hours for all users: the mails of a turn were not stored."""
        self._hours = {}

    def first(self, hour: Hour, now: float) -> Message:
        """Return the mail that says that further ones are left out."""
        text = (
            f"{self.most} mails about your jobs were due within an hour. Further ones are left out until"
            f" {_clock(hour.ends_at)}; another mail then says how many.\n\n"
            "fgacct lists your jobs and their ends. Without ARRAY_TASKS in --mail-type, an array has one\n"
            "mail about its start and one about its end. The limit: max_per_hour in fgsched.toml, [mail].\n"
        )
        subject = f"fgsched leaves out mails about your jobs until {_clock(hour.ends_at)}"
        return Message(at=now, to=hour.to, subject=subject, text=text)

    def last(self, hour: Hour, now: float) -> Message:
        """Return the mail that says how many were left out."""
        between = f"{_clock(hour.ends_at - _HOUR)} and {_clock(hour.ends_at)}"
        subject = f"fgsched left out {hour.left} mails about your jobs"
        text = f"They were due between {between}. fgacct lists your jobs and their ends.\n"
        return Message(at=now, to=hour.to, subject=subject, text=text)


def _clock(at: float) -> str:
    return time.strftime("%H:%M", time.localtime(at))
