"""Attacks of one user of a shared host on another user, on root and on the controller.

docs/design/attacks.md lists all 44 attacks with their defences; most are in the tests of the part that
defends. The host of this module keeps its users private and lets jobs gain no privileges.
"""

import json
import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fakehost import CONFIG, UIDS, hosting, why_not
from fgsched import protocol
from fgsched.domain.errors import Exit
from fgsched.reports.folder import replaced
from live_host import ROOT
from test_socket_fuzz import GIVEN

_WHY_NOT = why_not()
NEEDS_HOST = [
    pytest.mark.root,
    pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "can be made"),
]
LIVE = [*NEEDS_HOST, pytest.mark.usefixtures("host")]
PYTHON = f"#!{sys.executable}\n"
TABLE = ROOT / "docs/design/attacks.md"


def live(test):
    for mark in NEEDS_HOST:
        test = mark(test)
    return test


PAM = """
account required pam_succeed_if.so quiet user != dave
session required pam_limits.so conf=/etc/security/pam-only.conf
"""


def has_pam():
    modules = ("pam_limits.so", "pam_succeed_if.so")
    return all(any(Path(top).glob(f"**/security/{name}")) for name in modules for top in ("/usr/lib", "/lib"))


@pytest.fixture(scope="module")
def host():
    private = f"{CONFIG}[accounting]\nprivate_data = true\n"
    pam = 'pam_service = "fgsched"\n' if has_pam() else ""
    with hosting(config=private, jobs=f"no_new_privileges = true\n{pam}", started=False) as one:
        (one.path / "etc/pam.d").mkdir(exist_ok=True)
        (one.path / "etc/pam.d/fgsched").write_text(PAM)
        (one.path / "etc/security/pam-only.conf").write_text("alice hard nofile 4000\n")
        one.home("alice").chmod(0o711)
        one.start()
        try:
            yield one
        finally:
            one.stop()


@pytest.fixture(scope="module")
def hers(host):
    """A running job of alice's with a secret in all that is hers."""
    (host.home("alice") / "SECRET").mkdir(exist_ok=True)
    return host.running(
        "alice", "--gpus=0.5", "-J", "SECRET-name", "--comment=SECRET", env={"TOKEN": "SECRET"}
    )


def submitted(host, user, script, *requests, **request):
    """The ids of jobs with one script, one for each request; `request` has what they have in common."""
    home = str(host.home(user))
    asked = [{"name": "attack", "chdir": home, "output": "out"} | request | one for one in requests or [{}]]
    message = {
        **{"key": secrets.token_hex(16), "environments": [{}], "requests": asked},
        **{"scripts": [script if script.startswith("#!") else f"#!/bin/sh\n{script}\n"]},
        "jobs": [[number, 0, 0, False] for number in range(len(asked))],
    }
    answer = host.ask(user, "submit", **message)
    assert "ok" in answer, answer
    return list(range(answer["ok"]["first"], answer["ok"]["first"] + len(asked)))


def ends(host, ids):
    """(state, reason) of jobs, when all of them have ended."""
    host.ask("root", "wait", ids=ids)
    fields = ["id", "state", "reason"]
    found = host.ask("root", "history", fields=fields, ids=ids)["ok"]["jobs"]
    return [(job["state"], job.get("reason", "")) for job in sorted(found, key=lambda job: job["id"])]


COMPLETED = ("COMPLETED", "")
LAUNCH_FAILED = ("FAILED", "JobLaunchFailure")


@pytest.fixture
def secret(host):
    """A file of root's."""
    file = host.path / "etc/fgsched/secret"
    file.write_text("root's own\n")
    file.chmod(0o600)
    return file


# -- the list of attacks ----------------------------------------------------------------------------


def listed():
    """{number: names of tests} of the table."""
    rows = re.findall(r"^\| ([AR]\d\d) \|.*\| ([^|]*) \|$", TABLE.read_text(), re.MULTILINE)
    return {number: re.findall(r"`(test_\w+)::(test_\w+)`", tests) for number, tests in rows}


def test_the_tables_name_a_test_for_each_attack_and_each_exists():
    found = listed()
    assert list(found) == [f"A{n:02}" for n in range(1, 53)] + [f"R{n:02}" for n in range(1, 7)]
    for number, tests in found.items():
        assert tests, number
        for module, name in tests:
            assert f"\ndef {name}(" in (ROOT / f"tests/{module}.py").read_text(), (number, module, name)


