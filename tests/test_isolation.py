"""The variables of a caller's environment reach jobs, and change neither the commands nor the controller."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fgsched import __version__
from fgsched.cli.install import slurmnames
from fgsched.system import preloading
from live_host import PATIENCE, living

pytestmark = pytest.mark.compiler
ROOT = Path(__file__).parent.parent
PROGRAMS = Path(sys.executable).parent
COMMANDS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["fgsched"]["native-commands"]
PYTHON = f"libpython3.{sys.version_info.minor}.so.1.0"
USUAL = ("libsqlite3.so.0", "libexpat.so.1", "libcrypto.so.3", "libstdc++.so.6")  # of an environment of conda
LIBRARIES = (*USUAL, PYTHON, "libz.so.1", "libffi.so.8", "libm.so.6")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Variables of an environment in which no interpreter can work."""
    place = tmp_path_factory.mktemp("hostile")
    for module in ("click", "msgspec", "encodings", "sitecustomize"):
        (place / f"{module}.py").write_text("raise SystemExit('a module of the caller')\n")
    empty = ["gcc", "-shared", "-x", "c", "/dev/null", "-o"]
    (place / "usual").mkdir()
    for name in (*LIBRARIES, *(f"usual/{name}" for name in USUAL)):
        subprocess.run([*empty, place / name], check=True)
    return {
        "PYTHONHOME": "/opt/none",
        "PYTHONPATH": str(place),
        "PYTHONWARNINGS": "error",
        "PYTHONSTARTUP": str(place / "click.py"),
        "PYTHONUSERBASE": str(place),
        "LD_LIBRARY_PATH": str(place),
        "LD_PRELOAD": str(place / LIBRARIES[0]),
        "LD_AUDIT": "/opt/none.so",
    }


def call(program: Path, *words: str, env: dict[str, str], **more) -> subprocess.CompletedProcess:
    given = {"capture_output": True, "text": True, "timeout": PATIENCE}
    return subprocess.run([program, *words], env=os.environ | env, **(given | more))


def test_the_variables_break_an_unprotected_interpreter(hostile):
    for names in (["PYTHONHOME"], ["PYTHONPATH"], ["LD_LIBRARY_PATH"]):
        done = call(
            sys.executable, "-c", "import click, zlib, math, sqlite3", env={n: hostile[n] for n in names}
        )
        assert done.returncode != 0, names


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs_whatever_the_variables_of_its_caller_say(command, hostile):
    done = call(PROGRAMS / command, "--version", env=hostile)
    assert (done.returncode, done.stdout) == (0, f"fgsched {__version__}\n"), done.stderr
    option = "" if command in ("fgctl", "fgsched") else "--"  # these have subcommands
    completed = {
        f"_{command.upper()}_COMPLETE": "bash_complete",
        "COMP_WORDS": f"{command} {option}",
        "COMP_CWORD": "1",
    }
    assert "plain," in call(PROGRAMS / command, env=hostile | completed).stdout


@pytest.mark.parametrize("name", slurmnames.names())
def test_a_name_of_slurm_runs_whatever_the_variables_of_its_caller_say(name, hostile, tmp_path):
    path = tmp_path / name
    path.write_bytes(slurmnames.program(name))
    path.chmod(0o755)
    # bash itself may need one of the libraries
    own = {key: value for key, value in hostile.items() if key.startswith("PYTHON")}
    for program, env in ((path, own), (slurmnames.BIN / name, own | {"FG_PYTHON": sys.executable})):
        done = call(program, "--help", env=env)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def shown(text: str) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in text.splitlines())


