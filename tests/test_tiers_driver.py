"""How jobs are held to their share, and that a fence is proved before a job runs: over the fake driver."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import fakecuda
import fgshim
from driver_host import Host, config_of
from fakecuda import Card
from hierarchies import UNIFIED, unified_of

pytestmark = pytest.mark.compiler
GIB = 1 << 30
CONTEXT = 256 << 20
ALL = '[fence]\ntiers = ["driver", "shim", "watchdog", "none"]\n'
needs_cgroups = pytest.mark.skipif(
    os.geteuid() != 0 or UNIFIED is None, reason="needs root and cgroups of version 2"
)


@dataclass
class Hosting:
    """Makes hosts with a card of 40 GiB, and ends them."""

    driver: object
    path: Path
    made: list[Host] = field(default_factory=list)

    def __call__(self, more=ALL, **env):
        self.driver.gpus(Card("A100", 40 * GIB, context=CONTEXT))
        host = Host(self.path, "auto", config_of(more=more), driver=self.driver, extra=env)
        self.made.append(host)
        return host


@pytest.fixture
def hosting(driver, tmp_path):
    if not fgshim.library().exists():
        pytest.skip("the hook is not built: run setup.py build_ext --inplace")
    hosts = Hosting(driver, tmp_path / "home")
    yield hosts
    for host in hosts.made:
        host.open.close()
        host.leave()


def ran(host, *commands, options=()):
    """(how a job ended, the statuses of what its fakejob did)."""
    words = " ".join(f"'{command}'" for command in commands)
    line = f"{host.driver.program} {words}"
    done = host.run(
        "fgsub", "--parsable", "--gpu-mem=4G", "--output=said", "--error=/dev/null", *options, "--wrap", line
    )
    assert (done.status, done.err) == (0, "")
    host.wait(int(done.out))
    said = host.path / "said"
    statuses = [int(one.split()[1]) for one in said.read_text().splitlines()] if said.exists() else []
    return host.job(int(done.out)), statuses


def test_without_a_wish_a_job_gets_the_hook(hosting):
    found, statuses = ran(hosting(), "alloc 5G", "alloc 2G")
    assert (found["tier"], statuses) == ("shim", [2, 0])


@pytest.mark.parametrize("tier", ["watchdog", "none"])
def test_a_job_may_go_without_the_hook_where_the_site_allows_it(hosting, tier):
    found, statuses = ran(hosting(), "alloc 5G", options=[f"--tier={tier}"])
    assert (found["tier"], found["state"], statuses) == (tier, "COMPLETED", [0])


def test_to_go_without_any_fence_has_to_be_allowed(hosting):
    done = hosting(more="").run("fgsub", "--gpu-mem=4G", "--tier=none", "--wrap", "true")
    assert done.status == 1
    assert "--tier=none: this site does not allow it" in done.err


def test_a_tier_that_the_driver_does_not_have_is_refused(hosting):
    done = hosting().run("fgsub", "--gpu-mem=4G", "--tier=driver", "--wrap", "true")
    assert done.status == 1
    assert "the driver of this host does not limit device memory by cgroup" in done.err


def test_a_job_whose_fence_does_not_hold_is_not_started_and_the_next_is_once_it_does(hosting, tmp_path):
    """The driver's library is missing at first, and comes back."""
    (tmp_path / "half").mkdir()
    host = hosting(LD_LIBRARY_PATH=str(tmp_path / "half"))
    (tmp_path / "half/libnvidia-ml.so.1").symlink_to(host.driver.folder / "libnvidia-ml.so.1")
    found, statuses = ran(host, "alloc 5G")
    assert (found["state"], found["reason"], statuses) == ("FAILED", "JobLaunchFailure", [])
    why = "its enforcement does not work: libcuda.so.1: cannot open shared object file"
    assert found["detail"].startswith(why)
    found, statuses = ran(host, "alloc 5G", options=["--tier=none"])
    assert found["state"] == "COMPLETED"
    (tmp_path / "half/libcuda.so.1").symlink_to(host.driver.folder / "libcuda.so.1")
    found, statuses = ran(host, "alloc 5G")
    assert (found["state"], statuses) == ("COMPLETED", [2])


def test_a_job_in_whose_environment_the_fence_does_not_hold_is_not_started_and_others_are(hosting, tmp_path):
    """Its own environment has another driver's library; the host's is proved."""
    host = hosting()
    front = fakecuda.build_front(tmp_path / "front")
    own = f"--export=ALL,LD_LIBRARY_PATH={front}"
    found, statuses = ran(host, "alloc 2G", options=[own])
    assert (found["state"], found["reason"], statuses) == ("FAILED", "JobLaunchFailure", [])
    past = "in the job's environment the driver is found past the hook"
    assert found["detail"] == f"its enforcement does not work: {past}"
    found, statuses = ran(host, "alloc 2G")
    assert (found["state"], statuses) == ("COMPLETED", [0])
    found, statuses = ran(host, "alloc 5G", options=[own, "--tier=none"])
    assert (found["tier"], found["state"], statuses) == ("none", "COMPLETED", [0])


@needs_cgroups
def test_where_the_driver_limits_cgroups_a_job_is_held_by_it_even_past_the_hook(hosting):
    host = hosting(FAKE_NVML_LIMITS="1")
    found, statuses = ran(host, "alloc 5G", "alloc 2G")
    assert (found["tier"], statuses) == ("driver", [2, 0])
    env = " ".join(f"{name}={value}" for name, value in host.driver.env.items())
    line = f"cat /proc/self/cgroup >where; env -i {env} {host.driver.program} 'alloc 5G' 'alloc 2G'"
    done = host.run(
        "fgsub", "--parsable", "--gpu-mem=4G", "--output=past", "--error=/dev/null", "--wrap", line
    )
    host.wait(int(done.out))
    assert [line.split()[1] for line in (host.path / "past").read_text().splitlines()] == ["2", "0"]
    own = unified_of((host.path / "where").read_text())
    assert own.name.startswith("fgsched-2.")
    assert not own.exists(), "its cgroup is left"


@needs_cgroups
def test_a_limit_that_the_driver_takes_and_does_not_keep_is_no_fence(hosting):
    found, _ = ran(hosting(FAKE_NVML_LIMITS="broken"), "alloc 5G")
    assert (found["state"], found["reason"]) == ("FAILED", "JobLaunchFailure")
    assert "the driver says: Not Found" in found["detail"]


@needs_cgroups
def test_fginfo_shows_how_jobs_are_held(hosting):
    host = hosting(FAKE_NVML_LIMITS="1")
    assert host.run("fginfo", "--json").json["enforce"] == "driver"
    assert "driver" in host.run("fginfo", "-l").lines[1].split()
