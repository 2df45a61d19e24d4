"""Share the programs that run at a time among the users for whom they run. Pure."""

from collections import Counter, deque

from fgsched.hooks.settings import HookRun

MOST = 64  # programs of jobs at a time, and as many for clients; further ones wait
_RESERVE = MOST // 2  # beyond them, for users who have few
_FEW = 4  # programs that each user may have


class WaitingRequests:
    """Requests that wait for a slot, in the order of each user."""

    def __init__(self) -> None:
        self._requests: dict[int, deque[HookRun]] = {}  # owner -> requests, none of them empty
        self._running: Counter[int] = Counter()  # owner -> programs that run

    def add(self, run: HookRun) -> None:
        """Take a request in."""
        self._requests.setdefault(run.owner, deque()).append(run)

    def next(self) -> HookRun | None:
        """Return the request that is to start now, and count it; None: all wait.

        It is of the user with the fewest programs; of users with as many, of the one who came first. A user
        has at most half of the slots, divided by the number of users, and always a few: a user whose programs
        are slow leaves slots for the others, who need not wait for the end of a program.
        """
        owner = min(self._requests, key=lambda user: self._running[user], default=None)
        if owner is None or not self._may_have(self._running[owner]):
            return None
        requests = self._requests[owner]
        run = requests.popleft()
        if not requests:
            del self._requests[owner]
        self._running[owner] += 1
        return run

    def end(self, owner: int) -> None:
        """Note that a program has ended, or was not started."""
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]

    def _may_have(self, count: int) -> bool:
        users = len(self._running.keys() | self._requests.keys())
        total = self._running.total()
        if count < _FEW:
            return total < MOST + _RESERVE
        return total < MOST and count < max(_FEW, MOST // (2 * users))
