"""fgsched doctor --enforcement: what it tries over the fake driver, and what it says without cards."""

import json
import os
import select
import subprocess
import sys

import pytest

import fgshim
from driver_host import hosting
from fakecuda import Card
from fgshim import selftest
from hierarchies import UNIFIED
from live_host import PATIENCE, living

GIB = 1 << 30
CARD = Card("A100", 8 * GIB, context=64 << 20)
ALWAYS = {
    *("cuMemAlloc", "cuMemAllocPitch", "cuMemAllocManaged", "cuMemAllocAsync", "cuMemCreate"),
    *("cuGetProcAddress", "cuMemGetInfo", "cuDeviceTotalMem", "NVML memory", "NVML processes"),
    *("second process", "SIGKILL"),
}


@pytest.fixture(autouse=True)
def built():
    if not fgshim.library().exists():
        pytest.skip("the hook is not built: run setup.py build_ext --inplace")


def tried(driver, path, *, more="", **env):
    """{(tier, check): (verdict, why)} and the exit status."""
    with hosting(path / "home", driver, CARD, more=f"[jobs]\nkill_wait = 5\n{more}") as host:
        host.extra.update(env)
        done = host.run("fgsched", "doctor", "--enforcement", "--json")
        assert done.err == ""
    return {(row["tier"], row["check"]): (row["verdict"], row["why"]) for row in done.json["checks"]}, done


@pytest.mark.compiler
def test_what_the_hook_holds_and_what_only_the_watchdog_sees(driver, tmp_path):
    found, done = tried(driver, tmp_path)
    held = {check for (tier, check), (verdict, _) in found.items() if (tier, verdict) == ("shim", "holds")}
    assert held >= ALWAYS, found
    assert found["driver", "all"][0] == found["shim", "cudaMalloc"][0] == "not offered here"
    assert found["watchdog", "unhooked process"][0] == "holds", found
    verdict, why = found["shim", "env -i"]
    assert (verdict, done.status) == ("does not hold", 1) or (verdict, done.status) == ("holds", 0), why


@pytest.mark.compiler
def test_a_result_is_printed_as_soon_as_it_is_known_below_its_heading(driver, tmp_path):
    more = '[jobs]\nkill_wait = 5\n[fence]\nwatchdog = "warn"\n'
    with hosting(tmp_path / "home", driver, CARD, more=more) as host:
        assert host.run("fgctl", "drain", "gpu=0", "reason=test").status == 0
        words = [sys.executable, "-m", "fgsched.cli.fgsched", "doctor", "--enforcement"]
        with subprocess.Popen(words, env=host.environ, stdout=subprocess.PIPE) as doctor:
            try:
                first = b""
                while first.count(b"\n") < 2:  # the first job is pending
                    assert select.select([doctor.stdout], [], [], PATIENCE)[0], first
                    first += os.read(doctor.stdout.fileno(), 4096)
                assert host.run("fgctl", "resume", "gpu=0").status == 0
                heading, *lines = (first + doctor.stdout.read()).decode().splitlines()
            finally:
                doctor.kill()
    assert heading.split() == ["TIER", "CHECK", "RESULT", "WHY"]
    check, result, why = (heading.index(word) for word in ("CHECK", "RESULT", "WHY"))
    rows = {(line[:check].strip(), line[check:result].strip()): line[result:why].strip() for line in lines}
    assert rows["driver", "all"] == "not offered here"
    assert rows["shim", "cuMemAllocManaged"] == rows["watchdog", "unhooked process"] == "holds"


@pytest.mark.compiler
def test_a_process_with_the_hook_holds_no_memory_for_the_watchdog(job):
    words = selftest.command("hold", 1_000_000)
    done = subprocess.run(
        words, env=job.environment(), capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert json.loads(done.stdout) == {"hooked": True}


@pytest.mark.compiler
def test_where_the_policy_is_to_warn_the_watchdog_holds_when_it_warned(driver, tmp_path):
    found, _ = tried(driver, tmp_path, more='[fence]\nwatchdog = "warn"\n')
    assert found["watchdog", "unhooked process"][0] == "holds", found


@pytest.mark.compiler
@pytest.mark.skipif(os.geteuid() != 0 or UNIFIED is None, reason="needs root and cgroups of version 2")
def test_the_limit_of_the_driver_holds_without_the_hook_too(driver, tmp_path):
    found, _ = tried(driver, tmp_path, FAKE_NVML_LIMITS="1")
    assert found["driver", "env -i"] == ("holds", "")
    assert found["driver", "cuMemAlloc"] == ("holds", "")


def test_on_simulated_gpus_nothing_can_be_tested(tmp_path):
    with living(tmp_path / "home") as home:
        done = home.run("fgsched", "doctor", "--enforcement")
    assert done.status == 1
    assert done.err == (
        "fgsched: error: there is nothing to enforce: the GPUs are simulated\n"
        "Run this on a host with a GPU; fginfo -g shows the GPUs of the controller.\n"
    )
