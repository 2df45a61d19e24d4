"""Process between the controller and the probe, which enforces a deadline on every query of the GPU driver.

It never queries the driver, so it never hangs. It runs one probe at a time. A probe that misses the deadline
is killed but not waited for, because a process that hangs in the kernel does not exit; the next probe starts
after it has exited. A probe that reports only errors is replaced as well, because a reloaded driver needs its
new library. The pause before the next probe doubles with each failure in a row.
"""

import os
import selectors
import sys
import time
from collections import deque
from contextlib import suppress

from fgsched.gpus.backend import HOOK_TEST, INVENTORY, WAKE_FACTOR, GpuReport, dump, load
from fgsched.system import preloading
from fgsched.system.helper import Helper

_MAX_PAUSE = 300.0  # seconds
_CHUNK = 1 << 16  # bytes


def _child(module: str, *arguments: str) -> Helper:
    """Start a child process that answers questions: a probe, or a test of the hook."""
    # The library of the driver may be where only the caller's LD_LIBRARY_PATH leads.
    helper = Helper(module, environ=preloading.of_users(os.environ), is_single=True)
    helper.launch(*arguments, now=time.monotonic())
    return helper


def _answer_of(helper: Helper) -> bytes | None:
    """Return the answer with its newline; b"" while it is incomplete, None if the process has exited."""
    lines = helper.lines()
    if lines:
        return lines[0] + b"\n"
    return None if helper.is_closed else b""


class ProbeSupervisor:
    """Reads questions from descriptor 0 and writes answers to descriptor 1, one line each, in order."""

    def __init__(self, deadline: float, source: str) -> None:
        """Create a supervisor without a probe.

        Args:
            source: of the vendor.
            deadline: seconds for an answer; the first one and an inventory may take five times as long.
        """
        self._deadline = deadline
        self._source = source
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._questions: deque[str] = deque()
        self._unread = b""
        self._probe: Helper | None = None
        self._abandoned: Helper | None = None  # the last probe, until it has exited
        self._hook_test: Helper | None = None
        self._due: float | None = None  # monotonic seconds at which the answer is due
        self._timeout = deadline * WAKE_FACTOR  # seconds, of the current question
        self._failures = 0
        self._not_before = 0.0  # monotonic seconds
        self._trouble = ""
        self._was_late = False  # the trouble is that the driver did not answer in time

    def run(self) -> None:
        """Answer questions until the other end is closed."""
        try:
            with suppress(ConnectionError):
                while self._handle_event():
                    pass
        finally:
            for helper in (self._probe, self._hook_test):
                if helper:
                    helper.abandon()

    def _handle_event(self) -> bool:
        """Wait for one event and handle it; return False at the end of the questions."""
        pause = None if self._due is None else max(0.0, self._due - time.monotonic())
        ready = [key.fileobj for key, _ in self._selector.select(pause)]
        if 0 in ready and not self._receive_questions():
            return False
        if self._hook_test in ready or (self._hook_test and self._is_late):
            self._end_hook_test()
        elif self._probe in ready:
            self._receive_answer()
        elif self._is_late:
            self._fail(f"the driver did not answer within {self._timeout:g} s", is_late=True)
        while self._questions and self._due is None:
            self._ask(self._questions[0])
        return True

    @property
    def _is_late(self) -> bool:
        return self._due is not None and time.monotonic() >= self._due

    def _start_hook_test(self) -> None:
        """Start the test of the hook, which delays readings; once per driver and build of the hook."""
        self._hook_test = _child("fgsched.gpus.hooktest")
        self._selector.register(self._hook_test, selectors.EVENT_READ)
        self._timeout = self._deadline * WAKE_FACTOR
        self._due = time.monotonic() + self._timeout
        with suppress(BrokenPipeError):  # it has exited, which `receive` reports
            self._hook_test.send(f"{self._questions[0].partition(' ')[2]}\n".encode())

    def _end_hook_test(self) -> None:
        assert self._hook_test is not None
        line = b"" if self._is_late else _answer_of(self._hook_test)
        if line == b"" and not self._is_late:
            return
        why = f"it took more than {self._timeout:g} s" if line == b"" else "it exited without an answer"
        self._selector.unregister(self._hook_test)
        self._hook_test.abandon()
        self._hook_test = None
        self._timeout = self._deadline
        self._answer(line or dump(GpuReport(want=HOOK_TEST, error=f"the test of the hook failed: {why}")))

    def _receive_questions(self) -> bool:
        data = os.read(0, _CHUNK)
        *lines, self._unread = (self._unread + data).split(b"\n")
        self._questions += [line.decode() for line in lines]
        return bool(data)

    def _ask(self, question: str) -> None:
        if question.startswith(HOOK_TEST):
            self._start_hook_test()
            return
        if self._abandoned and not self._abandoned.is_running:
            self._abandoned = None
        pauses = time.monotonic() < self._not_before and question != INVENTORY  # a person waits for that
        if self._abandoned or pauses:
            self._answer(dump(GpuReport(want=question, error=self._trouble, is_late=self._was_late)))
            return
        if self._probe is None:
            self._probe = _child("fgsched.gpus.probe", self._source)
            self._selector.register(self._probe, selectors.EVENT_READ)
        if question == INVENTORY:
            self._timeout = self._deadline * WAKE_FACTOR
        try:
            self._probe.send(f"{question}\n".encode())
        except BrokenPipeError:
            self._fail("the probe of the driver ended")
        else:
            self._due = time.monotonic() + self._timeout

    def _receive_answer(self) -> None:
        line = _answer_of(self._probe) if self._probe else None
        if line is None and self._due is None:
            self._drop()  # killed from outside: the next question starts another probe
        elif line is None:
            self._fail("the probe of the driver ended")
        elif line:
            self._check(line)

    def _check(self, line: bytes) -> None:
        """Pass an answer on; replace the probe if the answer has only errors."""
        try:
            trouble = load(line).trouble
        except ValueError:
            self._fail("the probe of the driver sent a malformed report")
            return
        if trouble:
            self._fail(trouble, line)
        else:
            self._failures, self._not_before = 0, 0.0
            self._timeout = self._deadline
            self._answer(line)

    def _fail(self, trouble: str, answer: bytes = b"", *, is_late: bool = False) -> None:
        """Abandon the probe; until the pause ends, `trouble` is the answer to every question."""
        self._timeout = self._deadline
        self._not_before = time.monotonic() + min(_MAX_PAUSE, self._deadline * 2**self._failures)
        self._failures = min(self._failures + 1, 20)
        self._trouble, self._was_late = trouble, is_late
        self._drop()
        self._answer(answer or dump(GpuReport(want=self._questions[0], error=trouble, is_late=is_late)))

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
    """Run the supervisor; the arguments are the deadline in seconds and the source of the vendor."""
    ProbeSupervisor(float(sys.argv[1]), sys.argv[2]).run()
