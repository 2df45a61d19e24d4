"""Mails: the short form of a report, and the notice of a job, as text, ASCII and HTML."""

import re

import pytest
from msgspec.structs import replace

import history
from browser import browser
from fgsched.domain.text import width_of as width
from fgsched.reports.mail import (
    LARGEST,
    Notice,
    ResourceUse,
    notice_html,
    notice_mail,
    notice_text,
    report_html,
    report_mail,
    widths,
)
from fgsched.reports.model import ClassBar
from fgsched.reports.registry import NAMES
from reporting import HOSTILE, hostile_plan, is_expected
from test_pages import Page, made, needs_chromium

COMPLETED = Notice(
    subject="fgsched Job_id=40840 Name=clip-embed Ended, Run time 06:39:41, COMPLETED, ExitCode 0",
    host="hopper",
    job="40840",
    name="clip-embed",
    user="jonas",
    state="COMPLETED",
    sentence="Ran 06:39:41, exit code 0.",
    used=(
        ResourceUse(label="GPU memory", text="6.1 of 80.0 GiB", part=0.076),
        ResourceUse(label="SM share", text="mean of 1 GPU", part=0.2),
        ResourceUse(label="Host memory", text="11.8 of 64.0 GiB", part=0.184),
        ResourceUse(label="CPUs", text="3.4 of 8", part=0.426),
        ResourceUse(label="Time", text="06:39:41 of 1-00:00:00", part=0.278),
    ),
    advice=(
        "The job fits in a quarter of a card. It would be charged 1.7 instead of 6.7 GPU-hours and, going by"
        " the medians of this week, wait 26 min instead of 6 h 02 min.",
    ),
    line=("#FG", "--gpus=0.25", "--gpu-mem=8G", "--time=10h"),
    where=(
        ("GPU", "0 (A100 80GB), alone on the card"),
        ("Waited", "06:58:12"),
        ("Started", "Tue 10 Nov 01:20"),
        ("Ended", "Tue 10 Nov 07:59"),
        ("Charged", "6.7 GPU-hours, 1.3 used, 0.3 idle"),
        ("Output", "clip-embed-40840.out"),
        ("Run again", "fgctl requeue 40840"),
    ),
    tail=(
        *("epoch 5/5  batch  6000/9765  img/s  815", "epoch 5/5  batch  9000/9765  img/s  811"),
        "wrote embeddings.npy (1.9 GiB)",
    ),
    why="Sent because the job has --mail-type=END. fgsched on hopper.",
)
OOM = Notice(
    subject="fgsched Job_id=40866 Name=seg-3d-unet Failed, Run time 00:13:09, OUT_OF_MEMORY, ExitCode 1",
    host="hopper",
    job="40866",
    name="seg-3d-unet",
    user="grace",
    state="OUT_OF_MEMORY",
    has_failed=True,
    sentence="Ended after 00:13:09: GPU memory limit of the job.",
    used=(
        ResourceUse(label="GPU memory", text="19.1 of 20.0 GiB", part=0.956),
        ResourceUse(label="Host memory", text="9.2 GiB"),
    ),
    happened=(
        "The job held 19.1 GiB of its 20 GiB and asked for 2.4 GiB more in one allocation. fgsched refused"
        " it, and the process ended with exit code 1. No other job was on the card.",
    ),
    advice=("24 GiB would have been enough for that allocation.",),
    line=("#FG", "--gpus=0.5", "--gpu-mem=24G", "--time=6h"),
    why="Sent because the job has --mail-type=FAIL. fgsched on hopper.",
)
NOTICES = {"completed": COMPLETED, "oom": OOM}
every_notice = pytest.mark.parametrize("name", NOTICES)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("histories")
    for name, plan in {"fortnight": history.FORTNIGHT, "hostile": hostile_plan()}.items():
        history.write(plan, folder / f"{name}.db")
    return folder


