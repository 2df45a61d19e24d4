"""Run fgfence below Ray and Slurm, and compare what their tasks see of a GPU with what the fence gives."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import clients

sys.path[:0] = [str(clients.ROOT), str(clients.ROOT / "tests")]
import fakecuda  # noqa: E402  the tests' driver

GIB = 1 << 30
OOM = 2
SLURM_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
SLURM = """
ClusterName=fences
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort=17817
SlurmdPort=17818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu,shard
SlurmdParameters=config_overrides
TaskProlog={prolog}
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 Gres=gpu:1,shard:8 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP
"""


class Skipped(Exception):
    """Raised if the host lacks something."""


def environment(folder: Path) -> tuple[fakecuda.FakeDriver, dict[str, str]]:
    """Build the fake driver with one GPU of 8 GiB; return it and the variables of a user."""
    driver = fakecuda.build(folder)
    driver.cards(fakecuda.Card(name="A100", memory=8 * GIB))
    home = folder / "home"
    home.mkdir(mode=0o700)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "USER") if name in os.environ}
    return driver, kept | driver.env | {"FG_HOME": str(home), "FG_DEVICES": "auto", "PATH": path, "TZ": "UTC"}


def expect(what: str, found: object, expected: object) -> None:
    """Print a comparison; raise AssertionError if it fails."""
    print(f"  {what:<52} {'ok' if found == expected else f'{found!r}, not {expected!r}'}", flush=True)
    assert found == expected, what


def answers(lines: list[str]) -> list[list[int]]:
    """Return the status of each command of the test program, and the size of the GPU for `info`."""
    words = [line.split() for line in lines if line.startswith(("info ", "alloc "))]
    return [
        [int(word) for word in (line[1], line[3])] if line[0] == "info" else [int(line[1])] for line in words
    ]


def ray(folder: Path) -> None:
    """Run tasks and actors of Ray. Raises Skipped or AssertionError."""
    driver, environ = environment(folder)
    clients.CLIENTS["ray"] = ["ray==2.60.0", "virtualenv==20.35.4"]
    try:
        venv = clients.venv_of("ray")
    except OSError as error:
        raise Skipped(str(error)) from None
    words = [venv / "bin/python", clients.PROGRAMS / "ray_in_fences.py", driver.program]
    done = subprocess.run(
        words, env=environ, cwd=folder, capture_output=True, text=True, timeout=clients.PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    expect("task with a quarter of the GPU", answers(said["task"]), [[0, 2 * GIB], [OOM]])
    expect("actor with half of it", answers(said["actor"]), [[0, 4 * GIB], [0], [OOM]])
    expect("task in a venv of its own (pynvml)", said["own venv"], 2 * GIB)
    expect("task without a fence", answers(said["no fence"]), [[0, 8 * GIB]])


def slurm(folder: Path) -> None:
    """Run jobs of Slurm with shards, whose TaskProlog makes a fence. Raises Skipped or AssertionError."""
    missing = [name for name in SLURM_PROGRAMS if not shutil.which(name)]
    if missing or os.geteuid():
        raise Skipped(f"there is no {missing[0]} (slurm-wlm, munge)" if missing else "Slurm needs root")
    driver, environ = environment(folder)
    with ExitStack() as stack:
        environ |= _cluster(folder, environ, stack)
        job, out = folder / "job.sh", folder / "out"
        step = f"srun --gres=shard:4 {driver.program} info 'alloc 3G' 'alloc 3G'"
        job.write_text(f"#!/bin/sh\n{driver.program} info 'alloc 5G'\n{step}\n")
        options = ["--wait", "--quiet", "--gres=shard:4", f"--output={out}", f"--error={folder}/err"]
        done = subprocess.run(
            ["sbatch", *options, job], env=environ, cwd=folder, capture_output=True, text=True
        )
        said = out.read_text().splitlines() if out.exists() else [done.stderr]
        half = [0, 4 * GIB]
        expect("batch script with 4 of 8 shards", answers(said)[:2], [half, [OOM]])
        expect("its step", answers(said)[2:], [half, [0], [OOM]])
        words = ["srun", "--gres=shard:2", driver.program, "info"]
        done = subprocess.run(words, env=environ, cwd=folder, capture_output=True, text=True)
        expect("srun with 2 shards", answers(done.stdout.splitlines()), [[0, 2 * GIB]])
        words = ["srun", driver.program, "info"]
        done = subprocess.run(words, env=environ, cwd=folder, capture_output=True, text=True)
        expect("srun without shards: no fence", answers(done.stdout.splitlines()), [[0, 8 * GIB]])


def _cluster(folder: Path, environ: dict[str, str], stack: ExitStack) -> dict[str, str]:
    """Start munged, slurmctld and slurmd; return the variables of their clients."""
    host = os.uname().nodename.partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    node = folder / "gpu0"
    os.mknod(node, 0o600 | 0o020000, os.makedev(1, 3))
    prolog = clients.PROGRAMS / "fence-task-prolog"
    (folder / "slurm.conf").write_text(SLURM.format(host=host, folder=folder, prolog=prolog))
    (folder / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={node}\nName=shard Count=8\n")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    mine = {"SLURM_CONF": str(folder / "slurm.conf")}
    words = [f"--{name}={folder}/munge.{end}" for name, end in _MUNGE.items()]
    for program in (["munged", "--foreground", "--force", *words], ["slurmctld", "-D"], ["slurmd", "-D"]):
        with (folder / f"{program[0]}.err").open("w") as log:
            process = subprocess.Popen(
                program, env=environ | mine, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        stack.callback(_end, process)
    for _ in range(200):
        done = subprocess.run(["sinfo", "-h", "-o", "%t"], env=environ | mine, capture_output=True, text=True)
        if done.stdout.strip() == "idle":
            return mine
        time.sleep(0.2)
    raise AssertionError(f"Slurm does not come up: {done.stdout}{done.stderr}")


_MUNGE = {
    **{"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"},
}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


LAUNCHERS = {"ray": ray, "slurm": slurm}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/clients/fence", description=__doc__)
    parser.add_argument("launcher", nargs="*", default=list(LAUNCHERS), help=" or ".join(LAUNCHERS))
    wanted = parser.parse_args().launcher
    if unknown := set(wanted) - LAUNCHERS.keys():
        parser.error(f"no launcher is called {unknown.pop()!r}; there are {' and '.join(LAUNCHERS)}")
    status = 0
    for name in wanted:
        folder = Path(tempfile.mkdtemp(prefix=f"fgsched-fence-{name}.", dir="/tmp"))
        print(name, flush=True)
        try:
            LAUNCHERS[name](folder)
        except Skipped as reason:
            print(f"  skipped: {reason}")
        except AssertionError as failure:
            print(f"  failed: {failure}\n  files: {folder}")
            status = 1
            continue
        shutil.rmtree(folder)
    return status


if __name__ == "__main__":
    sys.exit(main())
