"""A throw-away host: a mount namespace with accounts, /run, /var/lib and /etc of its own, and a controller.

Commands run in it as root or as one of its users. Its files lie where they lie outside, below `host.path`;
what is mounted is seen at `host.root`. Nothing of it is left afterwards.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import NODEFAULT, structs, to_builtins

import prestarted
from awaiting import rest
from fgsched.protocol import JobInfo
from inmemory import new_directory
from live_host import PATIENCE, ROOT, Done, without_waiting

UIDS = {"root": 0, "daemon": 1, "alice": 4001, "bob": 4002, "carol": 4003, "dave": 4004}
LAB = 4100  # a group of alice's and dave's
CONFIG = '[gpus]\ndevices = "sim:2x16G"\n[host]\ncpus = 64\n[operators]\nusers = ["carol"]\n'
_RAW = """
import json, os, socket, sys
def dial():
    line = socket.socket(socket.AF_UNIX)
    line.connect("/run/fgsched/socket")
    return line
def say(line, message):
    line.sendall(json.dumps({"v": 2, **message}).encode() + b"\\n")
    print(line.makefile().readline(), end="")
"""


@dataclass
class Host:
    """`host.run("alice", "fgq")`; `host.raw("bob", program)`; `host.path`, `host.home("alice")`."""

    path: Path
    keeper: subprocess.Popen[str]
    is_executed: bool = False  # each controller has an interpreter of its own: its memory is measured
    has_started: bool = False  # a controller, at least once, or tried to

    @property
    def root(self) -> Path:
        """Its file system, as it sees it."""
        return Path(f"/proc/{self.keeper.pid}/root")

    def home(self, user: str) -> Path:
        return self.path / "home" / user

    def enter(self, user: str, *words: str | Path, **more: Any) -> subprocess.Popen[str]:
        """A program in the host, as one of its users, in their home; `env` is added to a bare environment."""
        uid = UIDS[user]
        return subprocess.Popen(
            [
                *("nsenter", f"--mount=/proc/{self.keeper.pid}/ns/mnt", "--"),
                *(("setpriv", f"--reuid={uid}", f"--regid={uid}", "--init-groups") if uid else ()),
                *("env", "-C", self.home(user), *words),
            ],
            env=self._environ(user) | more.pop("env", {}),
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | more,
        )

    def _environ(self, user: str) -> dict[str, str]:
        who = {"PATH": os.environ["PATH"], "HOME": str(self.home(user)), "USER": user}
        return who | {"TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT), "FG_DEBUG": "1"}

    def _forked(self, user: str, env: dict[str, str], words: Sequence[str]) -> Done | None:
        """Run a module to its end as `do` does, without executing an interpreter; None where it must be."""
        env = self._environ(user) | env
        if "FG_HOME" in env or not prestarted.fits(env):
            return None
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        inside = prestarted.NamespaceUser(self.keeper.pid, UIDS[user])
        about = {"env": env, "cwd": self.home(user), "text": True, "timeout": PATIENCE, "inside": inside}
        done = prestarted.run(words, **pipes, **about)
        return Done(done.returncode, done.stdout, without_waiting(done.stderr))

    def do(self, user: str, *words: str | Path, **more: Any) -> Done:
        """Run a program to its end; that a command of ours waited, as on a busy host, is left out."""
        with self.enter(user, *words, stdin=subprocess.DEVNULL, **more) as program:
            try:
                out, err = program.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                program.kill()
                raise
        return Done(program.returncode, out or "", without_waiting(err or ""))

    def run(self, user: str, command: str, *words: str | Path, **more: Any) -> Done:
        """Run one of our commands to its end. fgsched has an interpreter of its own, as installed."""
        program = [f"fgsched.cli.{command}", *map(str, words)]
        is_usual = command != "fgsched" and set(more) <= {"env"}
        done = self._forked(user, more.get("env", {}), program) if is_usual else None
        return done or self.do(user, sys.executable, "-m", *program, **more)

    def raw(self, user: str, program: str, *, before: Sequence[str] = ()) -> list[dict[str, Any]]:
        """The answers that a program of the user's gets with `say(dial(), message)`."""
        done = None if before else self._forked(user, {}, ["-c", _RAW + program])
        done = done or self.do(user, *before, sys.executable, "-c", _RAW + program)
        assert done.status == 0, done.err
        return [json.loads(line) for line in done.lines]

    def ask(self, user: str, operation: str, /, **arguments: Any) -> dict[str, Any]:
        """The answer to one message, as it came."""
        return self.raw(user, f"say(dial(), { ({'op': operation} | arguments)!r})")[0]

    def submit(self, user: str, script: str, *options: str | Path, **more: Any) -> int:
        """The id of a job whose script is in the user's home."""
        file = self.home(user) / "job.sh"
        file.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
        done = self.run(user, "fgsub", "--parsable", "-o", "out", *options, file, **more)
        assert done.status == 0, done.err
        return int(done.out)

    def ended(self, user: str, script: str, *options: str | Path, **more: Any) -> dict[str, Any]:
        """How a job of the user's ended."""
        return self.over(self.submit(user, script, *options, **more))

    def over(self, job_id: int) -> dict[str, Any]:
        self.run("root", "fgwait", str(job_id))
        return self.job(job_id)

    def job(self, job_id: int, user: str = "root") -> dict[str, Any]:
        """The record of a job, with the fields that the wire omits because they have their default."""
        known = [one for one in structs.fields(JobInfo) if one.default is not NODEFAULT]
        defaults = {one.name: to_builtins(one.default) for one in known}
        return defaults | self.ask(user, "job", id=job_id)["ok"]

    def running(self, user: str, *options: str | Path, script: str = ":", **more: Any) -> int:
        """A job that has run a command and goes on, until it is cancelled."""
        gate = Path(tempfile.mktemp(dir=self.home(user)))
        os.mkfifo(gate)
        os.chown(gate, UIDS[user], UIDS[user])
        said = os.open(gate, os.O_RDWR)
        job_id = self.submit(user, f"{script}\necho >{gate}; exec sleep 1000000", *options, **more)
        assert select.select([said], [], [], PATIENCE)[0], self.job(job_id)
        os.close(said)
        while (
            self.job(job_id)["state"] == "CONFIGURING"
        ):  # a script can be faster than the report of its start
            rest()
        return job_id

    def output(self, user: str, name: str = "out") -> list[str]:
        return (self.home(user) / name).read_text().splitlines()

    def start(self) -> None:
        env = {"FG_SIM_SCRIPT": str(self.path / "gpus" / "script.json")}  # it need not exist
        words = ("start", "--system")
        self.has_started = True
        done = None if self.is_executed else self._forked("root", env, ["fgsched.cli.fgsched", *words])
        done = done or self.run("root", "fgsched", *words, env=env)
        assert done.status == 0, done.err + self.log

    def stop(self) -> None:
        done = self.run("root", "fgsched", "stop", "--kill")
        assert done.status == 0, done.err

    def stop_and_start(self) -> None:
        assert self.run("root", "fgsched", "stop").status == 0
        self.start()

    @property
    def log(self) -> str:
        file = self.root / "var/lib/fgsched/fgsched.log"
        return file.read_text() if file.exists() else ""

    def rename(self, old: str, new: str) -> None:
        """Another name for an account, in place; an empty one removes it."""

        def renamed(line: str) -> str:
            name, _, rest = line.partition(":")
            return line if name != old else f"{new}:{rest}" if new else ""

        self._edit("passwd", renamed)

    def dismiss(self, user: str) -> None:
        """Take a user out of the laboratory's group."""
        self._edit("group", lambda line: line.replace(f",{user}", "") if line.startswith("lab:") else line)

    def _edit(self, name: str, change: Callable[[str], str]) -> None:
        file = self.path / "etc" / name
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(change(line) for line in lines))


