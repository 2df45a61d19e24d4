"""fgspawn as root: a job becomes its user for good, and root is led nowhere by a user."""

import ctypes
import errno
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from awaiting import rest
from fixtures_spawner import NEEDS_SPAWNER
from inmemory import new_directory
from spawner_driver import BECOME_USER, CANCEL, Gate, Result, await_end, is_gone, spawning

pytestmark = [
    *NEEDS_SPAWNER,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs uid 0"),
]
NO_OWNER = {"flags": BECOME_USER, "uid": 65534, "gid": 65534, "groups": (65534, 4242)}
PATH = {"PATH": os.environ["PATH"]}
PYTHON = "#!/usr/bin/env python3\n"
LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def place():
    """A directory that every user can reach, unlike pytest's, with a home of the user's in it."""
    path = new_directory()
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
    return {**NO_OWNER, "cwd": str(place / "home")}


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
    result = spawner.launch("#!/bin/sh\n", **NO_OWNER, cwd=str(place / "closed")).result()
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


@pytest.mark.parametrize(("lacking", "step"), [("setuid", "setresuid"), ("setgid", "setgroups")])
def test_a_step_to_the_user_that_fails_runs_nothing_as_root(place, home, lacking, step):
    with spawning(place, before=("setpriv", f"--bounding-set=-{lacking}"), **PATH) as one:
        result = one.launch("#!/bin/sh\necho ran\n", env=PATH, **home).result()
    assert (result.cause, result.errno, result.detail) == ("launch", errno.EPERM, step)
    assert not (place / "home/out").exists()


LOGIN_UID = """import os
def show(): print(open('/proc/self/loginuid').read())
show()
try: open('/proc/self/loginuid', 'wb', 0).write(b'4002')
except OSError: print('refused')
show()
"""
TAKES_LOGIN_UID = "echo 65534 >/proc/self/loginuid"


def has_login_uid():
    return subprocess.run(["sh", "-c", TAKES_LOGIN_UID], stderr=subprocess.DEVNULL).returncode == 0


@pytest.mark.skipif(not has_login_uid(), reason="no login uid can be set here")
def test_a_job_has_the_login_uid_of_its_user_and_cannot_take_another(spawner, place, home):
    assert spawner.launch(PYTHON + LOGIN_UID, env=PATH, **home).result().exit_code == 0
    assert (place / "home/out").read_text().splitlines() == ["65534", "refused", "65534"]


@pytest.mark.skipif(not has_login_uid(), reason="no login uid can be set here")
@pytest.mark.parametrize("login", ["", "echo 4002 >/proc/self/loginuid; "])
def test_a_job_that_could_take_any_login_uid_does_not_run(place, home, login):
    """Without the right to write there: a login uid that is set is not the job's to change."""
    read_only = f'{login}mount -o remount,bind,ro /proc && exec "$@"'
    with spawning(place, before=("unshare", "-m", "sh", "-c", read_only, "sh"), **PATH) as one:
        result = one.launch(PYTHON + LOGIN_UID, env=PATH, **home).result()
    if login:
        assert (place / "home/out").read_text().splitlines() == ["4002", "refused", "4002"]
    else:
        assert (result.cause, result.errno, result.detail) == ("launch", errno.EROFS, "loginuid")


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


