"""A job with mounts of its own: the hook stays whatever its programs clear or become; other GPUs are shut."""

import os
import shutil
import signal
import struct
import subprocess
from pathlib import Path

import pytest

import fakecuda
import fgshim
import silent
from awaiting import PATIENCE, rest
from fakecuda import Card, FakeDriver
from fakehost import copy_etc, why_not
from fgshim import region
from fixtures_spawner import NEEDS_SPAWNER
from inmemory import new_directory
from spawner_driver import (
    BECOME_USER,
    CANCEL,
    DELIVER,
    JOIN,
    OWN_MOUNTS,
    OWN_USERS,
    PROVE_FENCE,
    SHELL,
    Gate,
    spawning,
)

NO_MOUNTS = why_not()
pytestmark = [
    *NEEDS_SPAWNER,
    pytest.mark.root,
    pytest.mark.mounts,
    pytest.mark.skipif(bool(NO_MOUNTS), reason=NO_MOUNTS or "-"),
]
MIB, GIB = 1 << 20, 1 << 30
NO_OWNER = {"flags": OWN_MOUNTS | BECOME_USER, "uid": 65534, "gid": 65534, "groups": ()}
PATH = {"PATH": os.environ["PATH"]}
_SECURE = """
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>
int main(void) {
    char line[4096]; int hooked = 0; FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) hooked |= strstr(line, "/libfgshim.so\\n") != NULL;
    printf("%d %lu %d\\n", (int)geteuid(), getauxval(AT_SECURE), hooked);
    return 0;
}
"""


@pytest.fixture
def place():
    """A directory that every user can reach, with an /etc of its own and a home of the user's in it."""
    path = new_directory()
    if os.statvfs(path).f_flag & os.ST_NOSUID:
        pytest.skip(f"{path} is mounted nosuid")
    copy_etc(path / "etc")
    (path / "etc/ld.so.preload").write_text("")
    (path / "home").mkdir()
    os.chown(path / "home", 65534, 65534)
    yield path
    shutil.rmtree(path)


def in_host(place: Path, *more: str) -> list[str]:
    """What gives a program a host of its own, whose /etc is that of the place."""
    return [
        "unshare",
        "-m",
        "sh",
        "-c",
        f'mount --make-rshared /; mount --bind {place}/etc /etc; exec {" ".join(more)} "$0" "$@"',
    ]


@pytest.fixture
def spawner(place):
    with spawning(place, before=in_host(place)) as one:
        yield one


@pytest.fixture
def driver(built_driver, place):
    """The fake driver where every user reaches it."""
    shutil.copytree(built_driver.folder, place / "driver")
    (place / "driver").chmod(0o755)
    return FakeDriver(place / "driver", place / "cards")


@pytest.fixture
def hook(place):
    """The hook and its prover where every user reaches them: the checkout may be in a home of root's."""
    shutil.copy(fgshim.library().with_name("fgprove"), place)
    return shutil.copy(fgshim.library(), place)


@pytest.fixture
def fenced(driver, place, hook):
    """What a launch says of a job of nobody's that may hold 1 GiB of a card of 8 GiB."""
    (gpu,) = driver.gpus(Card(memory=8 * GIB))
    driver.state.chmod(0o666)
    head = region.pack(1, 1, [(0, gpu.uuid, GIB)])
    return {
        **NO_OWNER,
        "cwd": str(place / "home"),
        "env": {**PATH, **driver.env},
        "hook": str(hook),
        "region": head,
        "region_size": region.SIZE,
    }


def said(place: Path) -> list[str]:
    lines = (place / "home/out").read_text().splitlines()
    return [line for line in lines if not line.startswith("fgsched: GPU 0: ")]  # what was refused


def a_program(place: Path) -> Path:
    """It prints its effective uid, whether the linker distrusts its environment, whether the hook is here."""
    source = place / "secure.c"
    source.write_text(_SECURE)
    return fakecuda.compile_c([source], place / "secure")


