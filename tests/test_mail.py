"""Mails about jobs: which are due, what they say, who may have them, how they wait until they are sent."""

import os
import shutil
import signal
import socket
import threading
from contextlib import suppress
from errno import EDQUOT, EIO, ENOSPC, errorcode

import pytest
from msgspec.structs import replace

from awaiting import PATIENCE, until
from builders import GIB, World, a_demand, a_gpu, a_job, a_result
from fgsched.controller import mailing
from fgsched.controller.mailing import MailerProcess
from fgsched.domain.errors import Refused
from fgsched.domain.job import Ended, JobUsage, OomReport
from fgsched.domain.states import JobState, Reason
from fgsched.domain.text import BadValue
from fgsched.lifecycle.mail import events, next_part, parse_mail_types, parse_mail_user
from fgsched.mail import jobtext
from fgsched.mail import mailer as mailer_module
from fgsched.mail.letters import (
    JobMail,
    MailSettings,
    Message,
    check_address,
    from_bytes,
    host_name,
    resolved,
    to_bytes,
)
from fgsched.mail.mailer import Mailer, compose
from fgsched.mail.spool import Full, Spool
from fgsched.reports.mail import notice_mail, notice_text
from fgsched.store.store import NothingMoved, Unreadable
from fgsched.system import disk
from fgsched.system.disk import Kernel
from fgsched.system.outputs import Tail
from mailserver import serving
from test_engine import cancel

ENDED = JobMail(
    **{"at": 1_762_758_000.0, "to": ("ann",), "event": "END", "types": "END", "job": 123, "uid": os.getuid()},
    **{
        "gid": os.getgid(),
        "user": "ann",
        "name": "train",
        "state": "COMPLETED",
        "submitted_at": 1_762_700_000.0,
    },
    **{"started_at": 1_762_754_278.0, "ended_at": 1_762_758_000.0, "eligible_at": 1_762_753_978.0},
    **{"time_limit": 7200, "gpus": (0,), "model": "A100 80GB", "share": 2500, "memory": 20 * GIB},
    **{"gpu_peak": 5 * GIB, "cpus": 4, "cpu_seconds": 3722.0, "max_rss": GIB, "host_memory": 4 * GIB},
    **{"output": "/home/ann/train.out"},
)


# -- which mails are due -------------------------------------------------------------------------------


def test_mail_types_have_one_form_and_all_means_five_of_them():
    assert parse_mail_types("end,BEGIN") == "BEGIN,END"
    assert parse_mail_types("ALL") == "BEGIN,END,FAIL,REQUEUE,INVALID_DEPEND"
    assert parse_mail_types("STAGE_OUT") == parse_mail_types("NONE") == ""
    assert parse_mail_types("TIME_LIMIT_50, ARRAY_TASKS") == "TIME_LIMIT_50,ARRAY_TASKS"


@pytest.mark.parametrize("text", ["", "ENDED", "END,,FAIL", "END\nBcc: x"])
def test_an_unknown_mail_type_is_refused(text):
    with pytest.raises(BadValue):
        parse_mail_types(text)


@pytest.mark.parametrize(
    "text",
    [
        *("-oQ/tmp", "ann bob", "ann@", "@example.org", "ann@example.org\nBcc: bob@example.org", "ann\r"),
        *("änn@example.org", "ann@-x", "|/bin/sh", "/etc/passwd", "ann%bob@example.org", ""),
        *("a@b@c", ",".join("a" * 11)),
    ],
)
def test_an_address_that_a_mail_program_could_misread_is_refused(text):
    with pytest.raises(BadValue):
        parse_mail_user(text)


RUNNING = a_job(1, state=JobState.RUNNING)
STARTING = a_job(1, state=JobState.STARTING)
DONE = Ended(status=0)


def asking(job, types):
    return job.changed(request=replace(job.request, mail_type=types))


@pytest.mark.parametrize(
    ("before", "after", "types", "due"),
    [
        (STARTING, RUNNING, "BEGIN,END", ["BEGIN"]),
        (STARTING, a_job(1, state=JobState.COMPLETED, ended=DONE), "BEGIN,END", ["BEGIN", "END"]),
        (
            STARTING,
            a_job(1, state=JobState.FAILED, ended=DONE, reason=Reason.LAUNCH_FAILURE),
            "BEGIN,FAIL",
            ["FAIL"],
        ),
        (RUNNING, a_job(1, state=JobState.FAILED), "END", ["END"]),
        (RUNNING, a_job(1, state=JobState.FAILED), "END,FAIL", ["FAIL"]),
        (RUNNING, a_job(1, state=JobState.COMPLETED), "FAIL", []),
        (RUNNING, a_job(1, state=JobState.CANCELLED), "END,FAIL", ["END"]),
        (RUNNING, a_job(1, state=JobState.TIMEOUT), "FAIL,TIME_LIMIT", ["TIME_LIMIT", "FAIL"]),
        (RUNNING, a_job(1, restarts=1), "REQUEUE,END", ["REQUEUE"]),
        (a_job(1), a_job(1, reason=Reason.DEPENDENCY_NEVER), "INVALID_DEPEND", ["INVALID_DEPEND"]),
        (a_job(1), a_job(1, held="user"), "BEGIN,END,FAIL,REQUEUE,INVALID_DEPEND", []),
    ],
)
def test_a_change_of_a_job_makes_the_mails_due_that_it_asked_for(before, after, types, due):
    assert events(asking(before, types), asking(after, types)) == due


