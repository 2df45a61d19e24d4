"""fgsched help: the pages that came with the installation, and the manual."""

import gzip
import re
import shutil
from pathlib import Path

import pytest

from fgsched.cli import pages
from fgsched.domain.errors import Refused

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(([^)#:]+)\)")


@pytest.fixture
def installed(tmp_path):
    """The documentation below the prefix of an installation, with a manual that is compressed."""
    documentation = pages.Documentation(tmp_path / "share/doc/fgsched", tmp_path / "share/man")
    shutil.copytree(ROOT / "docs/design", documentation.root / "docs/design")
    shutil.copy(ROOT / "docs/faq.md", documentation.root / "docs")
    shutil.copy(ROOT / "README.md", documentation.root)
    for name in ("fgq.1", "fgsched.toml.5", "fgsched.8"):
        page = documentation.manual / f"man{name[-1]}" / f"{name}.gz"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_bytes(gzip.compress((ROOT / "man" / name).read_bytes()))
    return documentation


def test_every_page_of_a_checkout_is_listed_with_its_title(home):
    listed = home.run("fgsched", "help").out
    for file in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "llms.txt"]:
        title = file.read_text().partition("\n")[0].removeprefix("# ")
        assert f"  {file.stem.lower():<24}{title}\n" in listed
    assert all(f" {page.name[:-2]}" in listed for page in (ROOT / "man").iterdir())


@pytest.mark.parametrize("name", ["faq", "FAQ", "faq.md", "docs/faq.md"])
def test_a_page_is_printed_as_it_is(home, name):
    assert home.run("fgsched", "help", name).out == (ROOT / "docs/faq.md").read_text()


def test_a_page_of_the_design_has_a_name_of_its_own(installed):
    assert pages.read(installed, "reliability") == (ROOT / "docs/design/reliability.md").read_text()


def test_no_two_pages_have_one_name():
    files = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "man").glob("fg*"), ROOT / "README.md"]
    names = [file.stem.lower() for file in files]
    assert sorted(set(names)) == sorted(names)


def test_the_manual_of_an_installation_is_found_compressed(installed):
    files = installed.manuals
    assert {name: str(file.relative_to(installed.manual)) for name, file in files.items()} == {
        "fgq": "man1/fgq.1.gz",
        "fgsched": "man8/fgsched.8.gz",
        "fgsched.toml": "man5/fgsched.toml.5.gz",
    }


def test_a_command_shows_its_page_of_the_manual(home, tmp_path):
    man = tmp_path / "man"
    man.write_text("#!/bin/sh\nhead -n 1 $1\n")
    man.chmod(0o755)
    done = home.run("fgsched", "help", "fgq", env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert (done.status, done.out.split()[:3]) == (0, [".TH", "FGQ", "1"])


def test_a_host_without_man_names_the_file(home):
    done = home.run("fgsched", "help", "fgq", env={"PATH": "/nowhere"})
    assert (done.status, done.err) == (
        1,
        f"fgsched: error: there is no man on this host\nInstall man-db, or read {ROOT}/man/fgq.1.\n",
    )


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("reliabilty", "Did you mean reliability? fgsched help lists the pages."),
        ("../../etc/passwd", "fgsched help lists the pages."),
        ("xyzzy", "fgsched help lists the pages."),
        ("", "fgsched help lists the pages."),
    ],
)
def test_a_name_that_no_page_has_is_refused(installed, name, remedy):
    with pytest.raises(Refused) as refused:
        pages.read(installed, name)
    assert (refused.value.cause, refused.value.remedy) == (f"there is no page {name!r}", remedy)


@pytest.mark.parametrize(
    "place", ["lib/python3.11/site-packages", "lib/fgsched/lib/python3.11/site-packages", ""]
)
def test_the_pages_are_found_below_each_prefix_that_installers_use(installed, monkeypatch, place):
    prefix = installed.root.parents[2]
    monkeypatch.setattr(pages.fgsched, "__file__", str(prefix / place / "fgsched/__init__.py"))
    assert pages.find() == installed


def test_an_installation_without_pages_names_where_they_are_expected(monkeypatch, tmp_path):
    monkeypatch.setattr(pages.fgsched, "__file__", str(tmp_path / "site-packages/fgsched/__init__.py"))
    with pytest.raises(Refused) as refused:
        pages.find()
    assert refused.value.remedy == (
        f"They are expected in share/doc/fgsched of a directory above {tmp_path}/site-packages."
    )


def test_the_summary_for_language_models_names_every_page_of_users_and_no_other_file():
    named = set(LINK.findall((ROOT / "llms.txt").read_text()))
    assert {path for path in named if not (ROOT / path).exists()} == set()
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")} <= named
