"""The hook against NVIDIA's own libcuda and libnvidia-ml of ten driver branches.

No GPU is needed: the libraries load, and answer look-ups, without one.
"""

import re
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import driverpackages
import fakecuda
import fgshim
from driverpackages import BRANCHES, Driver
from fakecuda import Card, FakeDriver
from fakecuda.job import Job, make_job
from fgshim import calls, unhooked_calls
from test_hook_table import REVEALS

pytestmark = [pytest.mark.compiler, pytest.mark.driverpackages]
GIB = 1 << 30
HOOK = "libfgshim.so"
HOOKED = {call.export for call in calls.CALLS}
LOOKS_UP = [branch for branch in BRANCHES if int(branch) >= 470]  # with cuGetProcAddress, since CUDA 11.3
HOLDS, NOT_LOADED = 90, 91  # exit codes of fgprove
SEAL_AT = 96  # offset of the checksum in a region, in bytes
VERSIONS = (
    *(1000, 2000, 3000, 3010, 3020, 4000, 4010, 5000, 5050, 6000, 6050, 7000, 7050, 8000, 9000, 9010, 9020),
    *(
        10000,
        10010,
        10020,
        11000,
        11010,
        11020,
        11030,
        11040,
        11050,
        11060,
        11070,
        11080,
        12000,
        12010,
        12020,
    ),
    *(12030, 12040, 12050, 12060, 12080, 12090, 13000, 13010, 13050, 99999),
)


@dataclass(frozen=True, slots=True)
class Library:
    """One of NVIDIA's libraries, in a folder under the name by which programs load it."""

    name: str
    path: Path
    at: dict[str, set[str]] = field(default_factory=dict)  # address in the library -> names

    @property
    def exports(self) -> set[str]:
        return set().union(*self.at.values())


def read(name: str, path: Path) -> Library:
    """Read the exported names of a library and their addresses."""
    words = ["nm", "--dynamic", "--defined-only", path]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    library = Library(name, path)
    for address, _, symbol in (line.split() for line in said.splitlines()):
        library.at.setdefault(f"{int(address, 16):x}", set()).add(symbol.partition("@")[0])
    return library


@pytest.fixture(scope="module")
def real(driver_package):
    """real(branch) -> its libcuda and its libnvidia-ml."""
    read_before = {}

    def libraries(branch: str) -> tuple[Library, Library]:
        if branch not in read_before:
            package = driver_package(branch)
            cuda, nvml = read("libcuda.so.1", package.cuda), read("libnvidia-ml.so.1", package.nvml)
            read_before[branch] = cuda, nvml
        return read_before[branch]

    return libraries


@pytest.fixture(scope="module")
def asks(tmp_path_factory):
    """The program that prints the answers to look-ups."""
    if fakecuda.compiler() is None:
        pytest.skip("no C compiler here")
    return fakecuda.compile_c([fakecuda.HERE / "asks.c"], tmp_path_factory.mktemp("asks") / "asks", "-ldl")


@pytest.fixture(scope="module")
def zeros(tmp_path_factory):
    """The program that calls functions with one number as every argument."""
    if fakecuda.compiler() is None:
        pytest.skip("no C compiler here")
    return fakecuda.compile_c([fakecuda.HERE / "zeros.c"], tmp_path_factory.mktemp("zeros") / "zeros", "-ldl")


@pytest.fixture
def real_job(real, driver_package, tmp_path):
    """real_job(branch) -> a job whose programs load NVIDIA's libraries of that branch."""
    if not fgshim.library().exists():
        pytest.skip("the hook is not built: run setup.py build_ext --inplace")

    def make(branch: str) -> Job:
        folder = tmp_path / branch
        folder.mkdir()
        for library in real(branch):
            (folder / library.name).symlink_to(library.path)
        for path in driver_package(branch).libraries:
            (folder / path.name).symlink_to(path)
        return make_job(FakeDriver(folder, tmp_path / "none"), tmp_path / "job", [(Card(), GIB)])

    return make


def stranger(job: Job) -> dict[str, str]:
    """Return the environment of a program outside a job."""
    return {name: text for name, text in job.environment().items() if name != "LD_PRELOAD"}


def base(export: str) -> str:
    """Return the name of an export without its version and its per-thread suffix."""
    return re.sub(r"(_v\d+)?(_pts[zd]|_ptds)?$", "", export)


@pytest.mark.parametrize("branch", BRANCHES)
def test_every_export_of_libcuda_is_hooked_or_left_to_the_driver_for_a_reason(real, branch):
    cuda, _ = real(branch)
    left = unhooked_calls.unhooked()
    assert {name for name in cuda.exports if name not in HOOKED and base(name) not in left} == set()
    assert len(cuda.exports) > 290


@pytest.mark.cudapackages
def test_no_name_is_left_to_the_driver_that_neither_a_driver_nor_a_header_knows(real, cuda_runtime):
    exports = {base(name) for branch in BRANCHES for name in real(branch)[0].exports}
    headers = {abi.name for abi in cuda_runtime(12).abis() | cuda_runtime(13).abis()}
    assert set(unhooked_calls.unhooked()) - exports - headers == set()


@pytest.mark.parametrize("branch", [*BRANCHES, *driverpackages.INSTALLED])
def test_every_export_of_nvml_that_reveals_gpus_or_processes_is_hooked(driver_package, branch):
    nvml = read("libnvidia-ml.so.1", driver_package(branch).nvml)
    reveals = {name for name in nvml.exports if REVEALS.match(name)}
    assert reveals - HOOKED == set()
    assert len(nvml.exports) > 110