def test_a_controller_starts_and_jobs_get_the_variables(hostile, tmp_path):
    with living(tmp_path / "home") as home:
        own = {name: value for name, value in hostile.items() if name not in ("LD_PRELOAD", "LD_AUDIT")}
        own["LD_LIBRARY_PATH"] += "/usual"
        env = home.environ | own
        assert home.run("fgsched", "stop").status == 0
        started = call(PROGRAMS / "fgsched", "start", env=env, cwd=home.path)
        assert started.returncode == 0, started.stderr
        assert call(PROGRAMS / "fgsched", "status", env=env).returncode == 0
        words = ("--gpus=0.1", "--wait", "-o", "out", "--wrap", "tr '\\0' '\\n' </proc/$$/environ")
        for submit in (words, ("--json", *words)):  # the native program, and the Python command
            done = call(PROGRAMS / "fgsub", *submit, env=env, cwd=home.path)
            assert done.returncode == 0, done.stderr
            assert own.items() <= shown((home.path / "out").read_text()).items()
        own["LD_LIBRARY_PATH"] = hostile["LD_LIBRARY_PATH"]  # with libraries that no interpreter can use
        words = ("--gpus=0.1", "cat", "/proc/self/environ")
        done = call(PROGRAMS / "fgrun", *words, env=env | own, cwd=home.path)
        assert own.items() <= shown(done.stdout.replace("\0", "\n")).items(), done.stderr
        assert "FG_CALLER" not in done.stdout
        assert call(PROGRAMS / "fgacct", "-n", env=env).stdout
        assert call(PROGRAMS / "fgsched", "restart", env=env).returncode == 0


def test_variables_that_were_put_aside_come_back_for_users_alone(monkeypatch):
    monkeypatch.setattr(preloading, "_own", {})
    environ = {
        "FG_CALLER_LD_LIBRARY_PATH": "/a:/own/lib",
        "LD_LIBRARY_PATH": "/own/lib",
        "FG_CALLER_LD_AUDIT": "x",
    }
    users = {"LD_LIBRARY_PATH": "/a:/own/lib", "LD_AUDIT": "x"}
    restored = dict(environ)
    preloading.restore(restored)
    assert restored == users
    assert preloading.put_aside(users) == environ
    assert preloading.of_users(environ) == users
    monkeypatch.setattr(preloading, "_own", {})
    assert preloading.put_aside(users) == users, "no native command has started this process"


@pytest.mark.parametrize(
    "lines", ["#!{0}", "#!{0} -I", "#!/bin/sh\n'''exec' \"{0}\" \"$0\" \"$@\"\n' '''", "#!python"]
)
def test_a_command_finds_its_interpreter_as_an_installer_named_it(lines, tmp_path):
    place = tmp_path / "a place" / "bin"
    place.mkdir(parents=True)
    interpreter = place / "python3" if "'''" in lines or "#!python" in lines else tmp_path / "python3"
    interpreter.write_text('#!/bin/sh\necho "$@"\n')
    interpreter.chmod(0o755)
    for name in ("fgsub", "fgacct"):
        (place / name).write_bytes((PROGRAMS / name).read_bytes())
        (place / name).chmod(0o755)
    (place / "fgsched-python").write_text(lines.format(interpreter) + "\n")
    done = call(place / "fgacct", "-n", "a b", env={})
    assert done.stdout == f"-I {place}/fgsched-python fgacct  -n a b\n", done.stderr


def test_the_folder_of_the_interpreter_stays_among_those_of_libraries(tmp_path):
    prefix = tmp_path / "prefix"
    for folder in ("bin", "lib"):
        (prefix / folder).mkdir(parents=True)
    interpreter = prefix / "bin" / "python3"
    interpreter.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH $FG_CALLER_LD_LIBRARY_PATH"\n')
    interpreter.chmod(0o755)
    (prefix / "bin" / "fgsub").write_bytes((PROGRAMS / "fgsub").read_bytes())
    (prefix / "bin" / "fgsub").chmod(0o755)
    (prefix / "bin" / "fgsched-python").write_text(f"#!{interpreter}\n")
    caller = f"/opt/none:{prefix}/lib:{tmp_path}"
    done = call(prefix / "bin" / "fgsub", "--help", env={"LD_LIBRARY_PATH": caller})
    assert done.stdout == f"{prefix}/lib {caller}\n"
