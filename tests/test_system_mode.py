"""The host's controller: root serves all users, jobs are their submitters', each gets what is theirs."""

import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from awaiting import LOOKS, rest, until, until_written
from fakehost import CONFIG, LAB, UIDS, hosting, why_not
from fgsched.config.schema import Config
from fgsched.controller.caller import is_operator
from fgsched.domain.errors import Exit
from fgsched.domain.text import escape_bytes
from fgsched.system import cgroups
from live_host import PATIENCE, ROOT, without_waiting, zone_at_noon
from test_socket_fuzz import GIVEN

_WHY_NOT = why_not()
pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "can be made")]
OTHERS = "belongs to another user"
VERBS = {
    "cancel": ("fgcancel", "{}"),
    "signal": ("fgcancel", "--signal=USR1", "{}"),
    "hold": ("fgctl", "hold", "{}"),
    "uhold": ("fgctl", "uhold", "{}"),
    "release": ("fgctl", "release", "{}"),
    "update": ("fgctl", "update", "job={}", "name=mine"),
    "listpids": ("fgctl", "listpids", "{}"),
    "script": ("fgctl", "write", "batch_script", "{}", "-"),
}


@pytest.fixture(scope="module")
def host():
    with hosting(config=CONFIG + "[sampling]\ninterval = 0.5\n") as one:
        yield one


@pytest.fixture(scope="module")
def hers(host):
    """A job of alice's that waits, with a secret in all that is hers alone."""
    where = host.home("alice") / "SECRET-directory"
    where.mkdir()
    os.chown(where, UIDS["alice"], UIDS["alice"])
    options = ["--hold", "-J", "seen", "--comment=SECRET", "-D", where, "-o", "SECRET-out"]
    file = host.home("alice") / "SECRET.sh"
    file.write_text("#!/bin/sh\necho SECRET\n")
    words = ["fgsub", "--parsable", *options, file, "SECRET-argument"]
    done = host.run("alice", *words, env={"TOKEN": "SECRET"})
    assert done.status == 0, done.err
    return int(done.out)


def verb(host, user, name, job_id):
    command, *words = VERBS[name]
    return host.run(user, command, *(word.format(job_id) for word in words))


def facts(path):
    found = path.lstat()
    return found.st_uid, stat.S_IMODE(found.st_mode)


def test_every_user_sees_the_state_of_the_hosts_controller_also_with_an_own_one(host):
    env = {"FG_HOME": str(host.home("alice") / "own")}
    assert host.run("alice", "fgsched", "status", env=env).status == Exit.UNREACHABLE
    done = host.run("alice", "fgsched", "status", "--system", env=env)
    assert (done.status, "system mode" in done.out) == (Exit.DONE, True), done.err


# -- who a job is -------------------------------------------------------------------------------


def test_a_job_is_its_submitter_with_exactly_their_groups(host):
    script = "#!/bin/sh\nexec grep -E '^(Uid|Gid|Groups|CapEff|CapPrm)' /proc/self/status\n"
    assert host.ended("alice", script)["state"] == "COMPLETED"
    words = {line.split()[0]: line.split()[1:] for line in host.output("alice")}
    uid = str(UIDS["alice"])
    assert (words["Uid:"], words["Gid:"], set(words["Groups:"])) == ([uid] * 4, [uid] * 4, {uid, str(LAB)})
    assert words["CapEff:"] == words["CapPrm:"] == ["0" * 16]


def test_a_user_sets_the_load_of_a_simulated_gpu(host):
    job = host.running("alice", "--gpus=0.5", script="echo 'sm=80 mem=2G' >$FG_SIM_LOAD")
    assert host.output("alice") == []
    while not ((usage := host.job(job)["usage"]) and usage["used"] and usage["active"]):
        rest()  # until a look at the GPUs, which changes no file
    assert host.run("alice", "fgcancel", str(job)).status == 0
    assert host.over(job)["state"] == "CANCELLED"


def test_a_job_cannot_go_back(host):
    script = (
        f"#!{sys.executable}\nimport os\n"
        "for back in (os.setuid, os.seteuid, os.setgid, os.setegid, lambda gid: os.setgroups([gid])):\n"
        "    try: back(0); print('back')\n"
        "    except PermissionError: print('no')\n"
    )
    host.ended("alice", script)
    assert host.output("alice") == ["no"] * 5


def test_output_is_the_submitters_with_their_umask(host):
    host.ended("alice", "exit 0", "-o", "masked", umask=0o027)
    assert facts(host.home("alice") / "masked") == (UIDS["alice"], 0o640)