def test_a_program_with_a_cleared_environment_stays_limited(spawner, place, fenced, driver):
    needed = " ".join(f"{name}={value}" for name, value in driver.env.items())
    ask = f"{driver.program} 'alloc 2G' 'alloc 512M'"
    spawner.launch(f"#!/bin/sh\nenv -i {needed} {ask}\n", **fenced).over()
    assert said(place) == ["alloc 2", "alloc 0"]


def test_a_program_started_with_an_empty_environment_stays_limited(spawner, place, fenced, driver):
    words = [str(driver.program), "alloc 2G"]
    code = f"import subprocess; subprocess.run({words}, env={driver.env})"
    spawner.launch(f'#!/bin/sh\nexec python3 -c "{code}"\n', **fenced).over()
    assert said(place) == ["alloc 2"]


@pytest.mark.parametrize("uid", [0, 1])
def test_a_setuid_program_keeps_the_hook(spawner, place, fenced, uid):
    program = a_program(place)
    os.chown(program, uid, uid)
    program.chmod(0o4755)
    spawner.launch(f"#!/bin/sh\n{program}\nenv -i {program}\n", **fenced).over()
    assert said(place) == [f"{uid} 1 1"] * 2


def test_a_setuid_program_stays_limited(spawner, place, fenced, driver):
    flags = ("-pthread", "-ldl", f"-Wl,-rpath,{driver.folder},--disable-new-dtags")
    program = fakecuda.compile_c([fakecuda.HERE / "fakejob.c"], place / "setuid", *flags)
    program.chmod(0o4755)
    spawner.launch(f"#!/bin/sh\nenv -u LD_PRELOAD {program} 'alloc 2G' 'alloc 512M'\n", **fenced).over()
    assert said(place) == ["alloc 2", "alloc 0"]


def test_a_program_with_file_capabilities_keeps_the_hook(spawner, place, fenced):
    program = a_program(place)
    net_raw = struct.pack("<5I", 0x0200_0001, 1 << 13, 0, 0, 0)  # version 2, effective; cap_net_raw
    os.setxattr(program, "security.capability", net_raw)
    spawner.launch(f"#!/bin/sh\nenv -i {program}\n", **fenced).over()
    assert said(place) == ["65534 1 1"]


def test_without_mounts_of_its_own_a_job_loses_the_hook_with_its_environment(spawner, place, fenced):
    program = a_program(place)
    flags = {"flags": BECOME_USER}
    spawner.launch(f"#!/bin/sh\nenv -i {program}\n", **fenced | flags).over()
    assert said(place) == ["65534 0 0"]


def test_what_the_host_preloads_comes_behind_the_hook(spawner, place, fenced):
    library = place / "theirs.so"
    (place / "theirs.c").write_text("int theirs;\n")
    fakecuda.compile_c([place / "theirs.c"], library, "-shared", "-fPIC")
    (place / "etc/ld.so.preload").write_text(f"# of the host\n{library}\n")
    spawner.launch("#!/bin/sh\ncat /etc/ld.so.preload\ngrep -c theirs.so /proc/self/maps\n", **fenced).over()
    hook, *theirs, found = said(place)
    assert hook == f"{place}/run/job/1.1/libfgshim.so"
    assert theirs == ["# of the host", str(library)]
    assert int(found) > 0
    assert (place / "etc/ld.so.preload").read_text() == f"# of the host\n{library}\n"


def test_a_longer_list_of_the_hosts_fails_the_job_and_is_not_cut(spawner, place, fenced):
    (place / "etc/ld.so.preload").write_text("#" * 20_000 + "\n")
    result = spawner.launch("#!/bin/sh\n", **fenced).result()
    assert (result.cause, result.detail) == ("launch", "read /etc/ld.so.preload")


def test_a_host_without_the_file_fails_the_job_and_says_why(spawner, place, fenced):
    (place / "etc/ld.so.preload").unlink()
    result = spawner.launch("#!/bin/sh\n", **fenced).result()
    assert (result.cause, result.detail) == ("launch", "mount /etc/ld.so.preload")