def hostile_notice(text):
    """Return a notice in which every text that a user may choose is hostile."""
    return replace(
        COMPLETED,
        subject=f"fgsched Job_id=1 Name={text} Ended",
        name=text,
        user=text,
        where=(("Output", text),),
        tail=(text,) * 20,
    )


@every_notice
def test_the_notice_of_a_job_is_the_expected_mail(name):
    notice = NOTICES[name]
    assert is_expected(f"mail-{name}.txt", notice_text(notice))
    assert is_expected(f"mail-{name}-ascii.txt", notice_text(notice, ascii=True))
    assert is_expected(f"mail-{name}.html", notice_html(notice))
    assert notice_mail(notice).subject == notice.subject


@every_notice
def test_text_has_at_most_78_columns_and_ascii_is_ascii(name):
    for ascii in (False, True):
        text = notice_text(NOTICES[name], ascii=ascii)
        assert max(width(line) for line in text.splitlines()) <= 78
        assert text.isascii() is ascii


@every_notice
def test_text_and_html_have_the_same_words_in_the_same_order(name):
    notice = NOTICES[name]
    wanted = [notice.state, notice.sentence, *(one.text for one in notice.used), *notice.happened]
    wanted += [*notice.advice, " ".join(notice.line), *(text for _, text in notice.where), notice.why]
    for found in (" ".join(notice_text(notice).split()), Page(notice_html(notice)).text):
        places = [found.index(" ".join(one.split()), 20 if at else 0) for at, one in enumerate(wanted)]
        assert places == sorted(places)


def test_the_mail_of_the_overview_is_the_expected_one(paths):
    assert is_expected("mail-overview.html", report_html(made(paths, "overview")))


def test_a_mail_of_a_report_has_its_text_and_the_whole_page(paths):
    mail = report_mail(made(paths, "overview"))
    assert mail.subject == "GPU report 2026-W46, hopper"
    assert mail.text.startswith("GPU report  hopper")
    assert (mail.page_name, mail.page[:15]) == ("overview.html", "<!doctype html>")


def test_the_widths_of_the_classes_add_up_to_100(paths):
    (bar,) = (one for one in made(paths, "overview").sections[0].parts if isinstance(one, ClassBar))
    assert sum(widths(bar)) == 100


@pytest.mark.parametrize("plan", ["fortnight", "hostile"])
@pytest.mark.parametrize("name", NAMES)
def test_the_mail_of_every_report_is_small_and_needs_nothing_else(paths, name, plan):
    check(report_html(made(paths, name, plan)))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_and_output_do_no_harm(text):
    notice = hostile_notice(text)
    check(notice_html(notice))
    mail = notice_mail(notice)
    assert mail.subject.isprintable()
    for found in (mail.text, notice_text(notice, ascii=True)):
        assert max(width(line) for line in found.splitlines()) <= 78
        assert all(char.isprintable() or char == "\n" for char in found)


def check(html):
    """Check that mail programs can show a mail: tables and inline styles only."""
    page = Page(html)
    assert (page.wrong, page.open) == ([], [])
    assert len(html.encode()) <= LARGEST
    assert not re.search(r"<script|<svg|<img|<link|\ssrc=|url\(|gradient|display:flex|var\(", html)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", html)
    visible = re.sub(r"(?s)<bdi>.*?</bdi>|<title>.*?</title>|<[^>]*>", "", html)
    assert "alert(1)" not in visible
    cells = [attrs for tag, attrs in page.tags if tag == "td" and "background:" in attrs.get("style", "")]
    assert all("bgcolor" in attrs for attrs in cells)


@pytest.mark.chromium
@needs_chromium
def test_a_mail_fits_a_phone(paths, tmp_path):
    mails = [report_html(made(paths, name)) for name in ("overview", "failures")]
    mails += [
        notice_html(COMPLETED),
        notice_html(OOM),
        *(notice_html(hostile_notice(one)) for one in HOSTILE),
    ]
    with browser(tmp_path) as chromium:
        for html in mails:
            for room in (680, 390):
                chromium.show(html, width=room)
                assert chromium.value("document.documentElement.scrollWidth") == room
