"""The host's controller gives jobs with GPUs mounts of their own, and says so."""

import shutil

import pytest

import images
from fakehost import hosting, why_not
from fixtures_spawner import NEEDS_SPAWNER

NO_HOST = why_not()
pytestmark = [
    *NEEDS_SPAWNER,
    pytest.mark.root,
    pytest.mark.mounts,
    pytest.mark.skipif(bool(NO_HOST), reason=NO_HOST or "-"),
]


@pytest.fixture(scope="module")
def host():
    with hosting() as one:
        yield one


def test_programs_that_lose_their_environment_keep_the_hook(host):
    script = "for way in '' 'env -i'; do $way cat /proc/self/maps | grep -c libfgshim.so; done"
    job = host.ended("alice", script, "--gpus=0.5")
    assert job["state"] == "COMPLETED"
    assert [int(line) > 0 for line in host.output("alice")] == [True, True]
    assert (job["preload"], job["other_gpus"]) == ("namespace", "open")  # simulated cards have no nodes


@pytest.mark.containers
def test_a_user_has_the_hook_in_a_container_too(host):
    if shutil.which("bwrap") is None:
        pytest.skip("there is no bwrap")
    image = images.unpacked(host.path / "home" / "alice" / "image")
    script = (
        "id -u; cat /etc/image; for way in '' 'env -i'; do $way grep -c libfgshim.so /proc/self/maps; done"
    )
    job = host.ended("alice", script, "--gpus=0.5", f"--container={image}")
    uid, marker, *maps = host.output("alice")
    assert (job["state"], marker, uid != "0") == ("COMPLETED", "the image", True)
    assert [int(line) > 0 for line in maps] == [True, True]


def test_a_job_without_cards_is_told_by_its_environment(host):
    job = host.ended("alice", "cat /etc/ld.so.preload; env -i grep -c libfgshim.so /proc/self/maps")
    assert host.output("alice") == ["0"]
    assert job["preload"] == "environment"


def test_the_empty_file_is_made_once_and_host_and_job_tell(host):
    assert (host.path / "etc/ld.so.preload").read_bytes() == b""
    names, gpu = (line.split() for line in host.run("alice", "fginfo", "-l").lines[:2])
    assert dict(zip(names, gpu, strict=True))["PRELOAD"] == "namespace"
    said = host.run("alice", "fginfo", "--json").json
    assert (said["preload"], said["preload_note"], said["other_gpus"]) == ("namespace", None, "open")
    (line,) = [line for line in host.run("root", "fgsched", "doctor").lines if line.split()[1] == "preload"]
    assert line.startswith("OK")
    job = host.submit("alice", "true", "--gpus=0.5")
    assert "Preload=namespace  OtherGpus=open" in host.run("alice", "fgctl", "show", "job", str(job)).out