def test_parts_of_the_time_limit_are_due_one_after_another():
    job = asking(a_job(1, state=JobState.RUNNING, started_at=1000.0), "TIME_LIMIT_50,TIME_LIMIT_90")
    job = job.changed(request=replace(job.request, time_limit=100), suspended=7.0)
    assert next_part(job, 0.0) == (1057.0, "TIME_LIMIT_50")
    assert next_part(job, 1057.0) == (1097.0, "TIME_LIMIT_90")
    assert next_part(job, 1097.0) is None


class Post:
    """A queue of mails in memory."""

    def __init__(self, world):
        self.letters = {}
        self.world = world
        self.connect()

    def connect(self):
        self.world.engine.mail.connect(self.put, "host")

    def put(self, name, data):
        is_new = name not in self.letters
        self.letters.setdefault(name, from_bytes(data))
        return is_new

    @property
    def said(self):
        return [jobtext.subject(one) for one in self.letters.values()]


def test_a_mail_is_kept_in_the_queue_until_it_is_durable_elsewhere():
    world = World([a_gpu(0)])
    post = Post(world)
    world.submit([a_demand(5000)], mail_type="BEGIN,END")
    world.settle()
    world.host.finish(1, 1, a_result(0))
    world.settle()
    name = world.store.name
    assert list(post.letters) == [f"{name}-1.1.BEGIN", f"{name}-1.1.END"]
    assert len(world.store.outbox.all()) == 2
    world.engine.mail.kept(list(post.letters))
    world.turn()
    assert world.store.outbox.all() == []


def test_a_mail_knows_whether_its_job_is_written_for_slurm_and_its_tasks():
    world = World([a_gpu(0)])
    post = Post(world)
    world.submit([a_demand(5000)], mail_type="BEGIN", slurm_env=True, tasks=3)
    world.submit([a_demand(5000)], mail_type="BEGIN")
    world.settle()
    assert [(one.slurm_env, one.ntasks) for one in post.letters.values()] == [(True, 3), (False, 1)]


def test_a_mail_that_was_committed_and_not_posted_is_posted_by_the_next_controller():
    world = World([a_gpu(0)])
    world.engine.mail.connect(lambda name, data: (_ for _ in ()).throw(OSError("full")), "host")
    world.submit([a_demand(5000)], mail_type="BEGIN")
    world.settle()
    assert world.engine.mail.has_unposted
    world.start()
    post = Post(world)
    world.engine.recover(world.now)
    assert post.said == ["fgsched Job_id=1 Name=t Began, Queued time 00:00:00"]


def test_an_array_has_one_mail_about_its_start_and_one_about_its_end():
    world = World([a_gpu(0)])
    post = Post(world)
    world.submit([a_demand(5000)], mail_type="BEGIN,END", array="0-2")
    world.settle()
    for status in (0, 0x100, 0):
        world.host.finish(*world.host.running[0], a_result(status))
        world.settle()
    assert post.said == [
        "fgsched Array Summary Job_id=1_* (1) Name=t Began",
        "fgsched Array Summary Job_id=1_* (1) Name=t Ended, Mixed, ExitCode [0-1]",
    ]


class _UnreadableAccounts(NothingMoved):
    def sum(self, array):
        raise Unreadable("the accounts lack their last commit", "Restore a backup.")


def test_an_array_ends_with_its_mail_while_the_accounts_cannot_be_read():
    world = World([a_gpu(0)])
    post = Post(world)
    world.store.use_moved(_UnreadableAccounts())
    world.submit([a_demand(5000)], mail_type="BEGIN,END", array="0-1")
    world.settle()
    for status in (0, 0x100):
        world.host.finish(*world.host.running[0], a_result(status))
        world.settle()
    assert not world.engine.unsaved
    assert world.store.open_jobs() == []
    assert post.said[1:] == ["fgsched Array Summary Job_id=1_* (1) Name=t Ended, Mixed, ExitCode [0-1]"]


