"""fgreport: what it prints and writes, and what it refuses."""

import csv
import fcntl
import io
import json
import os
import select
import sqlite3
import time

import pytest

import history
from endedjobs import changed
from fgsched.accounting.ledger import Ledger
from fgsched.cli.reporting import refuse_private
from fgsched.config.load import Config
from fgsched.domain.errors import Exit, NotPermitted
from fgsched.views import choices
from live_host import PATIENCE, Done, Home, living
from reporting import EXPECTED
from test_ledger import JOB


@pytest.fixture(scope="module")
def accounts(tmp_path_factory):
    path = tmp_path_factory.mktemp("accounts") / "accounts.db"
    history.write(history.FORTNIGHT, path)
    return path


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home")


@pytest.fixture
def report(home, accounts):
    """Run fgreport on the made fortnight, in its zone."""

    def run(*words: str) -> Done:
        return home.run("fgreport", *words, "--file", str(accounts), env={"TZ": history.ZONE})

    return run


def test_the_overview_is_printed_as_text(report):
    done = report("overview", "--week", "2026-W46")
    assert (done.status, done.err) == (0, "")
    host = os.uname().nodename.split(".")[0]
    expected = (EXPECTED / "overview-fortnight.txt").read_text()
    assert done.out.splitlines()[1:] == expected.replace("hopper", host).splitlines()[1:]
    assert done.out.startswith(f"GPU report  {host}")


def test_json_and_csv_can_be_parsed(report):
    found = report("overview", "--week", "2026-W46", "--format", "json").json
    assert (found["schema"], found["kind"], found["period"]["name"]) == (1, "overview", "2026-W46")
    text = report("overview", "--week", "2026-W46", "--format", "csv", "--section", "users").out
    assert next(csv.DictReader(io.StringIO(text)))["name"] == "ann"


def test_the_accounts_are_read_while_no_controller_runs(home, accounts):
    (home.path / "accounts.db").write_bytes(accounts.read_bytes())
    done = home.run("fgreport", "overview", "--week", "2026-W46", env={"TZ": history.ZONE})
    assert (done.status, done.err) == (0, "")
    assert not (home.path / "lock").exists()


def test_files_of_a_folder_are_dated_listed_and_limited_in_number(report, tmp_path):
    folder = tmp_path / "reports"
    for week in ("2026-W44", "2026-W45", "2026-W46"):
        words = ("--format", "text,json", "--output", str(folder), "--keep", "2")
        done = report("overview", "--week", week, *words)
        assert (done.status, done.out, done.err) == (0, "", "")
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) == [
        "index.html",
        "overview-2026-W45.json",
        "overview-2026-W45.txt",
        "overview-2026-W46.json",
        "overview-2026-W46.txt",
    ]
    page = (folder / "index.html").read_text()
    assert page.count("<a href=") == 4
    assert page.index("2026-W46") < page.index("2026-W45")
    assert json.loads((folder / "overview-2026-W46.json").read_text())["schema"] == 1


def test_months_do_not_count_among_the_kept_weeks(report, tmp_path):
    folder = tmp_path / "reports"
    for choice in (("--week", "2026-W45"), ("--week", "2026-W46"), ("--month", "2026-10")):
        assert report("health", *choice, "--output", str(folder), "--keep", "2").status == 0
    kept = {"health-2026-W45.txt", "health-2026-W46.txt", "health-2026-10.txt"}
    assert kept < {path.name for path in folder.iterdir()}


