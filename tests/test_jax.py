"""JAX, unmodified, on the fake driver: allocate, copy, compile and launch, meet the limit."""

import json

import pytest

import fakeruntime
from framework_host import LIMIT, MIB, FrameworkHost

pytestmark = [pytest.mark.compiler, pytest.mark.frameworks]
# NVIDIA's assembler is not there, so the driver compiles.
XLA = {"XLA_FLAGS": "--xla_gpu_unsafe_fallback_to_driver_on_ptxas_not_found=true", "JAX_PLATFORMS": "cuda"}


@pytest.fixture
def host(framework, framework_driver, cuda_runtime, tmp_path):
    group = framework("jax")
    libraries = fakeruntime.build_for_jax(tmp_path / "libraries", cuda_runtime(13))
    return FrameworkHost(group, tmp_path, framework_driver(tmp_path), (libraries,))


def test_jax_has_in_a_job_what_it_has_on_a_card_of_that_size(host):
    """It takes three quarters of the card as its limit, and meets the card's own end before."""
    fenced = host.in_job(host.job(host.gpu()), "jax_client", **XLA)
    assert fenced.status == 0, fenced.err
    assert host.high() <= LIMIT / MIB
    host.gpu(LIMIT)
    assert host.bare("jax_client", **XLA).out == fenced.out
    assert json.loads(fenced.out) == {
        "limit": 768,
        "copied": True,
        "launched": [1000],
        "refused": "RESOURCE_EXHAUSTED",
        "given": 704,
    }


def test_without_a_driver_jax_fails_as_without_the_hook(host):
    job = host.job(host.gpu())
    job.env["LD_LIBRARY_PATH"] = ""
    plain = {name: text for name, text in (job.environment() | XLA).items() if name != "LD_PRELOAD"}
    fenced, bare = (host.run(env, "jax_client") for env in (job.environment(**XLA), plain))
    assert (fenced.status, fenced.out) == (bare.status, bare.out) == (1, "")
    assert fenced.err.splitlines()[-1] == bare.err.splitlines()[-1]