def test_mails_about_jobs_of_a_user_beyond_the_limit_are_left_out_and_the_user_is_told_how_many():
    world = World([a_gpu(0)])
    post = Post(world)
    world.engine.mail.connect(post.put, "host", most_per_hour=10)
    world.submit([a_demand(10_000, gpus=2)] * 50, mail_type="END", mail_user="ann,bob")
    for job in range(1, 51):
        cancel(world, job)
    *sent, notice = post.letters
    assert [name.partition("-")[2] for name in sent] == [f"{job}.0.END" for job in range(1, 11)]
    left = post.letters[notice]
    assert left.text.startswith("10 mails about your jobs were due within an hour. Further ones are left out")
    assert world.engine.mail.due(world.now) == 300.0
    world.now += 3600
    world.turn()
    *_, last = post.letters.values()
    assert (last.subject, last.to) == ("fgsched left out 40 mails about your jobs", ("ann", "bob"))
    assert len(world.store.outbox.all()) == len(post.letters) == 12
    assert world.engine.mail.due(world.now) is None


def test_mails_that_no_disk_takes_are_tried_again_one_at_a_time():
    world, tried = World([a_gpu(0)]), []

    def full(name, data):
        tried.append(name)
        raise OSError("full")

    world.engine.mail.connect(full, "host")
    world.submit([a_demand(10_000, gpus=2)] * 5, mail_type="END")
    for job in range(1, 6):
        cancel(world, job)
    assert (len(tried), world.engine.mail.retry_unposted(), len(tried)) == (5, 10.0, 6)
    Post(world)
    assert (world.engine.mail.retry_unposted(), world.engine.mail.has_unposted) == (0.1, False)


def test_mails_beyond_those_in_memory_are_posted_without_a_restart(monkeypatch):
    monkeypatch.setattr(mailing, "_MOST", 2)
    world = World([a_gpu(0)])

    def full(name, data):
        raise OSError("full")

    world.engine.mail.connect(full, "host")
    world.submit([a_demand(10_000, gpus=2)] * 5, mail_type="END")
    for job in range(1, 6):
        cancel(world, job)
    post = Post(world)
    while world.engine.mail.has_unposted:
        world.engine.mail.retry_unposted()
    assert len(post.letters) == 5


# -- what they say -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({}, "Job_id=123 Name=train Ended, Run time 01:02:02, COMPLETED, ExitCode 0"),
        (
            {"event": "FAIL", "state": "FAILED", "exit_code": 3},
            "Job_id=123 Name=train Failed, Run time 01:02:02, FAILED, ExitCode 3",
        ),
        ({"event": "BEGIN", "ended_at": None}, "Job_id=123 Name=train Began, Queued time 00:05:00"),
        ({"event": "REQUEUE", "ended_at": None}, "Job_id=123 Name=train Requeued, Run time 01:02:02"),
        (
            {"event": "TIME_LIMIT_80", "ended_at": None},
            "Job_id=123 Name=train Reached 80% of time limit, Run time 01:02:02",
        ),
        (
            {"array": 120, "task": 3},
            "Array Task Job_id=120_3 (123) Name=train Ended, Run time 01:02:02, COMPLETED, ExitCode 0",
        ),
        (
            {"array": 120, "is_summary": True, "tasks": 4, "completed": 4},
            "Array Summary Job_id=120_* (120) Name=train Ended, COMPLETED, ExitCode [0-0]",
        ),
        (
            {"event": "INVALID_DEPEND", "started_at": None, "ended_at": None},
            "Job_id=123 Name=train Invalid dependency",
        ),
    ],
)
def test_the_subject_has_the_form_of_slurms(changes, subject):
    assert jobtext.subject(replace(ENDED, **changes)) == f"fgsched {subject}"


USAGE = JobUsage(
    **{"sampled": 3600.0, "charged": 900.0, "active": 600.0, "held": 200.0, "empty": 100.0, "used": 720.0},
    **{"memory": 0.0, "peak": 5 * GIB, "with_process": 3500.0, "busy": 3000.0, "longest_idle": 60.0},
    **{"neighbours": ((9, 600.0), (8, 1200.0))},
)


def text_of(mail, usage=None, tail=()):
    return notice_text(jobtext.notice(mail, usage, tail, "hopper"))