def test_a_second_run_into_a_folder_is_refused(report, tmp_path):
    (tmp_path / ".fgreport.lock").touch()
    with open(tmp_path / ".fgreport.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = report("overview", "--week", "2026-W46", "--output", str(tmp_path))
    assert (done.status, done.out) == (Exit.REFUSED, "")
    assert "another fgreport writes to" in done.err


def test_nothing_is_written_if_there_is_nothing_to_report(report, tmp_path):
    quiet = ("overview", "--week", "2026-W40", "--only-if")
    assert report(*quiet) == Done(0, "", "")
    assert report(*quiet, "--output", str(tmp_path / "reports")) == Done(0, "", "")
    assert not (tmp_path / "reports" / "index.html").exists()
    assert "No job ran in this week." in report("overview", "--week", "2026-W40", "--format", "markdown").out


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["nothing"], Exit.USAGE, "there is no report 'nothing'"),
        (["overview", "--week", "2099-W01"], Exit.USAGE, "has not begun"),
        (["overview", "--since", "2026-11-12", "--until", "2026-11-10"], Exit.USAGE, "before it begins"),
        (["overview", "--since", "nonsense"], Exit.USAGE, "not a time"),
        (["overview", "--format", "pdf"], Exit.USAGE, "there is no format 'pdf'"),
        (["overview", "--format", "csv,json"], Exit.USAGE, "need --output or --to"),
        (["overview", "--section", "users"], Exit.USAGE, "needs --format csv"),
        (["overview", "--format", "csv", "--section", "x"], Exit.USAGE, "It has: figures"),
        (["overview", "--keep", "3"], Exit.USAGE, "--keep needs --output"),
        (["overview", "--keep", "0", "--output", "x"], Exit.USAGE, "not a whole number"),
        (["overview", "--subject", "x"], Exit.USAGE, "--subject needs --to"),
        (["overview", "--to", "ann@example.org"], Exit.REFUSED, "this host sends no mails"),
        (["overview", "--output", "/dev/null/x"], Exit.STORAGE, "cannot write reports to"),
    ],
)
def test_a_wrong_use_is_refused_with_its_cause(report, words, status, told):
    done = report(*words)
    assert (done.status, done.out) == (status, "")
    assert told in done.err


def test_a_fresh_host_has_one_sentence_for_a_reader_and_whole_files_for_cron(home, tmp_path):
    done = home.run("fgreport", "overview")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(
        "Nothing is accounted yet: the accounts begin about ten minutes after the first"
    )
    assert " ".join(done.lines).endswith("and fgacct shows jobs at once.")
    assert home.run("fgreport", "failures", "--only-if") == Done(0, "", "")
    document = home.run("fgreport", "overview", "--format", "json")
    assert (document.status, document.json["kind"]) == (0, "overview")
    assert document.err.startswith("fgreport: note: Nothing is accounted yet: ")
    folder = tmp_path / "reports"
    assert home.run("fgreport", "overview", "--output", str(folder)) == Done(0, "", "")
    assert "No job ran in this " in next(folder.glob("*.txt")).read_text()  # week, on a Monday
    (home.path / "accounts.initialised").write_text("name\n")
    done = home.run("fgreport", "overview")
    assert (done.status, done.out) == (Exit.STORAGE, "")
    assert "accounts.db are missing" in done.err


def test_on_the_first_day_a_report_says_how_to_see_it(home, tmp_path):
    ledger = Ledger(home.path / "accounts.db")
    with ledger.write():
        ledger.add_jobs([changed(JOB, ended_at=time.time())])
    ledger.close()
    done = home.run("fgreport", "overview")
    assert done.status == 0
    assert done.out.startswith("Nothing was accounted in the period ")
    assert "--since today reports this day up to the last full hour." in " ".join(done.lines)
    older = home.run("fgreport", "overview", "--week", "2026-W40")
    assert "the period 28 September – 4 October 2026; the accounts begin on " in " ".join(older.lines)


def test_a_period_without_records_is_one_sentence_that_names_the_first_day(report):
    done = report("waste", "--since", "2026-10-01", "--until", "2026-10-02")
    assert (done.status, done.err) == (0, "")
    assert " ".join(done.lines) == (
        "Nothing was accounted in the period Thursday 1 October 2026; the accounts begin on 2026-11-02. "
        "--since 2026-11-02 reports the time since then."
    )


def test_missing_damaged_and_newer_accounts_are_refused(home, tmp_path):
    done = home.run("fgreport", "overview", "--file", str(tmp_path / "none"))
    assert (done.status, done.out) == (Exit.STORAGE, "")
    assert "there are no accounts: " in done.err
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"not a database at all" * 400)
    done = home.run("fgreport", "overview", "--file", str(damaged))
    assert (done.status, done.out) == (Exit.STORAGE, "")
    assert str(damaged) in done.err
    newer = tmp_path / "newer.db"
    Ledger(newer).close()
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    done = home.run("fgreport", "overview", "--file", str(newer))
    assert (done.status, done.out) == (Exit.STORAGE, "")
    assert "has version 99 of the accounts; this fgsched knows version 1" in done.err
    assert "Use the fgsched that wrote it" in done.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_accounts_that_the_user_may_not_read_are_refused(home, accounts, tmp_path):
    path = tmp_path / "locked.db"
    path.write_bytes(accounts.read_bytes())
    path.chmod(0)
    done = home.run("fgreport", "overview", "--file", str(path))
    assert (done.status, done.out) == (Exit.NOT_PERMITTED, "")