def test_a_job_is_not_spared_with_its_controller_when_memory_runs_out():
    if subprocess.run(["sh", "-c", "echo -500 2>&- >/proc/self/oom_score_adj"]).returncode:
        pytest.skip("this host lets nobody be spared")
    with hosting(started=False) as host:
        spared = 'echo -500 >/proc/self/oom_score_adj; exec "$@"'
        start = (sys.executable, "-m", "fgsched.cli.fgsched", "start", "--system")
        assert host.do("root", "sh", "-c", spared, "sh", *start).status == 0
        try:
            pid = host.ask("root", "ping")["ok"]["pid"]
            host.ended("alice", "cat /proc/self/oom_score_adj")
            assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "-500\n"
            assert host.output("alice") == ["0"]
        finally:
            host.stop()


def test_a_job_has_three_descriptors_and_no_socket_among_them(host):
    script = (
        f"#!{sys.executable}\nimport os\n"
        "for number in range(4096):\n"
        "    try: os.fstat(number); print(number, os.readlink(f'/proc/self/fd/{number}'))\n"
        "    except OSError: pass\n"
    )
    host.ended("alice", script, "-e", "err")
    home = host.home("alice")
    assert host.output("alice") == ["0 /dev/null", f"1 {home}/out", f"2 {home}/err"]


LIMITS = (
    "* hard nproc 5000\nalice soft nofile 70\nalice hard nofile 90\n@lab - sigpending 33\nalice - core 0\n"
)
ASKED = {  # what a request says of open files -> (soft, hard) of the job
    (): ("70", "90"),
    ((7, 20, 40),): ("20", "40"),
    ((7, 20, 4000),): ("20", "90"),
    ((7, -1, -1),): ("90", "90"),
}


def test_a_job_has_the_limits_of_its_users_login_also_where_its_request_names_none():
    script = "#!/bin/bash\nulimit -Sn; ulimit -Hn; ulimit -Si; ulimit -Hu; ulimit -Hc\n"
    with hosting() as host:
        (host.path / "etc/security/limits.d/90-lab.conf").write_text(LIMITS)
        for number, (rlimits, found) in enumerate(ASKED.items()):
            request = {"name": "raw", "chdir": str(host.home("alice")), "rlimits": rlimits, "output": "raw"}
            made = {"scripts": [script], "environments": [{}], "requests": [request]}
            answer = host.ask("alice", "submit", key=f"{number:032x}", jobs=[[0, 0, 0, False]], **made)
            assert host.over(answer["ok"]["first"])["state"] == "COMPLETED", answer
            assert host.output("alice", "raw") == [*found, "33", "5000", "0"]


def test_the_doctor_tells_what_each_user_has(host):
    lines = host.run("root", "fgsched", "doctor").out.splitlines()
    assert [line for line in lines if "each user has" in line] == [
        "OK   run space   each user has 256M of the run directory"
    ], lines
    assert any("processes of each user's jobs" in line or "a fork bomb" in line for line in lines), lines


BOMB = """#!/usr/bin/env python3
import os, time
while True:
    try:
        os.fork()
    except BlockingIOError:
        print("full", flush=True)
        time.sleep(1)
"""


@pytest.mark.cgroup
@pytest.mark.skipif(cgroups.PidsCgroups("test", 100).note != "", reason="no pids cgroup can be made")
def test_a_fork_bomb_leaves_the_host_to_others():
    with hosting(jobs="max_processes = 40\n") as host:
        bomb = host.submit("alice", BOMB)
        until_written(host.home("alice") / "out", "full\n")
        assert host.ended("bob", "echo ran")["state"] == "COMPLETED"
        assert host.run("alice", "fgcancel", str(bomb)).status == 0
        assert host.over(bomb)["state"] == "CANCELLED"
        assert host.ended("alice", "echo ran")["state"] == "COMPLETED"


def test_each_job_has_a_private_directory_of_its_users(host):
    running = {user: host.running(user) for user in ("alice", "bob")}
    places = {}
    for user in running:
        host.ended(user, 'stat -c "%n %u %a" "$TMPDIR"', "-o", "tmp")
        name, uid, mode = host.output(user, "tmp")[0].split()
        assert (int(uid), mode) == (UIDS[user], "700")
        places[user] = name
    assert places["alice"] != places["bob"]
    assert host.do("bob", "ls", places["alice"]).status != 0
    for user, job_id in running.items():
        assert host.run(user, "fgcancel", str(job_id)).status == 0


