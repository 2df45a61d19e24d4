"""Who is given which function: dlsym, cuGetProcAddress, and the library's own face."""

import os
import re
import shutil
import subprocess

import pytest

import fakecuda
import fgshim
from fgshim import calls

pytestmark = pytest.mark.compiler
HOOK, DRIVER, NVML = "libfgshim.so", "libcuda.so.1", "libnvidia-ml.so.1"
PLAIN = ["next", "default", "global", "asker-default", "asker-next", "libc"]
WAYS = [*PLAIN, "versioned-default", "versioned-next", "versioned-libc"]
LINKERS = [call.export for call in calls.CALLS if call.library == calls.LINKER]
CUDA_NAMES = [call.export for call in calls.CALLS if call.library == calls.CUDA]
NVML_NAMES = [call.export for call in calls.CALLS if call.library == calls.NVML]


@pytest.fixture
def lookups(job, driver):
    """lookups(handle, *names) -> which library answers each, under the hook or without it."""

    def ask(handle, *names, hooked=True, **extra):
        env = job.environment(**extra) if hooked else {**os.environ, **driver.env, **extra}
        words = [driver.folder / "lookups", *(word for name in names for word in (handle, name))]
        return subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout.splitlines()

    return ask


@pytest.fixture
def procs(job, driver):
    """procs(version, flags, *names) -> [(status, symbol status, library, symbol)] of cuGetProcAddress."""

    def ask(version, flags, *names, hooked=True, **extra):
        env = job.environment(**extra) if hooked else {**os.environ, **driver.env, **extra}
        words = [driver.folder / "procs", str(version), str(flags), *names]
        said = subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout
        return [tuple(line.split()) for line in said.splitlines()]

    return ask


def test_every_hooked_name_is_answered_by_the_hook_and_no_other(lookups):
    assert set(lookups("driver", *CUDA_NAMES)) == {HOOK}
    assert set(lookups("nvml", *NVML_NAMES)) == {HOOK}
    others = ["cuDriverGetVersion", "cuCtxGetDevice", "cuStreamIsCapturing", "cuMemAllocHost_v2"]
    assert lookups("driver", *others) == lookups("driver", *others, hooked=False)
    assert lookups("nvml", "nvmlInit_v2", "cuMemAlloc_v2") == [NVML, "nobody"]


@pytest.mark.parametrize("handle", WAYS)
def test_names_that_are_not_hooked_keep_their_meaning(lookups, handle):
    names = [
        "malloc",
        "asker_own",
        "ompt_start_tool",
        "cuDriverGetVersion",
        "nvmlInit_v2",
        "dladdr",
        "cu",
        "",
        "printf",
    ]
    assert lookups(handle, *names) == lookups(handle, *names, hooked=False)


@pytest.mark.parametrize("handle", WAYS)
def test_where_no_driver_is_loaded_a_hooked_name_is_not_found_either(lookups, handle):
    names = ["cuMemAlloc_v2", "nvmlDeviceGetMemoryInfo"]
    alone = lookups(handle, *names, hooked=False, WITHOUT_DRIVER="1")
    assert lookups(handle, *names, WITHOUT_DRIVER="1") == alone == ["nobody", "nobody"]


@pytest.mark.parametrize("handle", ["default", "asker-default", "global", "next"])
def test_a_driver_in_the_global_scope_is_answered_for_by_the_hook(lookups, driver, job, handle):
    both = {"LD_PRELOAD": f"{job.folder / HOOK}:{driver.folder / DRIVER}"}
    alone = {"LD_PRELOAD": str(driver.folder / DRIVER)}
    assert lookups(handle, "cuMemAlloc_v2", "cuDriverGetVersion", hooked=False, **alone) == [DRIVER, DRIVER]
    assert lookups(handle, "cuMemAlloc_v2", "cuDriverGetVersion", **both) == [HOOK, DRIVER]