def test_the_jobs_user_can_change_neither_its_preload_nor_the_link_to_the_hook(spawner, place, fenced):
    script = "#!/bin/sh\nfor file in preload libfgshim.so region; do rm -f ${0%/*}/$file 2>&1; done\n"
    script += "echo >${0%/*}/preload\necho >/etc/ld.so.preload\n"
    spawner.launch(script, **fenced, stderr="/dev/null").over()
    refused = [line for line in said(place) if "Permission denied" in line]
    assert len(refused) == 3
    spawner.launch("#!/bin/sh\ncat /etc/ld.so.preload\n", **fenced, job=2).over()
    assert said(place) == [f"{place}/run/job/2.1/libfgshim.so"]


def test_nothing_of_a_jobs_directory_is_left(spawner, place, fenced):
    spawner.launch("#!/bin/sh\n", **fenced).over()
    assert list((place / "run/job").iterdir()) == []


def test_the_jobs_user_can_record_steps_in_its_directory(spawner, place, fenced):
    """Its table is left for the controller."""
    spawner.launch("#!/bin/sh\necho 1 >${0%/*}/steps/table\n", **fenced).over()
    left = sorted((place / "run/job/1.1").rglob("*"))
    assert [path.name for path in left] == ["steps", "table"]
    assert [path.stat().st_uid for path in left] == [65534, 65534]


def test_mounts_stay_in_the_job(spawner, place, fenced):
    gate = Gate(place / "gate")
    os.mkfifo(f"{gate.path}.go")
    first = spawner.launch(f"#!/bin/sh\necho here >{gate.path}; read line <{gate.path}.go\n", **fenced)
    assert gate.line() == "here"
    for pid in (first.answer.pid, spawner.process.pid):
        assert "ld.so.preload" not in Path(f"/proc/{pid}/mountinfo").read_text()
    Path(f"{gate.path}.go").write_text("on\n")
    first.over()


def test_the_next_job_of_the_same_shepherd_has_the_hosts_mounts(spawner, place, fenced):
    for number in range(1, 100, 2):  # until one is quick enough to find it at rest
        first = spawner.launch("#!/bin/sh\n", **fenced, job=number)
        first.over()
        plain = fenced | {"flags": BECOME_USER}
        second = spawner.launch("#!/bin/sh\ncat /etc/ld.so.preload\n", **plain, job=number + 1)
        second.over()
        if second.answer.pid == first.answer.pid:
            break
    assert second.answer.pid == first.answer.pid
    assert said(place) == []


def test_what_the_host_mounts_later_is_seen_in_the_job(spawner, place, fenced):
    subprocess.run(in_namespace(spawner, "mount", "-t", "tmpfs", "none", f"{place}/home"), check=True)
    gate = Gate(place / "gate")
    (place / "later").mkdir()
    os.mkfifo(f"{gate.path}.go")
    script = (
        f"#!/bin/sh\necho here >{gate.path}; read line <{gate.path}.go; cat {place}/later/file >{gate.path}\n"
    )
    fenced["cwd"] = str(place / "etc")
    job = spawner.launch(script, **fenced, stdout="/dev/null")
    assert gate.line() == "here"
    subprocess.run(in_namespace(spawner, "mount", "-t", "tmpfs", "none", f"{place}/later"), check=True)
    subprocess.run(in_namespace(spawner, "sh", "-c", f"echo later >{place}/later/file"), check=True)
    Path(f"{gate.path}.go").write_text("on\n")
    assert gate.line() == "later"
    job.over()


def in_namespace(spawner, *words: str) -> list[str]:
    return ["nsenter", f"--mount=/proc/{spawner.process.pid}/ns/mnt", *words]


@pytest.fixture
def nodes(place):
    """Nodes like those of two cards, of the driver's control and of unified memory."""
    found = []
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        os.mknod(place / name, 0o666 | 0o020000, os.makedev(1, 3))
        (place / name).chmod(0o666)
        found.append(place / name)
    return found


