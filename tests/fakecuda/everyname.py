"""The C source of all that CUDA's headers name: what the fake driver does not do is "not supported"."""

from collections.abc import Iterable

from cudapackages import Abi

HEAD = """/* Made of CUDA's headers, for one test run. Weak: what the fake driver does comes before it. */
#include <stdint.h>
#define NAME(symbol) \\
    __attribute__((weak)) int in_##symbol(void) { return 801; } \\
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


def source(abis: Iterable[Abi]) -> str:
    """Stubs for all names, and the rows for cuGetProcAddress."""
    known = exports(abis)
    rows = [
        f'    {{"{abi.name}", (void *)in_{export}, {abi.version}, {int(bool(abi.twin))}}},'
        for abi, export in known.items()
    ]
    names = [f"NAME({export})" for export in sorted(set(known.values()))]
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
