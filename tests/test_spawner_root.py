"""fgspawn as root: a job becomes its user for good, and root is led nowhere by a user."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fixtures_spawner import NEEDS_SPAWNER
from spawning import BECOME_USER, CANCEL, Gate, Result, is_gone, spawning

pytestmark = [
    *NEEDS_SPAWNER,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs uid 0"),
]
NOBODY = {"flags": BECOME_USER, "uid": 65534, "gid": 65534, "groups": (65534, 4242)}
PATH = {"PATH": os.environ["PATH"]}
PYTHON = "#!/usr/bin/env python3\n"


@pytest.fixture
def place():
    """A directory that every user can reach, unlike pytest's, with a home of the user's in it."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    (path / "home").mkdir()
    os.chown(path / "home", 65534, 65534)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def spawner(place):
    with spawning(place) as one:
        yield one


@pytest.fixture
def home(place):
    return {**NOBODY, "cwd": str(place / "home")}


@pytest.fixture
def secret(place):
    path = place / "secret"
    path.write_text("root's own\n")
    path.chmod(0o600)
    return path


def test_a_job_is_its_user_with_exactly_these_groups(spawner, place, home):
    spawner.launch("#!/bin/sh\nexec grep -E '^(Uid|Gid|Groups)' /proc/self/status\n", env=PATH, **home).over()
    words = [line.split() for line in (place / "home/out").read_text().splitlines()]
    assert words == [["Uid:", *["65534"] * 4], ["Gid:", *["65534"] * 4], ["Groups:", "4242", "65534"]]


def test_a_job_without_groups_has_none_of_roots(spawner, place, home):
    spawner.launch(
        "#!/bin/sh\nexec grep Groups /proc/self/status\n", env=PATH, **home | {"groups": ()}
    ).over()
    assert (place / "home/out").read_text().split() == ["Groups:"]


def test_a_job_cannot_become_root_again(spawner, place, home):
    script = PYTHON + (
        "import os\n"
        "for back in (os.setuid, os.seteuid, os.setgid, os.setegid):\n"
        "    try: back(0); print('back')\n"
        "    except PermissionError: print('no')\n"
        "try: os.setgroups([0]); print('back')\n"
        "except PermissionError: print('no')\n"
        "print([line.split()[1] for line in open('/proc/self/status') if line[:6] in ('CapEff', 'CapPrm')])\n"
    )
    assert spawner.launch(script, env=PATH, **home).result().exit_code == 0
    assert (place / "home/out").read_text().splitlines() == ["no"] * 5 + [str(["0" * 16] * 2)]


def test_what_a_job_writes_is_its_users(spawner, place, home):
    script = '#!/bin/sh\nstat -c "%u %g %a" "$0" "${0%/*}" "${0%/*}/region" "$TMPDIR"\n'
    tmpdir = str(place / "home/private")
    spawner.launch(script, region_size=100, tmpdir=tmpdir, env={**PATH, "TMPDIR": tmpdir}, **home).over()
    out = place / "home/out"
    assert (out.stat().st_uid, out.stat().st_gid) == (65534, 65534)
    assert out.read_text().splitlines() == [f"65534 65534 {mode}" for mode in (500, 700, 600, 700)]
    assert os.listdir(tmpdir) == []


def test_root_writes_through_no_link_of_the_users(spawner, place, home, secret):
    (place / "home/out").symlink_to(secret)
    result = spawner.launch("#!/bin/sh\necho pwned\n", **home).result()
    assert (result.cause, result.detail) == ("launch", "open out")
    assert secret.read_text() == "root's own\n"


def test_root_creates_nothing_where_the_user_may_not(spawner, place, home):
    result = spawner.launch("#!/bin/sh\n", **home | {"stdout": str(place / "new")}).result()
    assert (result.cause, result.detail) == ("launch", f"open {place}/new")
    assert not (place / "new").exists()


def test_root_reads_no_input_that_the_user_may_not(spawner, home, secret):
    result = spawner.launch("#!/bin/sh\ncat\n", env=PATH, **home, stdin=str(secret)).result()
    assert (result.cause, result.detail) == ("launch", f"open {secret}")


def test_root_enters_no_directory_that_the_user_may_not(spawner, place):
    (place / "closed").mkdir(mode=0o700)
    result = spawner.launch("#!/bin/sh\n", **NOBODY, cwd=str(place / "closed")).result()
    assert (result.cause, result.detail) == ("launch", f"chdir {place}/closed")


def test_a_hook_that_the_user_cannot_read_is_no_hook(spawner, place, home, secret):
    result = spawner.launch("#!/bin/sh\n", **home, hook=str(secret)).result()
    assert (result.cause, result.detail) == ("launch", f"read hook {secret}")