@pytest.mark.parametrize("user", [{}, {"flags": OWN_MOUNTS, "uid": 0, "gid": 0}])
def test_a_card_that_was_not_given_cannot_be_opened_by_root_neither(spawner, place, fenced, nodes, user):
    script = f"#!/bin/sh\nfor node in {' '.join(map(str, nodes))}; do (: <$node) 2>&1 && echo open; done\n"
    spawner.launch(script, **fenced | user, closed=(str(nodes[1]), f"{place}/nvidia7")).over()
    one, two, *others = said(place)
    assert (one, others) == ("open", ["open", "open"])
    assert "Permission denied" in two
    assert os.open(nodes[1], os.O_RDWR) > 0  # outside it is what it was


@pytest.mark.userns
def test_an_unprivileged_user_has_mounts_of_a_user_namespace(place, fenced, nodes):
    if subprocess.run([*in_host(place, *AS_NOBODY), "unshare", "-Urm", "true"], stderr=-3).returncode:
        pytest.skip("this host gives users no namespaces")
    fenced |= {"flags": OWN_MOUNTS | OWN_USERS, "closed": (str(nodes[1]),)}
    script = f"#!/bin/sh\nid -u; env -i {a_program(place)}\n"
    script += f"(: <{nodes[0]}) && echo open\n(: <{nodes[1]}) || echo shut\n"
    for name in ("claim", "result", "job"):
        (place / "run" / name).mkdir(parents=True)
        os.chown(place / "run" / name, 65534, 65534)
    with spawning(place, before=in_host(place, *AS_NOBODY)) as one:
        one.launch(script, **fenced, stderr="/dev/null").over()
    assert said(place) == ["65534", "65534 0 1", "open", "shut"]


@pytest.mark.userns
def test_a_node_is_shut_to_a_user_also_where_devices_are_mounted_with_flags_that_he_must_leave(place, fenced):
    if subprocess.run([*in_host(place, *AS_NOBODY), "unshare", "-Urm", "true"], stderr=-3).returncode:
        pytest.skip("this host gives users no namespaces")
    (place / "dev").mkdir()
    node = place / "dev/nvidia1"
    mounted = f"mount -t tmpfs -o nosuid,noexec,noatime,mode=755 none {place}/dev; mknod -m 666 {node} c 1 3;"
    before = in_host(place, *AS_NOBODY)
    before[-1] = mounted + before[-1]
    for name in ("claim", "result", "job"):
        (place / "run" / name).mkdir(parents=True)
        os.chown(place / "run" / name, 65534, 65534)
    fenced |= {"flags": OWN_MOUNTS | OWN_USERS, "closed": (str(node),)}
    with spawning(place, before=before) as one:
        one.launch(f"#!/bin/sh\n(: <{node}) || echo shut\n", **fenced, stderr="/dev/null").over()
    assert said(place) == ["shut"]


AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def test_the_fence_is_proved_as_the_jobs_user_and_in_the_jobs_mounts(spawner, place, fenced):
    """Its variables know of no hook: it is proved by what is mounted there, and missed where nothing is."""
    mounted = fenced | {"flags": fenced["flags"] | PROVE_FENCE}
    assert spawner.launch("#!/bin/sh\necho ran\n", **mounted).result().exit_code == 0
    assert said(place) == ["ran"]
    bare = fenced | {"flags": BECOME_USER | PROVE_FENCE, "job": 2}
    result = spawner.launch("#!/bin/sh\necho ran\n", **bare, stdout="other").result()
    assert result.cause == "launch"
    assert result.detail == "its enforcement does not work: the hook is not loaded in the job's environment"


ABOUT = "$(readlink /proc/self/ns/mnt) $(readlink /proc/self/ns/user) "
ABOUT += "$(id -u) $(id -G) $(head -n1 /etc/ld.so.preload)"


def joined(one, place, fenced):
    """(what the script sees of itself, what a process that joins it sees, the arguments of that)."""
    gate = Gate(place / "gate")
    os.mkfifo(f"{gate.path}.go")
    program = place / "python"
    program.write_text(f"#!/bin/sh\necho {ABOUT} >{gate.path}\necho $* >{gate.path}\n")
    program.chmod(0o755)
    script = f"#!/bin/sh\necho {ABOUT} >{gate.path}; read line <{gate.path}.go\n"
    launch = fenced | {"env": fenced["env"] | {"FG_PYTHON": str(program)}}
    job = one.launch(script, **launch)
    own = gate.line()
    job.order(JOIN, 7)
    found = (own, gate.line(), gate.line())
    Path(f"{gate.path}.go").write_text("on\n")
    job.over()
    return found