def test_nobody_can_take_the_private_directory_of_a_job_to_come():
    """The names are known once a job has told them; only root and then the user can make anything there."""
    with hosting() as host:
        host.ended("bob", 'echo "$TMPDIR"', "-o", "tmp")
        his = Path(host.output("bob", "tmp")[0])
        above = his.parent.parent
        assert (facts(above), facts(his.parent)) == ((0, 0o711), (UIDS["bob"], 0o700))
        assert host.do("bob", "mkdir", above / str(UIDS["alice"])).status != 0
        host.stop()
        assert not above.exists()
        assert host.do("bob", "mkdir", above).status == 0
        host.start()
        host.ended("alice", 'echo "$TMPDIR"', "-o", "tmp")
        hers = Path(host.output("alice", "tmp")[0])
        assert hers.parent.parent != above
        shutil.rmtree(above)


def test_a_job_of_a_user_takes_the_place_of_what_the_user_put_there(host):
    host.ended("alice", 'echo "$TMPDIR"', "-o", "tmp")
    hers = host.output("alice", "tmp")[0]
    assert host.do("alice", "sh", "-c", f"rmdir {hers}; ln -s / {hers}").status == 0
    assert host.ended("alice", 'cd "$TMPDIR" && pwd -P')["state"] == "COMPLETED"
    assert host.output("alice") == [hers]


FILLS = 'dd if=/dev/zero of="$FG_JOB_DIR/big" bs=64k 2>&1 | grep -o "No space left.*"; exec sleep 1000000'


def space_of(host, user):
    """Whether the user has a tmpfs below the run directory."""
    mounts = host.do("root", "cat", "/proc/self/mounts").lines
    return any(line.split()[1] == f"/run/fgsched/space/{UIDS[user]}" for line in mounts)


def test_a_user_who_fills_the_run_directory_keeps_nobody_else_from_starting():
    with hosting(jobs='run_space = "1M"\n') as host:
        filling = host.submit("alice", FILLS)
        until_written(host.home("alice") / "out")
        assert host.output("alice") == ["No space left on device"]
        waiting = host.submit("alice", "echo ran", "-o", "later")
        while (job := host.job(waiting))["reason"] != "HostShortage":
            rest()
        assert job["state"] == "PENDING"
        assert "No space left on device" in job["warning"]
        assert host.ended("bob", "echo ran")["state"] == "COMPLETED"
        host.stop_and_start()
        assert host.ended("bob", "echo ran")["state"] == "COMPLETED"
        assert (space_of(host, "alice"), host.job(filling)["state"]) == (True, "RUNNING")
        host.run("root", "fgcancel", str(waiting), str(filling))
        host.over(filling)
        host.stop()
        assert [space_of(host, user) for user in ("alice", "bob")] == [False, False]
        host.start()


def test_groups_are_those_of_the_start_and_not_of_the_submission(host):
    job_id = host.submit("dave", "id -G", "--hold")
    host.dismiss("dave")
    host.stop_and_start()  # what it found out of dave is believed for some seconds
    host.run("dave", "fgctl", "release", str(job_id))
    assert host.over(job_id)["state"] == "COMPLETED"
    assert host.output("dave") == [str(UIDS["dave"])]


@pytest.mark.parametrize(("new", "why"), [("", "no longer exists"), ("eve", "now belongs to eve")])
def test_a_job_whose_user_is_gone_fails_and_is_nobody_elses(new, why):
    with hosting() as host:
        job_id = host.submit("dave", "echo ran", "--hold")
        host.rename("dave", new)
        host.stop_and_start()
        if new:  # this user has the uid of dave
            assert OTHERS in host.ask("dave", "cancel", ids=[job_id])["ok"]["jobs"][0]["error"]["cause"]
            assert OTHERS in host.ask("dave", "script", id=job_id)["error"]["cause"]
            assert host.ask("dave", "job", id=job_id)["ok"]["is_private"] is True
        assert host.run("root", "fgctl", "release", str(job_id)).status == 0
        job = host.over(job_id)
        assert (job["state"], job["reason"], why in job["detail"]) == ("FAILED", "JobLaunchFailure", True)
        assert not (host.home("dave") / "out").exists()


# -- who may own jobs, and run the controller -----------------------------------------------------


@pytest.mark.parametrize("user", ["root", "daemon"])
def test_root_and_system_users_own_no_jobs(host, user):
    done = host.run(user, "fgsub", "--wrap", "true")
    assert (done.status, done.out) == (Exit.NOT_PERMITTED, "")
    assert f"{user} (uid {UIDS[user]}) may not own jobs" in done.err
    assert "allow_root_jobs" in done.err


def test_root_owns_jobs_where_the_settings_allow_it():
    with hosting(jobs="allow_root_jobs = true\n") as host:
        assert host.ended("root", "id -u")["state"] == "COMPLETED"
        assert host.output("root") == ["0"]


@pytest.mark.parametrize("user", ["alice", "root"])
def test_the_doctor_finds_the_host_healthy(host, user):
    done = host.run(user, "fgsched", "doctor")
    assert (done.status, [line for line in done.lines if line.startswith("FAIL")]) == (0, [])