def closed(paths: Sequence[Path]) -> dict[Path, Path]:
    """path -> the topmost directory above it that only its owner may enter."""
    tops = {}
    for path in paths:
        for above in reversed(path.parents):
            if not above.stat().st_mode & 0o001:
                tops[path] = above
                break
    return tops


def mounts(path: Path) -> str:
    """The shell script that makes a namespace the host; what users could not reach is mounted in the open."""
    kept = closed(
        [Path(place).resolve() for place in dict.fromkeys((sys.base_prefix, sys.prefix, str(ROOT)))]
    )
    lines = ["set -e"]
    for number, place in enumerate(kept):
        (path / f"kept{number}").mkdir()
        lines.append(f"mount --bind '{place}' '{path}/kept{number}'")
    lines += [f"mount -t tmpfs -o mode=755 none '{top}'" for top in sorted(set(kept.values()))]
    for number, place in enumerate(kept):
        lines.append(f"mkdir -p '{place}'; mount --move '{path}/kept{number}' '{place}'")
    lines += ["mount -t tmpfs -o mode=755 none /run", "mount -t tmpfs -o mode=755 none /var/lib"]
    lines += [f"mount --bind '{path}/etc' /etc", "echo ready", "exec cat"]
    return "\n".join(lines)


def copy_etc(path: Path) -> None:
    """Copy /etc, without directories that hold half of its links and that no test needs."""
    unused = shutil.ignore_patterns("certs", "fonts", "rc[0-9S].d")
    shutil.copytree("/etc", path, symlinks=True, ignore=unused)


