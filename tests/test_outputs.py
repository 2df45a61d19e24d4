"""The last lines of a job's output, which are read with the rights of its owner."""

import os
import subprocess
import sys

import pytest

from fgsched.system import outputs
from fgsched.system.outputs import Tail, last_lines, tail
from live_host import ROOT

ME = os.geteuid()
NOBODY = 65534
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs uid 0, to become other users")


@pytest.fixture
def output(tmp_path):
    path = tmp_path / "out"
    path.write_text("".join(f"{number}\n" for number in range(50)))
    return path


def test_the_last_lines_are_read_and_long_ones_are_cut(output):
    assert last_lines(str(output), 3, uid=ME) == ["47", "48", "49"]
    assert (last_lines(str(output), 0, uid=ME), last_lines("/nowhere", 3, uid=ME)) == ([], [])
    assert last_lines("out", 3, uid=ME) == []
    output.write_text("x" * 1000)
    assert last_lines(str(output), 3, uid=ME) == ["x" * 500]


def test_a_file_of_a_later_job_is_not_read(output):
    os.utime(output, (1000, 1000))
    assert last_lines(str(output), 1, uid=ME, unless_changed_after=1000.0) == ["49"]
    assert last_lines(str(output), 1, uid=ME, unless_changed_after=999.0) == []
    os.utime(output, ns=(10**12, 10**12 + 1))
    assert tail(str(output), 1, uid=ME, unless_changed_after=999.9) == Tail((), is_changed=True)
    assert tail("/nowhere", 1, uid=ME, unless_changed_after=999.9) == Tail((), is_changed=False)


@pytest.mark.parametrize("kind", ["fifo", "directory", "device"])
def test_what_is_no_file_is_not_opened(tmp_path, kind):
    path = tmp_path / kind
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    assert last_lines(str(path), 3, uid=ME) == []


def test_a_file_system_that_does_not_answer_is_given_up(output, monkeypatch):
    monkeypatch.setattr(outputs, "_READ", "exec sleep 1000")
    monkeypatch.setattr(outputs, "_TIME", 0.01)
    assert last_lines(str(output), 3, uid=ME) == []


@pytest.mark.root
@root
def test_root_does_not_follow_a_users_link_to_a_file_that_the_user_may_not_read(tmp_path):
    secret, link = tmp_path / "secret", tmp_path / "link"
    secret.write_text("secret\n")
    secret.chmod(0o600)
    link.symlink_to(secret)
    for path in (secret, link):
        assert last_lines(str(path), 3, uid=NOBODY) == []
        assert last_lines(str(path), 3, uid=NOBODY, gid=NOBODY) == []


@pytest.mark.root
@root
def test_the_user_sees_no_variable_of_root(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "x")
    found = []
    real = subprocess.Popen

    def started(*words, **more):
        found.append(more["env"])
        return real(*words, **more)

    monkeypatch.setattr(subprocess, "Popen", started)
    last_lines("/nowhere", 3, uid=NOBODY)
    assert [sorted(env) for env in found] == [["LC_ALL", "PATH"]]


WITH_A_KEY = """
import ctypes, os
from fgsched.system import outputs
libc, of_roots = ctypes.CDLL(None), b"a-key-of-roots"
ADD, KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
libc.syscall(KEYCTL, 1, None)
libc.syscall(ADD, b"user", of_roots, b"secret", 6, ctypes.c_long(-3))
assert of_roots.decode() in open("/proc/keys").read()
outputs._READ = "id -ru; id -G; cat /proc/self/loginuid; echo; grep -c a-key-of-roots /proc/keys; "
outputs._READ += f"test $(cut -d' ' -f6 /proc/self/stat) = {os.getsid(0)} && echo terminal; echo; echo 1.0"
print(outputs.last_lines("/x", 9, uid=65534, gid=65534))
"""


@pytest.mark.root
@root
@pytest.mark.skipif(not os.path.exists("/proc/keys"), reason="no keyrings here")
@pytest.mark.skipif(not os.path.exists("/proc/self/loginuid"), reason="no login uid here")
def test_a_user_who_traces_the_reader_finds_no_key_and_no_terminal_of_root_and_no_free_login_uid():
    command = [sys.executable, "-c", WITH_A_KEY]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert done.stdout == "['65534', '65534', '65534', '0']\n", done.stderr