def test_the_text_says_what_was_used_of_what_was_asked():
    rule = "─" * 78
    assert text_of(ENDED, USAGE, ["step 1", "step 2"]).splitlines() == [
        "COMPLETED   job 123   train   ann   hopper",
        "Ran 01:02:02, exit code 0.",
        "",
        "Used, of the request",
        rule,
        "  GPU memory    █████···············               5.0 of 20.0 GiB        25 %",
        "  SM share      ████················                 mean of 1 GPU        20 %",
        "  Host memory   █████···············                1.0 of 4.0 GiB        25 %",
        "  CPUs          █████···············                      1.0 of 4        25 %",
        "  Time          ██████████▍·········          01:02:02 of 02:00:00        52 %",
        rule,
        "",
        "For the next run",
        "  Host memory fits in 2 GiB. 2 CPUs are enough.",
        "",
        "      #FG --mem=2G --cpus-per-task=2",
        "",
        "Where and when",
        "  GPU        0 (A100 80GB), 0.25 of each",
        "  Waited     00:05:00",
        f"  Started    {jobtext._moment(ENDED.started_at)}",
        f"  Ended      {jobtext._moment(ENDED.ended_at)}",
        "  Charged    0.2 GPU-hours, 0.2 used, 0.1 idle",
        "  Neighbours job 8 for 20 min, job 9 for 10 min",
        "  Output     /home/ann/train.out",
        "  Details    fgacct -j 123",
        "",
        "Last lines of the output",
        rule,
        "  step 1",
        "  step 2",
        rule,
        "Sent because the job has --mail-type=END. fgsched on hopper.",
    ]


def test_a_peak_that_was_not_measured_is_a_dash_in_a_mail():
    text = text_of(replace(ENDED, gpu_peak=0, max_rss=0), None)
    lines = [line.split() for line in text.splitlines() if "memory" in line]
    assert lines == [
        ["GPU", "memory", *["–", "of", "20.0", "GiB"]],
        ["Host", "memory", *["–", "of", "4.0", "GiB"]],
    ]
    sampled = text_of(replace(ENDED, gpu_peak=0), USAGE)
    assert f"{USAGE.peak / GIB:.1f} of 20.0 GiB" in sampled


BIG = replace(
    ENDED,
    **{"share": 10_000, "memory": 80 * GIB, "total": 80 * GIB, "cpus": 1, "host_memory": 0},
    **{"ended_at": ENDED.started_at + 24_000, "time_limit": 86_400, "gpu_peak": 6 * GIB, "cpu_seconds": 0.0},
)
LITTLE = replace(USAGE, sampled=24_000.0, charged=24_000.0, used=4800.0, with_process=24_000.0, neighbours=())


def test_the_mail_about_the_end_has_the_header_line_for_the_next_run_as_fgeff_gives_it():
    lines = text_of(BIG, LITTLE).splitlines()
    at = lines.index("For the next run")
    assert lines[at : at + 6] == [
        "For the next run",
        "  The peak of GPU memory fits in 7 GiB. The SM share fits in 0.25 of a GPU. A",
        "  time limit of 8 h is enough. The job would have been charged 1.7 instead of",
        "  6.7 GPU-hours.",
        "",
        "      #FG --gpus=0.25 --gpu-mem=7G --time=8h",
    ]
    of_slurm = text_of(replace(BIG, slurm_env=True), LITTLE).splitlines()
    assert of_slurm[at : at + 5] == lines[at : at + 5]
    assert of_slurm[at + 5] == "      #SBATCH --gres=gpu:0.25 --gpu-mem=7G --time=8:00:00"
    html = notice_mail(jobtext.notice(BIG, LITTLE, (), "hopper")).html
    assert html.index("For the next run") < html.index("--gpu-mem=7G") < html.index("Where and when")


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "FAILED", "event": "FAIL"},
        {"state": "CANCELLED"},
        {"event": "BEGIN", "ended_at": None},
        {"ended_at": ENDED.started_at + 59},
        {"array": 120, "is_summary": True},
    ],
)
def test_a_run_that_shows_little_of_what_a_job_needs_gives_no_advice(changes):
    assert "For the next run" not in text_of(replace(BIG, **changes), LITTLE)


def test_the_mail_says_how_to_run_the_job_again_and_where_its_errors_are():
    more = {"errors": "/home/ann/e", "restarts": 2, "chdir": "/home/ann b", "submit_line": "fgsub train.sh"}
    lines = text_of(replace(ENDED, share=10_000, **more), replace(USAGE, neighbours=())).splitlines()
    assert lines[lines.index("Where and when") + 1] == "  GPU        0 (A100 80GB)"
    assert lines[-8:-3] == [
        "  Restarts   2",
        "  Output     /home/ann/train.out",
        "  Errors     /home/ann/e",
        "  Details    fgacct -j 123",
        "  Run again  cd '/home/ann b' && fgsub train.sh",
    ]
    shared = text_of(ENDED, replace(USAGE, neighbours=()))
    assert "  GPU        0 (A100 80GB), 0.25 of each, no other job on it\n" in shared
    assert "Run again" not in text_of(replace(ENDED, array=120, task=3, **more))


