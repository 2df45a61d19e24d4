"""The host's accounts: names, homes and groups as they are now, or were a few seconds ago."""

import grp
import os
import pwd
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

_FRESH = 5.0  # seconds for which what was found is believed: a start must not pay for a look-up each time


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What the host says of one user."""

    name: str
    gid: int
    home: str
    groups: tuple[int, ...]


def look_up(uid: int) -> Account | None:
    """The account with this uid; None if there is none."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return None
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(name=entry.pw_name, gid=entry.pw_gid, home=entry.pw_dir, groups=groups)


def names_of(groups: Iterable[int]) -> tuple[str, ...]:
    """The names of groups; one without a name is left out."""
    found = []
    for gid in groups:
        with suppress(KeyError):
            found.append(grp.getgrgid(gid).gr_name)
    return tuple(found)


class Accounts:
    """Remembers what it found, but not for long: people leave, and change their groups."""

    def __init__(
        self,
        find: Callable[[int], Account | None] = look_up,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find, self._clock = find, clock
        self._found: dict[int, tuple[float, Account | None]] = {}

    def of(self, uid: int) -> Account | None:
        now = self._clock()
        at, account = self._found.get(uid, (now - _FRESH, None))
        if now - at >= _FRESH:
            account = self._find(uid)
            self._found[uid] = (now, account)
        return account
