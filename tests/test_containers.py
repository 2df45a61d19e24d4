"""Containers of jobs, as data: images, mounts, runtimes, and their command lines."""

import os
import subprocess
import tomllib

import pytest

import fgshim
from fgsched.domain.errors import BadUsage, Refused
from fgsched.domain.job import Request
from fgsched.domain.text import BadValue
from fgsched.gpus.nvidia import FACTS
from fgsched.gpus.nvidia.nodes import devices
from fgsched.interactive import containers
from fgsched.interactive.containers import ContainerFence, Inside, without_nested
from fgsched.lifecycle.containers import (
    Mount,
    choose,
    entering,
    parse_image,
    parse_mounts,
    podman_settings,
    podman_variable,
    variables,
    wrapped,
)
from fgsched.lifecycle.launchspec import merge_environment
from fgsched.slurm import srun

JOB = "/run/fgsched/job/7.1"
FENCE = ContainerFence(
    folder=JOB,
    link=f"{JOB}/libfgshim.so",
    hook="/opt/fgshim/libfgshim.so",
    region=f"{JOB}/region",
    prover="/opt/fgshim/fgprove",
    proof=(f"{JOB}/libfgshim.so", "7", "1", "ab12"),
    preload="/tmp/7/preload",
)


class Files(dict):
    """An image: {path: None for a directory, text for a file, ("link", target)}."""

    def names(self, path):
        below = [one[len(path) + 1 :] for one in self if one.startswith(f"{path}/")]
        return sorted({one.partition("/")[0] for one in below})

    def link(self, path):
        found = self.get(path)
        return found[1] if isinstance(found, tuple) else None

    def is_file(self, path):
        return isinstance(self.get(path), str)

    def is_directory(self, path):
        return path in self and self[path] is None


IMAGE = Files(
    {
        **{"/img": None, "/img/bin": ("link", "usr/bin"), "/img/usr": None, "/img/usr/bin": None},
        **{
            "/img/etc": None,
            "/img/etc/passwd": "",
            "/img/etc/ssl": None,
            "/img/home": None,
            "/img/proc": None,
        },
        **{"/img/run": None, "/img/data": None},
    }
)


def options_of(words):
    """The options of bubblewrap in order, each with its values."""
    found = []
    for word in words[1 : words.index("--")]:
        found.append([word]) if word.startswith("--") else found[-1].append(word)
    return [tuple(one) for one in found]


def inside(**more):
    given = {"image": "/img", "words": ("python", "train.py"), "workdir": "/home/ann", "mounts": ()}
    return Inside(**given | more)


def test_bubblewrap_makes_mount_points_that_an_image_lacks_and_binds_the_rest():
    home = Mount("/home/ann", "/home/ann")
    found = options_of(containers.bubblewrap(inside(mounts=(home,), fence=FENCE), IMAGE))
    assert found[: found.index(("--dev-bind", "/proc", "/proc"))] == [
        ("--symlink", "usr/bin", "/bin"),
        ("--ro-bind", "/img/data", "/data"),
        ("--dir", "/etc"),  # /etc/ld.so.preload is missing there
        ("--ro-bind", "/img/etc/passwd", "/etc/passwd"),
        ("--ro-bind", "/img/etc/ssl", "/etc/ssl"),
        ("--dir", "/home"),
        ("--ro-bind", "/img/usr", "/usr"),
    ]


def test_bubblewrap_shows_the_files_of_the_fence_and_below_them_the_job_directory():
    words = containers.bubblewrap(inside(fence=FENCE), IMAGE)
    found = options_of(words)
    assert found[found.index(("--tmpfs", JOB)) :] == [
        ("--tmpfs", JOB),
        ("--ro-bind", FENCE.hook, FENCE.link),
        ("--bind", JOB, f"{JOB}/host"),
        ("--bind", FENCE.region, FENCE.region),
        ("--ro-bind", FENCE.prover, f"{JOB}/fgprove"),
        ("--chdir", "/home/ann"),
    ]
    assert ("--ro-bind", FENCE.preload, "/etc/ld.so.preload") in found
    assert words[-9:] == ["fgsched", f"{JOB}/fgprove", "", *FENCE.proof, "python", "train.py"]


def test_a_container_has_the_device_nodes_of_the_job_and_no_others():
    devices = ("/dev/nvidia3", "/dev/nvidiactl")
    found = options_of(containers.bubblewrap(inside(devices=devices), IMAGE))
    assert [one for one in found if "nvidia" in one[-1]] == [("--dev-bind", node, node) for node in devices]
    words = containers.podman(inside(devices=devices), is_root=True, init=True, has_cdi=False)
    assert [word for word in words if "nvidia" in word] == [f"--device={node}" for node in devices]
    named = inside(devices=devices, gpus=("nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b"))
    words = containers.podman(named, is_root=True, init=True, has_cdi=True)
    assert [word for word in words if word.startswith("--device")] == [
        "--device=nvidia.com/gpu=GPU-a",
        "--device=nvidia.com/gpu=GPU-b",
    ]
    assert "--nv" in containers.apptainer(inside(devices=devices, gpu_option="--nv"), name="apptainer")


