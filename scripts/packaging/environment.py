"""Complete a private environment: write the commands of a wheel, and put its data files below the prefix.

environment.py WHEEL PREFIX, with the installed packages in $SITE; `pip install --target` leaves both out.
"""

import configparser
import os
import sys
import zipfile
from pathlib import Path

PROGRAM = """\
#!/usr/lib/fgsched/bin/python3 -I
import sys
from {module} import {function}
sys.exit({function}())
"""


def main(wheel: Path, prefix: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        entry = next(name for name in opened.namelist() if name.endswith("/entry_points.txt"))
        parser = configparser.ConfigParser()
        parser.read_string(opened.read(entry).decode())
        for command, target in parser["console_scripts"].items():
            module, _, function = target.partition(":")
            path = prefix / "bin" / command
            path.write_text(PROGRAM.format(module=module, function=function))
            path.chmod(0o755)
        for name in opened.namelist():
            data = name.partition(".data/data/")[2]
            if data and not name.endswith("/"):
                (prefix / data).parent.mkdir(parents=True, exist_ok=True)
                (prefix / data).write_bytes(opened.read(name))
                if opened.getinfo(name).external_attr >> 16 & 0o100:
                    (prefix / data).chmod(0o755)
    for program in ("fgspawn", "fgprove"):
        (Path(os.environ["SITE"]) / "fgshim" / program).chmod(0o755)
    for record in Path(os.environ["SITE"]).glob("*.dist-info/RECORD"):
        record.unlink()  # it lists paths of the host that built the package
    share = Path(os.environ["SITE"]) / "share"
    if share.is_dir():
        import shutil

        shutil.rmtree(share)


main(Path(sys.argv[1]), Path(sys.argv[2]))
