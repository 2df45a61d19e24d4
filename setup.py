"""Builds the native parts: the hook and the spawner (free of libpython) and the region module."""

import os
import subprocess
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
SHARED = ["-O2", "-g", "-Wall", "-D_GNU_SOURCE", "-fPIC", "-ffunction-sections", "-fdata-sections"]
SHARED += ["-Wno-format-truncation"]  # texts are cut where their room ends, on purpose
STRICT = ["-Wl,--gc-sections", "-Wl,-z,defs", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,--as-needed"]

NATIVE = {
    # extension: (file it becomes, flags of its own)
    "fgshim.hook": (
        "libfgshim.so",
        [
            *("-shared", "-nostartfiles", "-Wl,-soname,libfgshim.so"),
            *("-Wl,-Bsymbolic", "-Wl,--version-script=fgshim/exports.map"),
        ],
    ),
    "fgshim.spawner": ("fgspawn", ["-pie", "-Wl,--version-script=fgshim/spawner.map"]),
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
            include_dirs=self.compiler.include_dirs,
            extra_postargs=SHARED,
        )
        command = [self.compiler.compiler_so[0], *objects, "-o", str(target), *STRICT, *NATIVE[ext.name][1]]
        return subprocess.run([*command, *ext.extra_link_args], check=True)


def main() -> None:
    """Say what there is to build."""
    sys.path.insert(0, str(HERE))
    from fgshim import table  # the one list of hooked calls

    table.write(HERE / "fgshim")
    wanted = os.environ.get("FG_BUILD_ONLY", "hook spawner region").split()
    names = [name for name in wanted if (HERE / "fgshim" / f"{name}.pyx").exists()]
    extensions = [Extension(f"fgshim.{name}", [f"fgshim/{name}.pyx"]) for name in names]
    setup(
        packages=["fgsched", "fgsched.cli", "fgsched.gpus", "fgsched.store", "fgshim"],
        package_data={"fgsched.store": ["*.sql"], "fgshim": ["*.pxd", "libfgshim.so", "fgspawn"]},
        ext_modules=cythonize(extensions, language_level=3),
        cmdclass={"build_ext": BuildNative},
    )


main()
