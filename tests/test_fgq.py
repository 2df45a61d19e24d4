"""fgq: what the queue looks like, to people and to scripts."""

import os
import pwd
import signal
import subprocess
import sys

import pytest

from builders import a_job
from fgsched.controller.caller import Caller
from fgsched.controller.handlers.fields import FIELDS, CallerView
from fgsched.domain.errors import BadUsage
from fgsched.protocol import JobInfo
from fgsched.views import columns, documents, fields
from fgsched.views.display import fit
from fgsched.views.fields import indices
from live_host import Home, living

HEADER = "             JOBID PARTITION     NAME     USER ST       TIME   GPUS    GPUMEM GPU(REASON)"
ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture(scope="module")
def queue(tmp_path_factory):
    """Job 1 is over, 2 runs on half of GPU 0, 3 to 5 are held; nothing of it changes."""
    with living(tmp_path_factory.mktemp("queue") / "home") as home:
        home.ended("exit 3", name="over")
        home.running(name="train", share=5000)
        home.submit(name="evaluation", hold=True, share=7500, time_limit=3600)
        home.submit(name="cpu", hold=True, share=0, partition="main")
        home.submit(name="evil\x1b]52;c;eA==\a\u202egnp", hold=True, share=20000 // 2)
        yield home


def ids(done):
    return [int(line.split()[0]) for line in done.lines]


def test_an_empty_queue_is_a_header_and_no_error(home: Home):
    assert home.run("fgq") == (done := home.run("fgq"))
    assert (done.status, done.out, done.err) == (0, f"{HEADER}\n", "")


def test_only_a_job_that_waits_is_told_why(home):
    home.running(share=10_000)
    home.running(share=10_000)
    home.submit(share=10_000, hold=True)
    home.submit(share=10_000)
    why = {line[:2].strip(): line[2:].strip() for line in home.run("fgq", "-h", "-O", "JobID:2,Why:60").lines}
    held, short = "held; its owner can release it", "needs one whole GPU; GPU 0 has 0 left"
    assert why == {"1": "", "2": "", "3": held, "4": short}


def test_the_usual_columns_are_fixed_cut_hard_and_free_at_the_end(queue):
    lines = queue.run("fgq").lines
    assert lines[0] == HEADER
    assert (
        lines[1]
        == f"                 3      main evaluati {ME:>8} PD       0:00   0.75    12288M (JobHeldUser)"
    )
    assert (
        lines[2]
        == f"                 4      main      cpu {ME:>8} PD       0:00      0         - (JobHeldUser)"
    )
    running = lines[4].split()
    assert running[:5] == ["2", "main", "train", ME, "R"]
    assert running[6:] == ["0.5", "8192M", "0"]


def test_the_tag_of_a_job_is_shown_before_and_after_its_end(home):
    job = home.submit(hold=True, wckey="paper 7")
    other = home.submit(hold=True)
    assert home.run("fgq", "-h", "-o", "%i %w").lines == [f"{job} paper 7", f"{other} (null)"]
    home.run("fgcancel", str(job))
    assert home.run("fgacct", "-n", "-j", str(job), "-o", "WCKey").out.strip() == "paper 7"


def test_a_name_cannot_steer_the_terminal(queue):
    out = queue.run("fgq", "-j", "5", "-h", "-o", "%j|").out
    assert out == "evil?]52;c;eA==??gnp|\n"


def test_the_long_form_spells_the_state_and_tells_the_limit(queue):
    amounts = "1:00:00   0.75    12288M (JobHeldUser)"
    assert queue.run("fgq", "-l", "-h", "-j", "3").lines == [
        f"                 3      main evaluati {ME:>8}  PENDING       0:00   {amounts}"
    ]


def test_slurm_columns_are_those_of_squeue(queue):
    lines = queue.run("fgq", "--slurm-columns", "-j", "3").lines
    assert lines == [
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)",
        f"                 3      main evaluati {ME:>8} PD       0:00      1 (JobHeldUser)",
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), [3, 4, 5, 2]),
        (("--me",), [3, 4, 5, 2]),
        (("-u", str(os.geteuid())), [3, 4, 5, 2]),
        (("-u", "nobody"), []),
        (("-t", "r"), [2]),
        (("-t", "Running,pd", "-n", "train,cpu"), [4, 2]),
        (("-t", "suspended"), []),
        (("-t", "all"), [3, 4, 5, 2, 1]),
        (("--recent",), [3, 4, 5, 2, 1]),
        (("-t", "F"), [1]),
        (("-p", "main", "-j", "2-4"), [3, 4, 2]),
        (("-S", "-i"), [5, 4, 3, 2]),
        (("-S", "t,-GPUs"), [5, 3, 4, 2]),
        (("-a", "-r", "-S", "JobID"), [2, 3, 4, 5]),
        (("--start", "-S", "JobID"), [3, 4, 5]),
        (("--start", "-S", "JobID", "-t", "R,PD"), [2, 3, 4, 5]),
        (("--start", "-j", "2"), []),
    ],
)
def test_filters_and_orders_choose_the_jobs(queue, words, expected):
    done = queue.run("fgq", "-h", "-o", "%i", *words)
    assert (done.status, ids(done), done.err) == (0, expected, "")


