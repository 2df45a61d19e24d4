"""What programs print is read to a bound, and the end of a program decides, not that of its outputs."""

import os
import select
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from awaiting import PATIENCE
from fgsched.hooks.process import HookRunner
from fgsched.hooks.programs import HookRun, Ran
from fgsched.mail.letters import MailSettings
from fgsched.mail.mailer import Later, send
from fgsched.system import capture

LOUD = 200 << 20  # bytes that a program prints
LITTLE = 8 << 20  # bytes that its starter may hold


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or read
        return True


def test_the_first_and_the_last_bytes_are_kept_and_the_rest_is_read():
    zeros = "head -c 1000000 /dev/zero"
    script = f"printf first; {zeros}; printf last; printf E >&2; {zeros} >&2; printf end >&2"
    done = capture.run(["sh", "-c", script], seconds=PATIENCE, most=100)
    assert (done.status, done.output[:5], len(done.output)) == (0, b"first", 100)
    assert (done.errors[-3:], len(done.errors)) == (b"end", 100)


def test_a_process_that_keeps_the_outputs_open_delays_nobody(tmp_path):
    done = capture.run(["sh", "-c", "sleep 1000 & echo $!; exit 3"], seconds=PATIENCE)
    assert done.status == 3
    os.kill(int(done.output), 9)


def test_a_program_that_is_late_ends_with_its_process_group(tmp_path):
    file = tmp_path / "pid"
    with pytest.raises(subprocess.TimeoutExpired):
        capture.run(["sh", "-c", f"sleep 1000 & echo $! >{file}; wait"], seconds=1.0)
    until = time.monotonic() + PATIENCE
    while not is_gone(int(file.read_text())):
        assert time.monotonic() < until


def test_the_input_of_a_program_is_whole_and_cannot_grow():
    script = "cat; printf more >>/proc/self/fd/0 && echo grew >&2"
    done = capture.run(["sh", "-c", script], seconds=PATIENCE, data=b"abc" * 30_000)
    assert done.output == b"abc" * 21845 + b"a"
    assert b"grew" not in done.errors


@pytest.mark.parametrize("keep", [0, 1000])
def test_a_program_of_the_site_that_prints_without_end_costs_its_runner_no_memory(tmp_path, keep):
    """The program measures its parent at its end: resident memory, and the files that it holds."""
    sizes = tmp_path / "sizes"
    loud = program(
        tmp_path / "loud",
        f"head -c {LOUD} /dev/zero; head -c {LOUD} /dev/zero >&2; echo >&2; echo done >&2\n"
        f"stat -Lc %s /proc/$PPID/fd/* >{sizes} 2>/dev/null; grep VmRSS /proc/$PPID/status >>{sizes}; exit 0",
    )
    outcomes: list[Ran] = []
    pidfds: list[int] = []
    with closing(HookRunner(tmp_path / "lock", lambda pidfd, ended: pidfds.append(pidfd))) as runner:
        runner.request(
            HookRun(path=str(loud), seconds=PATIENCE, environment=dict(os.environ), keep=keep),
            outcomes.append,
        )
        while not outcomes:
            assert select.select([runner], [], [], PATIENCE)[0]
            runner.receive()
    for pidfd in pidfds:
        os.close(pidfd)
    assert (outcomes[0].problem, outcomes[0].said, len(outcomes[0].output)) == ("", "done", keep)
    *files, resident = sizes.read_text().splitlines()
    assert max(map(int, files)) < LITTLE
    assert int(resident.split()[1]) < 100_000


def sendmail(tmp_path: Path, text: str, deadline: float = PATIENCE) -> MailSettings:
    path = program(tmp_path / "sendmail", f"cat >>{tmp_path}/letters\n{text}")
    return MailSettings(way="sendmail", sendmail=str(path), deadline=deadline)


def test_a_letter_that_sendmail_took_is_sent_once_though_a_child_keeps_its_errors_open(tmp_path):
    settings = sendmail(tmp_path, f"sleep 1000 & echo $! >{tmp_path}/pid; exit 0")
    send(settings, "h", "a@b", ["c@d"], b"one letter\r\n")
    assert (tmp_path / "letters").read_text() == "one letter\n"
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_a_sendmail_that_is_given_up_ends_with_its_children(tmp_path):
    settings = sendmail(tmp_path, f"sleep 1000 & echo $! >{tmp_path}/pid; wait", deadline=1)
    with pytest.raises(Later, match="did not answer within 1 s"):
        send(settings, "h", "a@b", ["c@d"], b"x")
    until = time.monotonic() + PATIENCE
    while not is_gone(int((tmp_path / "pid").read_text())):
        assert time.monotonic() < until


def test_a_sendmail_that_prints_without_end_costs_no_memory(tmp_path):
    settings = sendmail(tmp_path, f"head -c {LOUD} /dev/zero >&2; echo no such list >&2; exit 75")
    with pytest.raises(Later, match="exit status 75") as seen:
        send(settings, "h", "a@b", ["c@d"], b"x")
    assert len(str(seen.value)) < 1000
