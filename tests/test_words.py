"""The words around the code: what the README shows really happens, links lead somewhere."""

import os
import pwd
import re
import select
import shlex
from pathlib import Path

import pytest

from awaiting import rest
from fgsched.domain.states import JobState
from live_host import PATIENCE, living

ROOT = Path(__file__).parent.parent
STARTED = "echo >started; exec sleep 1000000"


PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(ROOT / "docs").rglob("*.md"),
]


def named(pattern):
    """List (page, match) of a pattern in all pages."""
    return [(page, text) for page in PAGES for text in re.findall(pattern, page.read_text())]


def test_tests_and_benchmarks_that_a_page_names_are_there():
    names = named(r"`((?:tests|scripts)/[\w/.]+)`")
    assert [(page, name) for page, name in names if not (ROOT / name).exists()] == []


def test_modules_that_a_page_names_exist():
    packages = "|".join(path.parent.name for path in (ROOT / "fgsched").glob("*/__init__.py"))
    paths = [(page, ROOT / "fgsched" / name) for page, name in named(rf"`((?:{packages})/[\w/]+)(?:\.\w+)*`")]
    assert [
        (page, path)
        for page, path in paths
        if not (path.with_suffix(".py").exists() or path.with_suffix(".sql").exists() or path.is_dir())
    ] == []


def test_links_between_pages_lead_somewhere():
    targets = [(page, target) for page, target in named(r"\]\(([^)#]+)") if not target.startswith("https://")]
    assert [(page, target) for page, target in targets if not (page.parent / target).exists()] == []


# Each of these words or phrases hides the noun or the verb that a reader needs: see CONTRIBUTING.md, Rules.
VAGUE = re.compile(
    r"\b(who(m)?ever|(some|any|every|no)body|someone|anyone|everyone|anew|afresh|in the midst|thus|hence|lest"
    r"|for ever|(made|makes?) room|(is|are|was|were|be) told|(comes?|came) to|goes on|stands? for"
    r"|those (that|who|which)|gives? out|and the like"
    r"|what (is|was|are|were) (due|sampled|asked|left|known|wanted|lacking|missing|held|sent|not)"
    r"|(is|are) over\b(?! (the|a)\b))\b",
    re.IGNORECASE,
)
QUOTED = re.compile(
    r"[\"']nobody[\"']|user nobody|nobodys?_"
)  # a value that users see, and a user of the host
SOURCES = sorted(
    str(path.relative_to(ROOT))
    for folder, kinds in {
        "fgsched": "py sql",
        "fgshim": "py pyx pxi pxd h",
        "man": "1 5 8",
        "docs": "md",
        "scripts": "py",
        "examples": "py sh",
    }.items()
    for kind in kinds.split()
    for path in (ROOT / folder).rglob(f"*.{kind}")
)


def test_no_text_uses_a_vague_word():
    assert [
        f"{page}:{number}: {word[0]}"
        for page in [*SOURCES, "README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
        for number, line in enumerate((ROOT / page).read_text().splitlines(), 1)
        if (word := VAGUE.search(QUOTED.sub("", line)))
    ] == []


def session():
    """[(command, its output)] of the README's terminal session."""
    block = re.search(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def alike(text):
    """Words by line; whoever ran it, and for however long."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    text = re.sub(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\b", "TIME", text)
    text = re.sub(r"\b\d+:\d\d\b", "0:00", text)
    return [re.sub(rf"\b{re.escape(user)}\b", "ann", line).split() for line in text.splitlines()]


@pytest.fixture
def workstation(tmp_path):
    """One card of 24 GiB, and CPUs enough; scripts that tell when they have started."""
    with living(tmp_path / "home", devices="sim:1x24G:RTX-4090") as home:
        os.mkfifo(home.path / "started")
        for name in ("train.sh", "eval.sh", "sweep.sh"):
            (home.path / name).write_text(f"#!/bin/sh\n{STARTED}\n")
        yield home


@pytest.mark.compiler
def test_the_session_of_the_readme_is_what_happens(workstation):
    """Two jobs run at once; then, when one is cancelled, the third."""
    started = os.open(workstation.path / "started", os.O_RDWR)
    to_see = [1, 1, 0, 0, 0, 1, 0]  # starts to wait for after each command
    try:
        for (line, expected), starts in zip(session(), to_see, strict=True):
            command, *words = shlex.split(line)
            done = workstation.run(command, *words)
            assert (done.status, done.err, alike(done.out)) == (0, "", alike(expected)), line
            for _ in range(starts):
                assert select.select([started], [], [], PATIENCE)[0], f"nothing started after: {line}"
                os.read(started, 1)
            while any(job.state is JobState.STARTING for job in workstation.queue("state")):
                rest()  # a script can be faster than the report of its start
    finally:
        os.close(started)