def test_the_word_me_is_no_user_and_the_option_for_it_is_named(queue):
    done = queue.run("fgq", "-u", "me")
    assert (done.status, done.err) == (
        2,
        "fgq: error: Invalid user: me\nGive your user name; fgq and fgcancel also have --me.\n",
    )


def test_a_job_that_is_over_is_a_hint_and_no_error(queue):
    done = queue.run("fgq", "-j", "1")
    assert (done.status, done.out) == (0, f"{HEADER}\n")
    assert done.err == "fgq: 1: FAILED; see fgacct -j 1\n"


def test_an_unknown_id_is_an_error_and_the_others_are_shown(queue):
    done = queue.run("fgq", "-h", "-o", "%i", "-j", "3,98-99")
    assert (done.status, done.out) == (3, "3\n")
    assert done.err.startswith("fgq: error: Invalid job id specified: 98-99\n")


@pytest.mark.parametrize("word", ["abc", "-5", "0", "1.5", ""])
def test_what_is_no_job_id_is_wrong_usage(queue, word):
    done = queue.run("fgq", f"--jobs={word}")
    assert done.status == 2
    assert "is not a job id" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-o", "%l%é"), "unknown field"),
        (("-o", "%i %"), "unknown field % in the format"),
        (("-o", "plain"), "the format plain names no field"),
        (("-O", "Nonsense"), "unknown field Nonsense in the format"),
        (("-O", "GpuUtil"), "unknown field GpuUtil in the format"),
        (("-S", "é"), "is nothing to sort by"),
        (("-S", "i,"), "'' is nothing to sort by"),
        (("-S", "-Nonsense"), "-Nonsense is nothing to sort by"),
        (("--start", "-l"), "-l and --start each choose the columns"),
        (("-t", "RUNING"), "Invalid job state specified: RUNING"),
        (("-u", "no-such-user"), "Invalid user: no-such-user"),
        (("-p", "other"), "Invalid partition specified: other"),
        (("-i", "0"), "0 is not a whole number of at least 1"),
        (("-l", "-o", "%i"), "give one of them"),
        (("--nonsense",), "No such option"),
        (("word",), "unexpected extra argument"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(queue, words, said):
    done = queue.run("fgq", *words)
    assert (done.status, done.out) == (2, "")
    assert said in done.err.splitlines()[0]
    assert done.err.startswith("fgq: error: ")


def test_json_has_numbers_nulls_and_times_of_both_kinds(queue):
    answer = queue.run("fgq", "--json", "-j", "2,5").json
    evil, train = answer["jobs"]
    assert set(answer["meta"]) == {"version", "time", "time_iso", "host"}
    assert (train["job_id"], train["state"], train["state_code"]) == (2, "RUNNING", "R")
    assert (train["gpus"], train["gpu_mem"], train["gpu_idx"]) == (0.5, 8 << 30, [0])
    assert train["time_limit"] is None
    assert isinstance(train["start_time"], float)
    assert train["start_time_iso"].startswith("20")
    assert (evil["start_time"], evil["start_time_iso"], evil["reason"]) == (None, None, "JobHeldUser")
    assert evil["name"] == "evil\x1b]52;c;eA==\a\u202egnp"


def test_json_of_an_empty_queue_is_an_empty_list(home):
    assert home.run("fgq", "--json").json["jobs"] == []


def test_every_column_can_be_shown_at_once(queue):
    header, *rows = queue.run("fgq", "-o", "%all").lines
    assert len(rows) == 4
    assert {row.count("|") for row in rows} == {header.count("|")}


def test_a_reader_that_goes_away_is_no_error_worth_a_word(queue):
    command = f"{sys.executable} -m fgsched.cli.fgq -o %all; echo $? >&2"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(["/bin/sh", "-c", command], stdout=write, stderr=subprocess.PIPE, env=queue.environ)
    os.close(write)
    assert done.stderr.decode() == "141\n"


def test_a_full_disk_is_an_error(queue):
    with open("/dev/full", "w") as full:
        done = queue.run("fgq", stdout=full, stderr=subprocess.PIPE, capture_output=False)
    assert (done.status, done.err) == (6, "fgq: error: cannot write the output: No space left on device\n")


def test_letters_that_the_terminal_lacks_become_question_marks(home):
    home.submit(name="größe", hold=True)
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert home.run("fgq", "-h", "-o", "%j", env=ascii_only).out == "gr??e\n"


@pytest.mark.parametrize("env", [{"TZ": ":bogus"}, {"COLUMNS": "abc"}, {"COLUMNS": "20"}, {"HOME": ""}])
def test_an_odd_environment_does_no_harm(queue, env):
    done = queue.run("fgq", "-j", "3", "-o", "%i %V", env=env)
    assert (done.status, len(done.lines), done.err) == (0, 2, "")


@pytest.mark.parametrize(
    "env", [{"FG_TIME_FORMAT": "%Y", "SLURM_TIME_FORMAT": "%H:%M"}, {"SLURM_TIME_FORMAT": "%Y"}]
)
def test_times_are_printed_as_the_environment_wants_them(queue, env):
    done = queue.run("fgq", "-h", "-j", "3", "-o", "%V %S", env=env)
    assert done.out.split() == [done.out.split()[0], "N/A"]
    assert len(done.out.split()[0]) == 4


def test_the_queue_is_shown_again_until_interrupted(queue):
    command = [sys.executable, "-m", "fgsched.cli.fgq", "-i", "1", "-h", "-j", "3", "-o", "%i"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=queue.environ) as process:
        lines = [process.stdout.readline() for _ in range(6)]
        process.send_signal(signal.SIGINT)
        process.stdout.read()  # to its end: a pipe that is closed before would end it otherwise
    assert lines[1:3] == lines[4:6] == ["3\n", "\n"]
    assert process.returncode == 130


# -- without a process ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "width", "right", "expected"),
    [
        ("train", 8, True, "   train"),
        ("train", 3, False, "tra"),
        ("größe", 6, False, "größe "),
        ("日本語", 5, False, "日本 "),
        ("日本語", 7, True, " 日本語"),
        ("e\u0301t", 2, False, "e\u0301t"),
    ],
)
def test_a_cell_takes_exactly_its_columns(text, width, right, expected):
    assert fit(text, width, right=right) == expected


