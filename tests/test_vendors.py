"""A GPU vendor is one package: a second one is added here, and only gpus/ and the doctor name the first."""

import os
import re
import select
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from acme import Acme
from awaiting import PATIENCE
from fgsched.config.load import Config
from fgsched.gpus import attach, vendors
from fgsched.gpus.nvidia import FACTS
from fgsched.lifecycle.enforcement import MountPlan
from live_host import Home

PACKAGE = Path(__file__).parent.parent / "fgsched"
NAMED = re.compile(r"nvidia|nvml|cuda", re.IGNORECASE)
# module -> why it names NVIDIA
EXCEPTIONS = {
    "cli/doctor.py": "examines this host in the vendor's own words; prints the commands of MIG",
    "cli/enforcement.py": "tests the hook, which is one of CUDA calls",
    "python/pickling.py": "refuses tensors on a GPU, which the framework calls by CUDA",
    "config/schema.py": "the reference of the settings, from which the manual is made",
}


@pytest.fixture
def home(tmp_path):
    """A home with the controller of a host that has two GPUs of Acme."""
    home = Home(tmp_path / "home", devices="acme:2")
    for index in range(2):
        (home.path / f"acme{index}").write_text(f"node {index}\n")
    words = [sys.executable, str(Path(__file__).parent / "acme.py")]
    with subprocess.Popen(words, env=home.environ, cwd=home.path, stdout=subprocess.PIPE) as controller:
        assert select.select([controller.stdout], [], [], PATIENCE)[0]
        assert controller.stdout.readline() == b"ready\n"
        yield home
        home.leave()


def output_of(home, script):
    job = home.submit(f"exec >{home.path}/said 2>&1\n{script}", share=10_000)
    (ended,) = home.wait(job)
    said = (home.path / "said").read_text()
    assert ended["state"] == "COMPLETED", said
    return said.splitlines()


def test_gpus_of_a_second_vendor_are_listed_and_their_jobs_have_its_variables(home):
    assert [gpu["model"] for gpu in home.gpus()] == ["Acme One", "Acme One"]
    assert "2 from acme" in home.run("fgsched", "status").out
    said = output_of(home, 'echo "$ACME_VISIBLE $ACME_ORDER $FG_ENFORCE ${CUDA_VISIBLE_DEVICES-none}"')
    assert said == ["0 slot none none"]


def test_a_job_opens_the_device_nodes_of_its_gpu_and_no_others(home):
    if "their other GPUs are closed" not in home.run("fgsched", "doctor").out:
        pytest.skip("jobs have no private mounts here")
    for index in range(2):  # a job finds the nodes when it starts
        (home.path / f"acme{index}").unlink()
        os.mknod(home.path / f"acme{index}", stat.S_IFCHR | 0o666, os.makedev(1, 5))  # as /dev/zero
    opens = "".join(
        f"head -c1 {home.path}/acme{index} >/dev/null 2>&1 && echo open || echo closed\n"
        for index in range(2)
    )
    assert output_of(home, opens) == ["open", "closed"]


def test_the_nodes_of_the_other_gpus_are_those_that_are_closed_to_a_job(tmp_path, monkeypatch):
    monkeypatch.setenv("FG_HOME", str(tmp_path))
    monkeypatch.setattr(vendors, "VENDORS", [*vendors.VENDORS, Acme()])
    for index in range(2):
        (tmp_path / f"acme{index}").touch()
    inventory, sampler = attach(Config(), {"FG_DEVICES": "acme:2"})
    sampler.close()
    nodes, nodes_of = inventory.nodes()
    plan = MountPlan(how="root", nodes=nodes, nodes_of=nodes_of)
    assert plan.closed([inventory.gpus[0].uuid]) == (f"{tmp_path}/acme1",)


def test_a_step_of_a_job_and_a_job_that_is_submitted_inside_know_the_vendors_variables(monkeypatch):
    monkeypatch.setattr(vendors, "VENDORS", [*vendors.VENDORS, Acme()])
    assert vendors.of_job({"ACME_VISIBLE": "0"}).facts.name == "Acme"
    assert vendors.of_job({"CUDA_VISIBLE_DEVICES": "0"}).facts == FACTS
    assert {"ACME_VISIBLE", "ACME_ORDER", "CUDA_VISIBLE_DEVICES"} <= vendors.variables_of_jobs()
    assert vendors.short_model("Acme One") == "One"


def test_a_host_without_any_gpu_has_the_vendor_of_its_driver_or_the_first_one(monkeypatch):
    loaded = Acme()
    loaded.has_driver = lambda: True
    monkeypatch.setattr(vendors, "VENDORS", [loaded, *vendors.VENDORS])
    assert vendors.named("none") is vendors.of_host()
    monkeypatch.setattr(vendors, "VENDORS", [Acme()])
    assert vendors.of_host().facts.name == "Acme"


def test_no_module_outside_of_the_packages_of_vendors_names_nvidia():
    outside = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "gpus"]
    naming = {str(path.relative_to(PACKAGE)) for path in outside if NAMED.search(path.read_text())}
    assert naming == set(EXCEPTIONS)


def test_no_module_outside_of_the_doctor_compares_the_source_of_the_gpus():
    compares = re.compile(r"\.source [!=]= \"(?!none\")")
    outside = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "gpus"]
    found = {str(path.relative_to(PACKAGE)) for path in outside if compares.search(path.read_text())}
    assert found <= set(EXCEPTIONS)
