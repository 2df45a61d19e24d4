"""Builds the native parts: hook, spawner, prover (free of libpython), and the modules region and grouping."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
SHARED = ["-O2", "-g", "-Wall", "-D_GNU_SOURCE", "-fPIC", "-ffunction-sections", "-fdata-sections"]
SHARED += ["-Wno-format-truncation"]  # texts are cut where their room ends, on purpose
STRICT = ["-Wl,--gc-sections", "-Wl,-z,defs", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,--as-needed"]
STRICT += ["-ldl", "-lpthread"]  # before glibc 2.34 they are libraries of their own; since then nothing


def _static_where_possible() -> list[str]:
    """Link statically: forking costs a tenth less, since a third of the mappings is copied and dropped."""
    asked = [os.environ.get("CC", "gcc").split()[0], "-print-file-name=rcrt1.o"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    static = Path(found).is_absolute() and Path(found).with_name("libc.a").exists()
    if static:
        return ["-static-pie", "-Wl,-z,noseparate-code"]
    return []


OWN = os.environ.get("CFLAGS", "").split()  # last, so that they override ours
STATIC = _static_where_possible()
PROGRAM = ["-pie", "-Wl,--version-script=fgshim/spawner/exports.map"]


GROUPING = "fgsched.reports.grouping"  # for the reports alone: all other native parts are in fgshim
OLD_LIBC = {"fgshim.hook": ["-include", "fgshim/hook/old_libc.h"]}
INCLUDES = ["fgshim/include", "fgshim/hook", "fgshim/spawner"]
NATIVE = {
    # extension: (file it becomes, flags of its own)
    "fgshim.hook": (
        "libfgshim.so",
        [
            *("-shared", "-nostartfiles", "-Wl,-soname,libfgshim.so"),
            *("-Wl,-Bsymbolic", "-Wl,--version-script=fgshim/hook/exports.map"),
            "-Wl,-z,noseparate-code",  # half the mappings
            "-Wl,-z,lazy",  # few processes of a job call CUDA: the others need no look-ups
        ],
    ),
    "fgshim.spawner": ("fgspawn", STATIC or PROGRAM),
    "fgshim.prover": ("fgprove", PROGRAM),
}


class BuildNative(build_ext):
    """Ordinary extensions as ever; those in NATIVE become a library or a program without libpython."""

    def get_ext_filename(self, fullname: str) -> str:
        name = NATIVE.get(fullname, (None,))[0]
        return f"fgshim/{name}" if name else super().get_ext_filename(fullname)

    def build_extension(self, ext: Extension) -> None:
        if ext.name not in NATIVE:
            return super().build_extension(ext)
        target = Path(self.build_lib, self.get_ext_filename(ext.name))  # copied into place afterwards
        target.parent.mkdir(parents=True, exist_ok=True)
        objects = self.compiler.compile(
            ext.sources,
            output_dir=self.build_temp,
            include_dirs=[*ext.include_dirs, *self.compiler.include_dirs],
            extra_postargs=[*SHARED, *OLD_LIBC.get(ext.name, []), *OWN],
        )
        command = [self.compiler.compiler_so[0], *objects, "-o", str(target), *STRICT, *NATIVE[ext.name][1]]
        return subprocess.run([*command, *ext.extra_link_args], check=True)


SHARE = {
    "bin": "build/front/*",
    # directory below the prefix of the installation: patterns of files of the source or of the build
    "share/man/man1": "man/*.1",
    "share/man/man5": "man/*.5",
    "share/man/man8": "man/*.8",
    "share/bash-completion/completions": "build/completions/bash/*",
    "share/zsh/site-functions": "build/completions/zsh/*",
    "share/fish/vendor_completions.d": "build/completions/fish/*",
    # the pages lie as in the source, so that their links lead to each other
    "share/doc/fgsched": "README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md CITATION.cff LICENSE llms.txt",
    "share/doc/fgsched/docs": "docs/*.*",
    "share/doc/fgsched/docs/design": "docs/design/*",
    "share/doc/fgsched/docs/grafana": "docs/grafana/*",
    "share/doc/fgsched/docs/pictures": "docs/pictures/*",
    "share/doc/fgsched/examples": "examples/*",
}


def write_completions() -> None:
    """Generate the shell completions in build/completions."""
    script = [str(HERE / "scripts" / "make-completions"), str(HERE / "build" / "completions")]
    subprocess.run([sys.executable, "-I", *script], check=True)


def data_files() -> list[tuple[str, list[str]]]:
    """List what man, the shells and `fgsched help` read, with the directories where they look."""
    found = {
        place: sorted(file for pattern in patterns.split() for file in HERE.glob(pattern) if file.is_file())
        for place, patterns in SHARE.items()
    }
    return [
        (place, [str(file.relative_to(HERE)) for file in files]) for place, files in found.items() if files
    ]


# With FG_LIMITED_API=1 one wheel serves every Python from this one on. scripts/package sets it; a build in
# place does not, because Python would prefer an older region.cpython-*.so to region.abi3.so.
LIMITED = os.environ.get("FG_LIMITED_API") == "1"
OLDEST = "cp311", "0x030B0000"


def limits(name: str) -> dict[str, Any]:
    """Return what a module that Python imports needs for the limited API."""
    if not LIMITED or name in NATIVE:
        return {}
    return {"py_limited_api": True, "define_macros": [("Py_LIMITED_API", OLDEST[1])]}


def build_front() -> None:
    """Compile the commands into build/front: fgsub and fgq are one program, the others call fgsub."""
    from fgsched import PROTOCOL

    folder = HERE / "build" / "front"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    compiler = os.environ.get("CC", "gcc").split()
    flags = ["-O2", "-Wall", "-D_GNU_SOURCE", *OWN]
    project = tomllib.loads((HERE / "pyproject.toml").read_text())
    front, twin, first, *others = project["tool"]["fgsched"]["native-commands"]
    whole = [f"-DFG_PROTOCOL={PROTOCOL}", *(str(HERE / source) for source in own_c("front")), *STATIC]
    subprocess.run([*compiler, *flags, *whole, "-o", str(folder / front)], check=True)
    small = [str(HERE / source) for source in own_c("launcher")]
    subprocess.run([*compiler, *flags, "-s", *small, "-o", str(folder / first)], check=True)
    shutil.copy2(folder / front, folder / twin)
    for name in others:
        shutil.copy2(folder / first, folder / name)


def own_c(name: str) -> list[str]:
    """Return the C files in the folder of a native part, relative to this file."""
    return sorted(str(path.relative_to(HERE)) for path in HERE.glob(f"fgshim/{name}/*.c"))


def main() -> None:
    """Describe the package to setuptools."""
    sys.path.insert(0, str(HERE))
    from fgshim import calls  # the one list of hooked calls

    calls.write(HERE / "fgshim/hook")
    write_completions()
    build_front()
    names = os.environ.get("FG_BUILD_ONLY", f"hook spawner prover region {GROUPING}").split()
    headers = sorted(str(path.relative_to(HERE)) for path in HERE.glob("fgshim/*/*.h"))
    modules = [name if "." in name else f"fgshim.{name}" for name in names]
    extensions = [
        Extension(
            name,
            [f"{name.replace('.', '/')}.pyx", *own_c(name.removeprefix("fgshim."))],
            include_dirs=INCLUDES,
            depends=headers,
            **limits(name),
        )
        for name in modules
    ]
    setup(
        packages=find_packages(include=["fgsched", "fgsched.*", "fgshim", "fgshim.*"]),
        package_data={
            "fgsched": ["py.typed", "*.pyi"],
            "fgsched.store": ["*.sql", "migrations/*.sql"],
            "fgsched.accounting": ["*.sql", "*.json"],
            "fgsched.reports": ["*.sql", "templates/*"],
            "fgsched.slurm": ["bin/*", "login.sh"],
            "fgsched.web": ["templates/*", "static/*"],
            "fgsched.cli": ["bin/*"],
            "fgsched.cli.install": ["fgsched.toml", "fgsched.service"],
        },
        include_package_data=False,  # sources of the native parts belong in the sdist only
        data_files=data_files(),
        ext_modules=cythonize(extensions, language_level=3),
        cmdclass={"build_ext": BuildNative},
        options={"bdist_wheel": {"py_limited_api": OLDEST[0]}} if LIMITED else {},
    )


main()
