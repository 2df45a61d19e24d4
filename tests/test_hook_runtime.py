"""NVIDIA's own CUDA runtime, 12 and 13, over the fake driver: what it looks up, and what it is given.

The calls behind the look-ups fail: the runtime makes sure that a driver is NVIDIA's, and the fake one does
not pretend to be. By then it has all its functions.
"""

import subprocess
import sys
from typing import NamedTuple

import pytest

import fakecuda
import fgshim
from awaiting import PATIENCE
from cudapackages import Abi
from fakecuda import Card, everyname
from fakecuda.job import make_job
from fgshim import calls

pytestmark = [pytest.mark.compiler, pytest.mark.cudapackages]
HOOK, DRIVER = "libfgshim.so", "libcuda.so.1"
LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).cudaFree(None)"
PER_THREAD = 2


class Answer(NamedTuple):
    """One look-up, as tests/fakecuda/recorder.c writes it down."""

    way: str
    version: int
    flags: int
    status: int
    name: str
    library: str
    symbol: str


@pytest.fixture(scope="module")
def every_abi(cuda_runtime):
    return cuda_runtime(12).abis() | cuda_runtime(13).abis()


@pytest.fixture(scope="module")
def whole_driver(every_abi, tmp_path_factory):
    """A fake driver that knows every name of CUDA 13's headers."""
    if fakecuda.compiler() is None:
        pytest.skip("no C compiler here to build the fake driver with")
    folder = tmp_path_factory.mktemp("whole")
    driver = fakecuda.build(folder)
    (folder / "every.c").write_text(everyname.source(every_abi))
    fakecuda.build_library(DRIVER, folder, folder / "every.c")
    return driver


@pytest.fixture
def looked_up(whole_driver, cuda_runtime, tmp_path):
    """looked_up(major) -> all that this runtime was told while it started."""
    if not fgshim.library().exists():
        pytest.skip("the hook is not built: run setup.py build_ext --inplace")
    [gpu] = whole_driver.gpus(Card())
    job = make_job(whole_driver, tmp_path / "job", [(gpu, 1 << 30)])

    def start(major: int) -> list[Answer]:
        record = tmp_path / "record"
        env = job.environment(RECORDER_FILE=str(record))
        env["LD_PRELOAD"] = f"{whole_driver.folder / 'librecorder.so'}:{env['LD_PRELOAD']}"
        words = [sys.executable, "-c", LOAD, cuda_runtime(major).library]
        subprocess.run(words, env=env, check=True, capture_output=True, timeout=PATIENCE)
        rows = [line.split() for line in record.read_text().splitlines()]
        return [Answer(way, int(v), int(f), int(s), *rest) for way, v, f, s, *rest in rows]

    return start


def best(abis: set[Abi], asked: Answer) -> Abi | None:
    """Of a name the newest ABI that is old enough, and of two of them the one for the thread's own stream."""
    fits = [abi for abi in abis if abi.name == asked.name and abi.version <= asked.version]
    if asked.flags != PER_THREAD:
        fits = [abi for abi in fits if not abi.twin]
    return max(fits, key=lambda abi: (bool(abi.twin), abi.version), default=None)


@pytest.mark.parametrize(("major", "least"), [(12, 400), (13, 470)])
def test_the_runtime_gets_every_hooked_name_from_the_hook_in_the_abi_that_it_asked_for(
    looked_up, every_abi, major, least
):
    asked = [answer for answer in looked_up(major) if answer.way != "dlsym"]
    assert len(asked) >= least
    exports = everyname.exports(every_abi)
    ours = {call.export for call in calls.CALLS}
    names = {call.name for call in calls.CALLS if call.name}
    wrong = []
    for answer in asked:
        abi = best(every_abi, answer)
        if answer.name in names and (answer.library, answer.symbol) != (HOOK, exports.get(abi)):
            wrong.append(answer)
        if abi and answer.status == 0 and exports[abi] not in ours and answer.library != DRIVER:
            wrong.append(answer)
    assert wrong == []
    assert {answer.flags for answer in asked if answer.library == HOOK} == {0, PER_THREAD}


@pytest.mark.parametrize("major", [12, 13])
def test_the_runtime_finds_the_look_up_itself_in_the_hook_and_private_tables_in_the_driver(looked_up, major):
    found = {(answer.name, answer.library) for answer in looked_up(major)}
    assert ("cuGetProcAddress_v2", HOOK) in found
    assert ("cuGetExportTable", DRIVER) in found


def test_every_abi_and_twin_of_every_name_is_answered_as_the_table_says(whole_driver, every_abi, tmp_path):
    [gpu] = whole_driver.gpus(Card())
    job = make_job(whole_driver, tmp_path / "job", [(gpu, 1 << 30)])
    exports, ours = everyname.exports(every_abi), {call.export for call in calls.CALLS}
    for version, flags in ((2000, 0), (11020, 2), (12000, 0), (13050, 0), (13050, 2)):
        names = sorted({abi.name for abi in every_abi})
        words = [whole_driver.folder / "procs", str(version), str(flags), *names]
        said = subprocess.run(words, env=job.environment(), check=True, capture_output=True, text=True).stdout
        for name, line in zip(names, said.splitlines(), strict=True):
            abi = best(every_abi, Answer("", version, flags, 0, name, "", ""))
            expected = "nobody" if abi is None else HOOK if exports[abi] in ours else DRIVER
            assert line.split()[2] == expected, (name, version, flags)
