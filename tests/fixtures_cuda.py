"""Fixtures: the fake driver, built once a session, and a job of one card and 1 GiB."""

from pathlib import Path

import pytest

import cudapackages
import driverpackages
import fakecuda
import fgshim
import frameworks
from compiled import compiled
from fakecuda import Card, full
from fakecuda.job import Job, make_job

GIB = 1 << 30


@pytest.fixture(scope="session")
def built_driver():
    """The compiled libraries. Skips where there is no compiler."""
    if fakecuda.compiler() is None:
        pytest.skip("no C compiler here to build the fake driver with")
    folder = compiled("driver", fakecuda.sources(), (), fakecuda.build)
    return fakecuda.FakeDriver(folder, folder / "cards")


@pytest.fixture
def driver(built_driver, tmp_path):
    """The fake driver over a card state of this test's own: call `.cards(…)` first."""
    return built_driver.at(tmp_path / "cards")


@pytest.fixture
def new_job(driver, tmp_path):
    """new_job(limit, …) -> a Job that may hold so many bytes on each of as many cards of 8 GiB."""
    if not fgshim.library().exists():
        pytest.skip("the hook is not built: run setup.py build_ext --inplace")
    gpus = driver.gpus(*[Card(memory=8 * GIB) for _ in range(4)])
    made = []

    def make(*limits: int) -> Job:
        made.append(1)
        return make_job(driver, tmp_path / f"job{len(made)}", list(zip(gpus, limits, strict=False)))

    return make


@pytest.fixture
def job(new_job):
    """A job that may hold 1 GiB on one card."""
    return new_job(GIB)


@pytest.fixture(scope="session")
def cuda_runtime():
    """cuda_runtime(12 or 13) -> NVIDIA's own package of that CUDA runtime. Skips where it cannot be had."""
    failed = {}

    def fetch(major: int) -> cudapackages.CudaRuntime:
        if major not in failed:
            try:
                return cudapackages.runtime(major)
            except (cudapackages.NotHere, OSError) as error:
                failed[major] = str(error)
        pytest.skip(failed[major])

    return fetch


@pytest.fixture(scope="session")
def driver_package():
    """driver_package("535") -> NVIDIA's libraries and nvidia-smi of a driver branch. Skips without them."""
    failed = {}

    def fetch(branch: str) -> driverpackages.Driver:
        if branch not in failed:
            try:
                return driverpackages.driver(branch)
            except (cudapackages.NotHere, OSError) as error:
                failed[branch] = str(error)
        pytest.skip(failed[branch])

    return fetch


@pytest.fixture(scope="session")
def framework():
    """framework("torch") -> that name, if the cache has its packages. Skips where it has not."""

    def check(group: str) -> str:
        if not fgshim.library().exists():
            pytest.skip("the hook is not built: run setup.py build_ext --inplace")
        if not frameworks.folder(group).exists():
            pytest.skip(f"{group} is not in the cache: run scripts/fetch {group}")
        return group

    return check


@pytest.fixture(scope="session")
def framework_driver(cuda_runtime):
    """framework_driver(folder) -> the fake driver for frameworks, over a card state in that folder."""

    def at(folder: Path) -> fakecuda.FakeDriver:
        if fakecuda.compiler() is None:
            pytest.skip("no C compiler here to build the fake driver with")
        runtimes = cuda_runtime(12), cuda_runtime(13)
        libraries = compiled(
            "framework-driver", fakecuda.sources(), runtimes, lambda place: full.build(place, *runtimes)
        )
        return fakecuda.FakeDriver(libraries, folder / "cards")

    return at
