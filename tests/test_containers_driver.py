"""Jobs in containers on the fake driver: their share, their end, and what is without the hook."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import fgshim
import images
from awaiting import PATIENCE, rest
from driver_host import hosting
from fakecuda import Card
from fakecuda.job import answers

pytestmark = [pytest.mark.compiler, pytest.mark.containers]
GIB, MIB = 1 << 30, 1 << 20
CONTEXT = 256 * MIB
OK, OOM = 0, 2


@pytest.fixture(
    scope="module",
    params=[images.bubblewrap, images.apptainer, images.sif, images.podman],
    ids=lambda one: one.__name__,
)
def runtime(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param.__name__)
    try:
        yield request.param(folder)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{error.cmd[0]} runs no container here: {error.stderr.decode().strip()[-120:]}")
    except OSError as error:
        pytest.skip(str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def host(built_driver, tmp_path_factory, runtime):
    """Two GPUs of 40 GiB, and a user who has the runtime."""
    if not fgshim.library().exists():
        pytest.skip("the hook is not built: run setup.py build_ext --inplace")
    folder = tmp_path_factory.mktemp("host")
    gpus = [Card("A100", 40 * GIB, context=CONTEXT) for _ in range(2)]
    with hosting(
        folder / "home", built_driver.at(folder / "cards"), *gpus, more="[jobs]\nkill_wait = 5\n"
    ) as one:
        one.extra = runtime.variables
        yield one


def options(host, runtime):
    """Return the options for a job in the container, which shows the fake driver and its cards."""
    return (
        "--gpus=0.5",
        f"--container={runtime.image}",
        f"--container-mounts={host.driver.folder},{host.driver.state.parent}",
    )


SCRIPT = """#!/bin/sh
echo "$1"; cat /etc/image
echo "$CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES $FG_GPU_UUIDS"
export LD_LIBRARY_PATH={driver.folder}
{driver.program} info 'alloc 30G' 'alloc 10G' info
env -i FAKE_CUDA_STATE={driver.state} LD_LIBRARY_PATH={driver.folder} {driver.program} info 'alloc 30G'
echo "to stderr" >&2
exit 7
"""


def test_a_job_has_its_share_in_a_container(host, runtime, tmp_path):
    script, out = tmp_path / "train.sh", tmp_path / "out"
    script.write_text(SCRIPT.format(driver=host.driver))
    more = (f"--output={out}", "--wait", "--quiet")
    done = host.run("fgsub", *options(host, runtime), *more, str(script), "an argument")
    said = [line for line in out.read_text().splitlines() if "group file doesn't exist" not in line]
    word, image, visible, *said = said
    assert (done.status, word, image) == (7, "an argument", "the image")
    number, nvidia, uuid = visible.split(" ")
    assert (number, nvidia) == ("0", uuid)
    free = 20 * GIB - CONTEXT
    assert answers("\n".join(said[:6])) == [
        *[(OK, free, 20 * GIB), (OOM,), (OK,), (OK, free - 10 * GIB, 20 * GIB)],
        *[(OK, free, 20 * GIB), (OOM,)],  # with an empty environment, by /etc/ld.so.preload
    ]
    assert "to stderr" in said
    about = host.job(1)
    assert about["refusals"] == 2
    assert about["gpu_peak"] >= 10 * GIB + CONTEXT


def test_a_job_takes_turns_in_a_container(host, runtime):
    line = f"LD_LIBRARY_PATH={host.driver.folder} exec {host.driver.launcher} kernel 1000000 100000000 5"
    more = ("--parsable", "--output=/dev/null")
    job = int(host.run("fgsub", *options(host, runtime), *more, "--wrap", line).out)
    deadline = time.monotonic() + PATIENCE
    while host.job(job)["pacing"] != "turns":
        assert time.monotonic() < deadline, host.job(job)["pacing"]
        rest()
    assert host.run("fgcancel", str(job)).status == 0
    host.wait(job)


def test_streams_and_exit_code_of_a_foreground_job_pass(host, runtime):
    words = ["fgrun", "--gpus=0.5", f"--container={runtime.image}", "sh", "-c", "cat /etc/image -; exit 3"]
    done = host.run(*words, input="typed\n")
    assert (done.status, done.out) == (3, "the image\ntyped\n")


def test_a_cancel_ends_every_process_of_a_container(host, runtime):
    gate = host.path / "gate"
    os.mkfifo(gate)
    said = os.open(gate, os.O_RDWR)
    host.open.callback(os.close, said)
    line = f"setsid sleep 7654321 & trap '' HUP; echo > {gate}; sleep 7654321"
    done = host.run("fgsub", "--parsable", "--gpus=0.5", f"--container={runtime.image}", "--wrap", line)
    assert os.read(said, 1) == b"\n"
    assert host.run("fgcancel", done.out.strip()).status == 0
    [ended] = host.wait(int(done.out))
    assert ended["state"] == "CANCELLED"
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if b"7654321" in _words(pid)]


def _words(process):
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


LIMITS = "--ulimit=nofile=1000:1000 --ulimit=nproc=1000:1000"
STARTS = {
    "apptainer": "apptainer --quiet exec {image} env {variables}",
    "podman": "podman run --rm --cgroups=disabled --network=host {limits} {shown} {image} env {variables}",
}


def test_a_container_that_the_script_starts_has_the_share_of_the_job(host, runtime, monkeypatch):
    """apptainer and podman take mounts from the environment; nothing of the script names fgsched."""
    if runtime.name not in STARTS:
        pytest.skip(f"{runtime.name} takes no mounts from the environment")
    monkeypatch.delitem(host.extra, "CONTAINERS_CONF", raising=False)  # settings of the user would be kept
    out = host.path / "own.out"
    line = STARTS[runtime.name].format(
        image=runtime.image,
        limits=LIMITS,
        shown=" ".join(f"--volume={path}:{path}" for path in (host.driver.folder, host.driver.state.parent)),
        variables=f"FAKE_CUDA_STATE={host.driver.state} LD_LIBRARY_PATH={host.driver.folder}",
    )
    words = f"{line} {host.driver.program} info 'alloc 30G'"
    done = host.run("fgsub", "--gpus=0.5", f"--output={out}", "--wait", "--quiet", "--wrap", words)
    said = "\n".join(line for line in out.read_text().splitlines() if line[:5] in ("info ", "alloc"))
    assert answers(said) == [(OK, 20 * GIB - CONTEXT, 20 * GIB), (OOM,)], out.read_text()
    assert done.status == 0
