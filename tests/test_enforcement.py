"""fgsched doctor --enforcement: what it tries over the fake driver, and what it says without cards."""

import os

import pytest

import fgshim
from driver_host import hosting
from fakecuda import Card
from hierarchies import UNIFIED
from live_host import living

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