def test_a_job_that_ran_out_of_gpu_memory_is_told_what_was_refused():
    oom = OomReport(gpu=0, asked=2 * GIB, held=19 * GIB, limit=20 * GIB)
    text = text_of(replace(ENDED, event="FAIL", state="OUT_OF_MEMORY", post_mortem=oom))
    said = "GPU out of memory on GPU 0: the job held 19.0 GiB of its limit of 20.0 GiB, and 2.0 GiB were"
    words = " ".join(text.split())
    assert f"What happened {said} refused. No other job was on the GPU. For the next run" in words
    assert "would have fitted in 23 GiB. #FG --gpu-mem=23G Where" in words
    beside = replace(oom, jobs=((8, GIB), (9, 2 * GIB)), strangers=3 * GIB)
    found = " ".join(text_of(replace(ENDED, event="FAIL", state="OUT_OF_MEMORY", post_mortem=beside)).split())
    assert (
        "Beside it, job 8 held 1.0 GiB, job 9 held 2.0 GiB, processes outside of jobs held 3.0 GiB." in found
    )


HARMFUL = "x\r\nBcc: bob@example.org\r\n\r\n<b>\x1b[31m\x00\u202e ü 🚀\udce4"


def test_a_name_with_line_breaks_adds_no_header_and_no_control_character():
    letter = from_bytes(to_bytes(replace(ENDED, name=HARMFUL)))
    made = notice_mail(jobtext.notice(letter, None, [HARMFUL], "h"))
    message = Message(at=1.0, to=("ann",), subject=made.subject, text=made.text)
    data = compose("q-1.1.END", message, ["ann@example.org"], MailSettings(), "hopper.example.org")
    head = data.partition(b"\r\n\r\n")[0]
    names = [line.partition(b":")[0] for line in head.split(b"\r\n") if not line.startswith(b" ")]
    assert sorted(names) == sorted(
        b"From To Subject Date Message-ID Auto-Submitted MIME-Version Content-Type"
        b" Content-Transfer-Encoding".split()
    )
    assert b"\x1b" not in data
    assert b"\x00" not in data


def test_a_subject_in_any_language_is_restored_by_the_reader():
    import email
    import email.policy

    message = Message(at=1.0, to=("ann",), subject="Überblick 🚀 " + "w" * 90, text="ü\n")
    data = compose("n", message, ["ann@example.org"], MailSettings(), "hopper")
    read = email.message_from_bytes(data, policy=email.policy.default)
    assert (read["Subject"], read.get_content()) == (message.subject, "ü\r\n")
    assert max(len(line) for line in data.split(b"\r\n")) <= 998


# -- who may have them ---------------------------------------------------------------------------------

SITE = MailSettings(way="smtp", domain="example.org", allowed=("@lab.org", "eve@home.net"))


@pytest.mark.parametrize("address", ["ann", "ann@example.org", "bob@LAB.org", "Eve@home.net"])
def test_users_the_own_domain_and_listed_addresses_are_allowed(address):
    check_address(address, SITE)


@pytest.mark.parametrize("address", ["ann@evil.org", "bob@home.net", "ann@sub.lab.org", "-x", "a\nb"])
def test_other_addresses_are_refused(address):
    with pytest.raises(Refused):
        check_address(address, SITE)


def test_a_user_name_gets_the_domain_of_the_site_or_of_the_host():
    assert resolved(("ann", "bob@lab.org"), SITE, "h.net") == ["ann@example.org", "bob@lab.org"]
    assert resolved(("ann",), MailSettings(way="smtp"), "h.net") == ["ann@h.net"]
    assert resolved(("ann",), MailSettings(way="sendmail"), "h.net") == ["ann"]


def test_a_host_that_its_resolver_calls_localhost_keeps_its_name(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "hopper")
    monkeypatch.setattr("socket.getfqdn", lambda: "localhost.localdomain")
    assert host_name() == "hopper"
    monkeypatch.setattr("socket.getfqdn", lambda: "hopper.example.org")
    assert host_name() == "hopper.example.org"


# -- the queue and the mailer --------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    with serving(tmp_path / "mails") as one:
        yield one


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path / "mail")


def settings_of(server, **more):
    return MailSettings(
        **{"way": "smtp", "host": "127.0.0.1", "port": server.port, "domain": "example.org", "deadline": 5.0}
        | more
    )


def message(to=("ann",), at=100.0):
    return to_bytes(Message(at=at, to=to, subject="s", text="t\n"))


def names(spool, place):
    return sorted(os.listdir(spool.path / place))


def test_a_letter_is_sent_once_and_put_again_in_vain(spool, server):
    spool.put("a", message())
    mailer = Mailer(spool, settings_of(server), "h")
    assert mailer.kept() == ["a"]
    mailer.work(100.0)
    assert not spool.put("a", message())
    mailer.work(101.0)
    assert [(one["X-To"], one["Message-ID"]) for one in server.mails] == [("ann@example.org", "<a@h>")]
    assert (names(spool, "new"), names(spool, "sent"), mailer.due(101.0)) == ([], ["a"], None)