def furnish(path: Path, config: str, jobs: str) -> None:
    """Accounts, homes, a directory for everybody, and the configuration."""
    copy_etc(path / "etc")
    users = {name: uid for name, uid in UIDS.items() if uid >= 1000}
    with open(path / "etc/passwd", "a") as passwd, open(path / "etc/group", "a") as group:
        for name, uid in users.items():
            passwd.write(f"{name}:x:{uid}:{uid}::{path}/home/{name}:/bin/sh\n")
            group.write(f"{name}:x:{uid}:\n")
        group.write(f"lab:x:{LAB}:alice,dave\n")
    for name, uid in UIDS.items():
        (path / "home" / name).mkdir(parents=True)
        os.chown(path / "home" / name, uid, uid)
    (path / "gpus").mkdir()
    (path / "tmp").mkdir()
    (path / "tmp").chmod(0o1777)
    (path / "etc/fgsched").mkdir(exist_ok=True)
    (path / "etc/fgsched/fgsched.toml").write_text(f'{config}[jobs]\ntmp = "{path}/tmp"\n{jobs}')


def why_not() -> str:
    """Why this process can make no such host; empty if it can."""
    if os.geteuid() != 0:
        return "needs uid 0"
    if not (shutil.which("nsenter") and shutil.which("setpriv")):
        return "needs nsenter and setpriv"
    done = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/run"], capture_output=True, text=True
    )
    return f"no mount namespace: {done.stderr.strip()}" if done.returncode else ""


def with_own_run(*words: str) -> list[str]:
    """A command whose /run is its own, where one can be: `systemd-analyze` of root leaves files there."""
    mounted = 'mount -t tmpfs none /run && exec "$0" "$@"'
    return [*words] if why_not() else ["unshare", "-m", "sh", "-c", mounted, *words]


@contextmanager
def hosting(
    *, config: str = CONFIG, jobs: str = "", started: bool = True, is_executed: bool = False
) -> Iterator[Host]:
    """Furnish a host for as long as the block lasts; `jobs` are lines of the table of that name."""
    path = new_directory("fghost-")
    try:
        furnish(path, config, jobs)
        command = ["unshare", "-m", "--propagation", "private", "sh", "-c", mounts(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keeper:
            assert keeper.stdout.readline() == "ready\n"
            host = Host(path, keeper, is_executed)
            try:
                if started:
                    host.start()
                yield host
            finally:
                if (host.root / "run/fgsched/socket").exists() and host.has_started:
                    host.stop()
    finally:
        shutil.rmtree(path)
