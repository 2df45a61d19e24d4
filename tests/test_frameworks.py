"""Frameworks that nobody of this project wrote, on the fake driver: numba-cuda, cuda-core and cuda-bindings.

They use the driver interface alone. PyTorch and JAX: test_torch, test_jax.
"""

import json

import pytest

from framework_host import LIMIT, MIB, FrameworkHost

pytestmark = [pytest.mark.compiler, pytest.mark.frameworks]
STREAM_MODES = {"legacy": "0", "per thread": "1"}  # CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM


@pytest.fixture
def host(framework_driver, framework, tmp_path):
    return FrameworkHost(framework("numba"), tmp_path, framework_driver(tmp_path))


def in_job_and_bare(host, client, **extra):
    """What the client prints in a job of 1 GiB on a card of 4 GiB, and on a bare card of 1 GiB."""
    job = host.job(host.gpu())
    fenced = host.in_job(job, client, **extra)
    assert (fenced.status, fenced.err) == (0, "")
    assert host.high() <= LIMIT / MIB
    assert job.region().gpus[0].refusals > 0
    host.gpu(LIMIT)
    return fenced.out, host.bare(client, **extra).out


def test_numba_has_in_a_job_what_it_has_on_a_card_of_that_size(host):
    fenced, bare = in_job_and_bare(host, "numba_client")
    assert fenced == bare
    said = json.loads(fenced)
    assert (said["view"], said["copied"], said["given"], said["after"]) == ([724, 1024], True, 720, 1024)
    assert said["refused"] == "Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"


@pytest.mark.parametrize("mode", STREAM_MODES)
def test_cuda_core_and_cuda_bindings_have_in_a_job_what_they_have_on_a_card_of_that_size(host, mode):
    extra = {"CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM": STREAM_MODES[mode]}
    fenced, bare = in_job_and_bare(host, "core_client", **extra)
    assert fenced == bare
    said = json.loads(fenced)
    assert (said["view"], said["after"]) == ([724, 1024], [724, 1024])
    assert (said["given"], said["given by a pool"], said["copied"]) == (720, 720, "contents")
    assert said["refused"] == "MemoryError: CUDA_ERROR_OUT_OF_MEMORY"
    assert said["refused by a pool"] == "CUDAError: CUDA_ERROR_OUT_OF_MEMORY:"


@pytest.mark.parametrize("client", ["numba_client", "core_client"])
def test_without_a_driver_they_fail_as_without_the_hook(host, client):
    job = host.job(host.gpu())
    job.env["LD_LIBRARY_PATH"] = ""
    plain = {name: text for name, text in job.environment().items() if name != "LD_PRELOAD"}
    fenced, bare = host.in_job(job, client), host.run(plain, client)
    assert (fenced.status, fenced.out, fenced.err) == (bare.status, bare.out, bare.err)
    assert fenced.status == 1


@pytest.mark.driverpackages
@pytest.mark.parametrize("mode", STREAM_MODES)
@pytest.mark.parametrize("branch", ["535", "550", "555"])
def test_cuda_bindings_get_the_answers_of_nvidias_driver_as_without_the_hook(
    host, driver_package, tmp_path, branch, mode
):
    """On NVIDIA's own library, which finds no GPU."""
    libraries = tmp_path / branch
    libraries.mkdir()
    (libraries / "libcuda.so.1").symlink_to(driver_package(branch).cuda)
    job = host.job(host.gpu())
    job.env["LD_LIBRARY_PATH"] = str(libraries)
    job.env["CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM"] = STREAM_MODES[mode]
    plain = {name: text for name, text in job.environment().items() if name != "LD_PRELOAD"}
    fenced, bare = (host.run(env, "bindings_client") for env in (job.environment(), plain))
    assert (fenced.status, fenced.err) == (0, "")
    assert fenced.out == bare.out
    assert "after cuMemAlloc CUDA_ERROR_NOT_INITIALIZED" in fenced.out
