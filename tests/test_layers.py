"""The layers of the house, the one home of each outside package, and the size of functions."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fgsched"
MODULES = sorted(PACKAGE.rglob("*.py"))
COMMANDS = sorted((PACKAGE / "cli").glob("fg*.py"))

LAYERS = {
    "domain": {"", "domain", "protocol", "codec"},
    "core": {"lifecycle", "scheduling"},
    "edges": {
        *("accounting", "mail", "config", "system", "launch", "store", "gpus", "server", "client", "crash"),
        *("submission", "views", "hooks", "reports"),
    },
    "controller": {"controller", "simulate"},
    "cli": {"cli", "slurm", "interactive", "python", "web"},
}
PURE = {"domain", "lifecycle", "scheduling"}
RANK = {part: rank for rank, parts in enumerate(LAYERS.values()) for part in parts}
HOMES = {
    "sqlite3": {"store", "accounting", "reports"},
    "pynvml": {"gpus"},
    "click": {"cli"},
    "tabulate": {"views"},
    "textual": {"cli/top/screen.py"},
    "rich": {"cli/top/screen.py"},  # Textual draws with its segments
    "filelock": {"system/paths.py", "client.py"},
    "jinja2": {"reports"},
    "markupsafe": {"reports"},
    "prometheus_client": {"reports"},
    "cloudpickle": {"python"},
    "starlette": {"web"},
    "uvicorn": {"web"},
}
EVERYWHERE = {"msgspec"}  # the language of every record
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
    *(
        "asyncio",
        "sqlite3",
        "pynvml",
        "tabulate",
        "jinja2",
        "filelock",
        "tomllib",
        "logging",
        "difflib",
        "unittest",
    ),
    *("multiprocessing", "concurrent", "http", "email", "xml", "ssl", "ctypes", "importlib.metadata"),
}


@cache
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


def test_a_module_imports_only_from_its_own_layer_or_a_lower_one():
    for path in MODULES:
        part = own_part(path)
        assert part in RANK, f"{part} has no layer yet: add it here and to docs/design/architecture.md"
        for name in imports(path):
            if name.split(".")[0] == "fgsched":
                assert RANK[part_of(name)] <= RANK[part], f"{path} imports {name}"


def test_no_packages_import_each_other_in_a_circle():
    used: dict[str, set[str]] = {}
    for path in MODULES:
        of_ours = {part_of(name) for name in imports(path) if name.startswith("fgsched.")}
        used.setdefault(own_part(path), set()).update(of_ours - {own_part(path)})
    order = list(TopologicalSorter(used).static_order())  # raises CycleError for a circle, and names it
    assert all(order.index(one) < order.index(part) for part, parts in used.items() for one in parts)


def test_the_commands_do_not_import_the_names_of_slurm():
    for path in (path for path in MODULES if own_part(path) == "cli"):
        assert not [name for name in imports(path) if name.startswith("fgsched.slurm")], path


def test_lifecycle_and_scheduling_do_not_import_each_other():
    for part, other in (("lifecycle", "scheduling"), ("scheduling", "lifecycle")):
        for path in (PACKAGE / part).glob("*.py"):
            assert not [name for name in imports(path) if name.startswith(f"fgsched.{other}.")], path


def test_only_the_service_imports_the_handlers():
    for path in (PACKAGE / "controller").glob("*.py"):
        handlers = [name for name in imports(path) if name.startswith("fgsched.controller.handlers")]
        assert bool(handlers) == (path.name == "service.py"), path


def test_an_outside_package_is_imported_in_one_place():
    for path in MODULES:
        here = path.relative_to(PACKAGE)
        roots = {name.split(".")[0] for name in imports(path)}
        for package in roots - sys.stdlib_module_names - EVERYWHERE - {"fgsched", "fgshim"}:
            assert package in HOMES, f"{path} imports {package}, which has no home"
        for package in roots & HOMES.keys():
            assert {here.parts[0], str(here)} & HOMES[package], f"{path} imports {package}"


def test_domain_jobs_and_scheduling_read_no_clock_and_do_no_io():
    for path in (path for path in MODULES if own_part(path) in PURE):
        assert not {name.split(".")[0] for name in imports(path)} & IMPURE
        for owner, name in called(path):
            assert (owner, name) not in {("", "open"), ("", "print"), ("", "input")}, f"{path} calls {name}()"
            assert owner not in {"time", "datetime", "date"} or name not in CLOCKS, (
                f"{path} calls {owner}.{name}()"
            )


def test_only_the_controller_and_the_clients_read_the_clock():
    for path in MODULES:
        if own_part(path) not in {
            "controller",
            "cli",
            "slurm",
            "client",
            "submission",
            "views",
            "python",
            "web",
        }:
            assert ("time", "time") not in set(called(path)), path


def test_the_hook_imports_nothing_of_fgsched():
    for path in (ROOT / "fgshim").glob("*.py"):
        roots = {name.split(".")[0] for name in imports(path)}
        assert roots <= sys.stdlib_module_names | {"fgshim"}


def test_a_function_has_at_most_40_lines():
    """Without its signature, in which each parameter of a constructor may have a line with its unit."""
    for path in [*MODULES, *(ROOT / "fgshim").glob("*.py")]:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno - node.body[0].lineno < 40, f"{path}:{node.lineno}: {node.name}"


def test_statements_of_sql_are_in_files_of_statements():
    """PRAGMA, BEGIN, COMMIT and ROLLBACK control the connection; statements about rows are in *.sql."""
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words = node.value.upper().split()
                kind = tuple(words[:2])
                assert kind not in {("INSERT", "INTO"), ("DELETE", "FROM"), ("CREATE", "TABLE")}, path
                assert not (words[:1] == ["SELECT"] and "FROM" in words), path
                assert not (words[:1] == ["UPDATE"] and "SET" in words), path


def test_a_command_imports_no_module_that_delays_its_start():
    """A module that click itself imports costs nothing more."""
    show = "import sys; print(*sys.modules)"
    clicks = _modules(f"import click; {show}")
    for path in COMMANDS:
        ours = _modules(f"import fgsched.cli.{path.stem}; {show}")
        heavy = {name for name in ours - clicks if name in HEAVY or name.split(".")[0] in HEAVY}
        assert not heavy, f"{path} imports {sorted(heavy)}"


def _modules(program: str) -> set[str]:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


# Dictionaries that a module makes itself: options of a command, settings by name, the environment.
OWN = {
    *("options", "values", "settings", "before", "environ", "os.environ", "environment"),
    *("_gpu_words(words)", "gpu_words"),
}
OWN_OF = {
    "submission/prepare.py": {"fields"},
    "cli/completing.py": {"context.params"},
    "cli/changes.py": {"texts"},
    "cli/enforcement.py": {"outcome", "outcomes[0]"},
    "cli/fgwait.py": {"job"},
    "cli/logs.py": {"match"},
    "cli/reservation.py": {"values"},
    "controller/handlers/events.py": {"values"},  # of a decision on a GPU, as the log has them
    "controller/handlers/explain.py": {"guesses"},
}


def test_requests_and_answers_are_not_looked_up_by_string_keys():
    for folder in ("cli", "submission", "controller/handlers"):
        for path in (PACKAGE / folder).glob("*.py"):
            here = str(path.relative_to(PACKAGE))
            for owner, key in string_keys(path):
                assert owner in OWN | OWN_OF.get(here, set()), f"{path}: {owner}[{key!r}]"


def string_keys(path: Path) -> Iterator[tuple[str, str]]:
    """(object, key) of each `object["key"]` that is read, and of each `object.get("key")`."""
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.Subscript(value=owner, slice=ast.Constant(value=str(key)), ctx=ast.Load()):
                yield ast.unparse(owner), key
            case ast.Call(
                func=ast.Attribute(value=owner, attr="get"), args=[ast.Constant(value=str(key)), *_]
            ):
                yield ast.unparse(owner), key


def test_a_class_name_exists_once():
    nodes = [node for path in MODULES for node in ast.walk(tree_of(path))]
    names = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


FACES = [
    *("cli", "config", "controller", "controller/handlers", "gpus", "hooks", "launch", "lifecycle"),
    *("python", "reports", "scheduling", "simulate", "store", "system", "web", "web/pages"),
]


@pytest.mark.parametrize("package", FACES)
def test_the_face_of_a_package_has_a_line_for_each_of_its_modules(package):
    folder = PACKAGE / package
    parts = {path.stem for path in folder.glob("*.py")} | {
        path.parent.name for path in folder.glob("*/__init__.py")
    }
    face = ast.get_docstring(tree_of(folder / "__init__.py")) or ""
    named = {line.split()[0] for line in face.splitlines()[2:] if line.strip()}
    assert parts - {"__init__"} <= named
