"""fgtop: the lines of its screen, what its keys do, and the program on a terminal that tests can read."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

import history
from fgsched.cli.top import plain
from fgsched.cli.top.layout import plain as as_text
from fgsched.cli.top.layout import screen
from fgsched.cli.top.snapshot import Frame, LookHistory, gpu_classes, kinds, means, use_between
from fgsched.cli.top.view import SORTS, Action, TopUser, View, chosen, press
from fgsched.domain.states import JobState
from fgsched.domain.text import width_of as width
from fgsched.views.gpu import parts_of, sm_share
from live_host import PATIENCE, Home, living
from topframes import CARDS, GIB, HOST, JOBS, NOW, frame, gpu, running, usage

EXPECTED = Path(__file__).parent / "data" / "fgtop"
INES = TopUser(1, "ines")
SIZES = [(120, 36), (80, 24), (60, 16), (170, 45), (38, 9)]


@pytest.fixture(autouse=True)
def in_utc(monkeypatch):
    with history.zone():
        monkeypatch.setenv("TZ", "UTC")
        time.tzset()
        yield


def is_expected(name, text):
    """Compare a text with the file of that name; FG_EXPECTED=write writes it instead."""
    path = EXPECTED / name
    if os.environ.get("FG_EXPECTED") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return path.read_text() == text


def shown(view, gpus=CARDS, jobs=JOBS, reader=INES, **more):
    found, kept = frame(gpus, jobs)
    return screen(found, kept, view, reader, **({"now": NOW} | more))


def text_of(view, **more):
    return as_text(shown(view, **more).lines)


# -- the lines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ascii", [False, True], ids=["unicode", "ascii"])
@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_the_screen_is_as_expected(columns, rows, ascii):
    text = text_of(View(width=columns, height=rows, ascii=ascii, selected=41040))
    assert is_expected(f"{columns}x{rows}{'-ascii' if ascii else ''}.txt", text)
    assert text.isascii() or not ascii


def test_a_gpu_on_which_a_job_of_several_has_no_process_is_empty():
    found, _ = frame()
    (job,) = [one for one in found.jobs if one.id == 41040]
    assert [found.kind(job, gpu) for gpu in (1, 3)] == ["active", "reserved-empty"]
    assert gpu_classes(found, found.gpus[3])["reserved-empty"] == 1.0
    busy, idle = (replace(one, memory=GIB, busy=at) for one, at in zip(job.now, (101, 100), strict=True))
    assert kinds(replace(job, now=[busy, idle])) == {1: "active", 3: "held-idle"}
    assert kinds(replace(job, now=[replace(one, memory=0, busy=0) for one in job.now])) == {}


def test_a_gpu_without_a_utilisation_has_the_sm_share_of_its_jobs():
    (job,) = [one for one in JOBS if one.id == 41040]
    unknown = gpu(1, None, 8, 60, 100)
    assert sm_share(unknown, [job, replace(job, now=[replace(job.now[0], busy=1000)])]) == 0.84
    assert (sm_share(unknown, []), sm_share(gpu(1, 50, 8, 60, 100), [job])) == (None, 0.5)


def test_a_screen_before_the_first_answer_says_so():
    text = as_text(screen(Frame(at=NOW, host=""), LookHistory(), View(), INES, now=NOW).lines)
    assert "Waiting for the controller." in text
    assert "No job" not in text


@pytest.mark.parametrize("panel", ["help", "job", "why"])
def test_a_panel_is_shown_over_the_jobs(panel):
    why = ("Job 41098 (llama-ft-2, ann) is pending: Resources", "  GPU 5 is down")
    assert is_expected(f"{panel}.txt", text_of(View(panel=panel, selected=41036, why=why)))


@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("gpus", [0, 1, 3, 8, 16, 40])
@pytest.mark.parametrize("columns", [40, 79, 80, 99, 100, 131, 200])
@pytest.mark.parametrize("rows", [10, 24, 50])
def test_no_line_is_wider_and_no_screen_higher_than_the_terminal(ascii, gpus, columns, rows):
    host_gpus = [gpu(at, 50, 8, 60, 100) for at in range(gpus)]
    made = shown(View(width=columns, height=rows, ascii=ascii), gpus=host_gpus)
    assert len(made.lines) == rows
    assert max(sum(width(span.text) for span in line) for line in made.lines) <= columns


def test_names_of_users_cannot_steer_the_terminal():
    evil = replace(JOBS[0], name="\x1b]0;owned\a\u202e", user="火" * 20)
    text = text_of(View(), jobs=[evil])
    assert text.replace("\n", "").isprintable()


def test_more_gpus_than_half_of_the_screen_are_two_to_a_line_and_then_scroll():
    gpus = [gpu(at, 50, 8, 60, 100) for at in range(40)]
    top = text_of(View(), gpus=gpus).splitlines()[2:11]
    assert top[0].split()[0] == "0"
    assert "  1  " in top[0]
    moved = text_of(View(gpu_top=5), gpus=gpus).splitlines()[2]
    assert moved.split()[0] == "10"


def test_an_empty_host_says_so():
    lines = text_of(View(), gpus=[], jobs=[]).splitlines()
    assert lines[0].split("  ")[:5] == [
        " fgtop",
        "hopper",
        "0.0 of 0 cards charged",
        "0 running",
        "0 waiting",
    ]
    assert " No job is in the queue." in lines


@pytest.mark.parametrize(
    ("view", "more", "mark"),
    [
        ({"is_paused": True}, {}, "PAUSED"),
        ({}, {"now": NOW + 60}, "STALE 60 s"),
        ({}, {"trouble": "the controller does not answer"}, "STALE 0 s"),
        ({}, {"reader": TopUser(1, "ines", may_change=False)}, "READ ONLY"),
    ],
)
def test_the_first_line_says_what_the_screen_is_not(view, more, mark):
    made = shown(View(**view), **more)
    assert (mark, "reverse") in made.lines[0]


def test_the_reason_of_a_stale_screen_is_in_the_last_line():
    lines = text_of(View(), trouble="the controller does not answer").splitlines()
    assert lines[-1] == " the controller does not answer"


# -- the figures ---------------------------------------------------------------------------------------


def test_the_classes_of_each_gpu_add_up_to_one():
    found, _ = frame()
    for info in found.gpus:
        assert sum(gpu_classes(found, info).values()) == pytest.approx(1)
    assert sum(found.classes().values()) == pytest.approx(len(CARDS))


def test_charges_above_a_whole_gpu_are_reduced_in_proportion():
    """One job has most of the time and another most of the memory."""
    jobs = [running(one, "ann", "x", [0], 75, 50, 1, 60, 60, 0) for one in (1, 2)]
    found = LookHistory().frame(CARDS, jobs, NOW, HOST)
    assert [part for _, part in parts_of(found.gpus[0], found.jobs).jobs] == [0.5, 0.5]
    assert sum(gpu_classes(found, CARDS[0]).values()) == 1.0
    assert found.charged == 1.0


def test_what_a_job_did_is_the_difference_of_two_looks():
    kept = LookHistory()
    before = running(7, "mei", "x", [0], 100, 0.0, 10, 40, 600, 3600, "held")
    kept.frame(CARDS, [before], NOW - 60, HOST)
    after = usage(600, 0.0, 10, kind="held")
    more = usage(60, 0.9, 30)
    names = ("sampled", "charged", "active", "held", "empty", "used", "memory")
    sums = {name: getattr(after, name) + getattr(more, name) for name in names}
    now = kept.frame(CARDS, [replace(before, usage=replace(after, **sums))], NOW, HOST).now[7]
    assert (now.kind, now.sm, now.memory) == ("active", pytest.approx(0.9), pytest.approx(30 * (1 << 30)))


def test_a_job_keeps_its_values_until_there_is_a_new_sample():
    kept = LookHistory()
    job = running(7, "mei", "x", [0], 100, 0.5, 10, 40, 600, 3600)
    first = kept.frame(CARDS, [job], NOW - 2, HOST).now[7]
    assert kept.frame(CARDS, [job], NOW, HOST).now[7] == first


def test_without_samples_nothing_is_known_and_nothing_is_zero():
    found = LookHistory().frame(CARDS, [running(7, "mei", "x", [0], 100, None, 0, 40, 600, 3600)], NOW, HOST)
    assert (found.now[7].sm, found.now[7].memory, found.now[7].kind) == (None, None, "charged")
    assert found.classes()["charged"] == 1.0
    assert use_between(usage(0, 0, 0), None).sm is None


def test_the_history_keeps_an_hour_and_leaves_gaps_blank():
    kept = LookHistory()
    for at in range(-90, 1):
        kept.frame([gpu(0, 50, 8, 60, 100)], [], NOW + 60 * at, HOST)
    assert len(kept.gpus[0]) == 61
    assert means(kept.gpus[0], NOW - 600, NOW, 5, "sm") == [0.5] * 5
    assert means(list(kept.gpus[0])[:3], NOW - 600, NOW, 2, "sm") == [None, None]


# -- keys ----------------------------------------------------------------------------------------------


def after(view, *keys, reader=INES):
    """The view after some keys, and the last action."""
    action = Action()
    for key in keys:
        made = shown(view, reader=reader)
        view, action = press(made.view, key, made.jobs, reader, made.rows)
    return shown(view, reader=reader).view, action


def listed(view, reader=INES):
    return [job.id for job in chosen(frame()[0], view, reader)]


def test_arrows_move_and_the_selected_job_stays_in_sight():
    view, _ = after(View(), "down", "down", "down")
    assert view.selected == 41040
    view, _ = after(view, "end")
    assert view.selected == listed(view)[-1]
    assert f">{view.selected:>7}"[:1] in text_of(view)
    view, _ = after(view, "home", "pagedown")
    assert view.selected == listed(view)[11]
    view, _ = after(view, "s", "s", "r")
    assert any(line.startswith(">") and str(view.selected) in line for line in text_of(view).splitlines())


@pytest.mark.parametrize("sort", SORTS)
def test_every_order_has_every_job_once(sort):
    assert sorted(listed(View(sort=sort))) == sorted(job.id for job in JOBS)
    assert listed(View(sort=sort, reverse=True)) == listed(View(sort=sort))[::-1]


def test_orders_put_the_largest_first_and_unknown_values_last():
    running_jobs = [job.id for job in JOBS if job.state is JobState.RUNNING]
    by_sm = [id for id in listed(View(sort="sm")) if id in running_jobs]
    assert (by_sm[0], by_sm[-1]) == (41040, 41110)
    assert listed(View(sort="left"))[0] == 41108


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("/", "n", "a", "d", "enter"), [41036, 41080]),
        (("/", "R", "L", "-", "enter"), [41036, 41080]),
        (("/", "b", "x", "backspace", "e", "n", "space", "1", "0", "9", "enter"), [41109]),
        (("/", "C", "D", "enter"), []),
        (("u",), [41075]),
        (("u", "u", "/", "4", "1", "0", "2", "1"), [41021]),
    ],
)
def test_a_filter_chooses_jobs_by_user_name_state_and_id(keys, expected):
    assert listed(after(View(), *keys)[0]) == expected


def test_escape_removes_the_filter():
    view, _ = after(View(), "/", "n", "a", "d", "enter", "u", "escape")
    assert len(listed(view)) == len(JOBS)


def test_a_job_is_cancelled_only_after_a_question():
    view, action = after(View(selected=41075), "k")
    assert (view.asking, action) == (41075, Action())
    assert text_of(view).splitlines()[-1] == " Cancel job 41075? y/n"
    assert after(view, "y")[1] == Action("cancel", 41075)
    asked, action = after(view, "n")
    assert (asked.asking, asked.message, action) == (0, "not cancelled", Action())
    assert after(view, "enter")[1] == Action()


@pytest.mark.parametrize("key", ["k", "t"])
def test_jobs_of_others_are_for_operators(key):
    view, action = after(View(selected=41021), key)
    assert (view.message, view.asking, action) == ("job 41021 belongs to farid", 0, Action())
    view, action = after(View(selected=41021), key, reader=TopUser(0, "root", is_operator=True))
    assert view.asking == 41021 or action == Action("tail", 41021)


def test_a_screen_that_is_read_only_cancels_nothing():
    view, action = after(View(selected=41075), "k", reader=TopUser(1, "ines", may_change=False))
    assert (view.asking, action) == (0, Action())
    assert view.message == "read only: jobs cannot be cancelled here"


@pytest.mark.parametrize(("key", "name"), [("q", "quit"), ("w", "why"), ("t", "tail")])
def test_a_key_is_an_action(key, name):
    assert after(View(selected=41075), key)[1].name == name


def test_keys_change_the_interval_the_focus_and_the_pause():
    view, _ = after(View(), "+", "+", "g", "space")
    assert (view.interval, view.focus, view.is_paused) == (10, "gpus", True)
    view, _ = after(view, "-", "-", "-", "-", "-", "tab", "space")
    assert (view.interval, view.focus, view.is_paused) == (1, "jobs", False)


def test_no_key_fails_on_an_empty_screen():
    for key in ("enter", "w", "t", "k", "up", "pagedown", "end", "s", "x", "f5", "ctrl+a"):
        made = shown(View(), gpus=[], jobs=[])
        assert press(made.view, key, made.jobs, INES, made.rows)[1] == Action()


# -- the program ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """1 runs on half of GPU 0, 2 is held."""
    with living(tmp_path_factory.mktemp("top") / "home") as found:
        found.running(name="train", share=5000, time_limit=86_400)
        found.submit(name="later", hold=True)
        yield found


def test_one_look_is_printed_with_all_jobs(home: Home):
    done = home.run("fgtop", "--once", "--ascii")
    assert (done.status, done.err) == (0, "")
    assert "0.5 of 2 cards charged  1 running  1 waiting" in done.lines[0]
    assert done.lines[3].startswith("  0  ")
    assert [line.split()[0] for line in done.lines[7:9]] == ["1", "2"]
    assert done.lines[8].split()[-1] == "JobHeldUser"
    assert done.out.isascii()


def test_json_has_gpus_classes_and_jobs(home: Home):
    found = home.run("fgtop", "--json").json
    assert [one["gpu"] for one in found["gpus"]] == [0, 1]
    assert sum(found["classes"].values()) == pytest.approx(2)
    assert [(one["job_id"], one["state"]) for one in found["jobs"]] == [(1, "RUNNING"), (2, "PENDING")]
    assert found["jobs"][1]["sm_share"] is None


def test_without_a_terminal_the_other_forms_are_named(home: Home):
    done = home.run("fgtop")
    assert (done.status, done.err) == (
        2,
        "fgtop: error: fgtop needs a terminal\n"
        "fgtop --once prints the screen once; --json is for programs.\n",
    )


def test_printing_imports_no_textual():
    program = "import fgsched.cli.fgtop, fgsched.cli.top.plain, sys; print('textual' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_what_is_printed_is_the_screen_without_its_last_line():
    found, kept = frame()
    lines = plain.text(found, kept, View(), INES, 120).splitlines()
    assert [line for line in lines if line.startswith(">")] == []
    assert len([line for line in lines if " PD " in line]) == 22


class Tmux:
    """fgtop in a window of tmux that has a server of its own."""

    def __init__(self, home: Home, folder: Path, columns: int, rows: int, *words: str, **env: str) -> None:
        self._socket = folder / "tmux"
        given = home.environ | {"LC_ALL": "C.UTF-8", "TERM": "xterm-256color"} | env
        command = [sys.executable, "-m", "fgsched.cli.fgtop", *words]
        self._run(
            *("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), "--", *command),
            env=given,
        )

    def _run(self, *words: str, **more):
        done = subprocess.run(
            ["tmux", "-u", "-S", self._socket, *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            **more,
        )
        return done.stdout

    def press(self, *keys: str) -> None:
        self._run("send-keys", *keys)

    def screen(self, *, styled=False) -> str:
        return self._run("capture-pane", "-p", *(["-e"] if styled else []))

    def wait(self, *texts: str) -> list[str]:
        """The lines of the screen as soon as they have these texts."""
        until, found = time.monotonic() + PATIENCE, ""
        while time.monotonic() < until:
            found = self.screen()
            if all(text in found for text in texts):
                return found.splitlines()
            self._run("wait-for", "-S", "nothing")  # a turn of the server
        raise AssertionError(f"{texts} are not on the screen:\n{found}")

    def is_over(self) -> bool:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if not self._run("list-sessions"):
                return True
        return False

    def close(self) -> None:
        self._run("kill-server")


@pytest.fixture
def tmux(home, tmp_path):
    """Start fgtop in tmux: tmux(80, 24, "--ascii", NO_COLOR="1")."""
    started = []

    def start(columns, rows, *words, **env):
        started.append(Tmux(home, tmp_path, columns, rows, *words, **env))
        return started[-1]

    yield start
    for one in started:
        one.close()


NO_TMUX = shutil.which("tmux") is None


@pytest.mark.tmux
@pytest.mark.skipif(NO_TMUX, reason="there is no tmux")
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 36)])
def test_the_program_fills_a_terminal_and_obeys_its_keys(home: Home, tmux, columns, rows):
    top = tmux(columns, rows)
    lines = top.wait("0.5 of 2 cards charged", "train", "later", "JobHeldUser", "q quit")
    assert len(lines) == rows
    assert lines[0].startswith(" fgtop  ")
    top.press("?")
    top.wait("filter by user, name, state or id")
    top.press("Escape")
    top.wait("JobHeldUser")
    top.press("/", "t", "r", "a", "i", "n", "Enter")
    assert "later" not in "\n".join(top.wait("1–1 of 1", "train"))
    top.press("Escape")
    top.press("Down", "w")
    top.wait("can release it")
    top.press("q")
    top.wait("JobHeldUser")
    top.press("Space")
    top.wait("PAUSED")
    top.press("q")
    assert top.is_over()


@pytest.mark.tmux
@pytest.mark.skipif(NO_TMUX, reason="there is no tmux")
def test_a_job_is_cancelled_from_the_screen(home: Home, tmux):
    job = home.submit(name="unwanted", hold=True)
    top = tmux(80, 24)
    top.wait("unwanted")
    top.press("End", "k")
    top.wait(f"Cancel job {job}? y/n")
    top.press("y")
    home.wait(job)
    assert home.job(job)["state"] == "CANCELLED"
    top.wait(f"job {job}: cancelled")
    top.press("Home")
    top.wait("1–2 of 2")


@pytest.mark.tmux
@pytest.mark.skipif(NO_TMUX, reason="there is no tmux")
def test_without_colours_and_in_ascii_the_screen_is_plain_text(home: Home, tmux):
    top = tmux(80, 24, "--ascii", "--read-only", NO_COLOR="1")
    top.wait("READ ONLY", "train")
    shown = top.screen(styled=True)
    assert shown.replace("\x1b", "").isascii()
    codes = {code for part in shown.split("\x1b[")[1:] for code in part.partition("m")[0].split(";")}
    assert codes <= {"", "0", "1", "7", "39", "49"}, "bold, reverse, and the terminal's own colours"