def test_a_mail_has_no_lines_that_a_later_job_wrote_into_the_same_file(tmp_path, spool, server):
    output = tmp_path / "shared"
    output.write_text("of the job\n")
    os.utime(output, (ENDED.ended_at, ENDED.ended_at))
    letter = replace(ENDED, uid=os.geteuid(), gid=os.getegid(), output=str(output), to=("ann",))
    spool.put("a", to_bytes(letter))
    mailer = Mailer(spool, settings_of(server), "h")
    mailer.work(100.0)
    output.write_text("of a later job\n")
    spool.put("b", to_bytes(letter))
    mailer.work(100.0)
    first, second = (one.get_body(("plain",)).get_content().splitlines() for one in server.mails)
    assert "  of the job" in first
    said = "The file was changed after the end of the job, so its lines are not shown."
    assert second[second.index("Last lines of the output") + 1] == f"  {said}"
    html = server.mails[1].get_body(("html",)).get_content()
    assert (said in html, "of a later job" in html + "".join(second)) == (True, False)


def test_a_server_that_is_busy_gets_the_letter_later(spool, server):
    server.answers = ["451 busy", "451 busy"]
    spool.put("a", message())
    mailer = Mailer(spool, settings_of(server), "h")
    mailer.work(100.0)
    assert (mailer.due(100.0), server.mails) == (2.0, [])
    mailer.work(102.0)
    assert mailer.due(102.0) == 4.0
    mailer.work(106.0)
    assert (len(server.mails), mailer.due(106.0)) == (1, None)


def test_a_server_that_is_gone_loses_no_letter(spool, server):
    server.stop()
    spool.put("a", message())
    spool.put("b", message())
    mailer = Mailer(spool, settings_of(server), "h")
    mailer.work(100.0)
    assert names(spool, "new") == ["a", "b"]
    server.start()
    mailer.work(110.0)
    assert [one["Message-ID"] for one in server.mails] == ["<a@h>", "<b@h>"]


def test_a_server_that_does_not_answer_is_given_up_at_the_deadline(spool, server):
    server.answers = ["hang"]
    spool.put("a", message())
    mailer = Mailer(spool, settings_of(server, deadline=0.3), "h")
    mailer.work(100.0)
    assert (server.mails, names(spool, "new")) == ([], ["a"])
    Mailer(spool, settings_of(server), "h").work(100.0)
    assert len(server.mails) == 1


def test_a_letter_that_is_refused_for_good_is_put_aside(spool, server):
    server.answers = ["550 no such user"]
    spool.put("a", message())
    spool.put("b", message(to=("ann@evil.org",)))
    spool.put("c", b"no letter\n")
    spool.put("d", message())
    Mailer(spool, settings_of(server), "h").work(100.0)
    assert (names(spool, "failed"), names(spool, "sent"), names(spool, "new")) == (["a", "b", "c"], ["d"], [])


@pytest.mark.parametrize(("host", "helo"), [("h", "[127.0.0.1]"), ("gpu1.example.org", "gpu1.example.org")])
def test_a_name_service_that_does_not_answer_keeps_no_mail(spool, server, monkeypatch, host, helo):
    monkeypatch.setattr(socket, "getfqdn", lambda *_: threading.Event().wait())
    spool.put("a", message())
    Mailer(spool, settings_of(server), host).work(100.0)
    assert [mail["X-Helo"] for mail in server.mails] == [helo]


CUTS = [b"", message()[:20], message()[:30] + bytes(20) + message()[50:], message()[:-1] + b"\0"]


@pytest.mark.parametrize("left", CUTS)
def test_a_letter_that_a_loss_of_power_cut_short_is_neither_durable_nor_given_up(spool, server, left):
    (spool.path / "new" / "a").write_bytes(left)
    mailer = Mailer(spool, settings_of(server), "h")
    assert (mailer.kept(), mailer.work(100.0), server.mails) == ([], None, [])
    assert (names(spool, "new"), names(spool, "failed")) == (["a"], [])
    assert spool.put("a", message())  # by the controller, which still has it
    assert mailer.kept() == ["a"]
    mailer.work(200.0)
    assert [mail["Message-ID"] for mail in server.mails] == ["<a@h>"]


def test_a_letter_that_was_cut_short_and_that_nobody_writes_again_is_put_aside(spool, server):
    (spool.path / "new" / "a").write_bytes(b"")
    mailer, now = Mailer(spool, settings_of(server), "h"), 100.0
    while (due := mailer.due(now)) is not None:
        now += due
        mailer.work(now)
    assert (names(spool, "new"), names(spool, "failed")) == ([], ["a"])
    assert 1000.0 < now < 4000.0


