"""Shepherds that take another job instead of ending: each job must be as alone as with one of its own."""

import errno
import os
import re
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures_spawner import NEEDS_SPAWNER
from spawner_driver import (
    ALL,
    BECOME_USER,
    CANCEL,
    DELIVER,
    RESULT_MAGIC,
    SUSPEND,
    Result,
    await_end,
    is_gone,
    queue_command,
    spawning,
)

pytestmark = NEEDS_SPAWNER
PATH = {"PATH": os.environ["PATH"]}
TRIVIAL = "#!/bin/sh\nexit 0\n"


def done(spawner, script=TRIVIAL, **fields):
    """A job that is over and whose notice has come."""
    job = spawner.launch(script, **fields)
    job.over()
    return job


def pair(
    spawner, script=TRIVIAL, *, before=TRIVIAL, before_fields=None, between=None, release=None, **fields
):
    """A job that is over and the next one, which the same shepherd took.

    A shepherd rests for 250 ms only, so it is tried until the second job is quick enough. `between` gets the
    number of a job between both; `release` lets a second job end that another shepherd took.
    """
    for number in range(1, 600, 3):
        one = done(spawner, before, job=number, **fields | (before_fields or {}))
        if between:
            between(number + 1)
        two = spawner.launch(script, job=number + 2, **fields)
        if two.answer.pid == one.answer.pid:
            return one, two
        if release:
            release()
        two.over()
    raise AssertionError("no shepherd took a second job")


def test_a_shepherd_takes_another_job_and_says_so_with_its_own_start(spawner):
    one, two = pair(spawner, "#!/bin/sh\nexit 7\n")
    two.over()
    assert two.answer.ticks == one.answer.ticks
    assert Result.read(one.link).exit_code == 0
    assert Result.read(two.link).exit_code == 7
    assert not two.wish.directory.exists()


def test_jobs_that_run_at_once_have_a_shepherd_each(spawner, gate, go):
    script = "#!/bin/sh\necho up >gate; read -r line <go\n"
    jobs = [spawner.launch(script, job=number) for number in (1, 2, 3)]
    for _ in jobs:
        gate.line()
    assert len({job.answer.pid for job in jobs}) == 3
    os.write(go.fd, b"go\ngo\ngo\n")
    for job in jobs:
        job.over()


@pytest.mark.parametrize(("verb", "number"), [(CANCEL, 0), (DELIVER, signal.SIGKILL), (SUSPEND, 0)])
def test_a_late_command_for_the_last_job_does_not_reach_the_next(spawner, gate, go, verb, number):
    script = "#!/bin/sh\necho up >gate; read -r line <go; exit 5\n"
    one, two = pair(spawner, script, release=lambda: gate.line() and os.write(go.fd, b"go\n"))
    gate.line()
    one.order(verb, number, ALL)
    two.order(DELIVER, signal.SIGWINCH)  # heard after it, and harmless
    os.write(go.fd, b"go\n")
    two.over()
    result = Result.read(two.link)
    assert (result.cause, result.exit_code) == ("exit", 5)


def test_a_command_without_a_mark_is_nobodys(spawner, gate, go):
    job = spawner.launch("#!/bin/sh\necho up >gate; read -r line <go; exit 6\n")
    gate.line()
    queue_command(job.answer.pid, CANCEL)
    os.write(go.fd, b"go\n")
    job.over()
    assert Result.read(job.link).exit_code == 6


def test_the_use_of_one_job_is_not_counted_for_the_next(spawner):
    hungry = "#!/bin/sh\nexec python3 -S -c 'x = bytearray(64 << 20); sum(range(3_000_000))'\n"
    one, two = pair(spawner, before=hungry, env=PATH)
    two.over()
    first, second = Result.read(one.link), Result.read(two.link)
    assert first.max_rss > 64 * 1024 > second.max_rss
    assert second.user + second.system < (first.user + first.system) / 2


def test_nothing_of_an_earlier_job_stays_open_in_a_shepherd(spawner, tmp_path):
    fields = {"region": b"x" * 100, "region_size": 10_000, "tmpdir": f"{tmp_path}/private", "env": PATH}
    _, two = pair(spawner, "#!/bin/sh\nreadlink /proc/$PPID/fd/* >>open\n", **fields)
    two.over()
    held = (tmp_path / "open").read_text().split()[-5:]
    assert held[:3] == ["/dev/null"] * 3
    assert held[3].startswith("pipe:")
    assert held[4] == f"{two.wish.directory}/region"


def test_a_message_that_is_too_large_for_a_slot_gets_a_shepherd_of_its_own(spawner):
    one = done(spawner)
    two = spawner.launch(TRIVIAL, job=2, env={"BIG": "x" * 60_000})
    two.over()
    assert two.answer.pid != one.answer.pid
    assert Result.read(two.link).exit_code == 0


def test_a_job_that_could_not_be_started_does_not_spoil_the_next(spawner):
    one, two = pair(spawner, before="#!/no/such/program\n")
    two.over()
    assert (Result.read(one.link).cause, Result.read(one.link).errno) == ("launch", errno.ENOENT)
    second = Result.read(two.link)
    assert (second.cause, second.exit_code, second.errno, second.detail) == ("exit", 0, 0, "")