@pytest.mark.parametrize("handle", WAYS)
def test_whoever_asks_for_a_dlsym_of_its_own_gets_the_hooks(lookups, handle):
    assert lookups(handle, *LINKERS) == [HOOK] * 4
    assert lookups(handle, "dladdr", "dlclose") == ["libc.so.6"] * 2


@pytest.mark.parametrize("way", ["regained-default", "regained-next", "regained-libc", "regained-asker"])
def test_there_is_no_way_round_by_a_second_dlsym(lookups, way):
    assert lookups(way, "cuMemAlloc_v2", "cuMemFree", "cuDriverGetVersion") == [HOOK, HOOK, DRIVER]
    assert lookups(way, "cuMemAlloc_v2", hooked=False) == [DRIVER]


def test_a_driver_in_a_namespace_of_its_own_is_looked_up_as_without_the_hook(lookups):
    """The hook's functions call another copy of the driver, in which nothing was initialised."""
    names = ["cuMemAlloc_v2", "cuDriverGetVersion"]
    assert lookups("apart", *names) == lookups("apart", *names, hooked=False) == [DRIVER, DRIVER]


AUDIT = """#include <link.h>
unsigned la_version(unsigned version) { return version; }
unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) {
    return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}
"""


@pytest.mark.parametrize("how", ["program", "linked"])
def test_a_library_that_audits_the_linker_does_not_undo_the_limit(job, driver, tmp_path, how):
    (tmp_path / "audit.c").write_text(AUDIT)
    flags = ("-shared", "-fPIC", "-fvisibility=default")
    audit = fakecuda.compile_c([tmp_path / "audit.c"], tmp_path / "audit.so", *flags)
    said = job.run("alloc 1000M", "alloc 100M", program=getattr(driver, how), LD_AUDIT=str(audit))
    assert said == [(0,), (2,)]


def test_a_driver_library_of_another_file_name_is_the_driver(lookups, driver, tmp_path):
    """It is known by the name in it."""
    other = tmp_path / "vendor-gpu.so"
    shutil.copy(driver.folder / DRIVER, other)
    said = lookups(
        "renamed", "cuMemAlloc_v2", "cuDriverGetVersion", LOOKUPS_DRIVER=str(other), WITHOUT_DRIVER="1"
    )
    assert said == [HOOK, other.name]


@pytest.mark.parametrize("way", ["deep", "deep-open", "deep-linked"])
def test_a_library_that_sees_its_own_dependencies_first_still_meets_the_hook(lookups, way):
    assert lookups(way, "cuMemAlloc_v2", "cuDriverGetVersion") == [HOOK, DRIVER]
    assert lookups(way, "cuMemAlloc_v2", hooked=False) == [DRIVER]


@pytest.mark.parametrize("order", ["{other}:{hook}", "{hook}:{other}"])
def test_another_library_that_stands_before_dlsym_is_asked_as_well(lookups, driver, job, tmp_path, order):
    preload = order.format(other=driver.folder / "librecorder.so", hook=job.folder / HOOK)
    extra = {"LD_PRELOAD": preload, "RECORDER_FILE": str(tmp_path / "record")}
    assert lookups("driver", "cuMemAlloc_v2", "cuDriverGetVersion", "nonsense", **extra) == [
        HOOK,
        DRIVER,
        "nobody",
    ]
    asked = (tmp_path / "record").read_text()
    assert "cuMemAlloc_v2" in asked
    assert "cuDriverGetVersion" in asked


def test_a_hooked_name_is_answered_alike_however_often_it_is_asked_for(lookups, driver, job):
    both = {"LD_PRELOAD": f"{job.folder / HOOK}:{driver.folder / DRIVER}"}
    for way in ("next", "asker-next", "default"):
        assert len(set(lookups(way, *["cuMemAlloc_v2"] * 200, **both))) == 1


def test_everything_of_the_hook_can_be_bound_at_the_start(lookups):
    assert lookups("driver", "cuMemAlloc_v2", LD_BIND_NOW="1") == [HOOK]


