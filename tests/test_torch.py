"""PyTorch, unmodified, on the fake driver: a job of a large card is to it a card of the job's size.

Copies have contents, and kernels compute nothing but fills. The runtime is tests/fakeruntime/cudart.c.
"""

import json
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest

import fakeruntime
import frameworks
from driver_host import hosting
from fakecuda import Card
from framework_host import CLIENTS, CONTEXT, LARGE, LIMIT, MIB, PATIENCE, FrameworkHost, command
from live_host import ROOT

pytestmark = [pytest.mark.compiler, pytest.mark.torch]
ALLOCATORS = {
    "native": "backend:native",
    "expandable": "expandable_segments:True",
    "async": "backend:cudaMallocAsync",
}
SCENARIOS = "refusal,growth,streams,graph"
PACES = {10_000: 1, 5_000: 2, 2_500: 4}  # share, in ten-thousandths of a GPU: how much longer kernels take
KERNELS, KERNEL_NS = 1000, 1_000_000
EXAMPLE = CLIENTS.parents[1] / "examples/torch_quarter.py"


@pytest.fixture(scope="module")
def torch_libraries(framework, cuda_runtime, tmp_path_factory):
    """The libraries that PyTorch needs beside the driver."""
    folder = tmp_path_factory.mktemp("torch") / "libraries"
    return fakeruntime.build_for_torch(
        folder, frameworks.folder(framework("torch")) / "torch", cuda_runtime(13)
    )


@pytest.fixture
def host(torch_libraries, framework_driver, tmp_path):
    return FrameworkHost("torch", tmp_path, framework_driver(tmp_path), (torch_libraries,))


