"""A name service that hangs for one user: everybody else is served, and the user once it answers."""

import os
import subprocess
import sys

import pytest

import fakecuda
from fakehost import UIDS, hosting, why_not
from live_host import PATIENCE, without_waiting

_WHY_NOT = why_not()
pytestmark = [
    pytest.mark.root,
    pytest.mark.compiler,
    pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "can be made"),
    pytest.mark.skipif(fakecuda.compiler() is None, reason="no C compiler"),
]
# Whoever asks for bob waits until somebody writes to the FIFO, or opens it and goes.
SLOW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pwd.h>
#include <unistd.h>
int getpwuid_r(uid_t uid, struct passwd *entry, char *buffer, size_t size, struct passwd **found) {
    int (*real)(uid_t, struct passwd *, char *, size_t, struct passwd **) = dlsym(RTLD_NEXT, "getpwuid_r");
    if (uid == BOB) {
        char byte;
        int fd = open(FIFO, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) { (void)!read(fd, &byte, 1); close(fd); }
    }
    return real(uid, entry, buffer, size, found);
}
"""


class Service:
    """The name service of a host: `asked` returns once it was asked for bob, `answer` lets it answer."""

    def __init__(self, host):
        self.fifo, self.library = host.path / "names", host.path / "libslow.so"
        os.mkfifo(self.fifo)
        source = host.path / "slow.c"
        source.write_text(SLOW)
        given = [f"-DBOB={UIDS['bob']}", f'-DFIFO="{self.fifo}"']
        compiler = fakecuda.compiler()
        subprocess.run([compiler, "-shared", "-fPIC", *given, source, "-o", self.library, "-ldl"], check=True)

    def asked(self):
        """Opening it ends when somebody has opened it to read: who asks for bob waits there now."""
        self._end = os.open(self.fifo, os.O_WRONLY)

    def answer_once(self):
        os.write(self._end, b"x")
        os.close(self._end)

    def answer(self):
        """This time, and each time that it is asked from now on."""
        self._plenty = os.open(self.fifo, os.O_RDWR)
        os.write(self._plenty, b"x" * 1000)

    def leave(self):
        for end in {self._end, self._plenty}:
            os.close(end)


@pytest.fixture
def slow():
    """(host, its name service)"""
    with hosting(started=False) as host:
        service = Service(host)
        begin(host, service)
        try:
            yield host, service
        finally:
            assert host.run("root", "fgsched", "stop", "--kill").status == 0
            service.leave()


def begin(host, service):
    done = host.run("root", "fgsched", "start", "--system", env={"LD_PRELOAD": str(service.library)})
    assert done.status == 0, done.err + host.log


def test_a_user_whom_the_service_does_not_tell_waits_and_nobody_else_does(slow):
    host, service = slow
    with host.enter("bob", sys.executable, "-m", "fgsched.cli.fgq", "-h") as his:
        service.asked()
        assert host.run("root", "fgq", "-h").status == 0
        assert host.ended("alice", "exit 0")["state"] == "COMPLETED"
        assert his.poll() is None
        service.answer()
        out, err = his.communicate(timeout=PATIENCE)
    assert (his.returncode, out, without_waiting(err)) == (0, "", "")


def test_a_job_whose_user_the_service_does_not_tell_starts_when_it_does(slow):
    host, service = slow
    with host.enter("bob", *_submission(host)) as his:
        service.asked()
        service.answer_once()
        out, err = his.communicate(timeout=PATIENCE)
    assert his.returncode == 0, err
    assert host.run("root", "fgsched", "stop").status == 0
    begin(host, service)
    assert host.run("root", "fgctl", "release", out.strip()).status == 0
    service.asked()
    assert host.ended("alice", "exit 0")["state"] == "COMPLETED"
    assert host.job(int(out))["state"] == "CONFIGURING"
    service.answer()
    assert host.over(int(out))["state"] == "COMPLETED"


def _submission(host):
    script = host.home("bob") / "job.sh"
    script.write_text("#!/bin/sh\nexit 0\n")
    return [sys.executable, "-m", "fgsched.cli.fgsub", "--parsable", "--hold", "-o", "out", script]