@pytest.mark.parametrize("how", ["start", "run"])
def test_only_root_runs_the_hosts_controller(host, how):
    done = host.run("alice", "fgsched", how, "--system")
    assert (done.status, "--system is for root" in done.err) == (Exit.NOT_PERMITTED, True)


def test_a_user_who_starts_a_controller_is_told_of_the_hosts(host):
    done = host.run("alice", "fgsched", "start")
    assert (done.status, "the controller of this host serves all users" in done.err) == (
        Exit.NOT_PERMITTED,
        True,
    )


@pytest.mark.parametrize("options", [(), ("--kill",)])
def test_a_user_cannot_stop_the_hosts_controller(host, hers, options):
    own = host.submit("bob", "exit 0", "--hold")
    pid = host.ask("root", "ping")["ok"]["pid"]
    done = host.run("bob", "fgsched", "stop", *options)
    assert (done.status, "only an operator may stop the controller" in done.err) == (Exit.NOT_PERMITTED, True)
    assert host.ask("root", "ping")["ok"]["pid"] == pid
    assert host.job(own)["state"] == host.job(hers)["state"] == "PENDING"


def test_what_the_controller_keeps_is_roots(host):
    state, run = host.root / "var/lib/fgsched", host.root / "run/fgsched"
    assert facts(state) == (0, 0o700)
    assert facts(state / "queue.db") == (0, 0o600)
    assert facts(run) == (0, 0o711)
    assert facts(run / "socket") == (0, 0o666)
    places = [run / os.readlink(run / name) for name in ("claim", "result", "job")]
    assert {facts(place) for place in (*places, places[0].parent)} == {(0, 0o711)}


# -- what others see and do -------------------------------------------------------------------------

READING = [
    ("fgq",),
    ("fgq", "--json"),
    ("fgq", "-l"),
    ("fgq", "-o", "%all"),
    ("fgctl", "show", "job", "{}"),
    ("fgctl", "show", "job", "{}", "--json"),
    ("fgctl", "write", "batch_script", "{}", "-"),
    ("fgacct", "-a"),
    ("fgacct", "-a", "--json"),
    ("fgacct", "-a", "-o", "ALL"),
    ("fgtail", "{}"),
]


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_secret_of_a_job_is_told_to_nobody_else(host, hers, words):
    command, *rest = (word.format(hers) for word in words)
    done = host.run("bob", command, *rest, env=zone_at_noon())
    assert "SECRET" not in done.out + done.err
    assert "Traceback" not in done.err


def test_others_see_that_a_job_is_there(host, hers):
    done = host.run("bob", "fgq", "-a", "-h")
    assert [line.split()[0] for line in done.lines if "seen" in line] == [str(hers)]


def test_the_path_on_which_a_job_failed_is_its_owners(host):
    (host.home("alice") / "closed").mkdir(mode=0o700)
    job_id = host.submit("alice", "exit 0", "-o", host.home("alice") / "closed/SECRET")
    assert "SECRET" in host.over(job_id)["detail"]
    for reading in (("fgctl", "show", "job", str(job_id), "--json"), ("fgacct", "-a", "--json")):
        assert "SECRET" in host.run("alice", *reading, env=zone_at_noon()).out
        assert "SECRET" not in host.run("bob", *reading, env=zone_at_noon()).out


def test_the_queue_cannot_be_asked_whether_a_secret_is_guessed_right(host, hers):
    where = {"comment": ["SECRET"]}
    for user in ("bob", "alice"):
        refused = host.ask(user, "queue", fields=["id"], where=where)["error"]["cause"]
        assert "unknown field `comment`" in refused
    found = host.ask("bob", "queue", fields=["id", "comment"], where={"name": ["seen"]})["ok"]["jobs"]
    assert [(job["id"], job.get("comment", "")) for job in found] == [(hers, "")]


@pytest.mark.parametrize("name", VERBS)
def test_nobody_else_does_anything_to_a_job(host, hers, name):
    before = host.job(hers)
    done = verb(host, "bob", name, hers)
    assert (done.status, OTHERS in done.err) == (Exit.NOT_PERMITTED, True)
    assert host.job(hers) | {"priority": None} == before | {"priority": None}, (
        "the priority grows with the age"
    )


def test_an_operator_does(host):
    job_id = host.running("alice")
    for name in ("update", "listpids", "script", "signal"):
        done = verb(host, "carol", name, job_id)
        assert (done.status, done.err) == (0, ""), name
    assert host.over(job_id)["reason"] == "RaisedSignal"
    job_id = host.running("alice")
    assert verb(host, "carol", "cancel", job_id).status == 0
    assert host.over(job_id)["state"] == "CANCELLED"


