"""Account for GPU usage with decay, and compute fair-share factors."""

import math
from collections.abc import Iterable, Mapping

from msgspec import Struct

from fgsched.domain.policy import Policy
from fgsched.scheduling.limits import Key

Owner = tuple[str, str]  # account and user


class Usage(Struct, frozen=True, gc=False):
    """Charged GPU seconds, decayed to a given time."""

    seconds: float = 0.0
    at: float = 0.0  # seconds since the epoch

    def now(self, now: float, half_life: float) -> float:
        """Return the GPU seconds decayed to `now` (epoch seconds); `half_life` is in seconds.

        A clock that was set back does not increase the result.
        """
        return self.seconds * _left(now - self.at, half_life)

    def plus(self, more: float, now: float, half_life: float) -> "Usage":
        return Usage(self.now(now, half_life) + more, now)


class Standing(Struct, frozen=True, kw_only=True, gc=False):
    """A line of fgshare: an account, or a user of it."""

    account: str
    user: str = ""  # "": the account itself
    shares: int
    part: float  # of all shares
    seconds: float
    used: float  # part of all usage that is attributed to it
    factor: float = 1.0  # of a priority, 0 … 1


def accrued(gpus: float, start: float, end: float, *, now: float, half_life: float) -> float:
    """Return `gpus` charged from `start` to `end`, decayed to `now`; all times in seconds."""
    end = max(start, min(end, now))
    scale = half_life / math.log(2)
    return gpus * scale * (_left(now - end, half_life) - _left(now - start, half_life))


def _left(age: float, half_life: float) -> float:
    return math.exp2(-max(0.0, age) / half_life)


def standings(used: Mapping[Owner, float], owners: Iterable[Owner], policy: Policy) -> list[Standing]:
    """Return every account, followed by its users, by name.

    A user's own usage counts fully. If there are several accounts, a part of the usage of the other users of
    the account counts as well, in proportion to the user's shares.
    """
    members: dict[str, set[str]] = {one.name: set() for one in policy.accounts}
    for owner, user in (*used, *owners):
        members.setdefault(owner, set()).add(user)
    total = sum(used.values())
    all_shares = sum(policy.account(name).shares for name in members)
    rows: list[Standing] = []
    for name in sorted(members):
        account = policy.account(name)
        seconds = sum(used.get((name, user), 0.0) for user in members[name])
        part, spent = account.shares / all_shares, seconds / total if total else 0.0
        rows.append(
            Standing(
                account=name,
                shares=account.shares,
                part=part,
                seconds=seconds,
                used=spent,
                factor=_factor(spent, part),
            )
        )
        rows += _users(rows[-1], sorted(members[name]), used, total, policy)
    return rows


def _users(
    account: Standing, users: Iterable[str], used: Mapping[Owner, float], total: float, policy: Policy
) -> list[Standing]:
    shares = {user: policy.user(user).shares for user in users}
    among = sum(shares.values())
    rows = []
    for user, own in shares.items():
        seconds = used.get((account.account, user), 0.0)
        spent = seconds / total if total else 0.0
        part = account.part * own / among
        if account.part < 1:
            spent += (account.used - spent) * own / among
        rows.append(
            Standing(
                account=account.account,
                user=user,
                shares=own,
                part=part,
                seconds=seconds,
                used=spent,
                factor=_factor(spent, part),
            )
        )
    return rows


def _factor(used: float, part: float) -> float:
    return math.exp2(-used / part) if part else 0.0


def factors(rows: Iterable[Standing]) -> dict[Owner, float]:
    return {(row.account, row.user): row.factor for row in rows if row.user}


def by_scope(used: Mapping[Owner, float]) -> dict[Key, float]:
    """Return the charged GPU seconds by scope, for the limits of accounts and users."""
    found: dict[Key, float] = {}
    for (account, user), seconds in used.items():
        for key in (("account", account), ("user", user)):
            found[key] = found.get(key, 0.0) + seconds
    return found
