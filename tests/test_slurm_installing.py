"""fgsched slurm-names: the names of Slurm outside jobs, never in the place of a Slurm or of another file."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fgsched.cli.install import slurmnames as installing
from fgsched.cli.install.slurmnames import BIN
from fgsched.domain.errors import Refused, StorageError

COMMANDS = Path(__file__).parent.parent / "fgsched" / "cli" / "bin"
FOREIGN = b"#!/bin/sh\necho a real one\n"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "bin"


def others(place, name, data=FOREIGN):
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(data)
    return place / name


def test_installed_names_are_those_of_jobs_and_are_removed_again(folder):
    said = installing.install(folder, {"PATH": f"/nowhere:{folder}:{BIN}"})
    assert said == f"{', '.join(sorted(os.listdir(BIN)))}: written to {folder}\n"
    assert sorted(os.listdir(folder)) == sorted(os.listdir(BIN))
    kept = others(folder, "mine")
    assert installing.remove(folder) == said.replace("written to", "removed from")
    assert os.listdir(folder) == [kept.name]
    assert installing.remove(folder) == f"nothing: removed from {folder}\n"


COMPLETIONS = {
    "bash": "bash-completion/completions/{}",
    "zsh": "zsh/site-functions/_{}",
    "fish": "fish/vendor_completions.d/{}.fish",
}


@pytest.fixture
def share(folder):
    place = folder.parent / "share"
    place.mkdir()
    return place


def files(share):
    return {str(path.relative_to(share)) for path in share.rglob("*") if path.is_file()}


def test_completions_are_written_and_removed_with_the_names(folder, share):
    said = installing.install(folder, {"PATH": str(folder)}).splitlines()
    assert said[1:] == [f"completions for bash, zsh, fish: written to {share}"]
    expected = {file.format(name) for file in COMPLETIONS.values() for name in installing.names()}
    assert files(share) == expected
    for shell, file in COMPLETIONS.items():
        text = (share / file.format("squeue")).read_text()
        how = "zsh" if shell == "zsh" else "bash"
        native = Path(sys.executable).with_name("fgq")
        assert f"_SQUEUE_COMPLETE={how}_complete {native} --named=squeue" in text
    assert (share / "zsh/site-functions/_squeue").read_text().startswith("#compdef squeue\n")
    assert {path.stat().st_mode & 0o777 for path in share.rglob("*") if path.is_file()} == {0o644}
    said = installing.remove(folder).splitlines()
    assert said[1:] == [f"completions for bash, zsh, fish: removed from {share}"]
    assert files(share) == set()
    assert len(installing.remove(folder).splitlines()) == 1


def test_another_completion_is_neither_replaced_nor_removed(folder, share):
    other = others(share / "bash-completion/completions", "sbatch", b"complete -A file sbatch\n")
    before = files(share)
    installing.install(folder, {"PATH": str(folder)})
    assert other.read_bytes() == b"complete -A file sbatch\n"
    installing.remove(folder)
    assert files(share) == before


@pytest.mark.parametrize("name", ["bin", "slurm"])
def test_without_a_place_where_shells_look_there_are_no_completions(name, tmp_path):
    """Shells look in `share` beside `bin`."""
    if name != "bin":
        (tmp_path / "share").mkdir()
    said = installing.install(tmp_path / name, {"PATH": str(tmp_path / name)})
    assert len(said.splitlines()) == 1
    assert files(tmp_path / "share") == set()


def test_what_cannot_be_written_is_named(folder):
    folder.write_text("no directory\n")
    with pytest.raises(StorageError, match=f"cannot write {folder}: bin is not a directory"):
        installing.install(folder, {"PATH": "/nowhere"})


def test_a_second_installation_replaces_the_first(folder):
    installing.install(folder, {"PATH": str(folder)})
    (folder / "squeue").write_bytes((folder / "squeue").read_bytes() + b"# old\n")
    installing.install(folder, {"PATH": str(folder)})
    assert (folder / "squeue").read_bytes() == installing.program("squeue")


def test_a_directory_outside_path_is_named(folder):
    assert installing.install(folder, {"PATH": "/nowhere"}).endswith(
        f"{folder} is not in PATH. Add to ~/.bashrc: export PATH={folder}:$PATH\n"
    )


def test_functions_of_the_shell_reach_the_command(tmp_path, monkeypatch):
    """Such as `module`, which a shell exports as the variable BASH_FUNC_module%%."""
    python = others(tmp_path, "python", b"#!/bin/bash -p\nexec env\n")
    program = others(tmp_path, "sinfo", b"")
    for each in (python, program):
        each.chmod(0o755)
    monkeypatch.setattr(installing, "command_line", lambda name: str(python))
    program.write_bytes(installing.program("sinfo"))
    environ = {
        "BASH_FUNC_module%%": "() { echo loaded; }",
        "BASH_ENV": "/nowhere",
        "PATH": os.environ["PATH"],
    }
    done = subprocess.run([program], env=environ, capture_output=True, text=True)
    assert "BASH_FUNC_module%%=() { " in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["srun", "salloc"])
def test_the_prompts_of_the_caller_reach_the_command_as_they_are(name, tmp_path, monkeypatch):
    """bash removes PS1 and PS2 unless it is interactive. A value is never evaluated."""
    python = others(tmp_path, "python", f"#!{sys.executable} -I\nimport os\nprint(dict(os.environ))".encode())
    program = others(tmp_path, name, b"")
    for each in (python, program):
        each.chmod(0o755)
    monkeypatch.setattr(installing, "command_line", lambda name: str(python))
    program.write_bytes(installing.program(name))
    marker = tmp_path / "evaluated"
    environ = {
        **{"PS1": f"$(touch {marker})`touch {marker}`\n[\\u@\\h]$ ", "PS2": "", "one": "1", "all": "2"},
        **{"PATH": os.environ["PATH"], "BASH_ENV": str(others(tmp_path, "rc", b"touch evaluated\n"))},
        **{"BASH_FUNC_mapfile%%": f"() {{ touch {marker}; }}", "BASH_FUNC_exec%%": "() { true; }"},
    }
    done = subprocess.run([program], env=environ, capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == ""
    assert ast.literal_eval(done.stdout).items() >= environ.items()
    assert not marker.exists()


@pytest.mark.parametrize(
    "program", [installing.BIN / "srun", installing.BIN / "salloc", COMMANDS / "fgrun", COMMANDS / "fgfence"]
)
def test_a_program_that_starts_a_shell_in_a_job_keeps_the_prompts(program):
    kept = (installing.BIN / "srun").read_bytes().splitlines()[:4]
    assert program.read_bytes().splitlines()[:4] == kept


@pytest.mark.parametrize("kind", ["file", "link", "broken link", "directory"])
def test_a_file_that_is_not_ours_is_neither_replaced_nor_removed(kind, folder, tmp_path):
    folder.mkdir()
    if kind == "file":
        others(folder, "sacct")
    elif kind == "directory":
        (folder / "sacct").mkdir()
    else:
        target = others(tmp_path / "real", "sacct") if kind == "link" else tmp_path / "gone"
        (folder / "sacct").symlink_to(target)
    with pytest.raises(Refused, match=r"sacct: not of fgsched, so nothing was written"):
        installing.install(folder, {"PATH": "/nowhere"})
    assert os.listdir(folder) == ["sacct"]
    assert installing.remove(folder).endswith("sacct: not of fgsched, left there\n")
    assert os.listdir(folder) == ["sacct"]


def test_nothing_is_written_where_path_has_a_slurm(folder, tmp_path):
    slurm = others(tmp_path / "slurm", "sbatch")
    (tmp_path / "share").mkdir()
    with pytest.raises(Refused, match=f"this host has a Slurm, or commands with its names: {slurm}"):
        installing.install(folder, {"PATH": f"/nowhere:{slurm.parent}"})
    assert (os.listdir(folder), os.listdir(tmp_path / "share")) == ([], [])


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
@pytest.mark.parametrize("place", ["bin", "share/zsh/site-functions"])
def test_root_installs_nothing_where_another_user_could_change_it(place, folder, share):
    open_place = folder.parent / place
    open_place.mkdir(parents=True)
    open_place.chmod(0o777)
    with pytest.raises(Refused, match="writable by others"):
        installing.install(folder, {"PATH": "/nowhere"})
    assert (os.listdir(folder), files(share)) == ([], set())


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_users_can_read_what_root_installs_whatever_the_umask(folder, share):
    umask = os.umask(0o077)
    try:
        installing.install(folder, {"PATH": "/nowhere"})
    finally:
        os.umask(umask)
    made = [folder, *(path for path in share.rglob("*") if path.is_dir())]
    assert {path.stat().st_mode & 0o777 for path in made} == {0o755}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs uid 0")
def test_root_finds_the_names_it_has_installed_and_no_others(tmp_path):
    listed, in_path, of_user, foreign = (tmp_path / name for name in ("listed", "path", "user", "foreign"))
    for place in (listed, in_path, of_user):
        installing.install(place, {"PATH": "/nowhere"})
    for name in installing.names():
        os.chown(of_user / name, 65534, 65534)
    foreign.mkdir()
    (foreign / "sbatch").write_text("#!/bin/sh\n")
    environ = {"PATH": f"{in_path}:{of_user}:{foreign}:{tmp_path}/none"}
    found = [place for place in installing.folders([str(listed)], environ) if tmp_path in place.parents]
    assert found == [listed, in_path]


def test_the_names_run_outside_jobs_with_slurms_columns(home, folder):
    done = home.run("fgsched", "slurm-names", "--install", str(folder), env={"PATH": f"/nowhere:{folder}"})
    assert (done.status, done.err) == (0, "")
    assert "sbatch    fgsub\n" in home.run("fgsched", "slurm-names", "--print").out
    both = home.run("fgsched", "slurm-names", "--print", "--install", "x")
    assert (both.status, os.path.lexists(home.path / "x")) == (2, False)

    def call(*words):
        given = {"env": home.environ, "cwd": home.path, "capture_output": True, "text": True}
        return subprocess.run([folder / words[0], *words[1:]], **given)

    assert call("sbatch", "--parsable", "--hold", "-J", "train", "--wrap", "true").stdout == "1\n"
    assert call("squeue", "-o", "%i %j %T %D").stdout == "JOBID NAME STATE NODES\n1 train PENDING 1\n"
    assert call("scancel", "1").returncode == 0
    refused = call("sbatch", "--gpus=nonsense", "--wrap", "true")
    assert (refused.returncode, refused.stderr.split("=")[0]) == (
        1,
        "sbatch: error: Batch job submission failed: --gpus",
    )
