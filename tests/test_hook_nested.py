"""The hook under tools that the driver calls back, and that call the driver in their turn."""

import pytest

from fakecuda import Card
from fakecuda.job import make_job

pytestmark = pytest.mark.compiler
MIB, GIB = 1 << 20, 1 << 30
OK = 0
CALLS = {  # of the driver, under a lock of the hook: what leads to each, and what makes it
    "cuMemMap": (["create 2M"], "map 0"),
    "cuMemUnmap": (["create 2M", "map 0"], "unmap 1"),
    "cuMemRelease": (["create 2M"], "release 0"),
    "cuMemRetainAllocationHandle": (["create 2M", "map 0"], "retain 1"),
    "cuMemExportToShareableHandle": (["create 2M"], "export 0"),
    "cuIpcGetMemHandle": (["alloc 2M"], "ipc-give 0"),
    "cuCtxDestroy_v2": (["context", "primary"], "context-end 0"),
    "cuGreenCtxDestroy": (["green", "primary"], "green-end 0"),
    "cuDevicePrimaryCtxRelease_v2": (["primary"], "release-primary"),
    "cuMemAllocAsync": ([], "async 2M"),
    "cuMemAllocFromPoolAsync": (["pool"], "from 0 2M"),
    "cuMemPoolCreate": ([], "pool"),
    "cuMemPoolDestroy": (["pool"], "pool-destroy 0"),
    "cuMemPoolTrimTo": (["async 2M", "threshold 1G"], "trim 0"),
    "cuMemPoolGetAttribute": (["async 2M"], "async 64M"),
    "cuGraphLaunch": (["stream", "capture", "async 16M", "graph", "instantiate 1"], "launch 2"),
    "cuDeviceGraphMemTrim": (
        ["stream", "capture", "async 16M", "graph", "instantiate 1", "launch 2"],
        "trim-graphs",
    ),
}


@pytest.mark.parametrize("tools", ["alloc 16M", "async 16M", "create 16M", "pool", "context"])
@pytest.mark.parametrize("call", CALLS)
def test_what_a_tool_takes_in_the_midst_of_a_call_is_counted_and_nobody_waits_for_himself(
    job, driver, call, tools
):
    live = job.start()
    first, last = CALLS[call]
    for command in [*first, f"tool {call} {tools}"]:
        assert live.say(command)[0] == OK
    assert live.say(last)[0] == OK  # the tool's own words come first
    assert live.process.stdout.readline().split()[1] == str(OK)
    assert job.region().gpus[0].held == driver.used()[0]
    live.end()


@pytest.mark.parametrize("call", ["cuEventCreate", "cuEventRecord", "cuEventQuery"])
def test_a_tool_may_launch_in_the_midst_of_what_times_a_launch(driver, tmp_path, call):
    (gpu,) = driver.gpus(Card(memory=8 * GIB))
    job = make_job(driver, tmp_path / "paced", [(gpu, GIB)], pacing=[("hard", 5000)])
    made = ["stream", "capture", "async 16M", "graph", "instantiate 1"]
    said = job.run(*made, f"tool {call} launch 2", *["launch 2"] * 3)
    assert said[len(made) :] == [(OK,)] * 5
