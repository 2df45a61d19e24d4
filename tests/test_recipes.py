"""The recipes of docs/recipes.md run, with small programs in place of those that a test host lacks."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from live_host import living

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "recipes.md").read_text()
FAQ = (ROOT / "docs" / "faq.md").read_text()
SCRIPTS = {
    re.search(r"--job-name=(\w+)", script)[1]: script
    for script in re.findall(r"```bash\n(#!/bin/bash\n.*?)```", PAGE, re.DOTALL)
}
SHOWS = '#!/bin/sh\necho "$(basename "$0")" "$@" "gpus=$CUDA_VISIBLE_DEVICES" "task=$SLURM_PROCID"\n'
TRAINS = """#!/bin/bash
trap 'echo 140 >state.pt; echo saved; exit 0' USR1
first=$(cat state.pt 2>/dev/null || echo 0)
echo "from step $first"
[ "$first" = 140 ] && exit 0
echo >>started
while :; do sleep 1000 & wait $!; done
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with living(tmp_path_factory.mktemp("recipes") / "home") as found:
        place = found.path / "bin"
        place.mkdir()
        for name in ("python", "torchrun", "uv"):
            written(place / name, SHOWS)
        conda = found.path / "miniconda3" / "etc" / "profile.d"
        conda.mkdir(parents=True)
        (conda / "conda.sh").write_text("conda() { echo conda $*; }\n")
        venv = found.path / ".venv" / "bin"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv.parent], check=True)
        (found.path / "train.py").write_text("import sys; print('prefix', sys.prefix)\n")
        (found.path / "params.txt").write_text("".join(f"--rate 0.{rate}\n" for rate in range(1, 7)))
        yield found


def written(path, text):
    path.write_text(text)
    path.chmod(0o755)


def submitted(home, name, *words):
    """Submit a recipe; return its id."""
    (home.path / f"{name}.sh").write_text(SCRIPTS[name])
    path = f"{home.path}/bin:{Path(sys.executable).parent}:/usr/bin:/bin"
    env = {"PATH": path, "HOME": str(home.path)}
    done = home.run("fgsub", "--parsable", *words, f"{name}.sh", env=env)
    assert (done.status, done.err) == (0, "")
    return int(done.out)


def output(home, name, file="fg-{}.out"):
    """Run a recipe to its end; return the lines that it wrote."""
    job = submitted(home, name)
    assert home.wait(job)[0]["state"] == "COMPLETED"
    return (home.path / file.format(job)).read_text().splitlines()


def test_environments_are_activated(home):
    assert output(home, "venv") == [f"prefix {home.path}/.venv"]
    assert output(home, "uv") == ["uv run --frozen python train.py gpus=0 task="]
    assert output(home, "conda") == ["conda activate work", "python train.py gpus=0 task="]


def test_several_gpus_are_passed_to_torchrun_and_to_the_tasks_of_srun(home):
    assert output(home, "ddp") == ["torchrun --standalone --nproc-per-node=2 train.py gpus=0,1 task="]
    lines = output(home, "lightning")
    assert sorted(lines) == [f"python train.py gpus=0,1 task={task}" for task in (0, 1)]


def test_a_sweep_has_a_run_for_each_line(home):
    job = submitted(home, "sweep")
    assert {one["state"] for one in home.wait(job)} == {"COMPLETED"}
    found = [(home.path / "runs" / f"{task}.out").read_text().split()[:4] for task in range(1, 7)]
    assert found == [["python", "train.py", "--rate", f"0.{task}"] for task in range(1, 7)]


def test_a_long_job_saves_its_state_returns_to_the_queue_and_continues(home):
    os.mkfifo(home.path / "started")
    before = (home.path / "bin" / "python").read_text()
    written(home.path / "bin" / "python", TRAINS)
    job = submitted(home, "long")
    assert (home.path / "started").read_text() == "\n"
    home.run("fgcancel", "--batch", "--signal", str(int(signal.SIGUSR1)), str(job))
    assert home.wait(job)[0]["state"] == "COMPLETED"
    written(home.path / "bin" / "python", before)
    lines = (home.path / f"fg-{job}.out").read_text().splitlines()
    assert [line for line in lines if "***" not in line] == ["from step 0", "saved", "from step 140"]
    assert home.job(job)["restarts"] == 1


# -- what the pages name -------------------------------------------------------------------------------


def named(page):
    """(command, its long options) of each command line that a page shows."""
    spans = re.findall(r"`(fg[^`]*)`", page)
    shown = re.findall(r"(?:^\$ |\$\()(fg[^#)\n]*)", page, re.MULTILINE)
    for line in [*spans, *shown]:
        command, *words = line.split()
        if command.isalpha():
            yield command, [word.partition("=")[0] for word in words if word.startswith("--")]


@pytest.mark.parametrize("page", [PAGE, FAQ], ids=["recipes", "faq"])
def test_commands_and_options_that_a_page_names_exist(page):
    found = list(named(page))
    assert len(found) > 10
    for command, options in found:
        manual = next((ROOT / "man").glob(f"{command}.[18]"), None)
        assert manual is not None, command
        text = manual.read_text().replace("\\-", "-")
        assert [one for one in options if one not in text] == [], command


def test_the_faq_answers_its_questions():
    assert len(re.findall(r"^## .*\?$", FAQ, re.MULTILINE)) == 22


def test_the_clone_line_names_the_public_repository_or_says_that_there_is_none():
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    url = about.get("urls", {}).get("Repository", "URL")
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text()
        assert f"git clone {url} fgsched && cd fgsched" in text
        assert ("no public repository yet" in text) == (url == "URL")