def test_what_an_operator_holds_its_owner_cannot_release(host):
    job_id = host.submit("alice", "exit 0", "--hold")
    assert verb(host, "carol", "hold", job_id).status == 0
    assert verb(host, "alice", "release", job_id).status == Exit.NOT_PERMITTED
    assert verb(host, "carol", "release", job_id).status == 0


def test_an_operator_named_in_the_settings_is_no_owner_of_root(host):
    """The operators' list gives rights over jobs, not over the host: carol's own jobs are carol's."""
    host.ended("carol", "id -u")
    assert host.output("carol") == [str(UIDS["carol"])]


@pytest.mark.parametrize(
    ("name", "groups", "may"), [("ann", (), True), ("bob", ("lab", "ops"), True), ("bob", ("lab",), False)]
)
def test_the_settings_name_operators_by_user_or_by_group(name, groups, may):
    settings = Config(operators=("ann",), operator_groups=("ops",))
    assert is_operator(settings, 4000, name, groups, own_uid=0) is may


# -- who somebody is ----------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", [{"uid": 0}, {"gid": 0}, {"user": "alice"}])
def test_a_message_that_names_somebody_is_refused(host, hers, claim):
    said = host.ask("bob", "cancel", ids=[hers], **claim)["error"]
    assert (said["exit"], next(iter(claim)) in said["cause"]) == (Exit.USAGE, True)
    assert host.ask("bob", "submit", **submission() | claim)["error"]["exit"] == Exit.USAGE
    assert host.ask("bob", "submit", **submission(**claim))["error"]["exit"] == Exit.USAGE


def submission(**request):
    """A message of one held job."""
    lists = {"scripts": ["#!/bin/sh\n"], "environments": [{}], "jobs": [[0, 0, 0, True]]}
    return lists | {"key": secrets.token_hex(16), "requests": [{"name": "x", "chdir": "/"} | request]}


def test_identity_is_that_of_the_moment_of_connecting(host, hers):
    said = host.raw(
        "root",
        f"os.seteuid({UIDS['bob']}); line = dial(); os.seteuid(0)\n"
        f"say(line, {{'op': 'cancel', 'ids': [{hers}]}})\n"
        f"line = dial(); os.setuid({UIDS['bob']})\n"
        f"say(line, {{'op': 'update', 'id': {hers}, 'changes': {{'name': 'seen'}}}})\n",
    )
    assert OTHERS in said[0]["ok"]["jobs"][0]["error"]["cause"]
    assert said[1]["ok"] == {"id": hers}


def test_root_of_a_user_namespace_is_the_user(host, hers):
    program = f"import os, subprocess, sys\nline = dial()\nsay(line, {{'op': 'cancel', 'ids': [{hers}]}})\n"
    if host.do("bob", "unshare", "-Ur", "true").status:
        pytest.skip("this host allows no user namespace")
    said = host.raw("bob", program, before=("unshare", "-Ur"))
    assert OTHERS in said[0]["ok"]["jobs"][0]["error"]["cause"]


def test_root_reads_the_output_of_a_job_with_the_rights_of_its_owner(host):
    """Root would follow the user's link to any file, and open any device."""
    secret, out = host.path / "etc/fgsched/shown-to-nobody", host.home("alice") / "read-by-root"
    secret.write_text("SECRET\n")
    secret.chmod(0o600)
    job_id = host.submit("alice", "echo written", "-o", out)
    host.over(job_id)
    assert host.run("root", "fgtail", str(job_id)).out == "written\n"
    for planted in (secret, "/dev/mem", "/proc/self/environ"):
        out.unlink()
        out.symlink_to(planted)
        done = host.run("root", "fgtail", "--no-follow", str(job_id))
        assert (done.status, done.out) == (Exit.REFUSED, ""), (planted, done.err)


def test_a_uid_without_an_account_owns_no_jobs_and_is_told_so(host):
    """A user has 65,536 subordinate uids, and would have the quotas, limits and turns of as many users."""
    subordinate = ("setpriv", "--reuid=165537", "--regid=165537", "--clear-groups")
    names = ["submit", "test", "submit_line", "wait", "report", "queue", "gpus"]
    messages = [{"op": name} | GIVEN[name](1) for name in names]
    said = host.raw("root", f"for one in {messages!r}: say(dial(), one)", before=subordinate)
    refused = [answer["error"]["cause"] for answer in said[:-2]]
    assert {cause.partition(":")[0] for cause in refused} == {"uid 165537 has no account on this host"}
    assert [name for name, answer in zip(names, said, strict=True) if "ok" in answer] == ["queue", "gpus"]


