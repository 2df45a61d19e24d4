"""What is sent to the spawner, and claims that cannot be made."""

import os
import struct
from errno import ENOSPC

import pytest
from msgspec.structs import replace

from builders import BOOT, a_job
from fgsched.domain.errors import Refused, StorageError
from fgsched.domain.states import JobState
from fgsched.gpus.nvidia import FACTS
from fgsched.launch import shepherds
from fgsched.launch.rundir import RunDir
from fgsched.launch.spawner import pack
from fgsched.lifecycle.launchspec import JobOwner, LaunchContext, launch
from fgsched.lifecycle.transitions import Unclaimed
from spawner_driver import NO_NEW_PRIVILEGES, limit_value

_FLAGS_AT = 20  # bytes before the flags in a launch message
SITE = LaunchContext(
    vendor=FACTS, host="h", run="/run/fg", hook="/hook", tmp="/tmp/fg-", kill_wait=5, become_user=False
)


def a_launch(**more):
    job = a_job(state=JobState.RUNNING)
    job = replace(job, request=replace(job.request, **more))
    return launch(job, (), b"A=1\0", site=SITE, owner=JobOwner(home="/", gid=1, groups=()))


def test_what_is_longer_than_the_spawner_takes_is_refused_before_it_hangs_up():
    spec = a_launch()
    room = 8 * 2**20 - len(pack(spec, b"", b""))
    assert len(pack(spec, b"x" * room, b"")) == 8 * 2**20
    with pytest.raises(Refused, match="larger than 8 MiB"):
        pack(spec, b"x" * (room + 1), b"")


def test_a_site_can_rule_out_that_jobs_gain_privileges():
    flags = [
        struct.unpack_from("<I", pack(a_launch()._replace(no_new_privileges=wanted), b"", b""), _FLAGS_AT)[0]
        for wanted in (False, True)
    ]
    assert flags[1] == flags[0] | NO_NEW_PRIVILEGES


def test_a_claim_that_finds_no_space_decides_nothing(tmp_path, monkeypatch):
    run = RunDir(tmp_path, BOOT)

    def full(*_):
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "symlink", full)
        with pytest.raises(StorageError, match="No space left on device"):
            run.seize(1, 1)
    assert run.seize(1, 1) == Unclaimed()
    assert run.seize(1, 1) == Unclaimed(), "the tombstone is there already"


def test_what_is_forgotten_is_gone_and_a_tombstone_stays(tmp_path):
    run = RunDir(tmp_path, BOOT)
    for name in ("claim", "result"):
        os.symlink(f"P:1:1:{BOOT}", tmp_path / name / "1.1")
    run.seize(2, 1)
    assert run.leftovers() == [(1, 1)]
    for job in (1, 2, 3):
        run.forget(job, 1)
    assert [path.name for path in sorted(tmp_path.rglob("*.1"))] == ["2.1"]


RESULT = f"R4 0 exit 1 2{' 0' * 14} ".encode().ljust(1024, b"\0")  # as a shepherd stores it


def test_a_result_in_a_file_survives_the_search_for_leftovers(tmp_path, caplog):
    run = RunDir(tmp_path, BOOT)
    (tmp_path / "result" / "3.1").write_bytes(RESULT)
    assert run.leftovers() == [(3, 1)]
    assert run.result(3, 1) is not None
    assert not caplog.records


def test_a_result_that_is_stored_while_it_is_looked_for_is_read_later(tmp_path, monkeypatch, caplog):
    run = RunDir(tmp_path, BOOT)
    spare = tmp_path / "spare" / "1.result"
    spare.write_bytes(RESULT)

    def too_early(path, *_):
        os.link(spare, path)
        raise FileNotFoundError(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", too_early)
        assert run.result(3, 1) is None
    assert run.result(3, 1) is not None
    assert not caplog.records


def test_a_command_to_a_shepherd_says_what_for_how_long_and_to_which_attempt(monkeypatch):
    sent = []
    monkeypatch.setattr(shepherds.region, "queue_signal", lambda *words: sent.append(words))
    value = shepherds.encode(shepherds.PREEMPT, number=10, target=2, seconds=7200)
    assert shepherds.send(5, 7, 3, value)
    [(pidfd, _, command)] = sent
    mark, value = divmod(command, 1 << 32)
    assert (pidfd, mark & 0xFF_FFFF, mark >> 24) == (5, 7, 3)
    assert (value & 0xFF, value >> 8 & 0xFF, value >> 16 & 3, value >> 18) == (shepherds.PREEMPT, 10, 2, 7200)
    year = 366 * 86_400
    assert [shepherds.encode_limit(limit) for limit in (60, year)] == [limit_value(60), limit_value(year)]


@pytest.mark.parametrize("error", [ProcessLookupError, BlockingIOError])
def test_a_command_that_cannot_be_delivered_is_answered_with_false(monkeypatch, error):
    def fail(*words):
        raise error

    monkeypatch.setattr(shepherds.region, "queue_signal", fail)
    assert not shepherds.send(5, 7, 3, shepherds.encode(shepherds.CANCEL))