def test_reports_with_names_of_others_are_refused_where_the_site_keeps_them_private():
    private, ann = Config(private_data=True, operators=("olga",)), ("", "ann")
    for allowed in (("me", "", "ann"), ("me", "ann", "ann"), ("health", *ann), ("overview", "", "olga")):
        refuse_private(*allowed, private)
    refuse_private("overview", *ann, Config())
    for refused in (("overview", *ann), ("me", "ben", "ann"), ("charge", *ann)):
        with pytest.raises(NotPermitted, match="this host keeps them private"):
            refuse_private(*refused, private)


def test_the_weights_and_quotas_of_the_configuration_are_charged(home, report):
    (home.path / "fgsched.toml").write_text(
        '[accounting]\nweights = ["A100=2"]\n[accounts.vision]\ngpu_minutes = 36000\n'
    )
    text = report("charge", "--week", "2026-W46", "--format", "csv", "--section", "accounts").out
    vision = next(row for row in csv.DictReader(io.StringIO(text)) if row["account"] == "vision")
    assert vision["quota_gpu_hours"] == "600"
    assert float(vision["charged_gpu_hours"]) < float(vision["weighted_gpu_hours"])


def test_one_s_own_report_is_about_the_caller(report):
    mine = report("me", "--week", "2026-W46")
    assert (mine.status, len(mine.lines)) == (0, 2)
    assert mine.out.startswith(f"No job of {choices.me()} ran in the period 9–15 November 2026. --since,")
    page = report("me", "--week", "2026-W46", "--format", "markdown").out
    assert f"No job of {choices.me()} ran in this week." in page
    assert "clip-embed" in report("me", "--user", "jonas", "--week", "2026-W46").out
    assert report("users", "--user", "jonas").status == Exit.USAGE


def test_capacity_replays_the_period(report):
    text = report("capacity", "--week", "2026-W46").out
    assert "RTX A6000   524" in text


@pytest.fixture
def running(tmp_path):
    with living(tmp_path / "live", devices="sim:1x24G:RTX-4090,1x24G:RTX-4090") as live:
        yield live


@pytest.mark.compiler
def test_the_present_state_is_that_of_the_controller(running, tmp_path):
    folder = tmp_path / "wall"
    os.mkfifo(running.path / "started")
    started = os.open(running.path / "started", os.O_RDWR)
    job = running.submit("echo x >started; exec sleep 1000000", share=5000)
    assert select.select([started], [], [], PATIENCE)[0]
    os.close(started)
    running.submit(hold=True)
    found = running.run("fgreport", "status", "--format", "json").json
    assert found["lede"] == ["0.5 of 2 cards charged, 1 job running, 1 waiting."]
    tables = {part["key"]: part for section in found["sections"] for part in section["parts"]}
    assert [row[0]["text"] for row in tables["gpus"]["rows"]] == ["GPU 0", "GPU 1"]
    users = tables["gpus"]["rows"][0][-1]["parts"]
    assert [part["text"] for part in users] == ["", tables["running"]["rows"][0][1]["text"], " 0.5"]
    assert [row[0]["value"] for row in tables["running"]["rows"]] == [job]
    assert tables["next"]["rows"] == [], "a held job is not among the next to start"
    words = ("status", "--format", "text,html", "--output", str(folder))
    assert running.run("fgreport", *words) == Done(0, "", "")
    assert (folder / "status.txt").read_text().startswith("GPUs now")
    assert '<meta http-equiv="refresh" content="60">' in (folder / "status.html").read_text()
    assert running.run("fgreport", "status", "--yesterday").status == Exit.USAGE
    running.run("fgsched", "stop", "--kill")
    done = running.run("fgreport", *words)
    assert (done.status, done.out) == (Exit.UNREACHABLE, "")
    assert "The controller does not answer." in (folder / "status.html").read_text()
