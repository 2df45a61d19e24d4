"""A real file system without space below the state of root's controller, and later with space."""

import errno
import os
import time

import pytest

from awaiting import PATIENCE, rest
from fakehost import UIDS, hosting, why_not
from mailserver import serving

_WHY_NOT = why_not()
pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "can be made")]
OPTIONS = {"blocks": "size=12m", "inodes": "size=64m,nr_inodes=120"}
STATE = "var/lib/fgsched"


def become(is_so):
    """Return the value of a condition once it is true."""
    end = time.monotonic() + PATIENCE
    while not (found := is_so()):
        assert time.monotonic() < end, "it never came to that"
        rest()
    return found


class Filled:
    """A file system without a block or an inode, until the block ends."""

    def __init__(self, folder):
        self._folder, self._count = folder / "filling", 0

    def __enter__(self):
        self._folder.mkdir()
        for size in (1 << 20, 4096, 0):
            self._fill(size)

    def _fill(self, size):
        while True:
            self._count += 1
            try:
                with open(self._folder / str(self._count), "wb") as file:
                    file.write(bytes(size))
                    file.flush()
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                return
            if not size and self._count > 5000:  # inodes are not limited
                return

    def __exit__(self, *_):
        for name in os.listdir(self._folder):
            os.unlink(self._folder / name)
        self._folder.rmdir()


def states(host, ids):
    return [host.job(number)["state"] for number in ids]


def processes(host):
    """Return the processes of alice's jobs."""
    return host.do("root", "pgrep", "-u", str(UIDS["alice"]), "-f", "sleep 1000000").out.split()


def waiting_mails(host):
    return os.listdir(host.root / STATE / "mail/new")


@pytest.mark.parametrize("lacking", OPTIONS)
def test_what_ends_on_a_full_disk_is_stored_and_mailed_once_when_there_is_space(tmp_path, lacking):
    with serving(tmp_path / "mails") as server, hosting(config=_config(server), started=False) as host:
        options = f"mode=700,{OPTIONS[lacking]}"
        made = host.do("root", "sh", "-ec", f"mkdir -p /{STATE}; mount -t tmpfs -o {options} none /{STATE}")
        assert made.status == 0, made.err
        host.start()
        mails = ("--mail-type=END", "--mail-user=alice")
        jobs = [host.running("alice", "--gpus=0.25", *mails) for _ in range(4)]
        with Filled(host.root / STATE):
            for number in jobs:
                done = host.run("alice", "fgcancel", "--signal=KILL", str(number))
                assert done.status == 0, done.err
            become(lambda: not processes(host))
            assert host.run("root", "fgq").status == 0, "questions are answered"
            told = host.run("root", "fgsched", "doctor")
            assert "FAIL disk" in told.out, told.out
            assert not server.mails
        become(lambda: states(host, jobs) == ["FAILED"] * 4)
        become(lambda: len(server.mails) == 4 and not waiting_mails(host))
        assert host.ended("bob", "exit 0")["state"] == "COMPLETED", "without a restart"
        assert len(server.mails) == 4, "each once"
        shown = host.run("root", "fgacct", "-n", "-X", "-o", "JobID,State", "-S", "today")
        assert shown.out.count("FAILED") == 4, shown.out


def _config(server):
    return '[gpus]\ndevices = "sim:2x16G"\n[host]\ncpus = 64\n' + server.settings(domain='"example.org"')
