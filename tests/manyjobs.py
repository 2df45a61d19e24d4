"""Controller, accounts and pruning without processes: many tiny jobs run, end and move, in virtual time."""

import os
from datetime import UTC
from pathlib import Path

from builders import World, a_demand, a_gpu, a_result
from crashing import CrashingStore
from fgsched.accounting.accountant import Accountant
from fgsched.accounting.messages import Keep, batch_line, encoded
from fgsched.accounting.records import JobAccount
from fgsched.controller.moving import Mover, PastJobs, Site
from fgsched.controller.upkeep import JobRetention as Retention
from fgsched.controller.upkeep import Pruner

BATCH = 64  # jobs that are submitted together
_MIB = 2**20


class ManyJobs:
    """A site on disk. `run` lets jobs run until all are in the accounts."""

    def __init__(self, directory: Path) -> None:
        self.accounts = directory / "accounts.db"
        self.world = world = World([a_gpu(index) for index in range(8)])
        world.store = CrashingStore(directory / "queue.db")
        with world.store.write():
            world.store.put_gpus(world.gpus)
        world.start()
        reader = PastJobs(self.accounts)
        world.store.use_moved(reader)
        self._mover = Mover(world.store, reader, Site(lambda: world.engine.jobtable, "host"), 0.0)
        self._accountant = Accountant(self.accounts, UTC, Keep(minutes=86_400, hours=86_400, days=-1))
        self._pruner = Pruner(world.store, Retention(60, _MIB), lambda: world.engine.jobtable.revision)
        self.done = 0

    def run(self, jobs: int) -> None:
        """Let at least so many further jobs run and move."""
        end = self.done + jobs
        while self.done < end:
            self._submit()
            self._move()
            self.done += BATCH

    def _submit(self) -> None:
        world = self.world
        world.submit([a_demand(1000)] * BATCH, key=f"key-of-submission-{self.done}")
        while world.store.open_jobs():
            for running in list(world.host.running):
                world.host.finish(*running, a_result(0))
            world.turn()
        for told in (world.acknowledged, world.host.runs, world.host.signals, world.engine.ended):
            told.clear()

    def _move(self) -> None:
        world = self.world
        self._mover.ended(world.now)
        self._pruner.ended(world.now)
        world.now += 60  # the queue rests
        while world.store.settled.first_end() is not None:
            world.now += 2
            if jobs := self._mover.next_jobs(world.now, world.now):
                line = batch_line(1, [(JobAccount, encoded(job)) for job in jobs])
                answer = self._accountant.answer(line.rstrip(b"\n"), world.now)
                assert not answer.error, answer
                self._mover.stored([job.id for job in jobs], answer.refused)
            self._pruner.step(world.now, world.now)

    def close(self) -> None:
        self._accountant.close()
        self.world.store.close()


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / _MIB
