"""The table of hooked calls against CUDA's own headers of 12.x and 13.x."""

import inspect
import re

import pytest

from fakecuda.everyname import exports
from fgshim import calls, unhooked_calls

pytestmark = pytest.mark.cudapackages
REVEALS = re.compile(  # GPUs or processes outside the job
    r"nvml(DeviceGet(Count|HandleBy|Index|MemoryInfo)|\w*(Nearest|Set)Gpus|SystemGetTopologyGpuSet|UnitGetDevices"
    r"|(Device|System)Get(?!Vgpu)\w*(Process|AccountingPids|AccountingStats|Sessions))"
)


@pytest.fixture
def abis(cuda_runtime):
    """Every ABI that either header knows."""
    return cuda_runtime(12).abis() | cuda_runtime(13).abis()


def hooked():
    return [call for call in calls.CALLS if call.name]


def test_every_abi_and_every_twin_of_a_hooked_name_is_in_the_table(abis):
    names = {call.name for call in hooked()}
    real = {(abi.name, abi.version, abi.twin) for abi in abis if abi.name in names}
    ours = {(call.name, call.version, call.twin) for call in hooked()}
    assert real - ours == set(), "ABIs of hooked names that the table lacks"
    assert ours - real == set(), "rows that no header knows"


def test_every_row_has_the_name_that_the_driver_exports(abis, cuda_runtime):
    known = cuda_runtime(12).words() | cuda_runtime(13).words()
    real = {(abi.name, abi.version, abi.twin): export for abi, export in exports(abis).items()}
    for call in hooked():
        assert call.export == real[call.name, call.version, call.twin]
        assert call.export in known


def test_every_name_is_hooked_or_left_to_the_driver_for_a_reason(abis):
    names, ours = {abi.name for abi in abis}, {call.name for call in hooked()}
    left = set(unhooked_calls.unhooked())
    assert names - ours - left == set(), "names that are in neither list"
    assert ours & left == set(), "names that are in both lists"


def test_no_name_is_left_to_the_driver_for_two_reasons():
    names = [name for names in unhooked_calls.UNHOOKED.values() for name in names.split()]
    assert len(names) == len(set(names))


def test_what_the_hook_asks_is_known_to_cuda(abis):
    assert set(calls.ASKED[calls.CUDA]) - set(exports(abis).values()) == set()


@pytest.mark.parametrize("major", [12, 13])
def test_the_headers_are_read_whole(cuda_runtime, major):
    names = {abi.name for abi in cuda_runtime(major).abis()}
    assert len(names) > 430
    assert {"cuMemAlloc", "cuGraphicsGLRegisterBuffer", "cuProfilerStop", "cuCheckpointProcessLock"} <= names


def test_every_call_of_nvml_that_tells_of_cards_or_processes_is_in_the_table():
    """By pynvml, which knows all of them: what NVML has and the table lacks would show others to a job."""
    pynvml = pytest.importorskip("pynvml")
    known = set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', inspect.getsource(pynvml)))
    ours = {call.export for call in calls.CALLS if call.library == calls.NVML}
    assert {name for name in known if REVEALS.match(name)} - ours == set()