@pytest.mark.parametrize("where", ["$TMPDIR", "${0%/*}"])
def test_tidying_up_follows_no_planted_link(spawner, place, home, secret, where):
    precious = place / "precious"
    precious.mkdir(mode=0o777)
    precious.chmod(0o777)
    (precious / "file").write_text("kept")
    tmpdir = str(place / "home/private")
    script = (
        f'#!/bin/sh\ncd "{where}"; mkdir deep\n'
        f"ln -s {precious} link; ln -s {precious} deep/link; ln -s {secret} s\n"
        f"rm -f region; ln -s {secret} region\n"
    )
    job = spawner.launch(script, region_size=100, tmpdir=tmpdir, env={**PATH, "TMPDIR": tmpdir}, **home)
    assert job.result().exit_code == 0
    assert (precious / "file").read_text() == "kept"
    assert secret.exists()
    assert os.listdir(tmpdir) == []
    assert not job.wish.directory.exists()


def test_a_private_directory_swapped_for_a_link_leads_nowhere(spawner, place, home):
    precious = place / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    tmpdir = str(place / "home/private")
    script = f"#!/bin/sh\nrmdir {tmpdir}; ln -s {precious} {tmpdir}\n"
    assert spawner.launch(script, tmpdir=tmpdir, env=PATH, **home).result().exit_code == 0
    assert (precious / "file").read_text() == "kept"


def test_the_last_line_goes_through_no_link_that_root_alone_could_follow(spawner, place, home, secret):
    gate = Gate(place / "home/gate")
    script = f"#!/bin/sh\nrm out; ln -s {secret} out; echo >gate; exec sleep 1000\n"
    job = spawner.launch(script, env=PATH, **home)
    gate.line()
    job.order(CANCEL)
    assert job.result().cause == "cancel"
    assert secret.read_text() == "root's own\n"


def test_a_job_can_touch_neither_its_shepherd_nor_the_run_directory(spawner, place, home):
    script = PYTHON + (
        "import os, signal\n"
        "run = os.environ['RUN']\n"
        "def refused(act, *args):\n"
        "    try: act(*args); print('done', act)\n"
        "    except PermissionError: print('no')\n"
        "refused(os.kill, os.getppid(), signal.SIGKILL)\n"
        "refused(open, f'/proc/{os.getppid()}/mem')\n"
        "refused(open, f'/proc/{os.getppid()}/environ')\n"
        "refused(os.symlink, 'T', run + '/claim/99.1')\n"
        "refused(os.symlink, 'R1', run + '/result/1.1')\n"
        "refused(os.rename, run + '/job/1.1', run + '/job/2.1')\n"
    )
    for name in ("claim", "result", "job"):
        (spawner.run / name).chmod(0o711)
    assert spawner.launch(script, env={**PATH, "RUN": str(spawner.run)}, **home).result().exit_code == 0
    assert (place / "home/out").read_text() == "no\n" * 6


def test_identity_that_cannot_be_taken_runs_nothing(place):
    """A spawner that is not root cannot give a job to another user, and says so."""
    with spawning(place / "home", owner=65534) as one:
        job = one.launch("#!/bin/sh\necho ran\n", flags=BECOME_USER, uid=1, gid=1)
        result = job.result()
    assert (result.cause, result.errno) == ("launch", errno.EPERM)
    assert result.detail == f"chown {job.wish.directory}/script"
    assert not (place / "home/out").exists()


def test_a_lost_job_of_a_user_is_cleaned_up_as_the_user(spawner, place, home):
    tmpdir = str(place / "home/private")
    gate, go = Gate(place / "home/gate"), Gate(place / "home/go")
    script = '#!/bin/sh\nmkdir -p "$TMPDIR/a"; echo $$ >gate; read -r line <go; exit 4\n'
    job = spawner.launch(script, tmpdir=tmpdir, env={**PATH, "TMPDIR": tmpdir}, **home)
    pid = gate.number()
    os.kill(job.answer.pid, signal.SIGKILL)
    os.write(go.fd, b"go\n")
    spawner.notice()
    result = Result.read(job.link)
    assert (result.exit_code, result.lost) == (4, 1)
    assert is_gone(pid)
    assert os.listdir(tmpdir) == []


def test_a_run_directory_that_is_mounted_noexec_will_do(place):
    unshare = shutil.which("unshare")
    if unshare is None or os.system(f"{unshare} -m true 2>/dev/null"):
        pytest.skip("no mount namespace here")
    inner = f"{sys.executable} {__file__} {place}/home"
    script = f"mount -t tmpfs -o noexec,mode=755 none {place}/home && exec {inner}"
    env = {**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parent.parent}"}
    run = subprocess.run([unshare, "-m", "sh", "-c", script], env=env, capture_output=True, text=True)
    assert (run.stdout, run.returncode) == ("7 a b\n", 0), run.stderr


if __name__ == "__main__":
    with spawning(Path(sys.argv[1])) as inner:
        started = inner.launch('#!/bin/sh -e\necho "$@"; exit 7\n', args=("a", "b"))
        print(started.result().exit_code, started.output(), end="")
