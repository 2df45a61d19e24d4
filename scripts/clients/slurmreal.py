"""Run command lines in a real Slurm and in fgsched side by side; print each line whose results differ.

A file of lines has one command line of bash in each line. An indented line below it is the reason why its
result differs. An empty line begins a block, before which the jobs of the block before it are cancelled.
`ignore REGEX` leaves out the matching lines of all outputs of the file, for the reason below it. Compared are
standard output, the exit status, and whether anything is written to standard error.
"""

import argparse
import difflib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

HERE = Path(__file__).parent / "slurmreal"
ROOT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fgsched-clients" / "debian-13"
PACKAGES = (
    "slurmctld,slurmd,slurmdbd,slurm-client,slurm-wlm-mysql-plugin,mariadb-server,munge,iproute2,procps"
)
HOST = os.uname().nodename.partition(".")[0]
PATIENCE = 60  # seconds for a line
SITE = """
[host]
cpus = 64
memory = "500G"
[mail]
send = "off"
[accounts.research]
[users.root]
account = "research"
"""
VARYING = (  # differences between any two runs, and their replacements
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", "TIME"),
    (r"\b(SLURM_JOB_START_TIME|SLURM_JOB_END_TIME)=\d+", r"\1=TIME"),
    (r"\b(SLURM\w*_PORT|SLURM_TASK_PID|SLURM_PRIO_PROCESS|SLURM_JOB_[UG]ID)=\d+", r"\1=NUMBER"),
    (r"(?m)^( +)(Priority=|RunTime=00:00:0)\d+", r"\1\2NUMBER"),
    (r"(?m) +$", ""),
    (r"mem=500G,", ""),  # of a job without --mem: all of the memory, or no limit
    (r"MinMemoryNode=500G", "MinMemoryNode=0"),
    (r"10\.9\.9\.1", "127.0.0.1"),
    (r" *\b(ann|root)\b *", " USER "),
    (r"USER +\(\d+\)", "USER(ID)"),
)


class Line(NamedTuple):
    """A command line, and the reason why its result differs."""

    text: str
    place: str
    reason: str = ""


class Result(NamedTuple):
    """What a command line answered."""

    status: int
    output: str
    errors: str

    def compared(self) -> list[str]:
        """Return the lines that have to be the same in both."""
        return [*self.output.splitlines(), f"exit status {self.status}, {'' if self.errors else 'no '}errors"]


class Side(Protocol):
    """A place where command lines run."""

    def run(self, line: str) -> Result:
        """Run a line of bash in the directory of the side."""


class _Side:
    def __init__(self, enter: list[str], directory: str, environ: dict[str, str]) -> None:
        self._enter, self._directory, self._environ = enter, directory, environ

    def run(self, line: str) -> Result:
        text = f"cd {self._directory}; . ../prelude; {line}"
        words = [*self._enter, "timeout", str(PATIENCE), "bash", "-c", text]
        null = subprocess.DEVNULL
        done = subprocess.run(
            words, stdin=null, capture_output=True, text=True, env=self._environ, check=False
        )
        return Result(done.returncode, self._plain(done.stdout), self._plain(done.stderr))

    def _plain(self, text: str) -> str:
        """Return an output without what differs between two runs."""
        text = text.replace(self._directory, "DIRECTORY").replace(str(Path(self._directory).parent), "HOME")
        for pattern, word in VARYING:
            text = re.sub(pattern, word, text)
        return text


