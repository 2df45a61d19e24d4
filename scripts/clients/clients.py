"""Run clients of Slurm from their packages on simulated GPUs of fgsched; print a table of the results."""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
VENVS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fgsched-clients"
PATIENCE = 400  # seconds for one client
SKIPPED = 77  # exit status of a program whose host lacks something
CLIENTS = {  # name -> packages, and options of pip
    "submitit": ["submitit==1.5.4"],
    "hydra": ["hydra-submitit-launcher==1.2.0", "hydra-core==1.3.2", "submitit==1.5.4"],
    "dask_jobqueue": ["dask-jobqueue==0.9.0"],
    "snakemake": ["snakemake==9.27.1", "snakemake-executor-plugin-slurm==2.8.0"],
    "parsl": ["parsl==2026.10.26"],
    "simple_slurm": ["simple_slurm==0.3.6"],
    "clusterjob": ["clusterjob==1.1.3"],
    "reportseff": ["reportseff==2.10.3"],
    "turm": ["turm==0.17.0"],
    "batchspawner": ["batchspawner==1.3.0", "jupyterhub==5.4.0"],
    "jax": ["jax[cpu]==0.10.2"],
    # PyTorch's builds for CPUs alone are in an index of its own: PIP_EXTRA_INDEX_URL names it.
    "lightning": ["pytorch-lightning==2.6.6", "torch==2.13.0+cpu", "--retries=0"],
    "ipyparallel": ["ipyparallel==9.2.0"],
    "psij": ["psij-python==0.9.11"],
    "qtoolkit": ["qtoolkit==0.1.7"],
    "slurmpy": ["slurmpy==0.0.8"],
    "jupyter": ["jupyterlab==4.6.6", "notebook==7.6.5", "websocket-client==1.9.2"],
}
SITE = """
[host]
cpus = 8
memory = "16G"
[mail]
send = "off"
"""


class Result(NamedTuple):
    """The result of one client."""

    client: str
    result: str  # works, fails or skipped
    seconds: float
    calls: int
    refused: int
    note: str = ""


def venv_of(client: str) -> Path:
    """Return the venv of a client, with its packages. Raises OSError with pip's last line."""
    packages = CLIENTS[client]
    mark = hashlib.sha256(" ".join([*packages, sys.version]).encode()).hexdigest()[:12]
    venv = VENVS / f"{client}-{mark}"
    if (venv / "complete").exists():
        return venv
    VENVS.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
    words = [venv / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or ["pip failed"])[-1])
    (venv / "complete").touch()
    return venv


def names_in(directory: Path, log: Path) -> None:
    """Put Slurm's names into a directory; each call and its exit status are lines of `log`."""
    directory.mkdir()
    installed = directory.with_name("installed")
    fgsched = Path(sys.executable).parent / "fgsched"
    words = [fgsched, "slurm-names", "--install", installed]
    subprocess.run(words, check=True, capture_output=True, env={"PATH": ""})  # there may be a Slurm in it
    for name in sorted(os.listdir(installed)):
        program = directory / name
        program.write_text(
            f'#!/bin/bash\n"{installed}/{name}" "$@"\ncode=$?\n'
            f'printf "%s %s %s\\n" "$code" {name} "${{*//$\'\\n\'/ }}" >>{log}\nexit $code\n'
        )
        program.chmod(0o755)


def run(client: str, work: Path) -> Result:
    """Run one client in an empty directory with a controller of its own."""
    began = time.monotonic()
    try:
        venv = venv_of(client)
    except OSError as error:
        return Result(client, "skipped", 0, 0, 0, str(error))
    home, log, here = work / "home", work / "calls", work / "here"
    home.mkdir(mode=0o700)
    here.mkdir()
    (home / "fgsched.toml").write_text(SITE)
    names_in(work / "names", log)
    environ = _environment(home, f"{work}/names:{venv}/bin:{os.environ['PATH']}")
    with (work / "output").open("w") as output:
        status = _status([venv / "bin/python", PROGRAMS / f"with_{client}.py"], here, environ, output)
    _stop(environ)
    calls = log.read_text().splitlines() if log.exists() else []
    refused = [line for line in calls if not line.startswith("0 ")]
    result = "works" if status == 0 else "skipped" if status == SKIPPED else "fails"
    last = ((work / "output").read_text().strip().splitlines() or [""])[-1]
    return Result(
        client, result, time.monotonic() - began, len(calls), len(refused), "" if status == 0 else last[:150]
    )


def _environment(home: Path, path: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "USER", "TERM") if name in os.environ}
    kept["FGSCHED_BIN"] = str(Path(sys.executable).parent)
    return kept | {"FG_HOME": str(home), "FG_DEVICES": "sim:4x16G", "PATH": path, "TZ": "UTC"}


def _status(words: list[Path], here: Path, environ: dict[str, str], output: IO[str]) -> int:
    """Run a program in a directory and return its status; 124 after PATIENCE, as timeout(1) does."""
    null, given = subprocess.DEVNULL, {"cwd": here, "env": environ, "timeout": PATIENCE}
    try:
        return subprocess.run(words, stdin=null, stdout=output, stderr=output, **given).returncode
    except subprocess.TimeoutExpired:
        return 124


def _stop(environ: dict[str, str]) -> None:
    """Cancel the jobs that are left, wait for their ends, and stop the controller."""
    for words in (["fgcancel", "--me"], ["fgwait", "--timeout", "40", "1-9999"], ["fgsched", "stop"]):
        subprocess.run([Path(sys.executable).parent / words[0], *words[1:]], env=environ, capture_output=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/clients/slurm", description=__doc__)
    parser.add_argument("client", nargs="*", default=list(CLIENTS), help=f"one of: {', '.join(CLIENTS)}")
    wanted = parser.parse_args().client
    if unknown := [name for name in wanted if name not in CLIENTS]:
        parser.error(f"no client is called {unknown[0]!r}; there are {', '.join(CLIENTS)}")
    base = Path(tempfile.mkdtemp(prefix="fgsched-clients.", dir="/tmp"))
    results = []
    for client in wanted:
        work = base / client
        work.mkdir()
        found = run(client, work)
        results.append(found)
        print(f"{found.client:<16} {found.result:<8} {found.seconds:6.1f} s  {found.note}", flush=True)
    print(f"\n{'CLIENT':<16} {'RESULT':<8} {'CALLS':>5} {'NOT 0':>5}  PACKAGES")
    for one in results:
        packages = " ".join(word for word in CLIENTS[one.client] if not word.startswith("--"))
        print(f"{one.client:<16} {one.result:<8} {one.calls:>5} {one.refused:>5}  {packages}")
    if all(one.result != "fails" for one in results):
        shutil.rmtree(base)
        return 0
    print(f"calls and output: {base}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