# -- root opens nothing for a user ------------------------------------------------------------------

SWAP = """
import os, sys
os.chdir(sys.argv[1])
print("ready", flush=True)
os.set_blocking(0, False)
while sys.stdin.buffer.read(1) is None:
    for old, new in (("d", "kept"), ("link", "d"), ("d", "link"), ("kept", "d")):
        os.rename(old, new)
"""


@live
def test_an_output_directory_that_is_swapped_for_a_link_leads_root_nowhere(host):
    closed, home = host.path / "etc/fgsched/closed", host.home("alice")
    closed.mkdir(mode=0o700)
    assert host.do("alice", "sh", "-c", "mkdir d; ln -s /etc/fgsched/closed link").status == 0
    with host.enter("alice", sys.executable, "-c", SWAP, home, stdin=subprocess.PIPE) as swapping:
        assert swapping.stdout.readline() == "ready\n"
        found = ends(host, submitted(host, "alice", "exit 0", *({"output": f"d/{n}"} for n in range(40))))
        swapping.stdin.close()
        assert swapping.wait() == 0, swapping.stderr.read()
    assert set(found) <= {COMPLETED, LAUNCH_FAILED}
    assert list(closed.iterdir()) == []


@live
def test_the_output_of_a_job_is_opened_with_the_rights_of_its_user_whatever_it_is(host, secret):
    """Hard links are made by root here: whether a user can make them depends on the kernel's settings."""
    alices, bobs = host.home("alice"), host.home("bob")
    for name in ("letter", "letter-for-all"):
        (alices / name).write_text("alice's own\n")
        os.chown(alices / name, UIDS["alice"], UIDS["alice"])
    (alices / "letter").chmod(0o600)
    os.mkfifo(alices / "fifo")
    (alices / "fifo").chmod(0o666)
    os.link(secret, bobs / "roots")
    os.link(alices / "letter", bobs / "hers")
    reader = os.open(alices / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    names = ["roots", "hers", *(alices / name for name in ("letter", "letter-for-all", "fifo", "new"))]
    names += ["/run/fgsched/socket", "/dev/mem", "/"]
    found = ends(host, submitted(host, "bob", "echo bob", *({"output": str(name)} for name in names)))
    assert found == [LAUNCH_FAILED] * len(names)
    assert os.read(reader, 10) == b""
    os.close(reader)
    texts = [file.read_text() for file in (secret, alices / "letter", alices / "letter-for-all")]
    assert texts == ["root's own\n", "alice's own\n", "alice's own\n"]
    assert not (alices / "new").exists()


@live
def test_a_script_that_is_replaced_after_the_submission_is_not_run(host):
    job_id = host.submit("alice", "echo as submitted", "--hold", "-o", "kept")
    file = host.home("alice") / "job.sh"
    file.unlink()
    file.symlink_to("/etc/fgsched/secret")
    host.ask("alice", "release", ids=[job_id])
    found = ends(host, [job_id])
    file.unlink()
    assert (found, host.output("alice", "kept")) == ([COMPLETED], ["as submitted"])


@pytest.mark.parametrize("plant", [os.symlink, os.link])
def test_a_report_is_not_written_through_a_link_in_its_folder(tmp_path, plant):
    (tmp_path / "secret").write_text("root's own")
    (tmp_path / "folder").mkdir()
    for name in (".index.html.new", "index.html"):
        plant(tmp_path / "secret", tmp_path / "folder" / name)
    replaced(tmp_path / "folder/index.html", "report")
    assert (tmp_path / "folder/index.html").read_text() == "report"
    assert (tmp_path / "secret").read_text() == "root's own"


# -- who runs jobs ------------------------------------------------------------------------------------


@live
@pytest.mark.skipif(not has_pam(), reason="no PAM modules here")
def test_pam_decides_who_runs_jobs_and_with_which_limits_where_the_site_names_a_service(host):
    assert ends(host, submitted(host, "alice", "ulimit -Hn; id -u", output="pam")) == [COMPLETED]
    assert host.output("alice", "pam") == ["4000", str(UIDS["alice"])]
    (his,) = submitted(host, "dave", "echo ran", output="pam")
    assert ends(host, [his]) == [LAUNCH_FAILED]
    assert host.job(his)["detail"].startswith("PAM refuses a session of dave: pam_acct_mgmt: ")
    assert not (host.home("dave") / "pam").exists()


# -- requests -----------------------------------------------------------------------------------------

FOR_OPERATORS = {
    *("drain", "resume", "reconfigure", "note_warning", "back_up", "archive", "stop", "suspend"),
    *("resume_jobs", "create_partition", "update_partition", "delete_partition"),
    *("create_reservation", "update_reservation", "delete_reservation"),
}
FOR_OWNERS = {
    "adopt",
    *("cancel", "signal", "join", "hold", "uhold", "release", "requeue", "update", "top", "script", "pids"),
}
FOR_ALL = {
    *("ping", "log", "wait", "report", "queue", "job", "jobs", "history", "gpu_processes", "process"),
    *("check", "why", "starts", "gpus", "partitions", "reservations", "priorities", "shares"),
    *("associations", "submit", "test", "submit_line", "queue_line", "events"),
}


def test_each_request_is_for_operators_for_owners_or_for_all():
    tags = {call.__struct_config__.tag for call in protocol.CALLS}
    assert tags == FOR_OPERATORS | FOR_OWNERS | FOR_ALL


def asked(host, user, operations, job_id):
    """{operation: the whole answer} to one user."""
    given = {"stop": {}} | {name: GIVEN[name](job_id) for name in operations if name != "stop"}
    messages = [{"op": name} | given[name] for name in operations]
    answers = host.raw(user, f"for message in {messages!r}: say(dial(), message)")
    return dict(zip(operations, answers, strict=True))


@live
def test_no_user_can_do_what_is_for_operators_or_for_the_owner(host, hers):
    before = host.job(hers)
    operations = sorted(FOR_OPERATORS | FOR_OWNERS)
    for name, answer in asked(host, "bob", operations, hers).items():
        answer = answer["ok"]["jobs"][0] if "jobs" in answer.get("ok", {}) else answer
        hidden = name in FOR_OWNERS - {"adopt"}
        assert answer["error"]["exit"] == (Exit.NO_SUCH_JOB if hidden else Exit.NOT_PERMITTED), (name, answer)
    waits = {"requests": [{"name": "x", "chdir": "/", "dependency": f"afterok:{hers}"}]}
    answer = host.ask("bob", "submit", **GIVEN["submit"](hers) | waits)
    assert f"job {hers} does not exist" in answer["error"]["cause"]
    measured = dict.fromkeys(("elapsed", "now", "pacing", "usage"))  # known some time after the start
    assert host.job(hers) | measured == before | measured


READING = sorted(FOR_ALL - {"submit", "test", "submit_line", "wait", "report"})
TELLING = (
    "events",
    *(
        "queue",
        "queue_line",
        "job",
        "jobs",
        "history",
        "gpus",
        "process",
        "why",
        "shares",
        "log",
        "priorities",
        "starts",
    ),
    "wait",
)


@live
def test_no_answer_tells_a_user_of_another_user_where_the_site_keeps_users_private(host, hers):
    cursor = host.ask("root", "events")["ok"]["cursor"]
    (ended,) = submitted(host, "alice", "exit 0", name="SECRET-ended", comment="SECRET")
    ends(host, [ended, *submitted(host, "bob", "exit 0")])
    (waiting,) = submitted(host, "alice", "exit 0", name="SECRET-waiting", begin=4_000_000_000)
    (pid, *_) = host.ask("root", "pids", id=hers)["ok"]["pids"]
    fields = ["id", "name", "user", "allocated", "chdir"]
    messages = [{"op": name} | GIVEN[name](hers) for name in READING]
    messages += [
        {"op": "queue", "fields": fields, "recent": True},
        {"op": "queue_line", "name": "squeue", "words": ["-h", "-o", "%i %j %u"]},
        {"op": "history", "fields": fields, "since": 0},
        {"op": "history", "fields": fields, "since": 0, "uid": UIDS["alice"]},
        {"op": "history", "fields": fields, "ids": [hers, ended]},
        {"op": "events", "after": cursor},
        {"op": "process", "pid": pid},
        *({"op": "wait", "ids": ids, "any": True} for ids in ([ended], [hers, ended])),
        *({"op": "report", "report": name} for name in ("overview", "users", "failures", "waste")),
    ]
    program = f"for message in {messages!r}: say(dial(), message)"
    hints = (
        *("SECRET", "alice", f"[{waiting}, ", f'"jobs": [{hers}]'),
        *(f'"id": {hers},', f'"id": {ended},', f'"job": {hers},'),
    )
    leaks = {
        user: [
            message["op"]
            for message, answer in zip(messages, host.raw(user, program), strict=True)
            if any(word in json.dumps(answer.get("ok", {})) for word in hints)
        ]
        for user in ("bob", "carol")
    }
    host.ask("alice", "cancel", ids=[waiting])
    assert leaks["bob"] == []
    assert set(leaks["carol"]) >= set(TELLING)


def without(number, value):
    """An answer without the number of the job that it was asked about."""
    match value:
        case dict():
            return {
                key: each if key in ("v", "exit") else without(number, each) for key, each in value.items()
            }
        case list():
            return [without(number, each) for each in value]
        case str():
            return re.sub(rf"\b{number}(?!\d)", "N", value)
    return "N" if value == number and value is not True else value


ABOUT_JOBS = sorted(name for name in FOR_OWNERS | FOR_ALL if "98765" in json.dumps(GIVEN[name](98765)))


def about(host, user, number):
    """The answers to each request about each reference with this number."""
    forms = ("{}", "{}_0", "{}_9051", "{}_9053", "{}_9056", "{}_[9052-9053]", "{}_[9050-9059]")
    references = [number, *(form.format(number) for form in forms)]
    messages = [{"op": name} | GIVEN[name](each) for each in references for name in ABOUT_JOBS]
    kinds = ("afterok", "aftercorr", "afterany", "after")
    waits = [{"name": "x", "chdir": "/", "dependency": f"{kind}:{number}"} for kind in kinds]
    messages += [{"op": "test"} | GIVEN["test"](1) | {"requests": [each]} for each in waits]
    answers = host.raw(user, f"for message in {messages!r}: say(dial(), message)")
    return [(one["op"], without(number, answer)) for one, answer in zip(messages, answers, strict=True)]


@live
def test_the_answer_about_a_hidden_job_is_that_about_a_job_that_does_not_exist(host, hers):
    (waiting,) = submitted(host, "alice", "exit 0", array="9050-9054,9057", begin=4_000_000_000)
    (own,) = host.ask("alice", "hold", ids=[f"{waiting}_9052"])["ok"]["jobs"]
    assert "error" not in own, own
    (ended,) = submitted(host, "alice", "exit 0", array="9050-9051")
    ends(host, [ended])
    missing = about(host, "bob", 10**6)
    for number in (hers, waiting, waiting + 1, ended):
        assert about(host, "bob", number) == missing, number
    host.ask("alice", "cancel", ids=[waiting])


@live
def test_what_jobs_of_others_hold_is_not_shown_as_free(host, hers):
    done = host.run("bob", "fgtop", "--once", "--ascii")
    assert (done.status, "others" in done.out, "alice" in done.out) == (0, True, False), done.out
    assert "0.5 of 2 cards charged" in done.out


NAMES = [
    *("; touch evil", "$(touch evil)", "`touch evil`", "| touch evil", "../../../../evil", "%n%s%x", "a,b|c"),
    *("a'; DROP TABLE jobs; --", '" OR 1=1 --', "x' UNION SELECT script FROM blobs --", "=1+1", "@SUM(A1)"),
    *(
        "\x1b]52;c;ZXZpbA==\x07",
        "\x1b[2J",
        "\x9b31m",
        "\u202ereversed",
        "a\rb",
        "a\nb",
        "-rf",
        "\u00ad\u200b",
    ),
]


@live
def test_a_name_is_only_a_name_to_shells_statements_terminals_tables_and_files(host):
    ids = submitted(host, "alice", "exit 0", *({"name": name} for name in NAMES), output="names-%x.%j")
    assert set(ends(host, ids)) == {COMPLETED}
    assert not [path for path in host.path.rglob("*evil") if not path.name.startswith("names-")]
    files = [path.name for path in host.home("alice").glob("names-*")]
    assert len(files) == len(NAMES)
    assert [name for name in files if not re.fullmatch("names-[^/\x00-\x1f\x7f]+", name)] == []
    chosen = ("-a", "-X", "-n", "-o", "JobName%40", "-j", ",".join(map(str, ids)))
    for form in ((), ("--json",), ("-P",), ("-P", "--delimiter", ",")):
        done = host.run("root", "fgacct", *chosen, *form)
        assert done.status == 0, done.err
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", done.out), form
    assert len(done.lines) == len(NAMES)
    assert [line for line in done.lines if line.startswith(("=", "@", "+"))] == []
    found = host.ask("root", "history", fields=["name"], ids=ids)["ok"]["jobs"]
    assert [job["name"] for job in found] == NAMES


HUGE = [
    {"output": "o" * 5000},
    {"name": "n" * 100_000},
    {"comment": "c" * 100_000},
    {"array": "0-9999999999"},
    {"array": ",".join(str(2 * n) for n in range(100_000))},
    {"args": ["x" * 2**20] * 8},
    {"dependency": "afterok" + ":1" * 100_000},
    {"time_limit": 10**15},
    {"demand": {"gpus": 10**9, "share": 10**12}},
]


@live
def test_what_is_too_large_is_refused_by_the_controller_too(host):
    """The commands check the same, but an attacker does not use them."""
    home = str(host.home("bob"))
    lists = {"scripts": ["#!/bin/sh\n"], "environments": [{}], "jobs": [[0, 0, 0, True]]}
    messages = [
        lists | {"key": secrets.token_hex(16), "requests": [{"name": "x", "chdir": home} | one]}
        for one in HUGE
    ]
    one = {"key": secrets.token_hex(16), "requests": [{"name": "x", "chdir": home}]}
    messages += [
        lists | one | {"environments": [{"A": "a" * 2**21}]},
        lists | one | {"scripts": ["#!/bin/sh\n" + "#" * 2**22]},
        lists | one | {"jobs": [[0, 0, 0, True]] * 20_001},
    ]
    (host.home("bob") / "huge").write_text(json.dumps(messages))
    program = "for one in json.load(open('huge')): say(dial(), {'op': 'submit'} | one)"
    answers = host.raw("bob", program)
    assert [at for at, answer in enumerate(answers) if "error" not in answer] == []
    assert {answer["error"]["exit"] for answer in answers} <= {Exit.USAGE, Exit.REFUSED}


CROWD = """
import contextlib, json, socket, sys
lines = []
for number in range(300):
    line = socket.socket(socket.AF_UNIX)
    line.connect("/run/fgsched/socket")
    with contextlib.suppress(BrokenPipeError):  # it has been refused already
        line.send(b'{"op": "ping", ' if number % 2 else b" ")
    lines.append(line)
lines[-1].settimeout(30)
print(json.loads(lines[-1].makefile().readline())["error"]["exit"], flush=True)
sys.stdin.read()
"""


@live
def test_a_user_with_300_connections_and_half_sent_requests_stops_no_other_user(host):
    with host.enter("bob", sys.executable, "-c", CROWD, stdin=subprocess.PIPE) as flood:
        assert flood.stdout.readline() == f"{int(Exit.UNREACHABLE)}\n", flood.stderr.read()
        assert ends(host, submitted(host, "alice", "exit 0")) == [COMPLETED]
        flood.stdin.close()


@live
@pytest.mark.parametrize("limit", ["--fsize=0", "--nofile=12", "--core=0:0", "--stack=400000"])
def test_limits_of_a_command_cut_nothing_that_the_controller_stores(host, limit):
    words = (sys.executable, "-m", "fgsched.cli.fgsub", "--hold", "--wrap", "exit 0")
    host.do("alice", "prlimit", limit, *words)
    assert host.ask("root", "check")["ok"]["queue"] == "ok"
    assert ends(host, submitted(host, "bob", "exit 0")) == [COMPLETED]


# -- processes and files ------------------------------------------------------------------------------

INTRUDER = """
import ctypes, json, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
given = json.load(open(GIVEN))

def refused(what, *arguments):
    try:
        what(*arguments)
    except OSError:
        return
    print(what.__name__, *arguments)

def seize(pid):
    if libc.ptrace(0x4206, pid, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")

def prlimit(pid):
    import resource
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (5, 5))

def read(path):
    open(path, "rb").read(1)

def write(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))

for pid in given["pids"]:
    refused(os.kill, pid, 0)
    refused(seize, pid)
    refused(prlimit, pid)
    refused(os.setpriority, os.PRIO_PROCESS, pid, 19)
    refused(os.sched_setaffinity, pid, {0})
    for name in ("mem", "environ", "maps", "stack", "auxv"):
        refused(read, f"/proc/{pid}/{name}")
    for name in ("cwd", "exe", "root", "fd/0"):
        refused(os.readlink, f"/proc/{pid}/{name}")
    refused(write, f"/proc/{pid}/oom_score_adj")
for path in given["files"]:
    refused(read, path)
    refused(write, path)
for path in given["roots"]:
    refused(write, path)
for path in given["closed"]:
    refused(os.listdir, path)
for path in given["made"]:
    refused(os.symlink, "P:1:1:x", path)
    refused(os.mkdir, path)
print("done")
"""


def tree(pid):
    """A process and its descendants that belong to root."""
    found = [pid]
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += tree(int(child)) if Path(f"/proc/{child}").stat().st_uid == 0 else []
    return found


def cgroup_files(pid):
    """The files with which a process could leave its cgroups, or change them."""
    found = []
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        for root in ("/sys/fs/cgroup", f"/sys/fs/cgroup/{kinds}", "/sys/fs/cgroup/unified"):
            place = Path(f"{root}{path}")
            while len(place.parts) > 3:
                names = ("cgroup.procs", "tasks", "pids.max", "memory.max", "memory.limit_in_bytes")
                found += [str(place / name) for name in names if (place / name).exists()]
                place = place.parent
    return found


@pytest.fixture(scope="module")
def targets(host, hers):
    """What no user may touch: processes, files and directories of root, and of alice for bob."""
    run, state = "/run/fgsched", "/var/lib/fgsched"
    pids = [int(pid) for pid in host.ask("root", "pids", id=hers)["ok"]["pids"]]
    roots = tree(host.ask("root", "ping")["ok"]["pid"])
    own = [os.readlink(host.root / "run/fgsched" / name) for name in ("claim", "result", "job")]
    directory = (host.root / "run/fgsched" / own[2]).resolve()
    job = os.path.realpath(directory / f"{hers}.1")
    files = [f"{state}/{name}" for name in ("queue.db", "queue.db-wal", "fgsched.log", "accounts.db", "x")]
    given = {
        "pids": roots,
        "files": [*files, f"{run}/new", f"{run}/lock"],
        "roots": [*cgroup_files(pids[0]), "/etc/fgsched/fgsched.toml", str(ROOT / "fgshim/libfgshim.so")],
        "closed": [state, *(f"{run}/{place}" for place in own)],
        "made": [f"{run}/{own[0]}/{hers}.2", f"{run}/{own[1]}/{hers}.1", f"{run}/{own[2]}/x", f"{run}/x"],
    }
    jobs = {
        "pids": pids,
        "files": [f"{job}/script", f"{job}/region"],
        "closed": [job],
        "roots": [],
        "made": [],
    }
    return given, {name: given[name] + jobs[name] for name in given}


def program(host, given):
    """The intruder as a script, and the file with its targets."""
    file = host.path / f"tmp/targets-{secrets.token_hex(4)}"
    file.write_text(json.dumps(given))
    return INTRUDER.replace("GIVEN", repr(str(file)))


@live
def test_a_user_cannot_touch_the_processes_and_files_of_root_and_of_other_users(host, targets):
    done = host.do("bob", sys.executable, "-c", program(host, targets[1]))
    assert (done.out, done.err) == ("done\n", "")


@live
def test_a_job_cannot_touch_its_shepherd_its_cgroups_or_anything_else_of_root(host, targets):
    ended = submitted(host, "alice", PYTHON + program(host, targets[0]), output="touched")
    assert ends(host, ended) == [COMPLETED]
    assert host.output("alice", "touched") == ["done"]


@live
def test_a_setuid_program_gives_a_job_no_privileges_where_the_site_rules_it_out(host):
    program = host.path / "setuid-id"
    shutil.copy("/usr/bin/id", program)
    program.chmod(0o4755)
    if host.do("alice", program, "-u").out != "0\n":
        pytest.skip("setuid programs have no effect in the temporary directory")
    ends(host, submitted(host, "alice", f"exec {program} -u", output="setuid"))
    assert host.output("alice", "setuid") == [str(UIDS["alice"])]


def test_no_file_of_the_project_has_a_setuid_bit():
    files = [path for part in ("fgsched", "fgshim") for path in (ROOT / part).rglob("*")]
    assert [path for path in files if path.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID)] == []
