"""The layers of the house, the one home of each outside package, and the size of functions."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fgsched"
MODULES = sorted(PACKAGE.rglob("*.py"))
COMMANDS = sorted((PACKAGE / "cli").glob("fg*.py"))

LAYERS = {
    "words": {
        "",
        "model",
        "states",
        "units",
        "moments",
        "errors",
        "values",
        "shortage",
        "eviction",
        "copies",
        "policy",
    },
    "core": {"jobs", "deciding"},
    "answers": {"explaining"},
    "edges": {"site", "host", "store", "gpus", "server", "client", "crash"},
    "conductor": {"controller", "simulate"},
    "cli": {"cli"},
}
PURE = ("words", "core", "answers")
RANK = {part: rank for rank, parts in enumerate(LAYERS.values()) for part in parts}
HOMES = {
    "sqlite3": {"store"},
    "pynvml": {"gpus"},
    "click": {"cli"},
    "tabulate": {"cli"},
    "filelock": {"controller/serve.py", "client.py"},
}
# What reaches outside the process, or asks for the time or for luck.
IMPURE = {
    *("os", "sys", "io", "socket", "subprocess", "shutil", "tempfile", "pwd", "grp", "fcntl", "select"),
    *("selectors", "random", "secrets", "logging", "threading", "asyncio", "ctypes", "mmap", "resource"),
}
CLOCKS = {
    *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"),
    *("now", "today", "utcnow"),
}
# A command runs for a few hundredths of a second: each of these would be a good part of that.
HEAVY = {
    *("asyncio", "sqlite3", "pynvml", "tabulate", "filelock", "tomllib", "logging", "difflib", "unittest"),
    *("multiprocessing", "concurrent", "http", "email", "xml", "ssl", "ctypes", "importlib.metadata"),
}

by_name = {"ids": lambda path: str(path.relative_to(ROOT))}


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports anywhere, in full; of `from a import b` both a and a.b."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(module: str) -> str:
    """fgsched.store.rows belongs to the part 'store'; fgsched itself is ''."""
    part = module.split(".")[1] if "." in module else ""
    return part if (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").exists() else ""


def own_part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py").replace("__init__", "")


def called(path: Path) -> Iterator[tuple[str, str]]:
    """(module or object, name) of each call; ('', name) of a plain one."""
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id=name):
                yield "", name
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                yield owner, name


@pytest.mark.parametrize("path", MODULES, **by_name)
def test_a_module_imports_only_from_its_own_layer_or_those_before_it(path):
    part = own_part(path)
    assert part in RANK, f"{part} has no layer yet: add it here and in the architecture page"
    for name in imports(path):
        if name.split(".")[0] == "fgsched":
            assert RANK[part_of(name)] <= RANK[part], f"{path} imports {name}"


@pytest.mark.parametrize(("part", "other"), [("jobs", "deciding"), ("deciding", "jobs")])
def test_one_job_and_all_of_them_are_two_questions(part, other):
    for path in (PACKAGE / part).glob("*.py"):
        assert not [name for name in imports(path) if name.startswith(f"fgsched.{other}.")], path


def test_what_makes_a_turn_knows_nothing_of_the_requests():
    """Only who puts the controller together does."""
    for path in (PACKAGE / "controller").glob("*.py"):
        knows = [name for name in imports(path) if name.startswith("fgsched.controller.desks")]
        assert bool(knows) == (path.name == "serve.py"), path


@pytest.mark.parametrize("path", MODULES, **by_name)
def test_an_outside_package_is_met_in_one_place(path):
    here = path.relative_to(PACKAGE)
    roots = {name.split(".")[0] for name in imports(path)}
    for package in roots - sys.stdlib_module_names - {"fgsched", "fgshim"}:
        assert package in HOMES, f"{path} imports {package}, which has no home"
    for package in roots & HOMES.keys():
        assert {here.parts[0], str(here)} & HOMES[package], f"{path} imports {package}"


@pytest.mark.parametrize(
    "path", [path for path in MODULES if RANK.get(own_part(path), 0) < len(PURE)], **by_name
)
def test_words_and_core_read_no_clock_and_do_no_io(path):
    assert not {name.split(".")[0] for name in imports(path)} & IMPURE
    for owner, name in called(path):
        assert (owner, name) not in {("", "open"), ("", "print"), ("", "input")}, f"{path} calls {name}()"
        assert owner not in {"time", "datetime", "date"} or name not in CLOCKS, (
            f"{path} calls {owner}.{name}()"
        )


@pytest.mark.parametrize("path", [path for path in MODULES if "controller" not in path.parts], **by_name)
def test_only_the_conductor_and_the_clients_ask_what_time_it_is(path):
    if own_part(path) not in {"cli", "client"}:
        assert ("time", "time") not in set(called(path))


@pytest.mark.parametrize("path", sorted((ROOT / "fgshim").glob("*.py")), **by_name)
def test_what_lives_in_other_peoples_programs_knows_nothing_of_fgsched(path):
    roots = {name.split(".")[0] for name in imports(path)}
    assert roots <= sys.stdlib_module_names | {"fgshim"}


@pytest.mark.parametrize("path", [*MODULES, *sorted((ROOT / "fgshim").glob("*.py"))], **by_name)
def test_a_function_is_no_longer_than_40_lines(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < 40, f"{path}:{node.lineno}: {node.name}"


@pytest.mark.parametrize("path", MODULES, **by_name)
def test_sql_lives_in_the_files_of_the_store(path):
    """PRAGMA, BEGIN, COMMIT and ROLLBACK steer the connection; statements about rows are in *.sql."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.upper().split()
            kind = tuple(words[:2])
            assert kind not in {("INSERT", "INTO"), ("DELETE", "FROM"), ("CREATE", "TABLE")}, path
            assert not (words[:1] == ["SELECT"] and "FROM" in words), path
            assert not (words[:1] == ["UPDATE"] and "SET" in words), path


@pytest.mark.parametrize("path", COMMANDS, **by_name)
def test_a_command_imports_no_more_than_it_uses(path):
    """What click itself imports is not ours to avoid."""
    show = "import sys; print(*sys.modules)"
    ours = _modules(f"import fgsched.cli.{path.stem}; {show}")
    clicks = _modules(f"import click; {show}")
    assert not {name for name in ours - clicks if name in HEAVY or name.split(".")[0] in HEAVY}


def _modules(program: str) -> set[str]:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())