def test_a_process_that_joins_a_job_has_its_mounts_and_its_user(spawner, place, fenced):
    own, other, words = joined(spawner, place, fenced)
    assert other == own
    assert own.split()[2:] == ["65534", "65534", f"{place}/run/job/1.1/libfgshim.so"]
    assert own.split()[0] != os.readlink("/proc/self/ns/mnt")
    assert words == "-I -m fgsched.interactive.agent --join fgjoin-1.1-7"


@pytest.mark.userns
def test_a_process_that_joins_a_job_of_an_unprivileged_user_has_its_namespaces(place, fenced):
    if subprocess.run([*in_host(place, *AS_NOBODY), "unshare", "-Urm", "true"], stderr=-3).returncode:
        pytest.skip("this host gives users no namespaces")
    for name in ("claim", "result", "job"):
        (place / "run" / name).mkdir(parents=True)
        os.chown(place / "run" / name, 65534, 65534)
    with spawning(place, before=in_host(place, *AS_NOBODY)) as one:
        own, other, _ = joined(one, place, fenced | {"flags": OWN_MOUNTS | OWN_USERS})
    assert other == own
    assert own.split()[1] != os.readlink("/proc/self/ns/user")


def until_alone(shepherd):
    """Wait until a shepherd has no child but the script."""
    children = Path(f"/proc/{shepherd}/task/{shepherd}/children")
    while len(children.read_text().split()) > 1:
        rest()


@pytest.mark.userns
def test_nothing_joins_a_script_in_mounts_that_its_user_made(spawner, place, fenced):
    """There, a program such as su would read the user's own /etc, and run as root."""
    if subprocess.run([*AS_NOBODY, "unshare", "-Urm", "true"], stderr=-3).returncode:
        pytest.skip("this host gives users no namespaces")
    gate, agent = Gate(place / "gate"), place / "agent"
    agent.write_text(f"#!/bin/sh\necho joined >{gate.path}\n")
    agent.chmod(0o755)
    wait = "while :; do sleep 1000 & wait \\$!; done"
    script = f"trap 'echo answered >{gate.path}' USR1; echo ready >{gate.path}; {wait}"
    words = fenced | {"env": fenced["env"] | {"FG_PYTHON": str(agent)}}
    job = spawner.launch(f'#!/bin/sh\nexec unshare -Urm sh -c "{script}"\n', **words)
    assert gate.line() == "ready"
    job.order(JOIN, 7)
    job.order(DELIVER, signal.SIGUSR1, SHELL)  # obeyed after that
    assert gate.line() == "answered"
    until_alone(job.answer.pid)
    job.order(DELIVER, signal.SIGUSR1, SHELL)
    assert gate.line() == "answered"
    job.order(CANCEL)
    job.over()


@silent.needs_fuse
def test_a_script_that_waits_inside_an_execution_makes_no_shepherd_wait_for_its_namespaces(place, fenced):
    unread = place / "unread"
    unread.touch()
    wait, gate = Gate(place / "map"), Gate(place / "gate")
    program = shutil.copy(silent.executing_program(), place / "executing")
    script = f"#!/bin/sh\nexec {program} {unread} 65534 itself <{wait.path} >{gate.path}\n"
    words = fenced | {"env": fenced["env"] | {"FG_PYTHON": "/bin/true"}, "grace": 20, "last_wait": 100}
    with silent.unread(unread) as file, spawning(place, before=in_host(place)) as spawner:
        job = spawner.launch(script, **words)
        pid = gate.number()
        with subprocess.Popen(["cat", file.place], stdout=subprocess.DEVNULL):
            try:
                assert file.is_read.wait(PATIENCE)
                os.write(wait.fd, b"\n")
                silent.until_it_waits(pid)
                job.order(JOIN, 7)
                job.order(CANCEL)
                assert job.result().cause == "cancel"
            finally:
                file.release()
