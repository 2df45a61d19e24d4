"""Mails of a real controller to a real mail server: sent once, whatever is killed or hangs."""

import os

import pytest

from crashing import crashing, kill, kill_controller
from fgsched.crash import MAILING, POINTS
from live_host import living
from mailserver import serving
from test_sampling import until_sampled

pytestmark = pytest.mark.compiler


def text_of(mail):
    """The lines of the text of a mail, which has HTML beside it."""
    assert [part.get_content_type() for part in mail.iter_parts()] == ["text/plain", "text/html"]
    return mail.get_body(("plain",)).get_content().splitlines()


@pytest.fixture
def server(tmp_path):
    with serving(tmp_path / "mails") as one:
        yield one


def config(server, **more):
    return "[host]\ncpus = 64\n" + server.settings(domain='"example.org"', **more)


def test_a_job_sends_a_mail_at_its_end_with_its_last_lines(tmp_path, server):
    with living(tmp_path / "home", config=config(server)) as home:
        script = home.path / "job.sh"
        script.write_text(
            "#!/bin/sh\n#SBATCH --mail-type=BEGIN\n#SBATCH --mail-type=END\necho done; exit 3\n"
        )
        done = home.run("fgsub", "--wait", "-J", "train", "--mail-user=ann", str(script))
        assert (done.status, done.err) == (3, "")
        first, second = server.wait(2)
        assert [str(one["Subject"]).partition(",")[0] for one in (first, second)] == [
            "fgsched Job_id=1 Name=train Began",
            "fgsched Job_id=1 Name=train Ended",
        ]
        assert str(second["Subject"]).endswith(", FAILED, ExitCode 3")
        assert (second["X-To"], "  done" in text_of(second)) == ("ann@example.org", True)


def test_a_mail_about_a_short_job_has_what_was_sampled_of_it(tmp_path, server):
    """The accounts have it a second later, when the mail is sent."""
    settings = f"{config(server)}[sampling]\ninterval = 0.25\n"
    with living(tmp_path / "home", devices="sim:1x16G", config=settings) as home:
        script = home.path / "cards" / "script.json"
        script.parent.mkdir()
        script.write_text("{}")
        home.run("fgq", "-h", env={"FG_SIM_SCRIPT": str(script)})
        gate = home.path / "gate"
        os.mkfifo(gate)
        load = f"echo 'sm=50 mem=2G' >$FG_SIM_LOAD; read line <{gate}"
        job = home.submit(load, share=10_000, name="train", mail_type="END", submit_line="fgsub train.sh")
        until_sampled(home, job, lambda usage: usage.peak)
        gate.write_text("go\n")
        lines = text_of(server.wait(1)[0])
        (memory,) = [line.split() for line in lines if line.startswith("  GPU memory")]
        assert memory[-6:] == ["2.0", "of", "16.0", "GiB", "12", "%"]
        assert [line.split()[0] for line in lines if "mean of 1 GPU" in line] == ["SM"]
        assert [line.split()[:3] for line in lines if line.startswith("  Run again")] == [
            ["Run", "again", "cd"]
        ]


def test_a_mail_server_that_hangs_delays_no_job(tmp_path, server):
    server.answers = ["hang"]
    with living(tmp_path / "home", config=config(server, deadline="1")) as home:
        job = home.ended(mail_type="END")
        other = home.ended()
        assert [one["state"] for one in home.history(job, other)] == ["COMPLETED", "COMPLETED"]
        assert [one["Subject"].partition(" Ended")[0] for one in server.wait(1)] == [
            "fgsched Job_id=1 Name=job"
        ]


def test_a_foreign_address_is_refused_at_submission_and_by_an_update(tmp_path, server):
    with living(tmp_path / "home", config=config(server)) as home:
        done = home.run("fgsub", "--mail-user=ann@evil.org", "--mail-type=END", "--wrap", "exit")
        assert (done.status, done.err.splitlines()[0]) == (
            1,
            "fgsub: error: Batch job submission failed: mail to ann@evil.org is not allowed on this host",
        )
        job = home.submit(hold=True)
        assert home.run("fgctl", "update", f"job={job}", "mailuser=ann@evil.org").status == 1
        assert home.run("fgctl", "update", f"job={job}", "mailtype=end", "mailuser=bob").status == 0
        assert (home.job(job)["request"]["mail_type"], home.job(job)["request"]["mail_user"]) == (
            "END",
            "bob",
        )
        home.run("fgctl", "release", str(job))
        assert server.wait(1)[0]["X-To"] == "bob@example.org"


# those of every turn are met in `test_crash_points`; the virtual world checks the mails of all deaths
@pytest.mark.parametrize(
    "point", [point for point in MAILING if point.startswith("controller_") and point not in POINTS]
)
def test_a_mail_is_sent_once_wherever_the_controller_dies(tmp_path, server, point):
    with crashing(tmp_path, point, config=config(server)) as home:
        job = home.run("fgsub", "--parsable", "--mail-type=END", "--wrap", "exit 0").out.strip()
        home.run("fgwait", job)
        server.wait(1)
        other = home.run("fgsub", "--parsable", "--mail-type=END", "--wrap", "exit 0").out.strip()
        assert [str(one["Subject"]).split()[1] for one in server.wait(2)] == [
            f"Job_id={job}",
            f"Job_id={other}",
        ]


def test_mails_that_wait_are_sent_after_controller_and_server_were_away(tmp_path, server):
    server.stop()
    with living(tmp_path / "home", config=config(server)) as home:
        home.ended(mail_type="END")
        kill_controller(home)
        server.start()
        assert home.run("fgq").status == 0
        assert len(server.wait(1)) == 1


def test_a_killed_mailer_is_started_again(tmp_path, server):
    with living(tmp_path / "home", config=config(server)) as home:
        home.ended(mail_type="END")
        server.wait(1)
        kill(mailer_of(home))
        home.ended(mail_type="END")
        assert len(server.wait(2)) == 2


def mailer_of(home):
    from live_host import processes_of

    for pid in processes_of(home.path):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"fgsched.mail.mailer" in file.read():
                return pid
    raise AssertionError("there is no mailer")
