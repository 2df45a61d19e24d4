"""What an installation consists of."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.compiler

ROOT = Path(__file__).parent.parent
LEFT_OUT = shutil.ignore_patterns(
    *(".*", "build", "dist", "tests", "__pycache__", "*.egg-info", "*.so", "*.o", "fgspawn", "fgprove")
)
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
OLDEST = "cp" + PROJECT["requires-python"].removeprefix(">=").replace(".", "")
NATIVE = PYPROJECT["tool"]["fgsched"]["native-commands"]
COMMANDS = NATIVE
PACKAGES = {path.parent for tree in ("fgsched", "fgshim") for path in (ROOT / tree).rglob("__init__.py")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy of this tree: a build writes beside its sources."""
    place = tmp_path_factory.mktemp("packaging")
    shutil.copytree(ROOT, place / "source", ignore=LEFT_OUT)
    build = "from setuptools import build_meta; import sys; build_meta.build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, str(place)],
        cwd=place / "source",
        env={
            **os.environ,
            "FG_BUILD_ONLY": "hook spawner prover region fgsched.reports.grouping",
            "FG_LIMITED_API": "1",
            "CFLAGS": "-O0",  # what the wheel contains counts, not its speed
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    with zipfile.ZipFile(next(place.glob("*.whl"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def names(wheel):
    return set(wheel.namelist())


def test_every_module_and_statement_of_the_source_is_in_the_wheel(names):
    for package in PACKAGES:
        for path in [*package.glob("*.py"), *package.rglob("*.sql")]:
            assert str(path.relative_to(ROOT)) in names


def test_one_wheel_serves_every_python_from_the_oldest_on(wheel):
    assert f"-{OLDEST}-abi3-" in Path(wheel.filename).name
    entry = next(name for name in wheel.namelist() if name.endswith(".dist-info/WHEEL"))
    assert f"Tag: {OLDEST}-abi3-" in wheel.read(entry).decode()


def test_what_init_writes_is_in_the_wheel(names):
    assert {f"fgsched/cli/install/fgsched.{kind}" for kind in ("service", "toml")} <= names


def test_the_native_parts_are_in_the_wheel_and_the_programs_can_be_executed(wheel, names):
    assert "fgshim/libfgshim.so" in names
    assert {name for name in names if name.startswith("fgshim/region.")} == {"fgshim/region.abi3.so"}
    for program in ("fgspawn", "fgprove"):
        assert wheel.getinfo(f"fgshim/{program}").external_attr >> 16 & 0o111 == 0o111


def test_the_native_commands_are_where_programs_are_and_can_be_executed(wheel, names):
    for command in NATIVE:
        found = next(name for name in names if name.endswith(f".data/data/bin/{command}"))
        assert wheel.getinfo(found).external_attr >> 16 & 0o111 == 0o111


def test_no_source_of_the_native_parts_and_nothing_of_the_tests_is_in_the_wheel(names):
    assert not [
        name for name in names if name.endswith((".c", ".h", ".pyx", ".pxi")) or name.startswith("test")
    ]


def test_every_page_and_completion_is_where_man_the_shells_and_fgsched_help_look(names):
    of_the_root = {f"doc/fgsched/{name}" for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")}
    of_the_root |= {f"doc/fgsched/{name}" for name in ("SECURITY.md", "CITATION.cff", "LICENSE", "llms.txt")}
    data = {name.partition("/data/share/")[2] for name in names if ".data/data/share/" in name}
    pages = {f"man/man{path.suffix[1:]}/{path.name}" for path in (ROOT / "man").glob("*.[1-9]")}
    bash = {f"bash-completion/completions/{command}" for command in COMMANDS}
    zsh = {f"zsh/site-functions/_{command}" for command in COMMANDS}
    fish = {f"fish/vendor_completions.d/{command}.fish" for command in COMMANDS}
    documentation = {
        f"doc/fgsched/{path.relative_to(ROOT)}"
        for tree in ("docs", "examples")
        for path in (ROOT / tree).rglob("*.*")
    }
    assert data == of_the_root | pages | bash | zsh | fish | documentation


def test_the_commands_are_those_of_the_project_and_each_has_its_module(wheel, names):
    entry = next(name for name in names if name.endswith("entry_points.txt"))
    text = wheel.read(entry).decode()
    for command, target in PROJECT["scripts"].items():
        assert f"{command} = {target}" in text
        assert target.partition(":")[0].replace(".", "/") + ".py" in names


def test_all_that_a_checkout_has_is_in_the_source_distribution(tmp_path):
    """So that whoever unpacks it can build, test and read all of it."""
    source = tmp_path / "source"
    build_output = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.egg-info", "*.so", "*.o")
    shutil.copytree(ROOT, source, ignore=build_output)
    here = files_below(source)  # before the build, which writes there
    build = "from setuptools import build_meta; import sys; build_meta.build_sdist(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)],
        cwd=source,
        env={**os.environ, "FG_BUILD_ONLY": ""},  # MANIFEST.in alone has to name all sources
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    assert here <= held, here - held


def files_below(source):
    """Return the files of the checkout that a source distribution contains, relative to its root."""
    trees = ("docs", "examples", "fgsched", "man", "scripts", "tests")
    files = [file for tree in trees for file in (source / tree).rglob("*")]
    files += (source / "fgshim").glob("[a-z]*.p*")
    made = source / "fgsched/reports/grouping.c"  # by the build
    return {str(file.relative_to(source)) for file in files if file.is_file() and file != made}


def test_the_version_of_the_package_is_that_of_the_project():
    from fgsched import __version__

    assert __version__ == PROJECT["version"]


def test_the_try_on_a_guest_says_what_it_lacks():
    env = os.environ | {"UML": "/no/such/linux.uml"}
    done = subprocess.run(
        [ROOT / "scripts/packaging/try-vm"], env=env, capture_output=True, text=True, check=False
    )
    why = "there is no /no/such/linux.uml; Debian has it in the package user-mode-linux"
    if os.geteuid():
        why = "it needs root, to make the file system of the guest"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"skipped: {why}\n", "")
