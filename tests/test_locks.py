"""A wait for a lock, wherever it is in the code, names the holder within two seconds."""

import ast
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from awaiting import PATIENCE
from fgsched.system import locks

ROOT = Path(__file__).parent.parent
MAY_BLOCK = {  # module and function: why its lock is not waited for
    ("system/locks.py", "lock"): "it has said who holds the lock",
    ("system/ownhost.py", "_locked"): "others hold it alone for an instant, to look whether it is free",
    ("launch/fence.py", "create"): "a file that it has just made",
    ("slurm/running.py", "_enter"): "it has reported the wait for other steps",
}
WAITS = {  # a lock of the code: (the file that is locked, the statements that wait for it)
    "the accounts": (
        "accounts.lock",
        "from fgsched.accounting import guard; (home / 'accounts.db').touch();"
        "guard.recover(home / 'accounts.db', 'x')",
    ),
    "an earlier accountant": (
        "accounts.lock",
        "from fgsched.accounting import accountant;"
        "sys.argv[1:] = [str(home / 'accounts.db'), '1', '1', '1']; accountant.main()",
    ),
    "another mailer": (
        "lock",
        "from fgsched.mail import mailer, spool, letters;"
        "mailer.Mailer(spool.Spool(home), letters.NO_MAIL, 'host').work_alone(0.0, waits=True)",
    ),
    "an earlier runner": (
        "hooks.lock",
        "from fgsched.hooks import runner; sys.argv[1:] = [str(home / 'hooks.lock')]; runner.main()",
    ),
    "another fgfence": (
        "job",
        "from fgsched.launch.fence import FenceDirectory\nwith FenceDirectory(run=home).locked(): pass",
    ),
    "the number of the step": (
        "job/1.1/steps/next",
        "from fgsched.slurm import running; running.next_step({'FG_JOB_DIR': str(home / 'job/1.1')})",
    ),
}


def blocking_calls():
    """Return (module, function) of each call that waits for a lock of a file."""
    found = set()
    for path in (ROOT / "fgsched").rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            for call in ast.walk(function):
                if (
                    isinstance(call, ast.Call)
                    and ast.unparse(call.func) in ("fcntl.flock", "fcntl.lockf")
                    and "LOCK_NB" not in ast.unparse(call)
                ):
                    found.add((str(path.relative_to(ROOT / "fgsched")), function.name))
    return found


def test_each_lock_that_is_waited_for_is_in_one_module():
    assert blocking_calls() == set(MAY_BLOCK)


@pytest.mark.parametrize("purpose", WAITS)
def test_a_wait_for_a_lock_names_its_holder_and_goes_on_when_it_is_free(tmp_path, purpose):
    name, statements = WAITS[purpose]
    place = tmp_path / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if name == "job":
        place.mkdir(mode=0o700)
    descriptor = os.open(place, os.O_RDONLY if name == "job" else os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    code = f"import sys\nfrom pathlib import Path\nhome = Path({str(tmp_path)!r})\n{statements}"
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        line = process.stderr.readline()
        assert f"waiting for {purpose}" in line
        assert f"{place} is locked by pid {os.getpid()}, " in line
        os.close(descriptor)
        _, rest = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in rest, rest
    assert process.returncode != -signal.SIGKILL


def test_a_holder_that_no_process_of_this_host_is_has_no_pid(tmp_path):
    (tmp_path / "lock").touch()
    assert locks.holder(tmp_path / "lock") == ""
    assert locks.waiting(tmp_path / "lock", "x").endswith("is locked by an unknown process")


def test_a_reader_of_accounts_that_another_program_locks_names_that_program(tmp_path):
    from fgsched.accounting.ledger import Ledger

    path = tmp_path / "accounts.db"
    Ledger(path).close()
    path.with_suffix(".initialised").unlink(missing_ok=True)
    code = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "db.execute('PRAGMA locking_mode = EXCLUSIVE'); db.execute('BEGIN EXCLUSIVE'); print(flush=True);"
        "sys.stdin.read()"
    )
    reads = (
        "import sys; from fgsched.accounting import ledger; ledger.LedgerReader(sys.argv[1], 600.0).close()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, path], stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout.readline() == "\n"
        with subprocess.Popen([sys.executable, "-c", reads, path], stderr=pipe, text=True) as reader:
            line = reader.stderr.readline()
            holder.stdin.close()
            rest = reader.communicate(timeout=PATIENCE)[1]
    assert "waiting for the accounts" in line
    assert f"is locked by pid {holder.pid}, " in line
    assert (reader.returncode, rest) == (0, "")
