"""The C source of all that CUDA's headers name: what the fake driver does not do is "not supported"."""

from collections.abc import Container, Iterable

from cudapackages import Abi

HEAD = """/* Made of CUDA's headers, for one test run. Weak: what the fake driver does comes before it.
   FAKE_CUDA_MISSING names a file for the names of functions that are called and do nothing here. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static int missing(const char *symbol, int status) {
    const char *path = getenv("FAKE_CUDA_MISSING");
    FILE *file = path ? fopen(path, "ae") : NULL;
    if (!file) return status;
    fprintf(file, "%d %s\\n", status, symbol);
    fclose(file);
    return status;
}
#define NAME(symbol, status) \\
    __attribute__((weak)) int in_##symbol(void) { return missing(#symbol, status); } \\
    __attribute__((weak, visibility("default"))) int symbol(void) { return in_##symbol(); }
"""


def exports(abis: Iterable[Abi]) -> dict[Abi, str]:
    """What the library calls each: the second ABI of a name ends in _v2; a twin has its own ending."""
    known = sorted(abis)
    found = {}
    for abi in known:
        plain = [other.version for other in known if other.name == abi.name and not other.twin]
        at = plain.index(abi.version) if abi.version in plain else len(plain) - 1
        found[abi] = abi.name + (f"_v{at + 1}" if at else "") + abi.twin
    return found


# Functions that succeed and do nothing in the driver for frameworks.
IDLE = {
    *("cuCtxSetCacheConfig", "cuCtxSetFlags", "cuCtxSetLimit", "cuDevicePrimaryCtxSetFlags"),
    *("cuDeviceSetGraphMemAttribute", "cuFuncLoad", "cuFuncSetAttribute", "cuFuncSetCacheConfig"),
    *(
        "cuFuncSetSharedMemConfig",
        "cuGraphRetainUserObject",
        "cuGraphReleaseUserObject",
        "cuKernelSetAttribute",
    ),
    *("cuKernelSetCacheConfig", "cuLibraryUnload", "cuLinkAddData", "cuLinkAddFile", "cuLinkDestroy"),
    *("cuMemAdvise", "cuMemPoolSetAccess", "cuMemPrefetchAsync", "cuModuleUnload", "cuPointerSetAttribute"),
    *("cuProfilerStart", "cuProfilerStop", "cuStreamWaitEvent", "cuUserObjectRelease", "cuUserObjectRetain"),
}


def source(abis: Iterable[Abi], idle: Container[str] = ()) -> str:
    """Return the stubs of all names and the rows for cuGetProcAddress.

    A stub answers "not supported" (801), or 0 if its name is in `idle`.
    """
    known = exports(abis)
    rows = [
        f'    {{"{abi.name}", (void *)in_{export}, {abi.version}, {int(bool(abi.twin))}}},'
        for abi, export in known.items()
    ]
    statuses = {export: 0 if abi.name in idle else 801 for abi, export in known.items()}
    names = [f"NAME({export}, {status})" for export, status in sorted(statuses.items())]
    table = ["const struct fake_row fake_rows[] = {", *rows, "};"]
    count = f"const int fake_row_count = {len(rows)};"
    return "\n".join(
        [
            HEAD,
            *names,
            "struct fake_row { const char *name; void *at; int version, own; };",
            *table,
            count,
            "",
        ]
    )