def answers(asks: Path, library: Library, names: set[str], env: dict[str, str], *versions: int) -> list[str]:
    """Return what each look-up of these names answers, one line each."""
    words = [asks, library.name, *map(str, versions)]
    text = "".join(f"{name}\n" for name in sorted(names))
    return subprocess.run(
        words, input=text, env=env, check=True, capture_output=True, text=True
    ).stdout.splitlines()


def differences(library: Library, plain: list[str], hooked: list[str]) -> list[tuple[str, str]]:
    """Return the answers that are wrong with the hook: (without it, with it).

    The answer with the hook is the answer without it, but for the address of a hooked export: the hook's
    export of that name replaces it.
    """
    ours = {address: names & HOOKED for address, names in library.at.items() if names & HOOKED}
    wrong = []
    for without, with_hook in zip(plain, hooked, strict=True):
        told, where, address = without.rsplit(" ", 2)
        names = ours.get(address, ()) if where == library.name else ()
        right = {f"{told} {HOOK} {name}" for name in names} or {without}
        if with_hook not in right:
            wrong.append((without, with_hook))
    return wrong


@pytest.mark.parametrize("branch", LOOKS_UP)
def test_every_look_up_of_every_name_version_and_flag_is_answered_as_without_the_hook(
    real, real_job, asks, branch
):
    cuda, job = real(branch)[0], real_job(branch)
    names = (
        cuda.exports | {base(name) for name in cuda.exports} | set(unhooked_calls.unhooked()) | {"cuNothing"}
    )
    plain = answers(asks, cuda, names, stranger(job), *VERSIONS)
    hooked = answers(asks, cuda, names, job.environment(), *VERSIONS)
    assert len(plain) > 60_000
    wrong = differences(cuda, plain, hooked)
    assert wrong == []


@pytest.mark.parametrize("branch", BRANCHES)
def test_every_export_is_looked_up_by_dlsym_and_dlvsym_as_without_the_hook(real, real_job, asks, branch):
    job = real_job(branch)
    for library in real(branch):
        names = library.exports | HOOKED - {
            call.export for call in calls.LOOKUP if call.library == calls.LINKER
        }
        plain = answers(asks, library, names, stranger(job))
        hooked = answers(asks, library, names, job.environment())
        assert differences(library, plain, hooked) == []
        replaced = {line.split()[3] for line in hooked if line.split()[6] == HOOK}
        assert replaced == HOOKED & library.exports


@pytest.mark.parametrize(
    ("branch", "init"), [*((branch, ()) for branch in BRANCHES), ("555", ("cuInit", "nvmlInit_v2"))]
)
def test_hooked_calls_with_zeros_answer_as_without_the_hook(real, real_job, zeros, branch, init):
    """The driver finds no GPU, so each call fails, and two crash."""
    for plain, hooked in called_with(0, real, real_job, zeros, branch, init):
        assert hooked == plain
        assert len(plain) >= 8


@pytest.mark.parametrize("init", [(), ("cuInit", "nvmlInit_v2")], ids=["before", "after"])
def test_hooked_calls_with_wild_pointers_answer_as_without_the_hook(real, real_job, zeros, init):
    """Where the driver itself reads such a pointer and crashes, the hook may answer."""
    for plain, hooked in called_with(-1, real, real_job, zeros, "555", init):
        crashes = {name for name, *status in map(str.split, plain) if status[0] == "signal"}
        kept = [line for line in hooked if line.split()[0] not in crashes]
        assert kept == [line for line in plain if line.split()[0] not in crashes]


def called_with(number, real, real_job, zeros, branch, init):
    """Yield the answers of hooked functions without and with the hook. Each argument is this number."""
    job = real_job(branch)
    for at, library in enumerate(real(branch)):
        names = "".join(f"{name}\n" for name in sorted(HOOKED & library.exports))
        words = [zeros, library.name, str(number), *init[at : at + 1]]
        yield tuple(
            subprocess.run(
                words, input=names, env=env, check=True, capture_output=True, text=True
            ).stdout.splitlines()
            for env in (stranger(job), job.environment())
        )


@pytest.mark.parametrize("branch", BRANCHES)
def test_the_prover_holds_on_the_real_driver_and_tells_a_missing_hook(real_job, branch):
    job = real_job(branch)
    [seal] = struct.unpack_from("<Q", job.region_file.read_bytes(), SEAL_AT)
    words = [fgshim.library().with_name("fgprove"), job.folder / HOOK, "1", "1", f"{seal:x}"]
    for env, code in ((job.environment(), HOLDS), (stranger(job), NOT_LOADED)):
        assert subprocess.run(words, env=env, capture_output=True, check=False).returncode == code


def test_the_packages_of_every_branch_are_of_that_branch(driver_package):
    versions = [driver_package(branch).version for branch in BRANCHES]
    assert [version.partition(".")[0] for version in versions] == list(BRANCHES)
    assert isinstance(driver_package("535"), Driver)
    assert driverpackages.packages("535") == ["libcuda1", "libnvidia-ml1", "nvidia-smi"]
    assert driverpackages.packages("418") == [
        "libnvidia-tesla-418-cuda1",
        "libnvidia-tesla-418-ml1",
        "nvidia-tesla-418-smi",
        "libnvidia-tesla-418-fatbinaryloader",
    ]