def install(root: Path) -> None:
    """Make a root of Debian 13 with Slurm; it has its name when it is complete."""
    if not shutil.which("debootstrap"):
        raise SystemExit("debootstrap is not installed (on Debian: sudo apt-get install debootstrap)")
    print(f"making {root}, which takes some minutes", flush=True)
    partial = root.with_name(f"{root.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    words = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "trixie", partial]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    partial.rename(root)


@contextmanager
def real_slurm(root: Path, work: Path) -> Iterator[Side]:
    """Run a Slurm in namespaces of its own, over a copy of the root that is lost at the end."""
    if not root.exists():
        install(root)
    enter = f"""set -e; mount --make-rprivate /; mount -t tmpfs tmpfs {work}; cd {work}; mkdir upper work root
        mount -t overlay overlay -o lowerdir={root},upperdir={work}/upper,workdir={work}/work root; cd root
        cp {HERE}/cluster root/; mkdir -p old home/ann/here; cp {HERE}/prelude {HERE}/probe home/ann/
        cp {HERE}/headed home/ann/; chown -R 1000:1000 home/ann; mount --rbind /dev dev
        pivot_root . old; mount -t proc proc proc; umount -l /old; cd /; exec bash /root/cluster {HOST}"""
    names = ["unshare", "--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "--kill-child", "bash", "-c"]
    path = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "TERM": "dumb", "TZ": "UTC"}
    pipe = subprocess.PIPE
    with subprocess.Popen([*names, enter], stdin=pipe, stdout=pipe, text=True, env=path) as process:
        try:
            assert process.stdout is not None
            if not any(line == "ready\n" for line in process.stdout):
                raise SystemExit("Slurm does not start")
            child = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
            nsenter = ["nsenter", "-t", child, "-m", "-p", "-u", "-i", "-n"]
            home = {"HOME": "/home/ann", "USER": "ann", "LOGNAME": "ann", "SHELL": "/bin/bash"}
            user = ["setpriv", "--reuid=ann", "--regid=ann", "--init-groups"]
            yield _Side([*nsenter, *user], "/home/ann/here", path | home)
        finally:
            process.kill()


@contextmanager
def fgsched(work: Path) -> Iterator[Side]:
    """Run a controller of its own on simulated GPUs, with the names of Slurm in PATH."""
    programs = Path(sys.executable).parent
    (work / "fg").mkdir(mode=0o700)
    (work / "here").mkdir()
    for name in ("prelude", "probe", "headed"):
        shutil.copy(HERE / name, work)
    (work / "fg/fgsched.toml").write_text(SITE)
    install = [programs / "fgsched", "slurm-names", "--install", work / "names"]
    subprocess.run(install, check=True, capture_output=True, env={"PATH": ""})
    path = f"{work}/names:{programs}:/usr/sbin:/usr/bin:/sbin:/bin"
    environ = {"FG_HOME": f"{work}/fg", "FG_DEVICES": "sim:8x80G:A100", "PATH": path, "HOME": str(work)}
    environ |= {"USER": "root", "LOGNAME": "root", "SHELL": "/bin/bash", "LC_ALL": "C.UTF-8", "TERM": "dumb"}
    try:
        yield _Side([], f"{work}/here", environ | {"TZ": "UTC"})
    finally:
        for words in (["fgcancel", "--me"], ["fgwait", "--timeout", "40", "1-9999"], ["fgsched", "stop"]):
            subprocess.run([programs / words[0], *words[1:]], env=environ, capture_output=True, check=False)


def blocks(path: Path) -> Iterator[list[Line]]:
    """Yield the blocks of lines of a file."""
    block: list[Line] = []
    for number, text in enumerate([*path.read_text().splitlines(), ""], 1):
        if not text.strip():
            yield from [block] if block else []
            block = []
        elif text[0].isspace():
            block[-1:] = [line._replace(reason=f"{line.reason} {text.strip()}") for line in block[-1:]]
        elif not text.startswith(("#", "ignore ")):
            block.append(Line(text, f"{path.name}:{number}"))


def ignored(path: Path) -> re.Pattern[str]:
    """Return what matches the lines of outputs that a file leaves out."""
    found = re.findall(r"^ignore (.+)", path.read_text(), re.MULTILINE)
    return re.compile("|".join(f"(?:{text})" for text in found) or "(?!)")


def prepare(sides: list[Side]) -> None:
    """Cancel all jobs, and give both sides the same next id of a job."""
    for side in sides:
        side.run('scancel --me; until [ -z "$(squeue -h -o %T)" ]; do sleep 0.1; done; rm -rf ./*')
    ids = [0] * len(sides)
    while min(ids) < max(ids) or not ids[0]:
        for index, side in enumerate(sides):
            if not ids[index] or ids[index] < max(ids):
                ids[index] = next_id(side)
    for side in sides:
        side.run("scancel --me")


def next_id(side: Side) -> int:
    """Use up an id of a job, and return it."""
    submitted = side.run("sbatch --parsable -o /dev/null -H --wrap true")
    if submitted.status:
        raise SystemExit(f"sbatch fails: {submitted.errors}")
    return int(submitted.output)


def compare(line: Line, skip: re.Pattern[str], sides: list[Side], pool: ThreadPoolExecutor) -> str:
    """Run a line on both sides; return "" if the results are the same, else what differs."""
    real, own = pool.map(lambda side: side.run(line.text), sides)
    outputs = [[text for text in side.compared() if not skip.search(text)] for side in (real, own)]
    difference = list(difflib.unified_diff(*outputs, n=0, lineterm=""))[2:]
    changed = [text for text in difference if not text.startswith("@@")]
    for name, side in (("slurm", real), ("fgsched", own)):
        changed += [f"{name} says: {text}" for text in side.errors.splitlines() if changed]
    return "\n".join(f"  {text}" for text in changed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/clients/slurm-real")
    parser.add_argument("file", nargs="*", type=Path, default=sorted(HERE.glob("*.lines")))
    parser.add_argument("--only", default="", metavar="TEXT", help="only the blocks with this text")
    parser.add_argument("--root", type=Path, default=ROOT, help="the root with Slurm")
    chosen = parser.parse_args()
    unexplained = count = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that Slurm and the controller are stopped
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-real.", dir="/tmp")))
        for name in ("real", "own"):
            (work / name).mkdir()
        real = stack.enter_context(real_slurm(chosen.root, work / "real"))
        sides = [real, stack.enter_context(fgsched(work / "own"))]
        pool = stack.enter_context(ThreadPoolExecutor(2))
        for path in chosen.file:
            skip = ignored(path)
            for block in blocks(path):
                if not any(chosen.only in line.text for line in block):
                    continue
                prepare(sides)
                count += len(block)
                unexplained += sum(report(line, compare(line, skip, sides, pool)) for line in block)
    print(f"{count} lines, {unexplained} differ without a reason")
    return unexplained > 0


def report(line: Line, difference: str) -> bool:
    """Print a difference without a reason, or a reason without a difference; tell whether there was one."""
    if bool(difference) == bool(line.reason):
        return False
    print(f"{line.place}: {line.text}\n{difference or '  no difference any more'}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