KEYS = """import ctypes, os, sys
ADD, KEYCTL = {'x86_64': (248, 250), 'aarch64': (217, 219)}[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)
call = libc.syscall
call.restype = ctypes.c_long
def add(name, secret):
    return call(ADD, b'user', name, secret, len(secret), ctypes.c_long(-3))
def read(key):
    text = ctypes.create_string_buffer(100)
    return text.value.decode() if call(KEYCTL, 11, ctypes.c_long(key), text, 100) >= 0 else 'refused'
def search(name):
    return 'found' if call(KEYCTL, 10, ctypes.c_long(-3), b'user', name, 0) >= 0 else 'not found'
"""
WITH_A_KEY = KEYS + (  # of root's, in a session keyring that all that follows inherits
    "assert call(KEYCTL, 1, None) > 0\n"
    "key = add(b'roots', b'ROOTSECRET')\n"
    "assert read(key) == 'ROOTSECRET'\n"
    "open(sys.argv[1], 'w').write(str(key))\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


def has_keys():
    return subprocess.run([sys.executable, "-c", KEYS + "assert call(KEYCTL, 1, None) > 0"]).returncode == 0


@pytest.mark.skipif(not has_keys(), reason="no session keyrings here")
def test_a_job_reaches_neither_roots_keys_nor_another_jobs(place, home):
    """Two jobs at once, of two users; what they can read of the key of root, and of each other's."""
    (place / "home").chmod(0o777)
    up, go = Gate(place / "home/gate"), [Gate(place / f"home/go{number}") for number in "12"]
    script = PYTHON + KEYS + (
        "mine = add(b'mine' + sys.argv[1].encode(), b'SECRET')\n"
        "print(read(mine), search(b'roots'), read(int(open('../root').read())), flush=True)\n"
        "print(mine, file=open('gate', 'w'))\n"
        "go = open('go' + sys.argv[1])\n"
        "others = int(go.readline())\n"
        "print(read(others), search(b'mine1'), search(b'mine2'), flush=True)\n"
        "print(mine, file=open('gate', 'w'))\n"
        "go.readline()\n"
    )  # fmt: skip
    root = (sys.executable, "-c", WITH_A_KEY, str(place / "root"))
    with spawning(place, before=root) as one:
        first = one.launch(script, env=PATH, args=("1",), **home | {"stdout": "first"})
        keys = [up.number()]
        other = {"uid": 65533, "gid": 65533, "groups": (), "stdout": "other", "job": 2}
        second = one.launch(script, env=PATH, args=("2",), **home | other)
        keys.append(up.number())
        for one_go in go:
            os.write(one_go.fd, f"{keys[0]}\n".encode())
            up.line()
        for one_go in go:
            os.write(one_go.fd, b"1\n")
        assert [first.result().exit_code, second.result().exit_code] == [0, 0]
    found = "SECRET not found refused\n"
    assert (place / "home/other").read_text() == found + "refused not found found\n"
    assert (place / "home/first").read_text() == found + "SECRET found not found\n"


def test_a_job_has_the_priority_of_a_login_whatever_the_controller_has(place, home):
    script = PYTHON + (
        "import os\n"
        "print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0))\n"
        "print(open('/proc/self/oom_score_adj').read())\n"
        "try: print(open('/proc/self/autogroup').read().split()[-1])\n"
        "except FileNotFoundError: print(0)\n"
    )
    low = 'echo 300 >/proc/self/oom_score_adj; exec nice -n 5 chrt --batch 0 "$@"'
    with spawning(place, before=("sh", "-c", low, "sh"), **PATH) as one:
        assert one.launch(script, env=PATH, **home).result().exit_code == 0
    assert (place / "home/out").read_text().split() == ["0", "0", "0", "0"]


GIVEN = ("setpriv", "--inh-caps=+net_raw", "--ambient-caps=+net_raw", "--securebits=+no_setuid_fixup")


@pytest.mark.skipif(
    os.system(f"{' '.join(GIVEN)} true 2>/dev/null") != 0, reason="no capability can be given"
)
def test_a_job_has_the_capabilities_of_a_login_whatever_the_controller_has(place, home):
    script = "#!/bin/sh\ngrep -E '^Cap(Inh|Prm|Eff|Amb)' /proc/self/status\nsetpriv --dump | grep -i secure\n"
    with spawning(place, before=GIVEN, **PATH) as one:
        assert one.launch(script, env=PATH, **home).result().exit_code == 0
    lines = (place / "home/out").read_text().splitlines()
    assert [line.split()[1] for line in lines[:4]] == ["0" * 16] * 4
    assert lines[4] == "Securebits: [none]"


def test_shepherds_are_spared_as_the_spawner_is_and_jobs_are_not(place, home):
    if subprocess.run(["sh", "-c", "echo -500 2>&- >/proc/self/oom_score_adj"]).returncode:
        pytest.skip("this host lets nobody be spared")
    spared = ("sh", "-c", 'echo -500 >/proc/self/oom_score_adj; exec "$@"', "sh")
    gate, go = Gate(place / "home/gate"), Gate(place / "home/go")
    say = "cat /proc/self/oom_score_adj"
    script = f"#!/bin/sh\n{say}; echo >gate; read -r line <go; {say}\n"
    with spawning(place, before=spared) as one:
        job = one.launch(script, env=PATH, **home)
        gate.line()
        while Path(f"/proc/{job.answer.pid}/oom_score_adj").read_text() != "-500\n":
            rest()
        os.write(go.fd, b"1\n")
        assert job.result().exit_code == 0
        assert Path(f"/proc/{one.process.pid}/oom_score_adj").read_text() == "-500\n"
    assert (place / "home/out").read_text().split() == ["0", "0"]


def can_raise_limits():
    return os.system("prlimit --nofile=100:200 prlimit --nofile=100:300 true 2>/dev/null") == 0


@pytest.mark.skipif(not can_raise_limits(), reason="root may raise no limit here")
def test_a_login_with_higher_limits_than_the_controller_has_them_in_its_jobs(place, home):
    low = ("prlimit", "--nofile=100:200")
    with spawning(place, before=low, **PATH) as one:
        script = "#!/bin/sh\nulimit -Sn; ulimit -Hn\n"
        assert one.launch(script, env=PATH, rlimits=((7, 300, 400),), **home).result().exit_code == 0
    assert (place / "home/out").read_text().split() == ["300", "400"]


DEEP = (
    "import os, sys\n"
    "os.chdir({'TMPDIR': os.environ['TMPDIR'], 'job': os.path.dirname(sys.argv[0])}[sys.argv[1]])\n"
    "for number in range(1000):\n"
    "    open('f', 'w').close(); os.symlink('/', 'l'); os.mkdir('d' * 100); os.mkdir('e')\n"
    "    os.chdir('d' * 100)\n"
    "    if number > 1: os.chmod('..', 0o500)\n"
)


@pytest.mark.parametrize("where", ["TMPDIR", "job"])
def test_a_tree_of_any_depth_is_removed_with_the_job(spawner, place, home, where):
    """1,000 levels whose path has 100 kB, each closed to writing."""
    tmpdir = str(place / "home/private")
    env = {**PATH, "TMPDIR": tmpdir}
    job = spawner.launch(PYTHON + DEEP, args=(where,), tmpdir=tmpdir, env=env, **home)
    assert (job.result().exit_code, (place / "home/out").read_text()) == (0, "")
    assert os.listdir(tmpdir) == []
    assert not job.wish.directory.exists()


def has_fuse():
    return os.path.exists("/dev/fuse") and os.access("/dev/fuse", os.R_OK | os.W_OK)


@pytest.mark.skipif(not has_fuse(), reason="no FUSE here")
@pytest.mark.parametrize("where", ["private", "run/job/1.1"])
def test_a_file_system_of_a_program_that_never_answers_does_not_keep_a_job(spawner, place, home, where):
    """Over its directories, which are the user's: nobody may wait for it without a limit."""
    (place / "private").mkdir(mode=0o700)
    os.chown(place / "private", 65534, 65534)
    up, go = Gate(place / "home/gate"), Gate(place / "home/go")
    script = "#!/bin/sh\nexec 3<go; echo >gate; read -r line <&3; exit 4\n"
    private = str(place / "private")
    job = spawner.launch(script, tmpdir=private, env=PATH, last_wait=100, **home)
    up.line()
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=65534,group_id=65534,allow_other"
    assert LIBC.mount(b"silent", os.fsencode(place / where), b"fuse", 0, options.encode()) == 0
    try:
        os.write(go.fd, b"1\n")
        assert job.result().exit_code == 4
    finally:
        os.close(device)
        LIBC.umount2(os.fsencode(place / where), 2)


FULL = (
    "import os\n"
    "for number in range(30_000):\n"
    "    open(f\"{os.environ['TMPDIR']}/{number}\", 'x').close()\n"
    "print('up', file=open('gate', 'w'))\n"
)


def child_that_empties(shepherd):
    """The child of a shepherd that has become the user and executes no other program; None after its end."""
    while not is_gone(shepherd):
        with suppress(OSError):
            for child in Path(f"/proc/{shepherd}/task/{shepherd}/children").read_text().split():
                program = os.path.basename(os.readlink(f"/proc/{child}/exe"))
                if program == "fgspawn" and os.stat(f"/proc/{child}").st_uid == 65534:
                    return os.pidfd_open(int(child))
    return None


def test_a_user_who_stops_and_continues_the_removal_of_a_directory_does_not_prolong_it(spawner, place, home):
    """Each stop and each continuation wakes the shepherd, whose time limit must not begin again.

    The removal takes a tenth of a second, so it is tried until the first stop is quick enough.
    """
    private, up = str(place / "home/private"), Gate(place / "home/gate")
    env = {**PATH, "TMPDIR": private}
    for number in range(1, 50):
        job = spawner.launch(PYTHON + FULL, job=number, tmpdir=private, env=env, last_wait=100, **home)
        up.line()
        if (ended := child_that_empties(job.answer.pid)) is not None:
            assert Path(f"/proc/{job.answer.pid}/comm").read_text() == "fg:empty\n"
            stop_and_continue(ended)
        assert job.result().exit_code == 0
        if os.listdir(private):
            return  # the child was killed before it was done
    raise AssertionError("the removal was never stopped")


def stop_and_continue(process):
    """Do so until the end of a process, and close its descriptor."""
    while not select.select([process], [], [], 0.005)[0]:
        for number in (signal.SIGCONT, signal.SIGSTOP):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, number)
    os.close(process)