@pytest.mark.parametrize("text", ["\ud800", "\udfff\ud800"], ids=ascii)
@pytest.mark.parametrize("field", ["name", "comment", "chdir", "output", "submit_line"])
def test_a_text_that_cannot_be_written_is_refused(host, text, field):
    pid = host.ask("root", "ping")["ok"]["pid"]
    said = host.ask("bob", "submit", **submission(**{field: f"/{text}"}))["error"]
    at = f"a text is not Unicode - at `$.requests[0].{field}`"
    assert (said["exit"], said["cause"]) == (Exit.USAGE, f"malformed request: {at}")
    assert host.ask("root", "ping")["ok"]["pid"] == pid


def test_bytes_that_are_no_text_are_taken_as_they_are(host):
    assert "ok" in host.ask("bob", "submit", **submission(comment=escape_bytes("caf\udce9")))


# -- root is led nowhere ---------------------------------------------------------------------------


def test_output_through_a_link_to_a_file_of_roots_is_not_written(host):
    secret = host.path / "etc/fgsched/secret"
    secret.write_text("root's own\n")
    secret.chmod(0o600)
    (host.home("alice") / "link").symlink_to("/etc/fgsched/secret")
    job = host.ended("alice", "echo pwned", "-o", "link")
    assert (job["state"], job["reason"]) == ("FAILED", "JobLaunchFailure")
    assert secret.read_text() == "root's own\n"


@pytest.mark.parametrize("is_native", [False, True])
def test_output_that_a_user_cannot_write_is_warned_of(host, is_native):
    native = Path(sys.executable).with_name("fgsub")
    program = (native,) if is_native else (sys.executable, "-m", "fgsched.cli.fgsub")
    done = host.do("alice", *program, "--hold", "-o", "/etc/x.out", "--wrap", "true")
    said = "fgsub: warning: --output: you cannot write /etc/x.out; the job fails if that is so at its start\n"
    assert (done.status, done.err) == (0, said)
    done = host.do("alice", *program, "--hold", "-o", "x-%j.out", "--wrap", "true")
    assert (done.status, done.err) == (0, "")


def test_output_to_a_fifo_holds_nobody_up(host):
    os.mkfifo(host.home("alice") / "fifo", 0o666)
    job = host.ended("alice", "echo never", "-o", "fifo")
    assert (job["state"], job["reason"]) == ("FAILED", "JobLaunchFailure")
    assert host.ended("bob", "exit 0")["state"] == "COMPLETED"


def test_steps_of_a_user_reach_the_accounts_and_leave_nothing(host):
    """The table of steps is in the space of the user, to which the name of the job's directory is a link."""
    job = host.ended("alice", "#!/bin/sh\n#SBATCH -n 2\nsrun -J first true; srun sh -c 'exit 4'; exit 0\n")[
        "id"
    ]
    form = ["-o", "JobID,JobName,State,ExitCode,User"]
    rows = host.run("bob", "fgacct", "--steps", "-a", "-nP", "-j", str(job), *form).out.splitlines()
    assert rows[2:] == [f"{job}.0|first|COMPLETED|0:0|", f"{job}.1|sh|FAILED|4:0|"]
    directories = host.root / "run/fgsched/job"
    until(directories, lambda: f"{job}.1" not in os.listdir(directories))


def test_the_environment_of_a_job_reaches_no_process_of_roots(host):
    """What is planted leaves the uid of whoever obeys it: the job does, root never."""
    plant = host.home("alice") / "plant"
    plant.mkdir()
    marks = host.path / "tmp/marks"
    marks.touch()
    marks.chmod(0o666)
    (plant / "rc").write_text(f"id -u >>{marks}\n")
    spoil = f"import os\nprint(os.getuid(), file=open({str(marks)!r}, 'a'))\n"
    (plant / "sitecustomize.py").write_text(spoil)
    functions = {"BASH_FUNC_true%%": f"() {{ id -u >>{marks}; }}"}
    hostile = {
        **{"BASH_ENV": str(plant / "rc"), "ENV": str(plant / "rc"), "PYTHONPATH": str(plant)},
        **{"LD_PRELOAD": str(plant / "none.so"), "LD_LIBRARY_PATH": str(plant), "PYTHONHOME": "/nowhere"},
    }
    script = f"#!/bin/bash\nunset PYTHONHOME; true\n{sys.executable} -c pass\n"
    names = ",".join(f"{name}={value}" for name, value in hostile.items())
    assert host.ended("alice", script, f"--export=ALL,{names}", env=functions)["state"] == "COMPLETED"
    assert set(marks.read_text().split()) == {str(UIDS["alice"])}
    assert "none.so" not in host.log


def test_no_process_of_roots_carries_what_a_user_exported(host):
    host.running("alice", "--export=ALL,TOKEN=SECRET-value")
    carriers = [entry.stat().st_uid for entry in Path("/proc").iterdir() if b"SECRET-value" in told(entry)]
    assert set(carriers) == {UIDS["alice"]}