def test_a_waiting_letter_is_not_called_durable_by_another_put(spool):
    assert spool.put("a", message())
    (spool.path / "new" / "a").write_bytes(as_left := message(to=("bob",)))  # whom it is left to
    assert spool.put("a", message())
    assert spool.read("a") == as_left


def test_a_recipient_who_has_the_letter_does_not_get_it_again(spool, server):
    server.refused = {"bob@example.org": "450 later"}
    spool.put("a", message(to=("ann", "bob")))
    mailer = Mailer(spool, settings_of(server), "h")
    mailer.work(100.0)
    server.refused = {}
    mailer.work(200.0)
    assert [one["X-To"] for one in server.mails] == ["ann@example.org", "bob@example.org"]


def test_a_letter_that_was_sent_and_cannot_be_noted_is_not_sent_again(spool, server, capsys):
    spool.put("a", message())
    (spool.path / "sent").rmdir()
    (spool.path / "sent").write_text("no directory\n")
    mailer = Mailer(spool, settings_of(server), "h")
    for now in (100.0, 102.0, 200.0):
        mailer.work(now)
    assert (len(server.mails), names(spool, "new")) == (1, ["a"])
    assert "mail a waits: it is sent, but cannot be moved" in capsys.readouterr().err
    (spool.path / "sent").unlink()
    (spool.path / "sent").mkdir()
    mailer.work(300.0)
    assert (len(server.mails), names(spool, "sent"), mailer.due(300.0)) == (1, ["a"], None)


def test_a_letter_that_is_sent_before_the_disk_takes_it_again_is_forgotten_by_the_controller(
    spool, server, monkeypatch
):
    def full(name):
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    monkeypatch.setattr(spool, "keep", full)
    spool.put("a", message())
    mailer = Mailer(spool, settings_of(server), "h")
    assert mailer.kept() == []
    mailer.work(200.0)
    assert (len(server.mails), mailer.kept(), mailer.kept()) == (1, ["a"], [])


class Refusing(Kernel):
    """A kernel that refuses changes after a number of them: `most` of them, or all."""

    def __init__(self, error, after, most):
        self.error, self.left, self.most = error, after, most

    def _count(self):
        self.left -= 1
        if self.left < 0 and -self.left <= self.most:
            raise OSError(self.error, os.strerror(self.error))


def _counted(name):
    def call(self, *words, **more):
        self._count()
        return getattr(Kernel, name)(self, *words, **more)

    return call


for each in ("open", "write", "truncate", "sync", "rename", "link", "remove"):
    setattr(Refusing, each, _counted(each))


@pytest.mark.parametrize("error", [ENOSPC, EDQUOT, EIO], ids=errorcode.get)
def test_a_letter_is_sent_once_whichever_changes_of_its_queue_the_disk_refuses(
    spool, server, monkeypatch, error
):
    letters = [f"{after}-{most}" for after in range(16) for most in (1, 1000)]
    mailer = Mailer(spool, settings_of(server), "h")
    for number, name in enumerate(letters):
        after, most = map(int, name.split("-"))
        kernel = Refusing(error, after, most)
        for now in range(1000 * number, 1000 * number + 900, 300):
            monkeypatch.setattr(disk, "kernel", kernel)
            with suppress(OSError):  # the controller tries it again
                spool.put(name, message())
            mailer.kept()
            mailer.work(now)
            kernel.most = 0  # there is space, or the disk answers
    assert [one["Message-ID"] for one in server.mails] == [f"<{name}@h>" for name in letters]
    assert (names(spool, "new"), names(spool, "failed"), mailer.due(1e6)) == ([], [], None)


def test_a_user_whose_output_does_not_answer_delays_the_mails_of_others_once(spool, server, monkeypatch):
    """A file system of the user's that never answers, or a reader that the user stops."""
    asked = []

    def late(path, count, **more):
        asked.append(count)
        return Tail(is_late=count > 0)

    monkeypatch.setattr(mailer_module, "tail", late)
    for number in range(5):
        spool.put(str(number), to_bytes(replace(ENDED, job=number)))
    Mailer(spool, replace(settings_of(server), tail=10), "h").work(ENDED.at)
    assert len(server.mails) == 5
    assert asked == [10, 0, 0, 0, 0]


def test_recipients_who_cannot_be_noted_do_not_get_the_letter_again(spool, server):
    server.refused = {"bob@example.org": "450 later"}
    spool.put("a", message(to=("ann", "bob")))
    (spool.path / "a.fresh").mkdir()
    mailer = Mailer(spool, settings_of(server), "h")
    mailer.work(100.0)
    server.refused = {}
    mailer.work(200.0)
    assert [one["X-To"] for one in server.mails] == ["ann@example.org", "bob@example.org"]