@contextmanager
def tmpfs(path, options):
    path.mkdir(exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", path], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.parametrize(
    ("script", "fields", "detail"),
    [
        (b"#!/bin/sh\n" + b"#" * 200_000, {}, "write {}/job/1.1/script"),
        (b"#!/bin/sh\n", {"region": b"x" * 200_000, "region_size": 200_000}, "write {}/job/1.1/region"),
    ],
)
def test_a_full_run_directory_is_a_shortage_of_the_host_and_no_failure(place, home, script, fields, detail):
    with tmpfs(place / "run", "size=64k,mode=755"), spawning(place) as one:
        result = one.launch(script, **home, **fields).result()
        assert (result.cause, result.errno) == ("shortage", errno.ENOSPC)
        assert result.detail == detail.format(one.run)
        assert os.listdir(one.run / "job") == []


def test_a_run_directory_without_room_for_a_claim_runs_nothing(place, home):
    options = "size=64k,nr_inodes=5,mode=755"  # the root, four directories
    with tmpfs(place / "run", options), spawning(place) as one:
        job = one.launch("#!/bin/sh\n", **home)
        assert (job.answer.errno, os.listdir(one.run / "claim")) == (errno.ENOSPC, [])


def fill(run):
    """Leave no inode in the run directory; return how it has room again."""
    made = []
    with suppress(OSError):
        while True:
            made.append(run / f"filler{len(made)}")
            made[-1].touch()
    return lambda: [path.unlink() for path in made[:-1]]


