"""The process between the controller and the driver: it never hangs, because it never asks the driver itself.

It keeps one probe and gives it a deadline. A probe that misses it is killed and not waited for, since one
that is stuck in the kernel does not die. There is never a second one beside it. One whose answer was all
trouble is replaced too: a driver that was loaded anew needs its new library. Each failure in a row doubles
the pause before the next.
"""

import os
import selectors
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress

from fgsched.gpus import wire
from fgsched.gpus.isolated import isolated
from fgsched.gpus.wire import Report

_LONGEST_PAUSE = 300.0  # seconds
_CHUNK = 1 << 16


class Probe:
    """One process that asks the driver."""

    def __init__(self, module: str = "fgsched.gpus.probe") -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(isolated(module), stdin=pipe, stdout=pipe, bufsize=0)
        assert self._process.stdin
        assert self._process.stdout
        self._to, self._from = self._process.stdin, self._process.stdout
        self._heard = b""

    def fileno(self) -> int:
        return self._from.fileno()

    def ask(self, question: str) -> None:
        self._to.write(f"{question}\n".encode())

    def hear(self) -> bytes | None:
        """The whole answer; b"" while it is still coming, None when the probe ended."""
        data = os.read(self.fileno(), _CHUNK)
        self._heard += data
        if not data:
            return None
        if not self._heard.endswith(b"\n"):
            return b""
        line, self._heard = self._heard, b""
        return line

    def abandon(self) -> None:
        """Kill it without waiting."""
        self._process.kill()
        self._to.close()
        self._from.close()

    def is_gone(self) -> bool:
        return self._process.poll() is not None


class Keeper:
    """Questions in on descriptor 0, answers out on descriptor 1, one line each, in order."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._questions: deque[str] = deque()
        self._unread = b""
        self._probe: Probe | None = None
        self._abandoned: Probe | None = None  # the last one, until it is gone
        self._trial: Probe | None = None  # of the fence: a process for one question
        self._due: float | None = None  # when the question that is out has to be answered
        self._patience = deadline * wire.WAKING
        self._failures = 0
        self._not_before = 0.0
        self._trouble = ""

    def run(self) -> None:
        """Until nobody can ask any more, or listens."""
        try:
            with suppress(ConnectionError):
                while self._turn():
                    pass
        finally:
            for probe in (self._probe, self._trial):
                if probe:
                    probe.abandon()

    def _turn(self) -> bool:
        """Wait for one thing to happen, and act on it; False when there is nothing left to wait for."""
        pause = None if self._due is None else max(0.0, self._due - time.monotonic())
        ready = [key.fileobj for key, _ in self._selector.select(pause)]
        if 0 in ready and not self._hear_questions():
            return False
        if self._trial in ready or (self._trial and self._is_late):
            self._end_trial()
        elif self._probe in ready:
            self._hear_answer()
        elif self._is_late:
            self._fail(f"the driver did not answer within {self._patience:g} s")
        while self._questions and self._due is None:
            self._ask(self._questions[0])
        return True

    @property
    def _is_late(self) -> bool:
        return self._due is not None and time.monotonic() >= self._due

    def _try_fence(self) -> None:
        """Cards are not looked at meanwhile: this is asked once a driver and build of the hook."""
        self._trial = Probe("fgsched.gpus.fence")
        self._selector.register(self._trial, selectors.EVENT_READ)
        self._patience = self._deadline * wire.WAKING
        self._due = time.monotonic() + self._patience
        with suppress(BrokenPipeError):  # it has ended: that is read as its answer
            self._trial.ask(self._questions[0].partition(" ")[2])

    def _end_trial(self) -> None:
        assert self._trial is not None
        line = b"" if self._is_late else self._trial.hear()
        if line == b"" and not self._is_late:
            return
        why = f"it took more than {self._patience:g} s" if line == b"" else "it ended without an answer"
        self._selector.unregister(self._trial)
        self._trial.abandon()
        self._trial.is_gone()
        self._trial = None
        self._patience = self._deadline
        self._answer(line or wire.dump(Report(want=wire.FENCE, error=f"the trial of the fence: {why}")))

    def _hear_questions(self) -> bool:
        data = os.read(0, _CHUNK)
        *lines, self._unread = (self._unread + data).split(b"\n")
        self._questions += [line.decode() for line in lines]
        return bool(data)

    def _ask(self, question: str) -> None:
        if question.startswith(wire.FENCE):
            self._try_fence()
            return
        if self._abandoned and self._abandoned.is_gone():
            self._abandoned = None
        rests = time.monotonic() < self._not_before and question != wire.INVENTORY  # that one, a person wants
        if self._abandoned or rests:
            self._answer(wire.dump(Report(want=question, error=self._trouble)))
            return
        if self._probe is None:
            self._probe = Probe()
            self._selector.register(self._probe, selectors.EVENT_READ)
        try:
            self._probe.ask(question)
        except BrokenPipeError:
            self._fail("the probe of the driver ended")
        else:
            self._due = time.monotonic() + self._patience

    def _hear_answer(self) -> None:
        line = self._probe.hear() if self._probe else None
        if line is None and self._due is None:
            self._drop()  # killed by somebody: the next question starts another
        elif line is None:
            self._fail("the probe of the driver ended")
        elif line:
            self._weigh(line)

    def _weigh(self, line: bytes) -> None:
        """Pass an answer on, and find out whether the probe is worth keeping."""
        try:
            trouble = wire.load(line).trouble
        except ValueError:
            self._fail("the probe of the driver made no sense")
            return
        if trouble:
            self._fail(trouble, line)
        else:
            self._failures, self._not_before = 0, 0.0
            self._patience = self._deadline
            self._answer(line)

    def _fail(self, trouble: str, answer: bytes = b"") -> None:
        """Give this probe up, and repeat why to whoever asks before the pause is over."""
        self._patience = self._deadline
        self._not_before = time.monotonic() + min(_LONGEST_PAUSE, self._deadline * 2**self._failures)
        self._failures = min(self._failures + 1, 20)
        self._trouble = trouble
        self._drop()
        self._answer(answer or wire.dump(Report(want=self._questions[0], error=trouble)))

    def _drop(self) -> None:
        if self._probe:
            self._selector.unregister(self._probe)
            self._probe.abandon()
            self._abandoned, self._probe = self._probe, None

    def _answer(self, line: bytes) -> None:
        self._questions.popleft()
        self._due = None
        os.write(1, line)


def main() -> None:
    """The deadline in seconds is the argument."""
    Keeper(float(sys.argv[3])).run()