def test_podman_keeps_the_container_in_the_cgroup_of_the_job_and_the_uid_of_its_user():
    words = containers.podman(inside(fence=FENCE), is_root=False, init=False, has_cdi=False)
    assert {"--cgroups=disabled", "--userns=keep-id", "--rootfs", f"--tmpfs={JOB}"} <= set(words)
    at = words.index("/img")
    assert words[at + 1 : at + 3] == ["/bin/sh", "-c"]
    assert words[at + 3].endswith('\n"$@"\n')  # process 1 waits for the command


def test_apptainer_takes_references_of_registries():
    words = containers.apptainer(inside(image="nvcr.io/nvidia/pytorch:24.01-py3"), name="singularity")
    assert words[0] == "singularity"
    assert words[-3:] == ["docker://nvcr.io/nvidia/pytorch:24.01-py3", "python", "train.py"]


@pytest.mark.parametrize(
    ("image", "is_directory", "installed", "expected"),
    [
        ("/img", True, {"bwrap", "podman", "apptainer"}, "bwrap"),
        ("/img", True, {"podman", "apptainer"}, "apptainer"),
        ("/img.sif", False, {"bwrap", "singularity"}, "singularity"),
        ("ubuntu:24.04", False, {"bwrap", "podman", "apptainer"}, "podman"),
        ("ubuntu:24.04", False, {"apptainer"}, "apptainer"),
    ],
)
def test_the_runtime_follows_from_the_image(image, is_directory, installed, expected):
    found = choose(image, is_directory=is_directory, runtime="", has=installed.__contains__)
    assert found == expected


@pytest.mark.parametrize(
    ("image", "asked", "cause"),
    [
        ("/a.sif", "", "no container runtime for this image is installed here: apptainer or singularity"),
        ("ubuntu", "podman", "no container runtime for this image is installed here: podman"),
        ("ubuntu", "bwrap", "bwrap cannot run this image"),
        (
            "ubuntu",
            "docker",
            "docker cannot run the container of a job: its daemon starts it outside the job",
        ),
    ],
)
def test_a_missing_or_unsuitable_runtime_is_named(image, asked, cause):
    with pytest.raises(Refused) as raised:
        choose(image, is_directory=False, runtime=asked, has=lambda name: False)
    assert raised.value.cause == cause


