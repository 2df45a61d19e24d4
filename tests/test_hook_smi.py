"""The private table of NVML out of which nvidia-smi takes its list of processes.

NVIDIA promises nothing about this table. The hook changes it only on the driver branches of
`BRANCHES`, where NVIDIA's own nvidia-smi shows here, over the fake NVML, that it reads the
table as the hook writes it: which slots are lists, and how an entry of a list is laid out.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import driverpackages
import fgshim
from fakecuda import Card
from fakecuda.job import make_job

pytestmark = pytest.mark.compiler
pytest.importorskip("pynvml")
MIB, GIB = 1 << 20, 1 << 30
BRANCHES = ["535", "550", "555", "580"]
WITHOUT_TABLE = ["340", "390", "418", "450", "460", "470"]  # nvidia-smi uses NVML's public functions
FAILS = (
    "390"  # prints an error instead of the table, also without the hook: it lacks functions of the fake NVML
)
MONITORS = [*BRANCHES, "418", "450", "460", "470"]  # 340 has no pmon, that of 390 does not run here
OTHER_LAYOUTS = ["525"]  # the entries of its lists are laid out in another way
LISTS = {"213": "C", "213,214": "M+C", "214,215": "M+C+G", "215": "G"}  # slots that list: the type shown
REPORTS = (
    ("-q",),
    ("-q", "-x"),
    ("--query-accounted-apps=pid,max_memory_usage", "--format=csv"),
)

SMI = """
import ctypes, json, sys, pynvml as nvml
class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint),
                ("ci", ctypes.c_uint), ("secret", ctypes.c_ulonglong), ("name", ctypes.c_char * 4096)]
table, other = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p()
ident = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")
if sys.argv[2] == "init":
    nvml.nvmlInit()
said = {"status": ctypes.CDLL("libnvidia-ml.so.1").nvmlInternalGetExportTable(ctypes.byref(table), ident)}
if sys.argv[2] != "init":
    nvml.nvmlInit()
said["unknown"] = nvml.nvmlLib.nvmlInternalGetExportTable(ctypes.byref(other), bytes(16))
call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
def listed(slot, device):
    count, room = ctypes.c_uint(250), (Process * 250)()
    assert call(table[slot])(device, ctypes.addressof(count), ctypes.addressof(room)) == 0
    return [[one.pid, one.used] for one in room[: count.value]]
def card(index):
    device = ctypes.c_void_p()
    status = call(table[81])(index, ctypes.addressof(device), 0x22)
    return nvml.nvmlDeviceGetName(device) if status == 0 else status
twice = ctypes.c_uint()
call(table[80])(21, ctypes.addressof(twice), 0)
said["other"] = twice.value
said["cards"] = [card(index) for index in range(3)]
device = ctypes.c_void_p()
call(table[81])(int(sys.argv[1]), ctypes.addressof(device), 0x22)
said["lists"] = [sorted(listed(slot, device)) for slot in (213, 214, 215)] if device else None
print(json.dumps(said))
"""


@pytest.fixture
def busy(driver, tmp_path):
    """Two jobs on the second of two cards; the first job's process holds 64 MiB there."""
    gpus = driver.gpus(Card("one"), Card("two"))
    jobs = [make_job(driver, tmp_path / name, [(gpus[1], GIB)]) for name in "ab"]
    live = [job.start(CUDA_VISIBLE_DEVICES="0") for job in jobs]
    assert [process.say("alloc 64M") for process in live] == [(0,), (0,)]
    yield jobs[0], [process.process.pid for process in live]
    for process in live:
        process.end()