def settings(allocator):
    return {"PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator]}


def facts(text):
    """What the program printed, a dictionary for each line."""
    return [json.loads(line) for line in text.splitlines()]


def in_job(host, job, *words, **extra):
    said = host.in_job(job, "torch_client", *words, **extra)
    assert said.status == 0, said.err
    return facts(said.out)


@dataclass
class Holder:
    """A PyTorch that holds memory until it is told to go on."""

    process: subprocess.Popen

    def line(self):
        return json.loads(self.process.stdout.readline())

    def go_on(self):
        out, _ = self.process.communicate("\n", timeout=PATIENCE)
        return facts(out)


@pytest.fixture
def holder():
    """holder(environment, MiB) -> a Holder that holds so much."""
    started = []

    def start(env, size):
        words, pipe = command("torch_client", "hold", str(size)), subprocess.PIPE
        started.append(Holder(subprocess.Popen(words, env=env, stdin=pipe, stdout=pipe, text=True)))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


def test_the_runtime_for_pytorch_has_every_function_that_pytorch_imports(torch_libraries):
    torch = frameworks.folder("torch") / "torch"
    words = ["nm", "--dynamic", "--defined-only", torch_libraries / fakeruntime.CUDART]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    exported = set(re.findall(r" T (\w+)", said))
    assert fakeruntime.imports(torch).names[fakeruntime.CUDART] - exported == set()


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_a_job_on_a_large_card_prints_what_a_bare_card_of_its_size_prints(host, allocator):
    fenced = host.in_job(host.job(host.gpu()), "torch_client", SCENARIOS, **settings(allocator))
    assert fenced.status == 0, fenced.err
    assert LIMIT / MIB - 64 < host.high() <= LIMIT / MIB
    host.gpu(LIMIT)
    assert host.bare("torch_client", SCENARIOS, **settings(allocator)).out == fenced.out
    said = facts(fenced.out)
    assert said[0] == {"total": 1024.0, "view": [724.0, 1024.0]}
    assert said[1]["given"] == 704
    assert "out of memory" in said[1]["text"]
    assert said[3] == {"empty": [724.0, 1024.0], "sum": 1048576.0}


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_at_random_steps_free_memory_and_the_drivers_own_count_are_the_limit(host, allocator):
    said = in_job(host, host.job(host.gpu()), "fuzz", "1", "2", **settings(allocator))
    assert said == [{"refused": True, "wrong": [], "high": True}] * 2


def test_the_example_runs_in_a_job_of_a_controller(torch_libraries, framework_driver, tmp_path):
    driver = framework_driver(tmp_path)
    framework = FrameworkHost("torch", tmp_path, driver, (torch_libraries,))
    line = f"exec {command('')[0]} {EXAMPLE}"
    with hosting(tmp_path / "home", driver, Card("H100", memory=8 << 30, context=CONTEXT)) as host:
        host.extra = framework.environment() | {"PYTHONWARNINGS": "ignore"}
        outputs = []
        for share in ("0.25", "0.25", "0.5"):
            output = tmp_path / f"output{len(outputs)}"
            done = host.run("fgsub", "--wait", f"--gpus={share}", f"--output={output}", "--wrap", line)
            assert done.status == 0, output.read_text()
            outputs.append(output.read_text())
    totals = [re.search(r"before: \d+ of (\d+) MiB free", text)[1] for text in outputs]
    assert totals == ["2048", "2048", "4096"]
    assert all("twice the share: refused, as expected" in text for text in outputs)


def test_the_text_of_a_refusal_names_processes_of_the_job_only(host, holder):
    gpu = host.gpu()
    job, other = host.job(gpu), host.job(gpu)
    stranger, neighbour = holder(other.environment(), 200), holder(job.environment(), 200)
    assert (stranger.line(), neighbour.line()) == ({"holds": [524.0, 1024.0]},) * 2
    text = in_job(host, job, "fraction")[0]["text"]
    assert f"Process {neighbour.process.pid}" in text
    assert f"Process {stranger.process.pid}" not in text
    assert "of which 0 bytes is free" in text


def test_a_job_of_two_of_three_gpus_meets_the_limit_of_each(host):
    large, _, third = host.driver.gpus(*(Card(memory=LARGE, context=CONTEXT) for _ in range(3)))
    said = in_job(host, host.job_of((third, LIMIT), (large, 2 * LIMIT)), "cards")
    assert said == [
        {"gpu": 0, "total": 1024, "given": 704, "refused": True},
        {"gpu": 1, "total": 2048, "given": 1728, "refused": True},
        {"count": 2, "copied": True},
    ]
    assert host.driver.high()[1] == 0


@pytest.mark.parametrize("allocator", ["native", "expandable"])
def test_memory_shared_between_processes_is_counted_once(host, allocator):
    said = in_job(host, host.job(host.gpu()), "share", **settings(allocator))
    assert said == [
        {"before": [524.0, 1024.0]},
        {"child": [224.0, 1024.0], "shape": [200 * MIB]},  # less the child's own context
        {"after": [524.0, 1024.0], "status": 0},
    ]
    assert host.high() == 200 + 2 * CONTEXT / MIB


def test_monitoring_functions_show_the_job_alone(host, holder):
    gpu = host.gpu()
    stranger = holder(host.job(gpu).environment(), 200)
    stranger.line()
    said = in_job(host, host.job(gpu), "processes")
    assert said == [{"used": 600.0, "listed": 1, "own": 1, "kept": 300 * MIB}]


@pytest.mark.parametrize(("share", "times"), PACES.items())
def test_kernels_of_a_paced_job_take_as_much_longer_as_its_share_is_smaller(host, share, times):
    """The clock is real: a job is never faster than its share allows, and a busy host makes it slower."""
    job = host.job(host.gpu(), pacing=[("hard", share)])
    [said] = in_job(host, job, "launches", str(KERNELS), FAKE_CUDA_KERNEL_NS=str(KERNEL_NS))
    least = times * KERNELS * KERNEL_NS / 1e9
    assert said["seconds"] > 0.93 * least


def test_a_second_process_in_a_full_job_is_refused_and_the_first_goes_on(host, holder):
    job = host.job(host.gpu())
    full = holder(job.environment(), 600)
    assert full.line() == {"holds": [124.0, 1024.0]}
    said = in_job(host, job, "first")
    assert said == [{"error": "torch.AcceleratorError", "text": "CUDA error: out of memory"}]
    assert full.go_on() == [{"more": 1000.0, "held": 600, "view": [122.0, 1024.0]}]


def test_memory_of_a_killed_process_is_free_for_the_next(host, holder):
    job = host.job(host.gpu())
    full = holder(job.environment(), 600)
    full.line()
    full.process.kill()
    full.process.communicate()
    assert in_job(host, job, "growth")[0]["view"] == [624.0, 1024.0]


GPU_CHECK = """
import io, json, sys
sys.path.insert(0, sys.argv[1])
import torch_programs as programs
for how in ("kernels", "graph"):
    sys.stdin = io.StringIO("go\\n")
    programs.train("0.02", how)
sys.stdin = io.StringIO("go\\n")
print(len(programs.latency("0.01")["us"]) > 0)
sys.stdin = io.StringIO("end\\n")
programs.hungry("64")
print(json.dumps(programs.views(str(64 << 20))))
"""


def test_programs_of_gpu_check_run_in_a_job(host):
    gpu = host.gpu()
    env = host.job(gpu).environment(CUDA_VISIBLE_DEVICES=gpu.uuid, PYTHONWARNINGS="ignore")
    words = [sys.executable, "-c", GPU_CHECK, str(ROOT / "scripts/gpucheck")]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    marks = [one["marks"] for one in said if "marks" in one]
    assert [(first[1:], last[1] >= 10) for first, *_, last in marks] == [([0.0, 0.0], True)] * 2
    assert {tuple(view) for name, view in said[-1].items() if name != "nvidia-smi"} == {
        tuple(said[-1]["torch"])
    }
    assert said[-1]["torch"][0] == LIMIT
    assert "True" in done.stdout.splitlines()


def test_without_a_driver_pytorch_sees_no_gpu_as_without_the_hook(host):
    job = host.job(host.gpu())
    job.env["LD_LIBRARY_PATH"] = str(host.libraries[0])
    plain = {name: text for name, text in job.environment().items() if name != "LD_PRELOAD"}
    fenced, bare = (host.run(env, "torch_client", "growth") for env in (job.environment(), plain))
    assert (fenced.status, fenced.out) == (bare.status, bare.out) == (1, "")
    assert fenced.err.splitlines()[-1] == bare.err.splitlines()[-1]