def test_a_library_is_looked_for_by_the_path_of_the_library_that_opens_it(lookups):
    assert lookups("plugin", "asker_own") == lookups("plugin", "asker_own", hooked=False) == ["libplugin.so"]


@pytest.mark.parametrize("old", [{}, {"PROCS_OLD": "1"}])
def test_each_abi_is_answered_by_the_hook_of_that_abi(procs, old):
    for call in calls.CALLS:
        if call.name:
            said = procs(call.version, 2 if call.twin else 0, call.name, **old)
            assert [(status, *where) for status, _, *where in said] == [("0", HOOK, call.export)]


def test_an_older_abi_of_a_hooked_name_is_the_hook_of_that_abi(procs):
    names = ["cuMemAlloc", "cuMemAllocPitch", "cuMemFree", "cuMemGetInfo", "cuDeviceTotalMem"]
    assert [said[2:] for said in procs(2000, 0, *names)] == [(HOOK, name) for name in names]
    assert [said[2:] for said in procs(13000, 0, *names)] == [(HOOK, f"{name}_v2") for name in names]


def test_a_driver_that_has_no_older_abi_gets_none_from_the_hook(procs):
    names = ["cuMemAlloc", "cuMemFree", "cuMemGetInfo", "cuArrayCreate", "cuMemAllocAsync"]
    newest = [f"{name}_v2" for name in names[:-1]] + ["cuMemAllocAsync"]
    said = procs(13000, 0, *names, FAKE_CUDA_ONE_ABI="1")
    assert [row[2:] for row in said] == [(HOOK, name) for name in newest]


def test_flags_choose_between_a_call_and_its_twin(procs):
    names = ["cuMemAllocAsync", "cuMemFreeAsync"]
    for flags, suffix in ((0, ""), (1, ""), (2, "_ptsz")):
        assert [said[3] for said in procs(12080, flags, *names)] == [name + suffix for name in names]


def test_names_that_are_not_hooked_get_the_drivers_answer_untouched(procs):
    names = [
        "cuDriverGetVersion",
        "",
        "nonsense",
        "cuStreamIsCapturing",
        "cuStreamGetCtx",
        "cuMemAddressReserve",
    ]
    for version, flags in ((12000, 0), (12000, 2), (1000, 0), (12000, 9)):
        assert procs(version, flags, *names) == procs(version, flags, *names, hooked=False)
    assert procs(1000, 0, "cuMemAlloc", "cuMemCreate") == [("500", "2", "nobody", "nothing")] * 2


@pytest.fixture
def symbols():
    """Names that the built hook needs, and names that it shows."""
    if not fgshim.library().exists() or shutil.which("nm") is None:
        pytest.skip("needs the built hook, and nm to look into it")
    said = subprocess.run(["nm", "-D", fgshim.library()], check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"([A-Za-z]) (\S+)$", said, flags=re.MULTILINE)
    needs = {name for kind, name in rows if kind in "Uw"}
    return needs, {name for kind, name in rows if kind not in "Uw"}


def test_the_library_shows_what_the_table_says(symbols):
    assert symbols[1] == {call.export for call in calls.CALLS}


def test_the_library_needs_no_python_and_no_driver(symbols):
    assert [name for name in symbols[0] if re.match("_?Py|cu|nvml", name)] == []


def test_the_library_runs_nothing_when_it_is_loaded():
    if not fgshim.library().exists() or shutil.which("readelf") is None:
        pytest.skip("needs the built hook, and readelf to look into it")
    words = ["readelf", "-dW", fgshim.library()]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert re.findall(r"\((INIT|INIT_ARRAY|FINI|FINI_ARRAY)\)", said) == []
    assert re.findall(r"NEEDED.*\[(.*)\]", said) == ["libc.so.6"]


