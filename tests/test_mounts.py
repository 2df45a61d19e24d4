"""Mounts of a job's own: what a host can give, which jobs get it, and what they are told."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

import fgshim
from builders import GIB, a_gpu, a_job
from fgsched.config.load import Config
from fgsched.domain.errors import Refused
from fgsched.domain.job import Hold
from fgsched.domain.states import JobState
from fgsched.gpus.nvidia import FACTS
from fgsched.gpus.nvidia.nodes import nodes, nodes_of
from fgsched.launch.spawner import pack
from fgsched.lifecycle.enforcement import MountPlan, others_of, preload_of
from fgsched.lifecycle.launchspec import AssignedGpu, JobOwner, LaunchContext, launch
from fgsched.system.mounts import find, make_preload
from spawner_driver import HEAD

CARDS = {"GPU-a": ("/dev/nvidia3",), "GPU-b": ("/dev/nvidia0",)}
ROOTS = MountPlan(how="root", nodes=("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia3"), nodes_of=CARDS)


def test_a_job_with_cards_has_its_own_preload_and_shut_nodes():
    assert ROOTS.of(["GPU-a"], hooked=True) == "preload,devices"
    assert ROOTS.closed(["GPU-a"]) == ("/dev/nvidia0", "/dev/nvidia1")


def test_a_job_without_cards_is_spared_a_namespace_unless_it_must_have_one():
    assert ROOTS.of([], hooked=True) == ""
    must = MountPlan(how="root", is_required=True, nodes=ROOTS.nodes, nodes_of=CARDS)
    assert must.of([], hooked=True) == "preload,devices"
    assert must.closed([]) == ROOTS.nodes


def test_a_job_without_the_hook_has_no_use_of_a_preload_but_its_other_cards_are_shut():
    assert ROOTS.of(["GPU-b"], hooked=False) == "devices"


def test_nodes_that_cannot_be_told_apart_stay_open():
    assert ROOTS.of(["GPU-a", "GPU-c"], hooked=True) == "preload"
    assert MountPlan(how="root", nodes=ROOTS.nodes).of(["GPU-a"], hooked=True) == "preload"
    assert MountPlan(how="root", nodes=ROOTS.nodes).others == "open"


def test_where_no_namespace_is_made_nothing_is_promised():
    assert MountPlan(nodes=ROOTS.nodes, nodes_of=CARDS).of(["GPU-a"], hooked=True) == ""
    assert MountPlan(note="why").word == "environment"


def test_a_required_namespace_that_cannot_be_made_refuses_jobs_with_the_hook():
    missing = MountPlan(note="it is not there", is_required=True)
    missing.check(hooked=False)
    with pytest.raises(Refused, match="it is not there"):
        missing.check(hooked=True)


@pytest.mark.parametrize(
    ("mounts", "words"),
    [
        ("", ("environment", "open")),
        ("preload", ("namespace", "open")),
        ("devices", ("environment", "closed")),
        ("preload,devices", ("namespace", "closed")),
    ],
)
def test_what_a_job_has_is_told_in_two_words(mounts, words):
    assert (preload_of(mounts, hooked=True), others_of(mounts)) == words


def test_without_the_hook_there_is_nothing_to_come_by():
    assert preload_of("devices", hooked=False) == "none"


def launched(mounts: str):
    job = a_job(state=JobState.RUNNING, tier="shim", mounts=mounts)
    given = [AssignedGpu(hold=Hold(gpu=1, share=5000, memory=GIB), uuid="GPU-a")]
    site = LaunchContext(
        vendor=FACTS,
        host="h",
        run="/run/fg",
        hook="/hook",
        tmp="/tmp/fg-",
        kill_wait=5,
        become_user=True,
        mounts=ROOTS,
    )
    return launch(job, given, b"", site=site, owner=JobOwner(home="/", gid=1, groups=()))


def test_the_only_gpu_of_a_job_is_number_0_whatever_its_index_and_its_mounts():
    for mounts in ("preload,devices", "preload", "devices", ""):
        environment = launched(mounts).environment
        assert b"\0CUDA_VISIBLE_DEVICES=0\0" in environment
        assert b"\0FG_JOB_GPUS=1\0" in environment
        assert b"\0FG_GPU_UUIDS=GPU-a\0" in environment


@pytest.mark.parametrize(("mounts", "flags", "closed"), [("preload,devices", 2 | 8, 2), ("", 2, 0)])
def test_the_spawner_is_told_of_the_namespace_and_of_the_nodes(mounts, flags, closed):
    head = HEAD.unpack_from(pack(launched(mounts), b"#!/bin/sh\n", b""))
    assert (head[4], head[23]) == (flags, closed)


def test_a_cards_node_is_found_by_its_address_and_not_by_its_index(tmp_path):
    for address, minor in (("0000:1b:00.0", 3), ("0000:3b:00.0", 0)):
        folder = tmp_path / "gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t X\nDevice Minor: \t {minor}\n")
    gpus = [a_gpu(0, pci="00000000:1B:00.0"), a_gpu(1, pci="00000000:3B:00.0"), a_gpu(2)]
    found = nodes_of(gpus, about=tmp_path, devices=Path("/dev"))
    assert found == {gpus[0].uuid: ("/dev/nvidia3",), gpus[1].uuid: ("/dev/nvidia0",)}


def test_the_drivers_control_is_no_card(tmp_path):
    for name in ("nvidia1", "nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia-caps"):
        (tmp_path / name).touch()
    assert nodes(about=tmp_path / "none", devices=tmp_path) == (
        str(tmp_path / "nvidia0"),
        str(tmp_path / "nvidia1"),
    )


def test_a_users_own_controller_makes_no_user_namespaces_unless_it_is_told_to(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "setuid programs have no power" in find("auto", tmp_path, lambda: ((), {})).note


def test_the_environment_alone_is_a_choice_and_said_to_be_one(tmp_path):
    found = find("environment", tmp_path, lambda: ((), {}))
    assert (found.word, found.note) == ("environment", 'preload = "environment" in [fence] of the settings')


def test_the_file_that_is_mounted_over_is_made_empty_and_never_changed(tmp_path):
    path = tmp_path / "ld.so.preload"
    make_preload(path)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"", 0o644)
    path.write_text("/theirs.so\n")
    make_preload(path)
    assert path.read_text() == "/theirs.so\n"


def test_the_setting_is_auto_by_default():
    assert Config().preload == "auto"


@pytest.mark.parametrize("wish", ["auto", "namespace"])
def test_a_host_whose_linker_reads_no_such_file_says_so(wish, tmp_path, monkeypatch):
    loads_nothing = tmp_path / "fgspawn"
    loads_nothing.write_text("#!/bin/sh\nexit 0\n")
    loads_nothing.chmod(0o755)
    monkeypatch.setattr("fgsched.system.mounts.PRELOAD", tmp_path)
    monkeypatch.setattr("fgsched.system.mounts.spawner", lambda: loads_nothing)
    monkeypatch.setattr("fgsched.system.mounts._unreadable_part", lambda path: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = find(wish, tmp_path, lambda: ((), {}))
    assert "does not load what" in found.note
    assert found.is_required == (wish == "namespace")


def test_the_program_that_tries_it_says_which_step_failed(tmp_path):
    drop = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    # The checkout may be in a home that others cannot enter.
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o711)
        words = [shutil.copy(fgshim.spawner(), place), "mounts", "root", tmp_path, "/bin/true"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, **drop)
    assert (done.returncode, done.stderr) == (1, "mount namespace: Operation not permitted\n")
