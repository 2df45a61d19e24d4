"""Weak references to functions of CUDA: a program tests them for NULL to find out what its driver has."""

import subprocess

import pytest

from fakecuda import compile_c

pytestmark = pytest.mark.compiler
PROGRAM = """
#include <stdio.h>
#define WEAK(name) extern int name(void) __attribute__((weak));
extern int cuInit(unsigned);
WEAK(cuMemAlloc_v2) WEAK(cuMemAllocAsync) WEAK(cuLibraryLoadData) WEAK(cuMemGetMemPool) WEAK(cuNothing)
int library_has(void);
int main(void) {
    int status = cuInit(0);
    printf("%d %d %d %d %d %d %d\\n", status, !!cuMemAlloc_v2, !!cuMemAllocAsync, !!cuLibraryLoadData,
           !!cuMemGetMemPool, !!cuNothing, library_has());
}
"""
LIBRARY = """
extern int cuMemAlloc_v2(void) __attribute__((weak)), cuMemAllocAsync(void) __attribute__((weak));
int (*pointer)(void) = cuMemAllocAsync;
int library_has(void) { return 4 * !!cuMemAlloc_v2 + 2 * !!cuMemAllocAsync + !!pointer; }
"""
OLD_DRIVER = "int cuInit(unsigned flags) { return 100 + flags; } int cuMemAlloc_v2(void) { return 0; }"


@pytest.fixture
def program(tmp_path):
    """program(driver) -> a program with a library, both linked against that driver."""

    def link(driver):
        for name, text in (("program", PROGRAM), ("library", LIBRARY)):
            (tmp_path / f"{name}.c").write_text(text)
        shared = ("-shared", "-fPIC", "-fvisibility=default")
        library = compile_c([tmp_path / "library.c"], tmp_path / "libown.so", *shared)
        flags = ("-fPIE", "-pie", str(library), str(driver), f"-Wl,-rpath,{tmp_path}", "-Wl,-z,relro,-z,now")
        return compile_c([tmp_path / "program.c"], tmp_path / "program", *flags)

    return link


def ask(program, job, driver, *, hooked):
    env = job.environment(LD_LIBRARY_PATH=str(driver.parent))
    if not hooked:
        del env["LD_PRELOAD"]
    done = subprocess.run([program], env=env, capture_output=True, text=True, check=True)
    return done.stdout


def test_what_an_old_driver_lacks_is_null_with_the_hook_as_without_it(job, program, tmp_path):
    (tmp_path / "old.c").write_text(OLD_DRIVER)
    soname = "-Wl,-soname,libcuda.so.1"
    shared = ("-shared", "-fPIC", "-fvisibility=default", soname)
    driver = compile_c([tmp_path / "old.c"], tmp_path / "libcuda.so.1", *shared)
    own = program(driver)
    assert ask(own, job, driver, hooked=False) == "100 1 0 0 0 0 4\n"
    assert ask(own, job, driver, hooked=True) == "100 1 0 0 0 0 4\n"


@pytest.mark.driverpackages
@pytest.mark.parametrize("branch", ["450", "470", "535"])
def test_what_a_real_driver_lacks_is_null_with_the_hook_too(job, program, driver_package, branch, tmp_path):
    driver = tmp_path / "libcuda.so.1"
    driver.symlink_to(driver_package(branch).cuda)
    own = program(driver)
    without = ask(own, job, driver, hooked=False)
    assert ask(own, job, driver, hooked=True) == without
    assert without.split()[1] == "1"
