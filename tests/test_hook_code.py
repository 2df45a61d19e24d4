"""The hook on modules and libraries, their variables, and the local memory of kernels."""

import os
import subprocess

import pytest

from fakecuda import Card
from fakecuda.job import make_job
from fgshim import region

pytestmark = pytest.mark.compiler
MIB, GIB = 1 << 20, 1 << 30
OK, OOM = 0, 2
HALF, FULL, FREE = (OK, GIB // 2, GIB), (OK, 0, GIB), (OK, GIB, GIB)
WAYS = [{}, {"FAKEJOB_VIA": "lookup"}]
WAY = pytest.mark.parametrize("way", WAYS, ids=["dlsym", "look-up"])
EAGER, LAZY = {"CUDA_MODULE_LOADING": "EAGER"}, {"CUDA_MODULE_LOADING": "LAZY"}
LOADS = ["module data", "module ex", "module fat", "module file", "library data", "library file"]
LAUNCHES = ["", " ex", " cooperative"]
FIRST_LOOKS = {  # what loads the variables of a lazily loaded module or library, number 0
    "function": ("module data", ["function 0"]),
    "variable": ("module data", ["global 0"]),
    "library-module": ("library data", ["library-module 0"]),
    "library-variable": ("library data", ["library-global 0"]),
    "kernel-function": ("library data", ["kernel 0", "kernel-function 1"]),
    "launch": ("library data", ["kernel 0", "run 1"]),
    "launch of an enumerated kernel": ("library data", ["kernels 0", "run 1"]),
    "launch with attributes": ("library data", ["kernel 0", "run 1 ex"]),
    "cooperative launch": ("library data", ["kernel 0", "run 1 cooperative"]),
}
FIRST_LOOK = pytest.mark.parametrize("first", FIRST_LOOKS)


@pytest.fixture
def job(driver, tmp_path, new_job):
    """A job that may hold 1 GiB of a card of 8 GiB with 32,768 threads."""
    gpu = Card(memory=8 * GIB, processors=16, threads=2048)
    return make_job(driver, tmp_path / "own", [(driver.gpus(gpu)[0], GIB)])


def gpu_of(job):
    return Card(uuid=job.region().gpus[0].uuid)


@WAY
@pytest.mark.parametrize("load", LOADS)
def test_variables_are_charged_when_they_are_loaded_and_given_back_when_they_are_unloaded(
    job, driver, load, way
):
    kind = load.split()[0]
    said = job.run(f"{load} 512M", "info", "alloc 514M", f"{kind}-end 0", "info", "alloc 1G", **way, **EAGER)
    assert said == [(OK,), HALF, (OOM,), (OK,), FREE, (OK,)]
    assert driver.high()[0] == GIB


@WAY
@pytest.mark.parametrize("load", LOADS)
def test_code_that_exceeds_the_limit_is_out_of_memory_and_is_not_kept(job, driver, load, way):
    said = job.run(f"{load} 3G", "info", "alloc 1G", **way, **EAGER)
    assert said == [(OOM,), FREE, (OK,)]
    assert driver.used()[0] == 0
    assert job.region().gpus[0].peak <= 3 * GIB
    assert job.region().refusal.startswith("GPU 0: 3072.0 MiB refused to process ")


@WAY
@FIRST_LOOK
def test_variables_that_are_loaded_lazily_are_charged_by_the_call_that_loads_them(job, driver, first, way):
    load, looks = FIRST_LOOKS[first]
    said = job.run(f"{load} 512M", "info", *looks, "info", "alloc 514M", **way, **LAZY)
    assert said[:2] == [(OK,), FREE]
    assert said[-2:] == [HALF, (OOM,)]
    kind = load.split()[0]
    assert job.run(f"{load} 512M", *looks, f"{kind}-end 0", "info", **way, **LAZY)[-1] == FREE


@FIRST_LOOK
def test_the_call_that_loads_variables_beyond_the_limit_is_out_of_memory_again_and_again(job, first):
    load, looks = FIRST_LOOKS[first]
    said = job.run(f"{load} 3G", *looks, looks[-1], "info", "alloc 1", **LAZY)
    assert [status for status, *_ in said[-4:]] == [OOM, OOM, OK, OOM]
    assert said[-2] == FULL


@pytest.mark.parametrize("how", LAUNCHES)
@pytest.mark.parametrize(
    "looks", [["module data 0 17408", "function 0"], ["library data 0 17408", "kernel 0"]]
)
def test_the_local_memory_of_a_kernel_is_charged_at_its_first_launch(job, driver, looks, how):
    """16 KiB more for each of 32,768 threads than the stacks that a context has."""
    said = job.run(*looks, "info", f"run 1{how}", "info", f"run 1{how}", "info", "alloc 514M", **LAZY)
    assert said[2:] == [FREE, (OK,), HALF, (OK,), HALF, (OOM,)]
    assert driver.used()[0] == 0


@FIRST_LOOK
def test_a_library_is_charged_again_when_it_is_loaded_into_the_next_context(job, first):
    load, looks = FIRST_LOOKS[first]
    if load.startswith("module"):
        pytest.skip("a module ends with its context")
    again = ["reset-primary", "primary", "info", looks[-1], "info", "alloc 514M"]
    said = job.run(f"{load} 512M", *looks, *again, **LAZY)
    assert (said[-4], said[-3][0], *said[-2:]) == (FREE, OK, HALF, (OOM,))


def test_a_function_that_is_looked_up_again_is_measured_once(job):
    """Also after it was launched, and after its module was unloaded and loaded again."""
    ways = ["function 0", "run 1", "function 0", "run 1", "module-end 0", "module data 0 17408", "function 3"]
    said = job.run("module data 0 17408", *ways, "run 4", "info", **LAZY)
    assert [status for status, *_ in said] == [OK] * 10
    assert said[-1] == HALF


def test_code_without_variables_costs_nothing(job):
    said = job.run("module data 0", "function 0", "run 1", "library data 0", "kernel 3", "run 4", "info")
    assert said[-1] == FREE


def test_what_the_job_allocates_meanwhile_is_counted_once(job, driver):
    """By a tool that the driver calls back in the midst of the call that loads."""
    said = job.run("tool cuModuleLoadData alloc 256M", "module data 256M", "info", **EAGER)
    assert said[-1] == HALF
    assert driver.high()[0] == GIB // 2


def test_what_programs_outside_the_job_allocate_meanwhile_is_not_charged_to_it(job, driver, tmp_path):
    """NVML tells what this process holds."""
    neighbour = make_job(driver, tmp_path / "other", [(gpu_of(job), 6 * GIB)])
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    os.mkfifo(asked)
    os.mkfifo(answered)
    keeps_open = os.open(asked, os.O_RDWR)
    words = ["sh", "-c", f"exec {driver.program} - <{asked} >{answered}"]
    other = subprocess.Popen(words, env=neighbour.environment())
    live = job.start(**EAGER)
    say = f"echo alloc 4G >{asked}; read line <{answered}"
    assert live.say(f"meanwhile cuModuleLoadData shell {say}") == (OK,)
    live.tell("module data 256M")
    assert {live.process.stdout.readline() for _ in range(2)} == {"shell 0\n", "module 0\n"}
    assert live.say("info") == (OK, GIB - 256 * MIB, GIB)
    assert driver.high()[0] == 4 * GIB + 256 * MIB
    live.end()
    os.close(keeps_open)
    other.wait()


@pytest.mark.parametrize("end", ["reset-primary", "release-primary"])
def test_the_end_of_a_context_gives_its_code_back(job, driver, end):
    said = job.run("module data 512M", end, "primary", "info", "alloc 1G", **EAGER)
    assert said[1:] == [(OK,), (OK,), FREE, (OK,)]
    assert driver.high()[0] == GIB


def test_a_module_that_the_driver_cannot_load_is_the_drivers_error(job, driver, tmp_path):
    hog = make_job(driver, tmp_path / "hog", [(gpu_of(job), 8 * GIB)]).start()
    assert hog.say("alloc 7680M") == (OK,)
    assert job.run("module data 1000M", "module data 500M", "info", **EAGER)[:2] == [(OOM,), (OK,)]
    assert job.region().refusal == ""
    hog.end()


def test_the_watchdogs_figure_takes_the_place_of_what_was_measured(job):
    live = job.start(**EAGER)
    assert live.say("module data 512M") == (OK,)
    region.set_seen(job.region_file, job.region().processes[0], 0, 640 * MIB)
    assert live.say("info") == (OK, GIB - 640 * MIB, GIB)
    assert live.say("module-end 0") == (OK,)
    assert live.say("info") == (OK, GIB - 128 * MIB, GIB)
    live.end()