def test_a_malformed_message_leaves_the_resting_where_they_are(spawner):

    def malformed(number):
        spawner.expected += b"fgspawn: job %d: launch refused: Invalid argument\n" % number
        spawner.launch("", job=number)

    _, two = pair(spawner, between=malformed)
    two.over()
    assert Result.read(two.link).exit_code == 0


def test_a_shepherd_with_nothing_to_do_goes(spawner):
    job = done(spawner)
    await_end(job.answer.pid)
    assert is_gone(job.answer.pid)


def test_those_who_rest_go_when_the_controller_does(tmp_path):
    with spawning(tmp_path) as spawner:
        jobs = [spawner.launch(TRIVIAL, job=number) for number in range(1, 9)]
        for job in jobs:
            job.over()
    for job in jobs:
        await_end(job.answer.pid)
    assert [job.answer.pid for job in jobs if not is_gone(job.answer.pid)] == []


def test_those_who_rest_go_when_their_spawner_was_killed(tmp_path):
    with spawning(tmp_path) as spawner:
        job = done(spawner)
        spawner.process.kill()
        spawner.process.wait()
        spawner.expected_end = -signal.SIGKILL
        await_end(job.answer.pid)
        assert is_gone(job.answer.pid)


def test_one_that_is_killed_at_rest_leaves_nothing_undone(spawner):
    one = killed_at_rest(spawner)
    two = spawner.launch("#!/bin/sh\nexit 3\n", job=1001)
    if two.answer.errno:  # the spawner had not heard of the kill: nothing ran, and the controller is told
        assert (two.answer.errno, os.path.lexists(two.link)) == (errno.ESRCH, False)
        two = spawner.launch("#!/bin/sh\nexit 3\n", job=1002)
    two.over()
    assert two.answer.pid not in (0, one.answer.pid)
    assert Result.read(two.link).exit_code == 3


def killed_at_rest(spawner):
    """A job whose shepherd was killed while it rested; one that had left already is followed by another."""
    for number in range(1, 200):
        job = done(spawner, job=number)
        with suppress(ProcessLookupError):
            os.kill(job.answer.pid, signal.SIGKILL)
            await_end(job.answer.pid)
            return job
    raise AssertionError("no shepherd rested")


def test_one_that_is_killed_before_it_claims_its_next_job_leaves_that_unclaimed(tmp_path):
    with spawning(tmp_path, FG_CRASH_AT="shepherd_before_next") as spawner:
        for number in range(1, 50):  # one that finds nobody at rest gets a new shepherd, who lives
            job = spawner.launch("#!/bin/sh\nexit 9\n", job=number)
            if job.answer.errno:
                break
            job.over()
    assert (job.answer.pid, job.answer.errno) == (0, errno.ESRCH)
    assert not os.path.lexists(job.link)
    assert not (tmp_path / "run/claim" / job.wish.name).is_symlink()


def test_the_memory_of_a_large_message_is_not_counted_for_the_next_job(spawner):
    done(spawner, job=1)
    large = spawner.launch(f"{TRIVIAL}#{'x' * 6_000_000}\n", job=2)
    large.over()
    for number in range(3, 20):
        job = done(spawner, job=number)
        assert Result.read(job.link).max_rss < 5000


def test_a_job_whose_files_could_not_be_given_away_leaves_none_open(tmp_path):
    with spawning(tmp_path, before=["unshare", "--user", "--map-root-user"]) as spawner:
        become = {"flags": BECOME_USER, "uid": 1234, "gid": 1234}
        one, two = pair(spawner, "#!/bin/sh\nls /proc/$PPID/fd\n", before_fields=become, env=PATH)
        two.over()
        assert Result.read(one.link).detail.startswith("chown ")
        assert two.output().split() == ["0", "1", "2", "3"]


def test_what_shepherds_share_is_in_no_core_dump(spawner, gate, go):
    spawner.launch("#!/bin/sh\necho up >gate; read -r line <go\n")
    gate.line()
    shared = [text for text in maps_of(spawner.process.pid) if "/dev/zero" in text]
    assert len(shared) == 1
    assert " dd" in shared[0].rpartition("VmFlags:")[2]
    os.write(go.fd, b"go\n")


def maps_of(pid):
    """Each mapping of a process, with what the kernel says of it."""
    return re.split(r"\n(?=[0-9a-f]+-)", Path(f"/proc/{pid}/smaps").read_text())


def test_a_controller_that_does_not_listen_keeps_nothing_from_a_job_without_a_shepherd(tmp_path, gate):
    with spawning(tmp_path, room=4608) as spawner:
        check_a_lost_job_of_a_deaf_controller(spawner, gate)


def check_a_lost_job_of_a_deaf_controller(spawner, gate):
    script = "#!/bin/sh\ntrap 'echo hey >gate; exit' TERM\necho >gate\nwhile :; do sleep 1000 & wait; done\n"
    lost = spawner.launch(script, env=PATH | {"FG_JOB_DIR": f"{spawner.run}/job/1.1"}, leftover_grace=20)
    gate.line()
    os.kill(lost.answer.pid, signal.SIGKILL)
    await_end(lost.answer.pid)
    for number in range(2, 300):
        spawner.socket.sendall(replace(lost.wish, job=number, script=TRIVIAL.encode()).pack())
    spawner.command(1, CANCEL)
    assert gate.line() == "hey"
    words = [spawner._word()]
    while (words[-1].job, words[-1].magic) != (lost.wish.job, RESULT_MAGIC):
        words.append(spawner._word())