def test_a_letter_that_cannot_be_read_delays_no_other(spool, server, capsys):
    (spool.path / "new" / "a").mkdir()
    spool.put("b", message())
    mailer = Mailer(spool, settings_of(server), "h")
    mailer.kept()
    mailer.work(100.0)
    assert ([one["Message-ID"] for one in server.mails], mailer.due(100.0)) == (["<b@h>"], 2.0)
    assert "mail a waits: [Errno 21]" in capsys.readouterr().err


def test_a_queue_that_cannot_be_read_is_told_once_and_tried_again(spool, server, capsys):
    (spool.path / "new").rename(spool.path / "away")
    mailer = Mailer(spool, settings_of(server), "h")
    assert (mailer.kept(), mailer.work(100.0), mailer.due(100.0)) == ([], None, 60.0)
    assert capsys.readouterr().err.count("the queue of mails cannot be read") == 1


@pytest.mark.parametrize(
    "answers", [(b"554 no service\r\n",), (b"220 h\r\n", b"250 STARTTLS\r\n", b"554 no\r\n")]
)
def test_a_server_that_refuses_its_service_gets_the_letter_later(spool, answers):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer_once, args=(listening, answers))
        thread.start()
        spool.put("a", message())
        settings = MailSettings(
            way="smtp",
            host="127.0.0.1",
            port=listening.getsockname()[1],
            domain="example.org",
            tls=tls(answers),
        )
        Mailer(spool, settings, "h").work(100.0)
        thread.join()
    assert (names(spool, "new"), names(spool, "failed")) == (["a"], [])


def tls(answers):
    return "starttls" if len(answers) > 1 else "none"


def answer_once(listening, answers):
    """Answer the lines of one client."""
    client, _ = listening.accept()
    with client:
        for answer in answers:
            client.sendall(answer)
            client.recv(1 << 12)


def test_a_letter_is_tried_for_some_days_only(spool, server):
    server.stop()
    spool.put("a", message(at=100.0))
    mailer = Mailer(spool, settings_of(server, give_up=1000), "h")
    mailer.work(200.0)
    mailer.work(1101.0)
    assert names(spool, "failed") == ["a"]


def test_the_queue_of_mails_is_bounded(spool, monkeypatch):
    monkeypatch.setattr("fgsched.mail.spool.MOST", 2)
    assert spool.put("a", message())
    assert spool.put("b", message())
    again = Spool(spool.path)
    for name in ("c", "d"):  # a full queue is listed once in some seconds
        with pytest.raises(Full):
            again.put(name, message())
        shutil.rmtree(spool.path / "new", ignore_errors=True)


def test_sendmail_takes_letters_and_its_exit_status_decides(spool, tmp_path):
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\ncd {tmp_path}\ncat >said; echo "$@" >>said; exit $(cat exit)\n')
    program.chmod(0o755)
    mailer = Mailer(spool, MailSettings(way="sendmail", sendmail=str(program)), "h")
    for status, place in ((75, "new"), (0, "sent"), (67, "failed")):
        (tmp_path / "exit").write_text(str(status))
        spool.put(str(status), message())
        mailer.work(200.0 + status)
        assert str(status) in names(spool, place)
    assert (tmp_path / "said").read_text().endswith("t\n-i -f fgsched@h -- ann\n")


def test_a_password_that_others_can_read_is_not_used(spool, server, tmp_path):
    secret = tmp_path / "password"
    secret.write_text("x\n")
    secret.chmod(0o644)
    spool.put("a", message())
    Mailer(spool, settings_of(server, user="u", password_file=str(secret)), "h").work(100.0)
    assert (names(spool, "new"), server.mails) == (["a"], [])


STEPS = [("mail_before_sending", 1), ("mail_after_sending", 2), ("mail_after_noting", 1)]


@pytest.mark.parametrize(("point", "times"), STEPS)
def test_a_killed_mailer_loses_no_letter_and_repeats_one_only_if_it_was_killed_after_sending(
    spool, server, point, times, monkeypatch
):
    spool.put("a", message())
    with monkeypatch.context() as crashing:
        crashing.setenv("FG_CRASH_AT", point)
        mailer = MailerProcess(spool.path, settings_of(server))
        mailer.start(0.0)
    assert mailer._process.wait(PATIENCE) == -signal.SIGKILL
    mailer.start(0.0)
    until(spool.path / "new", lambda: not names(spool, "new"))
    mailer._patience = PATIENCE  # with that of a controller, a busy host kills it in the middle of its end
    mailer.close()
    assert mailer._process.returncode == 0
    assert [one["Message-ID"].partition("@")[0] for one in server.mails] == ["<a"] * times
    assert names(spool, "sent") == ["a"]