def refuse_writes(run):
    """Mount the run directory for reading only; return how it is writable again."""
    subprocess.run(["mount", "-o", "remount,ro", run], check=True)
    return lambda: subprocess.run(["mount", "-o", "remount,rw", run], check=True)


@pytest.mark.parametrize("refuse", [fill, refuse_writes])
@pytest.mark.parametrize("number", [1, 2])
def test_a_result_is_kept_in_memory_until_the_disk_takes_it(place, refuse, number):
    """The second job has the files of the first one, where it can."""
    gate, go = Gate(place / "gate"), Gate(place / "go")
    with tmpfs(place / "run", "size=1m,nr_inodes=60,mode=755"), spawning(place) as one:
        for job in range(1, number):
            one.launch("#!/bin/sh\n", job=job).over()
        job = one.launch(f"#!/bin/sh\necho up >{gate.path}; read -r line <{go.path}; exit 7\n", job=9)
        gate.line()
        accept = refuse(place / "run")
        os.write(go.fd, b"go\n")
        until_stored_or_asleep(job)
        assert refuse is fill or not os.path.lexists(job.link)
        accept()
        assert job.result().exit_code == 7
        await_end(job.answer.pid)
        kept = re.compile(r"\.[0-9]+\.[0-9]+")  # directories for further jobs
        assert [name for name in os.listdir(place / "run/job") if not kept.fullmatch(name)] == []


def until_stored_or_asleep(job):
    """Wait until the shepherd has stored the result, or has been refused and pauses."""
    calls = Path(f"/proc/{job.answer.pid}/wchan")
    while not os.path.lexists(job.link) and "nanosleep" not in calls.read_text():
        rest()


def test_a_full_disk_of_the_users_is_a_failure(spawner, place, home):
    with tmpfs(place / "full", "size=64k,nr_inodes=1,mode=777"):
        result = spawner.launch("#!/bin/sh\n", **home | {"stdout": str(place / "full/out")}).result()
    assert (result.cause, result.errno) == ("launch", errno.ENOSPC)


def can_mount_ext4():
    made = ["sh", "-c", "truncate -s 4M $0 && mkfs.ext4 -q -b 1024 $0 && unshare -m mount -o loop $0 /mnt"]
    with tempfile.NamedTemporaryFile() as image:
        return subprocess.run([*made, image.name], capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount_ext4(), reason="no loop mounts of ext4 here")
def test_a_result_is_stored_where_a_link_may_have_1023_bytes(place):
    image, run = place / "image", place / "home/run"
    run.mkdir()
    subprocess.run(["truncate", "-s", "4M", image], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-b", "1024", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, run], check=True)
    try:
        with spawning(place / "home") as one:
            result = one.launch("#!/bin/sh\n", stdout="x/" * 500 + "out").result()
        assert (result.cause, result.errno) == ("launch", errno.ENOENT)
    finally:
        subprocess.run(["umount", "--lazy", run], check=True)


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