def table_of(job, gpu=0, first="init", **extra):
    """What a program finds in the table, and in the lists of that card; `first`: what it asks for first."""
    words = [sys.executable, "-c", SMI, str(gpu), first]
    done = subprocess.run(words, env=job.environment(**extra), check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def smi(tools, env, *words):
    """What NVIDIA's nvidia-smi prints over the fake NVML, which says that it is of the same version."""
    env = {**env, "FAKE_NVML_VERSION": tools.version}
    return subprocess.run([tools.smi, *words], env=env, check=True, capture_output=True, text=True).stdout


def rows(tools, env):
    """(pid, MiB) of each process that nvidia-smi lists."""
    said = smi(tools, env, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    return sorted(tuple(map(int, line.split(", "))) for line in said.splitlines())


def details(tools, env, slots):
    """(pid, type, name, MiB) of each process of nvidia-smi -q, where the fake NVML lists them in `slots`."""
    said = smi(tools, {**env, "FAKE_SMI_SLOTS": slots}, "-q", "-d", "PIDS")
    entry = r"Process ID +: (\d+)\s+Type +: (\S+)\s+Name +: (\S+)\s+Used GPU Memory +: (\d+) MiB"
    return sorted((int(pid), kind, name, int(used)) for pid, kind, name, used in re.findall(entry, said))


def table(tools, env, slots="213"):
    """(pid, MiB) of each process in the table that nvidia-smi prints without arguments."""
    env = {**env, "FAKE_NVML_VERSION": tools.version, "FAKE_SMI_SLOTS": slots}
    said = subprocess.run([tools.smi], env=env, capture_output=True, text=True, errors="replace", check=False)
    row = r"^\|\s+\d+(?:\s+N/A)*\s+(\d+)\s.*?(\d+)MiB \|$"
    processes = re.findall(row, said.stdout.partition("rocesses:")[2], re.MULTILINE)
    return sorted((int(pid), int(used)) for pid, used in processes)


def monitored(tools, env, report):
    """The rows of one round of nvidia-smi pmon or dmon, as words."""
    said = smi(tools, env, report, "-c", "1", *(["-s", "m"] if report == "pmon" else []))
    return [line.split() for line in said.splitlines() if not line.startswith("#")]


def endless(tools, env, report, lines):
    """The first lines of a report that is repeated each second until its end: a head of two, then rows."""
    env = {**env, "FAKE_NVML_VERSION": tools.version}
    with subprocess.Popen([tools.smi, report], env=env, stdout=subprocess.PIPE, text=True) as process:
        said = "".join(process.stdout.readline() for _ in range(lines))
        process.kill()
    return said


def named(pids, text):
    """Those of the processes that the text names, in their order."""
    return [pid for pid in pids if re.search(rf"\b{pid}\b", text)]


def stranger(job):
    """The environment of a program that no job has started."""
    return {name: text for name, text in job.environment().items() if name != "LD_PRELOAD"}


@pytest.mark.driverpackages
@pytest.mark.parametrize("branch", BRANCHES)
def test_nvidias_program_reads_the_table_as_the_fake_writes_it(busy, driver_package, branch):
    job, pids = busy
    tools, program = driver_package(branch), str(job.driver.program)
    assert rows(tools, stranger(job)) == sorted((pid, 64) for pid in pids)
    for slots, kind in LISTS.items():
        assert details(tools, stranger(job), slots) == sorted((pid, kind, program, 64) for pid in pids)


@pytest.mark.driverpackages
@pytest.mark.parametrize("branch", BRANCHES)
def test_nvidias_program_shows_in_a_job_only_the_jobs_processes(busy, driver_package, branch):
    job, pids = busy
    tools, program = driver_package(branch), str(job.driver.program)
    assert rows(tools, job.environment()) == [(pids[0], 64)]
    for slots, kind in LISTS.items():
        assert details(tools, job.environment(), slots) == [(pids[0], kind, program, 64)]


@pytest.mark.driverpackages
@pytest.mark.parametrize("branch", BRANCHES)
def test_nvidias_program_shows_in_a_job_only_the_jobs_gpus(busy, driver_package, branch):
    said = smi(driver_package(branch), busy[0].environment(), "-L")
    assert re.findall(r"GPU (\d): (\w+)", said) == [("0", "two")]


@pytest.mark.driverpackages
@pytest.mark.parametrize("branch", WITHOUT_TABLE)
def test_nvidias_older_programs_show_in_a_job_only_the_jobs_processes_and_gpus(busy, driver_package, branch):
    job, pids = busy
    tools = driver_package(branch)
    assert rows(tools, stranger(job)) == sorted((pid, 64) for pid in pids)
    assert rows(tools, job.environment()) == [(pids[0], 64)]
    assert re.findall(r"GPU (\d): (\w+)", smi(tools, job.environment(), "-L")) == [("0", "two")]


@pytest.mark.driverpackages
@pytest.mark.parametrize("branch", [*BRANCHES, *(branch for branch in WITHOUT_TABLE if branch != FAILS)])
def test_the_table_that_nvidias_program_prints_has_in_a_job_only_the_jobs_processes(
    busy, driver_package, branch
):
    job, pids = busy
    tools = driver_package(branch)
    for slots in LISTS if branch in BRANCHES else ("213",):
        assert table(tools, stranger(job), slots) == sorted((pid, 64) for pid in pids)
        assert table(tools, job.environment(), slots) == [(pids[0], 64)]


@pytest.mark.driverpackages
@pytest.mark.parametrize("words", REPORTS, ids=" ".join)
@pytest.mark.parametrize("branch", [*BRANCHES, "470"])
def test_other_reports_of_nvidias_program_name_in_a_job_only_the_jobs_processes(
    busy, driver_package, branch, words
):
    job, pids = busy
    tools = driver_package(branch)
    assert named(pids, smi(tools, stranger(job), *words)) == pids
    assert named(pids, smi(tools, job.environment(), *words)) == pids[:1]


@pytest.mark.driverpackages
@pytest.mark.parametrize("report", ["encodersessions", "fbcsessions"])
@pytest.mark.parametrize("branch", ["470", "555", "580"])
def test_sessions_that_nvidias_program_lists_are_in_a_job_only_the_jobs(busy, driver_package, branch, report):
    job, pids = busy
    tools = driver_package(branch)
    assert named(pids, endless(tools, stranger(job), report, 5)) == pids
    assert named(pids, endless(tools, job.environment(), report, 4)) == pids[:1]


@pytest.mark.driverpackages
@pytest.mark.parametrize("branch", MONITORS)
def test_the_monitors_of_nvidias_program_show_in_a_job_only_the_jobs_processes_and_gpus(
    busy, driver_package, branch
):
    job, pids = busy
    tools = driver_package(branch)
    for env, seen, gpus in ((stranger(job), pids, ["0", "1"]), (job.environment(), pids[:1], ["0"])):
        rows = monitored(tools, env, "pmon")
        assert sorted((int(row[1]), row[3]) for row in rows if row[1] != "-") == [(pid, "64") for pid in seen]
        assert [row[0] for row in monitored(tools, env, "dmon")] == gpus


@pytest.mark.driverpackages
@pytest.mark.parametrize("branch", [*driverpackages.BRANCHES, *driverpackages.INSTALLED])
def test_nvidias_program_shows_in_a_job_the_jobs_memory(busy, driver_package, branch):
    words = ("--query-gpu=name,memory.total,memory.used,memory.free", "--format=csv,noheader,nounits")
    job, tools = busy[0], driver_package(branch)
    assert smi(tools, job.environment(), *words) == "two, 1024, 64, 960\n"
    assert smi(tools, stranger(job), *words) == "one, 8192, 0, 8192\ntwo, 8192, 128, 8064\n"


@pytest.mark.driverpackages
@pytest.mark.parametrize("branch", OTHER_LAYOUTS)
def test_nvidias_program_of_another_layout_gets_the_lists_as_they_are(busy, driver_package, branch):
    job, _ = busy
    tools = driver_package(branch)
    words = ("--query-compute-apps=pid,used_memory", "--format=csv")
    plain, hooked = (smi(tools, env, *words) for env in (stranger(job), job.environment()))
    assert plain == hooked != ""


@pytest.mark.driverpackages
def test_the_programs_of_all_branches_are_tried_here():
    tried = [*BRANCHES, *WITHOUT_TABLE, *OTHER_LAYOUTS]
    assert sorted(tried) == sorted([*driverpackages.BRANCHES, *driverpackages.INSTALLED])


@pytest.mark.driverpackages
@pytest.mark.parametrize("branch", BRANCHES)
def test_nvidias_library_has_the_table_and_it_is_long_enough(driver_package, branch):
    """The library gives its table without a driver. Nothing in it is called here."""
    code = """
import ctypes, sys
table = ctypes.POINTER(ctypes.c_size_t)()
ident = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")
status = ctypes.CDLL(sys.argv[1]).nvmlInternalGetExportTable(ctypes.byref(table), ident)
print(status, table[0] // 8 > 215, all(table[slot] for slot in (81, 213, 214, 215)))
"""
    words = [sys.executable, "-c", code, driver_package(branch).nvml]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert said == "0 True True\n"


def test_the_hook_changes_the_table_on_no_other_branch_than_those_proved_here():
    source = Path(fgshim.__file__).with_name("hook") / "smi_table.c"
    assert re.findall(r'"(\d+)\."', source.read_text()) == BRANCHES


@pytest.mark.parametrize("branch", BRANCHES)
def test_on_a_proved_branch_a_job_sees_its_processes_and_its_gpus(busy, branch):
    job, pids = busy
    said = table_of(job, FAKE_NVML_VERSION=f"{branch}.65.06")
    assert said["lists"] == [[[pids[0], 64 * MIB]], [], []]
    assert said["cards"] == ["two", 2, 2]
    assert (said["status"], said["unknown"], said["other"]) == (0, 2, 42)


@pytest.mark.parametrize("version", ["470.256.02", "525.147.05", "575.57.08", "590.44.01", "5800.1"])
def test_on_any_other_branch_the_table_is_the_drivers_own(busy, version):
    job, pids = busy
    said = table_of(job, 1, FAKE_NVML_VERSION=version)
    assert said["lists"] == [sorted([pid, 64 * MIB] for pid in pids), [], []]
    assert (said["cards"], said["status"], said["other"]) == (["one", "two", 2], 0, 42)


def test_before_nvml_tells_its_version_the_table_is_the_drivers_own(busy):
    job, _ = busy
    said = table_of(job, first="table", FAKE_NVML_VERSION="535.261.03")
    assert said["cards"] == ["one", "two", 2]


def test_a_list_that_cannot_be_one_is_shown_empty(busy):
    """A name that never ends."""
    said = table_of(busy[0], FAKE_NVML_VERSION="535.261.03", FAKE_SMI_ODD="1")
    assert said["lists"] == [[], [], []]


def test_a_table_that_is_too_short_is_the_drivers_own(busy):
    said = table_of(busy[0], FAKE_SMI_SHORT="1", FAKE_NVML_VERSION="535.261.03")
    assert (said["status"], said["cards"]) == (0, ["one", "two", 2])


def test_without_a_region_a_proved_branch_shows_no_gpu(busy):
    job, _ = busy
    job.region_file.unlink()
    assert table_of(job, FAKE_NVML_VERSION="535.261.03")["cards"] == [2, 2, 2]
