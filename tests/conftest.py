"""What all tests share.

Hypothesis tries the same examples in each run, so that a change is judged by itself; those that look for
new ones run `scripts/test --hypothesis-profile=hunt`.
"""

import gc
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from fixtures_cuda import (
    built_driver,
    cuda_runtime,
    driver,
    driver_package,
    framework,
    framework_driver,
    job,
    new_job,
)
from fixtures_spawner import gate, go, spawner
from leftovers import pytest_cmdline_main
from live_host import home
from simulated import take_turns

__all__ = [
    "built_driver",
    "cuda_runtime",
    "driver",
    "driver_package",
    "framework",
    "framework_driver",
    "gate",
    "go",
    "home",
    "job",
    "new_job",
    "pytest_cmdline_main",
    "spawner",
    "take_turns",
]

# On a busy host everything may be slow.
unhurried = settings(print_blob=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", unhurried, derandomize=True)
settings.register_profile("hunt", unhurried, derandomize=False)
settings.load_profile("steady")

# A shell that starts the tests in the background, or nohup, has them ignore these, and whatever they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# With that of a shell, files of a test host could be open to others, whom fgsched does not trust.
os.umask(0o022)

# Files that take most CPU time or wait longest go first, so that parallel processes end at about one time.
LONGEST = (
    "test_floods_benchmark.py",  # most of its time is waiting
    "test_gpu_check.py",
    "test_virtual_world.py",
    "test_report_sentences.py",
    "test_torch.py",
    "test_leftovers.py",
    "test_late_driver.py",
    "test_contain_benchmark.py",
    "test_driver_libraries.py",
    "test_many_jobs.py",
    "test_hostwait.py",
    "test_system_mode.py",
    "test_hook_smi.py",
    "test_scheduling_machine.py",
    "test_jax.py",
    "test_spawner_mounts.py",
    "test_moving.py",
    "test_layers.py",
    "test_hook_sanitized.py",
    "test_fgsub.py",
    "test_fgfence.py",
    "test_turns.py",
    "test_front.py",
    "test_watchdog_driver.py",
    "test_spawner_end.py",
    "test_engine.py",
    "test_isolation.py",
    "test_tiers_driver.py",
    "test_spawner_lost.py",
    "test_fgsched.py",
    "test_fgcancel.py",
    "test_recover.py",
    "test_gpusim_agrees.py",
    "test_gpusim.py",
    "test_packaging.py",
    "test_explain_handlers.py",
    "test_ownhost.py",
    "test_hook_lives.py",
    "test_spawner_root.py",
    "test_starting.py",
    "test_fgrun.py",
    "test_orders.py",
    "test_arbiter.py",
    "test_hook_runtime.py",
    "test_spawner_limit.py",
    "test_install.py",
    "test_enforcement.py",
    "test_pages.py",
    "test_sums.py",
    "test_manual.py",
    "test_locks.py",
    "test_docstrings.py",
    "test_array_machine.py",
    "test_python_calls.py",
    "test_socket_fuzz.py",
    "test_acceptance_driver.py",
)


def pytest_collection_modifyitems(items):
    """Order the files for `--no-loadscope-reorder`; the order within a file stays."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def _end(process: Any, failure: Any, *details: Any) -> None:
    """End a process whose test fails, instead of waiting for its end."""
    if failure is not None:
        process.kill()
    _leave(process, failure, *details)


_leave = subprocess.Popen.__exit__
subprocess.Popen.__exit__ = _end  # type: ignore[method-assign]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Keep the many tests themselves out of each later search for garbage."""
    gc.freeze()


@pytest.fixture
def disk() -> Iterator[Path]:
    """A temporary directory on a disk, where the host has one for /tmp: `tmp_path` may be in memory."""
    path = Path(tempfile.mkdtemp(prefix="fgtest-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable():
    """Send a report from a worker with every lone surrogate escaped: the pipe takes only UTF-8."""
    return _encodable((yield))


def _encodable(value: Any) -> Any:
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {_encodable(key): _encodable(each) for key, each in value.items()}
        case list() | tuple():
            return type(value)(_encodable(each) for each in value)
    return value