def told(process):
    """What the kernel tells of a process: its environment and its words."""
    try:
        return (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
    except OSError:
        return b""


# -- whom a client trusts ------------------------------------------------------------------------------

_LISTEN = (
    "import os, socket, sys\n"
    "line = socket.socket(socket.AF_UNIX)\n"
    "line.bind('/run/fgsched/socket'); os.chmod('/run/fgsched/socket', 0o666)\n"
    f"os.setuid({UIDS['bob']}); line.listen()\n"
    "print('ready', flush=True); sys.stdin.read()\n"
)


@pytest.mark.parametrize(("owner", "said"), [("bob", "belongs to uid 4002"), ("root", "is not root's")])
def test_a_client_tells_nothing_to_a_controller_that_is_not_roots(owner, said):
    with hosting(started=False) as host:
        run = host.root / "run/fgsched"
        run.mkdir()
        os.chown(run, UIDS[owner], 0)
        with host.enter("root", sys.executable, "-c", _LISTEN, stdin=-1) as impostor:
            assert impostor.stdout.readline() == "ready\n"
            done = host.run("alice", "fgq")
            impostor.stdin.close()
        assert (done.status, said in done.err) == (Exit.UNREACHABLE, True)


def test_root_runs_no_program_that_others_can_change():
    with hosting(started=False) as host:
        copy = host.path / "copy"
        shutil.copytree(ROOT / "fgsched", copy / "fgsched")
        shutil.copytree(ROOT / "fgshim", copy / "fgshim")
        os.chown(copy / "fgshim/libfgshim.so", UIDS["bob"], 0)
        program = (
            "import sys; from fgsched.controller.__main__ import run_controller; run_controller(system=True)"
        )
        done = host.do("root", sys.executable, "-c", program, env={"PYTHONPATH": str(copy)})
        assert f"libfgshim.so belongs to uid {UIDS['bob']}, but root relies on" in done.err


def test_the_controller_obeys_no_settings_that_others_can_change():
    with hosting(started=False) as host:
        (host.path / "etc/fgsched/fgsched.toml").chmod(0o666)
        done = host.run("root", "fgsched", "start", "--system")
        assert (done.status, "writable by others" in done.err) == (Exit.REFUSED, True)


def test_a_user_is_told_what_to_do_where_the_hosts_controller_has_stopped():
    with hosting() as host:
        host.stop()
        done = host.run("alice", "fgq")
        assert (done.status, "Start it: " in done.err) == (
            Exit.UNREACHABLE,
            True,
        )  # nobody starts one of their own
        done = host.run("alice", "fgsched", "doctor")
        assert [line for line in done.lines if line.startswith("FAIL")] == []
        assert "WARN controller  the controller is not running" in done.lines
        assert "OK   queue       only root can read it" in done.lines
        done = host.run("alice", "fgsched", "doctor", "--recover")
        assert (done.status, "only root may recover it" in done.err) == (Exit.NOT_PERMITTED, True)
        done = host.run("alice", "fgsched", "logs")
        assert (done.status, "the controller's log is for operators" in done.err) == (
            Exit.NOT_PERMITTED,
            True,
        )
        host.start()


def test_a_user_stops_the_controller_that_was_there_before_that_of_the_host():
    with hosting() as host:
        own = _own_before_the_hosts(host, "alice")
        done = host.run("alice", "fgsched", "stop", env=own)
        assert (done.status, done.out.startswith("your own controller stopped")) == (0, True), done.err
        done = host.run("alice", "fgsched", "stop", env=own)
        assert (done.status, "only an operator" in done.err) == (Exit.NOT_PERMITTED, True)


def test_an_operator_stops_their_own_controller_and_not_that_of_the_host():
    with hosting() as host:
        own = _own_before_the_hosts(host, "carol")
        done = host.run("carol", "fgsched", "stop", env=own)
        assert (done.status, done.lines[0].startswith("your own controller stopped")) == (0, True), done.err
        assert done.lines[1].startswith("The controller of the host continues")
        assert host.run("alice", "fgq").status == 0
        done = host.run("carol", "fgsched", "stop", env=own)
        assert (done.status, done.out.startswith("controller stopped")) == (0, True), done.err
        host.start()


def _own_before_the_hosts(host, user):
    """Start a controller of a user's, and that of the host after it; return the user's environment."""
    host.stop()
    (host.root / "run/fgsched/socket").unlink()
    own = {"XDG_RUNTIME_DIR": str(host.home(user))}
    assert host.run(user, "fgq", env=own).status == 0
    host.start()
    return own


@pytest.mark.parametrize("user", ["alice", "bob"])
def test_a_users_own_controller_is_apart_from_the_hosts(host, user):
    own = {"FG_HOME": str(host.home(user) / "own"), "FG_DEVICES": "sim:1x8G"}
    script = host.home(user) / "apart.sh"
    script.write_text("#!/bin/sh\nid -u\n")
    assert host.run(user, "fgsub", "--wait", "-o", "apart", script, env=own).status == 0
    assert host.run(user, "fgsched", "stop", env=own).status == 0
    assert host.output(user, "apart") == [str(UIDS[user])]


def test_root_trusts_no_controller_of_a_users(host):
    own = {"FG_HOME": str(host.home("bob") / "his"), "FG_DEVICES": "sim:1x8G"}
    assert host.run("bob", "fgsched", "start", env=own).status == 0
    done = host.run("root", "fgsub", "--wrap", "true", env=own)
    assert (done.status, f"belongs to uid {UIDS['bob']}" in done.err) == (Exit.UNREACHABLE, True)
    assert host.run("bob", "fgsched", "stop", env=own).status == 0


def test_users_run_in_the_foreground_as_themselves_and_join_only_their_own_jobs(host):
    show = "id -u; id -G; grep -E 'CapEff|Groups' /proc/self/status"
    alone = host.run("alice", "fgrun", "--gpus=0.5", "sh", "-c", f"{show}; echo $FG_GPU_FRACTION; exit 3")
    assert (alone.status, alone.err) == (3, "")
    assert (alone.lines[0], alone.lines[-1]) == (str(UIDS["alice"]), "0.5")
    job = host.running("alice", "--gpus=0.5")
    joined = host.run("alice", "fgrun", f"--jobid={job}", "sh", "-c", f"{show}; echo $FG_JOB_DIR")
    assert (joined.status, joined.err) == (0, "")
    assert joined.lines[:-1] == alone.lines[:-1]
    assert joined.lines[-1].endswith(f"/job/{job}.1")
    for other in ("bob", "carol", "root"):
        refused = host.run(other, "fgrun", f"--jobid={job}", "true")
        assert (refused.status, refused.err.splitlines()[0]) == (
            Exit.NOT_PERMITTED,
            f"fgrun: error: job {job} belongs to another user",
        )
    host.run("alice", "fgcancel", str(job))


def test_a_user_attaches_to_their_own_terminals_only(host):
    script = "echo ready; read line; echo got-$line; exit 6"
    words = ("fgrun", "--pty", "--no-hangup", "sh", "-c", script)
    with commanded(host, "alice", *words) as first:
        assert first.stdout.readline().strip() == "ready"
        job = max(host.run("alice", "fgq", "--me", "-h", "-o", "%i").out.split(), key=int)
        assert host.run("alice", "fgctl", "wait_job", job).status == 0  # its script is faster than the report
        for other in ("bob", "carol", "root"):
            refused = host.run(other, "fgctl", "attach", job)
            assert (refused.status, refused.err.splitlines()[0]) == (
                Exit.NOT_PERMITTED,
                f"fgctl: error: job {job} belongs to another user",
            )
        with commanded(host, "alice", "fgctl", "attach", job) as second:
            out, err = second.communicate("word\n", timeout=PATIENCE)
        assert (second.returncode, "got-word" in out, without_waiting(err)) == (6, True, "")
        first.stdin.close()
        assert first.wait(PATIENCE) == 0


def commanded(host, user, command, *words):
    """Start one of the commands, with a pipe as its input."""
    return host.enter(user, sys.executable, "-m", f"fgsched.cli.{command}", *words, stdin=subprocess.PIPE)


def test_an_operator_adopts_the_process_of_a_user_and_it_stays_the_users(host):
    shown = host.path / "gpus" / "script.json"
    with host.enter("alice", "sh", "-c", "echo ready; exec sleep 1000000") as process:
        assert process.stdout.readline() == "ready\n"
        pid, use = str(process.pid), {"pid": process.pid, "memory": "3G"}
        shown.write_text(json.dumps({"0": {"processes": [use]}}))
        until(shown.parent, lambda: host.ask("root", "process", pid=process.pid)["ok"]["on_gpus"], LOOKS)
        refused = host.run("bob", "fgctl", "adopt", pid)
        assert (refused.status, OTHERS in refused.err) == (Exit.NOT_PERMITTED, True)
        done = host.run("carol", "fgctl", "adopt", pid)
        assert done.status == 0, done.err
        job = int(done.out.split()[4])
        assert host.job(job)["user"] == "alice"
        assert host.run("alice", "fgcancel", str(job)).status == 0
        assert process.wait(PATIENCE) == -signal.SIGTERM
    shown.write_text("{}")
    assert host.over(job)["state"] == "CANCELLED"