@pytest.mark.parametrize(
    ("status", "expected", "said"),
    [
        (90, 7, ""),
        (91, 125, "the hook is not loaded"),
        (93, 125, "another driver library is found first"),
        (95, 125, "the region of the job is missing"),
        (1, 7, "the hook does not work in this image"),
        (127, 7, "the hook does not work in this image"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_the_enforcement_is_checked_before_the_command(tmp_path, status, expected, said, is_first):
    prover = tmp_path / "fgprove"
    prover.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/args\nexit {status}\n')
    prover.chmod(0o755)
    fence = ContainerFence(
        folder=str(tmp_path), link="/l", hook="/h", prover="/opt/p", proof=("/l", "7", "1", "ab")
    )
    words = inside(words=("sh", "-c", "exit 7"), fence=fence).command(is_first=is_first)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, (tmp_path / "args").read_text()) == (expected, "/l 7 1 ab\n")
    assert said in done.stderr
    assert bool(said) == bool(done.stderr)


@pytest.mark.skipif(not fgshim.library().exists(), reason="the hook is not built")
def test_an_image_that_can_run_the_hook_but_not_the_prover_is_accepted(tmp_path):
    """The prover needs a newer glibc than the hook."""
    fence = ContainerFence(
        folder=str(tmp_path), link="/l", hook="/h", prover="/opt/p", proof=("/l", "7", "1", "ab")
    )
    words = inside(words=("sh", "-c", "exit 7"), fence=fence).command()
    hooked = {**os.environ, "LD_PRELOAD": str(fgshim.library())}
    done = subprocess.run(words, env=hooked, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (7, "")


def test_mounts_below_another_one_are_left_out_unless_they_differ():
    tmp, below = Mount("/tmp", "/tmp"), Mount("/tmp/7", "/tmp/7")
    moved, closed = Mount("/tmp/7", "/data"), Mount("/tmp", "/tmp", False)
    assert without_nested([tmp, below, moved]) == (tmp, moved)
    assert without_nested([closed, below]) == (closed, below)
    assert without_nested([tmp, Mount("/tmpfiles", "/tmpfiles")]) == (tmp, Mount("/tmpfiles", "/tmpfiles"))


def test_mounts_have_a_source_a_target_and_a_mode():
    assert parse_mounts("/data,/a:/b,/c:/d:ro,/e:/f:rw") == (
        Mount("/data", "/data"),
        Mount("/a", "/b"),
        Mount("/c", "/d", False),
        Mount("/e", "/f"),
    )


@pytest.mark.parametrize("text", ["", "data", "/a:b", "/a:/b:x", "/a:/b:ro:z", "/a,,/b"])
def test_a_bad_list_of_mounts_is_refused(text):
    with pytest.raises(BadValue):
        parse_mounts(text)


def test_an_image_may_be_written_as_for_pyxis():
    assert parse_image("nvcr.io#nvidia/pytorch:24.01-py3") == "nvcr.io/nvidia/pytorch:24.01-py3"
    assert parse_image("./a#b") == "./a#b"


@pytest.mark.parametrize("text", ["", "--privileged", "a b", "a\nb"])
def test_a_text_that_is_no_image_is_refused(text):
    with pytest.raises(BadValue):
        parse_image(text)


def test_a_script_of_a_job_enters_its_container_and_is_unchanged_behind_two_lines(tmp_path, monkeypatch):
    script = b"#!/usr/bin/python3 -u  \nprint(1)\n\n"
    text = wrapped(script, Request(name="a", container="/img", container_mounts="/a:/it's"))
    first, second, rest = text.split(b"\n", 2)
    assert (first, rest) == (b"#!/bin/sh", script)
    assert second.startswith(b'exec "$FG_PYTHON" -I -m fgsched.interactive.containers --image=/img ')
    (tmp_path / "script").write_bytes(text)
    words = containers._write_script([str(tmp_path / "script"), "x y"], str(tmp_path))
    assert words == ["/usr/bin/python3", "-u", str(tmp_path / "script"), "x y"]
    assert (tmp_path / "script").read_bytes() == script


def test_a_command_of_fgrun_enters_the_container():
    request = Request(name="a", container="ubuntu", container_workdir="/w")
    line = entering(request, ["python", "a b"])
    assert line == (
        "\"$FG_PYTHON\" -I -m fgsched.interactive.containers --image=ubuntu --workdir=/w -- python 'a b'"
    )
    assert entering(Request(name="a"), ["python", "a b"]) == "python 'a b'"


def test_a_step_of_srun_enters_a_container_of_its_own():
    environ = {"FG_PYTHON": "/py", "FG_JOB_ID": "7"}
    step = srun.step_of(["--container-image=ubuntu", "--container-mounts=/a", "hostname"], environ)
    enters = ("/py", "-I", "-m", "fgsched.interactive.containers", "--image=ubuntu", "--mounts=/a", "--")
    assert step.program(0) == (*enters, "hostname")
    for words in (["--container-mounts=/a"], ["--container=-x"], ["--container=u", "--container-mounts=a"]):
        with pytest.raises(srun.StepRefused):
            srun.step_of([*words, "hostname"], environ)


def test_the_nodes_of_the_job_are_found_by_uuid(tmp_path):
    about, folder = tmp_path / "gpus", tmp_path / "dev"
    folder.mkdir()
    for minor, name in enumerate(("GPU-a", "GPU-b")):
        place = about / f"0000:0{minor}:00.0"
        place.mkdir(parents=True)
        (place / "information").write_text(
            f"Model: \t X\nGPU UUID: \t {name}\nDevice Minor: \t {1 - minor}\n"
        )
        (folder / f"nvidia{minor}").touch()
    (folder / "nvidiactl").touch()

    def nodes(uuids):
        found = devices(uuids.split(","), about, str(folder))
        return [os.path.basename(node) for node in found]

    assert nodes("GPU-a") == ["nvidia1", "nvidiactl"]
    assert nodes("GPU-x") == ["nvidia0", "nvidia1", "nvidiactl"]  # it cannot be told apart


@pytest.mark.parametrize("words", ["0,1", "1,3"])
def test_a_container_without_the_hook_has_the_uuids_of_the_job_or_step(words):
    environ = {"FG_JOB_GPUS": "1,3", "FG_GPU_UUIDS": "GPU-a,GPU-b", "FG_GPU_DEVICES": words}
    for listed, uuids in (
        (words.split(",")[1], "GPU-b"),
        (words, "GPU-a,GPU-b"),
        ("GPU-a", "GPU-a"),
        ("", ""),
    ):
        assert containers._visible_devices(listed, environ, hooked=False) == uuids
        assert containers._visible_devices(listed, environ, hooked=True) == listed


@pytest.mark.parametrize(
    ("image", "cause"),
    [("/nowhere", "there is no image /nowhere"), ("{folder}", "{folder} is not an unpacked root directory")],
)
def test_a_missing_image_is_named(tmp_path, image, cause):
    with pytest.raises(Refused) as raised:
        containers._runtime(image.format(folder=tmp_path), {})
    assert raised.value.cause == cause.format(folder=tmp_path)


def test_a_container_that_a_script_starts_has_the_hook_by_variables_and_keeps_the_mounts_of_the_user():
    own = variables(JOB, "/opt/libfgshim.so", ["APPTAINER"], preload=True)
    binds = f"{JOB},/opt/libfgshim.so:/opt/libfgshim.so:ro,{JOB}/preload:/etc/ld.so.preload:ro"
    assert own == {"APPTAINER_BIND": binds, "APPTAINERENV_LD_PRELOAD": f"{JOB}/libfgshim.so"}
    found = merge_environment(b"A=1\0APPTAINER_BIND=/data\0SINGULARITY_BIND=/x\0", own, "").split(b"\0")
    assert sorted(found[:-1]) == [
        b"A=1",
        f"APPTAINERENV_LD_PRELOAD={JOB}/libfgshim.so".encode(),
        f"APPTAINER_BIND={binds},/data".encode(),
        b"SINGULARITY_BIND=/x",
    ]


def test_podman_reads_settings_beside_those_of_the_site_and_older_versions_instead_of_them():
    versions = ["5.4.2", "4.8.0", "4.8.0-dev", "4.3.1", "10.0", "", "unknown"]
    for has_settings, older in ((False, "CONTAINERS_CONF"), (True, "")):
        found = [podman_variable(version, has_settings=has_settings) for version in versions]
        new = "CONTAINERS_CONF_OVERRIDE"
        assert found == [new, new, new, older, new, "", ""]


@pytest.mark.parametrize(
    ("variable", "more"), [("CONTAINERS_CONF", []), ("CONTAINERS_CONF_OVERRIDE", [{"append": True}])]
)
def test_settings_of_podman_show_the_hook_and_pass_the_variables_of_the_job(variable, more):
    text = podman_settings(variable, ["/run/fg"], '/opt/a "b"/libfgshim.so', FACTS.selecting, preload=True)
    assert tomllib.loads(text) == {
        "containers": {
            "label": False,
            "env": [
                "LD_PRELOAD",
                "FG_JOB_DIR",
                "FG_FENCE_DIR",
                "CUDA_VISIBLE_DEVICES",
                "CUDA_DEVICE_ORDER",
                *more,
            ],
            "volumes": [
                "/run/fg:/run/fg",
                '/opt/a "b"/libfgshim.so:/opt/a "b"/libfgshim.so:ro',
                "/etc/ld.so.preload:/etc/ld.so.preload:ro",
                *more,
            ],
        }
    }
    assert "ld.so.preload" not in podman_settings(
        variable, ["/run/fg"], "/hook", FACTS.selecting, preload=False
    )


def test_settings_of_podman_that_the_user_has_named_are_kept():
    own = {"CONTAINERS_CONF_OVERRIDE": "/run/fg/containers.conf"}
    assert merge_environment(b"A=1\0", own, "") == b"A=1\0CONTAINERS_CONF_OVERRIDE=/run/fg/containers.conf\0"
    kept = merge_environment(b"CONTAINERS_CONF_OVERRIDE=/home/ann/own\0", own, "")
    assert kept == b"CONTAINERS_CONF_OVERRIDE=/home/ann/own\0"


def test_of_an_oci_bundle_the_root_directory_is_used(tmp_path):
    (tmp_path / "rootfs").mkdir()
    assert containers._located(str(tmp_path)) == str(tmp_path)
    (tmp_path / "config.json").touch()
    assert containers._located(str(tmp_path)) == f"{tmp_path}/rootfs"
    assert containers._located("ubuntu:24.04") == "ubuntu:24.04"


def test_mounts_need_a_container_whose_image_exists(submit, tmp_path):
    with pytest.raises(BadUsage, match="--container-mounts needs --container"):
        submit("--container-mounts=/a", "--wrap=true")
    with pytest.raises(BadUsage, match=r"--container=\./img: No such file"):
        submit("--container=./img", f"--chdir={tmp_path}", "--wrap=true")
    (tmp_path / "img").mkdir()
    found = submit("--container=./img", "--container-workdir=/w", f"--chdir={tmp_path}", "--wrap=true")
    assert (found.container, found.container_workdir) == (f"{tmp_path}/img", "/w")


@pytest.fixture
def submit():
    """submit(words…) -> the request."""
    from fgsched.domain.units import SubmitContext
    from fgsched.submission import options
    from fgsched.submission.checks import Process
    from fgsched.submission.prepare import SubmissionPreparer

    def submitted(*words):
        settings, rest = options.read(words)
        here = Process({}, "/", None)
        return SubmissionPreparer(here, site=SubmitContext()).prepare(settings, rest).submission.request

    return submitted