def test_the_library_asks_for_no_newer_libc_than_it_says():
    """docs/design/native.md: 2.17."""
    if not fgshim.library().exists() or shutil.which("readelf") is None:
        pytest.skip("needs the built hook, and readelf to look into it")
    words = ["readelf", "-VW", fgshim.library()]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    found = {(int(major), int(minor)) for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", said)}
    assert max(found, default=(99,)) <= (2, 17)


# Functions that musl 1.2 has too. A name that it lacks must be weak, or its programs do not start.
EVERY_LIBC = [
    "__errno_location",
    "__stack_chk_fail",  # where the compiler protects stacks, as the settings of Debian's Python ask for
    "__environ",  # also environ: the variables of the process
    "access",
    "clock_gettime",
    "environ",
    "getpid",
    "kill",
    "memchr",
    "memcpy",
    "memmove",
    "memset",
    "mmap",
    "munmap",
    "pthread_mutex_lock",
    "pthread_mutex_unlock",
    "pthread_self",
    "stpcpy",
    "strcat",
    "strcpy",
    "strlen",
    "strncmp",
    "strrchr",
    "strstr",
    "syscall",
]


def test_the_library_needs_no_function_that_another_libc_lacks():
    if not fgshim.library().exists() or shutil.which("nm") is None:
        pytest.skip("needs the built hook, and nm to look into it")
    words = ["nm", "-D", "--undefined-only", fgshim.library()]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert set(re.findall(r" U (\w+)", said)) <= set(EVERY_LIBC)


def test_a_program_of_musl_starts_and_looks_names_up(tmp_path):
    if not fgshim.library().exists() or shutil.which("musl-gcc") is None:
        pytest.skip("needs the built hook, and musl-gcc")
    source = tmp_path / "ask.c"
    source.write_text(
        """#include <dlfcn.h>
        #include <stdio.h>
        int main(void) { return puts(dlsym(dlopen(0, RTLD_NOW), "printf") ? "found" : "none") < 0; }"""
    )
    subprocess.run(["musl-gcc", source, "-o", tmp_path / "ask"], check=True)
    env = {**os.environ, "LD_PRELOAD": str(fgshim.library())}
    done = subprocess.run([tmp_path / "ask"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "found\n", "")


def test_the_table_names_nothing_twice_and_is_sorted():
    exports = [call.export for call in calls.CALLS]
    assert exports == sorted(set(exports))
    assert not {name for names in calls.ASKED.values() for name in names} & set(exports)


_PLUGIN = "int common(void) { return 2; } int told(void) { return common(); }"
_HOST = """#include <dlfcn.h>
#include <stdio.h>
int common(void) { return 1; }
int main(int argc, char **argv) {
    void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    int (*told)(void) = plugin ? dlsym(plugin, "told") : 0;
    printf("%d\\n", told ? told() : -1);
    return argc != 2;
}"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", "2"),
        ("void *dlsym(void *, const char *); void *ask(void) { return dlsym(0, 0); }", "1"),
        ("int cuMemAlloc_v2(void *, long); int take(void) { return cuMemAlloc_v2(0, 0); }", "1"),
    ],
    ids=["unrelated", "looks names up", "uses CUDA"],
)
def test_a_library_that_is_unrelated_to_cuda_binds_to_itself_first(job, driver, tmp_path, more, expected):
    """RTLD_DEEPBIND. Any other library would find the driver or libc before the hook."""
    (tmp_path / "plugin.c").write_text(_PLUGIN + more)
    (tmp_path / "host.c").write_text(_HOST)
    needed = ["-Wl,--no-as-needed", driver.folder / DRIVER] if "cuMem" in more else []
    flags = ["-shared", "-fPIC", "-fvisibility=default", *needed]
    fakecuda.compile_c([tmp_path / "plugin.c"], tmp_path / "plugin.so", *flags)
    exported = ["-fvisibility=default", "-rdynamic", "-ldl"]
    host = fakecuda.compile_c([tmp_path / "host.c"], tmp_path / "host", *exported)
    words = [host, tmp_path / "plugin.so"]
    run = {"capture_output": True, "text": True, "check": True}
    assert subprocess.run(words, env={**os.environ, **driver.env}, **run).stdout == "2\n"
    assert subprocess.run(words, env=job.environment(), **run).stdout == f"{expected}\n"