def test_a_cut_can_be_marked():
    assert fit("CANCELLED by 1000", 10, mark="+") == "CANCELLED+"
    assert fit("日本語日本語", 8, mark="+") == "日本語+ "


def test_a_format_keeps_the_text_around_its_items():
    form = columns.percent("<%.4i>{%j}")
    assert form.header() == "<JOBI>{NAME}"
    assert list(form.lines([JobInfo(id=7, name="a{b}")])) == ["<   7>{a{b}}"]


def test_names_have_twenty_columns_unless_told_otherwise():
    form = columns.named("JobID,name:5,STATE:.9|")
    assert form.header() == f"{'JOBID':<20}NAME     STATE|"


def test_the_controller_has_a_value_for_every_attribute_of_a_job():
    assert set(FIELDS) == set(JobInfo.__struct_fields__) - {"starts_at", "likely", "known", "step"}


def test_every_column_and_key_needs_attributes_that_a_job_has():
    asked = {field for column in fields.COLUMNS for field in (*column.fields, column.key)}
    assert asked | set(documents.fields(documents.keys_of("fgq"))) <= set(JobInfo.__struct_fields__)


def test_a_long_list_of_gpus_is_cut():
    text = indices(list(range(0, 200, 2)))
    assert len(text) == 64
    assert text.endswith("…")


def test_what_is_the_owners_is_not_told_to_others():
    owner, other = Caller(1, 1, "ann", False), Caller(2, 2, "bob", False)
    job = a_job()
    assert CallerView(None, owner, 0.0).owned(job, "/home/ann") == "/home/ann"
    assert CallerView(None, other, 0.0).owned(job, "/home/ann") is None


def test_the_controller_refuses_fields_and_filters_that_it_does_not_have(home):
    with pytest.raises(BadUsage, match="fields are some of id, array, "):
        home.queue("nonsense")
    with pytest.raises(BadUsage, match=r"\$\.where\.id"):
        home.queue("id", id=7)
    with pytest.raises(BadUsage, match=r"\$\.where\.name\[0\]"):
        home.queue("id", name=[[]])
