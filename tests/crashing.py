"""Kill the controller in the middle of its work, start the next one, and report what is left over.

One harness for all crash tests. A campaign supplies the steps and the conditions that must hold after them:

* `Power` cuts the power of a `World` after a number of effects; it is exact, and needs no process.
* `crashing` starts a real controller that kills itself at a named point (`fgsched/crash.py`).
* `kill` kills a real process from outside.
* `Countdown` stops a program at one of its calls of the file system.
* `copy_files` keeps the files of an open queue as a kill leaves them.
"""

import os
import select
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from awaiting import PATIENCE, until_stopped
from fgsched.controller.engine import Engine
from fgsched.controller.turn import Effect
from fgsched.store import Store

if TYPE_CHECKING:
    from builders import World
    from live_host import Home

UNLIMITED = 10**9  # effects
QUEUE_FILES = ("queue.db", "queue.db-wal", "queue.commits", "queue.initialised", "queue.sums")


# -- in memory: the power fails after a number of effects -----------------------------------------


class PowerCut(BaseException):
    """The power of the controller fails."""


class CrashingEngine(Engine):
    """Run an engine whose power fails after a number of effects; a commit counts as one effect."""

    left: int = UNLIMITED

    def count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise PowerCut

    def perform(self, effect: Effect) -> None:
        self.count()
        super().perform(effect)

    def carry_out(self, effects: Iterable[Effect]) -> None:
        super().carry_out(effects)
        self.count()


class CrashingStore(Store):
    """Store the queue; the power may fail right before a commit."""

    engine: CrashingEngine | None = None

    @contextmanager
    def write(self) -> Iterator[None]:
        with super().write():
            yield
            if self.engine is not None:
                self.engine.count()


class Power:
    """Power the controllers of a world: the first one for `effects` effects, each later one without limit.

    `restart` starts the next controller; by default it is `world.start`.
    """

    def __init__(self, world: "World", effects: int, restart: Callable[[], object] | None = None) -> None:
        self.world = world
        self.cuts = 0
        self._restart = restart or world.start
        world.engine.left = effects

    def lasts(self, act: Callable[[], object]) -> bool:
        """Carry out an action; return False, without a restart, if the power failed."""
        try:
            act()
        except PowerCut:
            self.cuts += 1
            return False
        return True

    def step(self, act: Callable[[], object], *, again: bool = True) -> None:
        """Carry out an action; after a power cut start the next controller, and by default act again."""
        if not self.lasts(act):
            self._restart()
            if again:
                act()

    def restore(self) -> None:
        """Remove the limit from the controller that runs."""
        self.world.engine.left = UNLIMITED


def power_cuts(campaign: Callable[[int], Power], effects: int) -> list[int]:
    """Run a campaign for each number of effects below `effects`; return the power cuts of each run."""
    return [campaign(number).cuts for number in range(effects)]


# -- real processes ---------------------------------------------------------------------------------


@contextmanager
def crashing(path: Path, point: str, **about: Any) -> Iterator["Home"]:
    """Yield a home whose first controller, with its spawner, dies at a point; later ones do not."""
    from live_host import living

    with living(path / "home", **about) as home:
        home.run("fgq", "-h", env={"FG_CRASH_AT": point})
        first = controller_of(home)
        yield home
        if controller_of(home) == first:  # it may reach its point only while it is stopped
            with suppress(ProcessLookupError):
                kill(first)
                home.run("fgq", "-h")


def await_end(pid_fd: int) -> None:
    """Wait until a process has ended, and close its descriptor."""
    assert select.select([pid_fd], [], [], PATIENCE)[0], "the process does not end"
    os.close(pid_fd)


def kill(pid: int) -> None:
    """Kill a process, which need not be a child of ours, and wait until it has ended."""
    watched = os.pidfd_open(pid)
    signal.pidfd_send_signal(watched, signal.SIGKILL)
    await_end(watched)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for as long as the block lasts."""
    watched = os.pidfd_open(pid)
    signal.pidfd_send_signal(watched, signal.SIGSTOP)
    try:
        until_stopped(pid)
        yield
    finally:
        signal.pidfd_send_signal(watched, signal.SIGCONT)
        os.close(watched)


def controller_of(home: "Home") -> int:
    """Return the pid of the controller of a home."""
    return int(home.paths.lock.read_text())


def shepherd_of(home: "Home", job: int) -> int:
    """Return the pid of the shepherd of a job's first attempt."""
    return int(os.readlink(home.paths.run / f"claim/{job}.1").split(":")[1])


def kill_controller(home: "Home") -> None:
    """Kill the controller of a home, and close the connection of the test to it."""
    kill(controller_of(home))
    home.disconnect()


def leftovers(run: Path) -> list[str]:
    """Return the claims, results and job directories that ended jobs left.

    Tombstones stay by design, and the directories that shepherds keep for further jobs.
    """
    return [
        f"{name}/{entry}"
        for name in ("claim", "result", "job")
        for entry in os.listdir(run / name)
        if (not entry.startswith(".") if name == "job" else os.readlink(run / name / entry) != "T")
    ]


# -- files ------------------------------------------------------------------------------------------


class Countdown:
    """Let functions be called as usual until one call in all is the last: then `stop` is called instead."""

    def __init__(self, calls: int, stop: Callable[[], object]) -> None:
        self.left, self._stop = calls, stop

    def around(self, act: Callable[..., Any], counts: Callable[..., bool] = lambda *_: True) -> Any:
        """Return a function like `act` that counts the calls for whose arguments `counts` is true."""

        def counted(*words: Any, **more: Any) -> Any:
            if counts(*words):
                self.left -= 1
                if self.left == 0:
                    self._stop()
            return act(*words, **more)

        return counted


def kill_self() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def copy_files(queue: Path, into: Path, names: Iterable[str] = QUEUE_FILES) -> Path:
    """Copy the files of an open queue, as a kill leaves them; return the path of the copied queue."""
    into.mkdir(exist_ok=True)
    for name in names:
        if queue.with_name(name).exists():
            shutil.copy(queue.with_name(name), into / name)
    return into / queue.name
