"""Docstrings: the errors that are raised, and the units of numbers. Ruff demands an imperative first line."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from fgsched.domain import errors

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fgsched"
MODULES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
ERRORS = {name for name, kind in vars(errors).items() if isinstance(kind, type)} | {"BadValue"}
# Times whose unit docs/glossary.md fixes.
TIMES = {
    "until",
    "since",
    "timeout",
    "patience",
    "interval",
    "half_life",
    "time_limit",
    "delay",
    "grace",
    "wall",
}


class Function(NamedTuple):
    where: str
    node: ast.FunctionDef
    text: str  # its docstring; "": none
    is_command: bool  # the docstring of a click command is its help

    @property
    def is_public(self) -> bool:
        return not self.node.name.startswith("_")


@cache
def functions(module: str) -> tuple[Function, ...]:
    """List the functions of a module and the methods of its classes, without nested functions."""
    return tuple(_functions(ast.parse((PACKAGE / module).read_text()), module))


def _functions(parent: ast.Module | ast.ClassDef, module: str) -> Iterator[Function]:
    for node in parent.body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, module)
        elif isinstance(node, ast.FunctionDef):
            marks = " ".join(ast.unparse(mark) for mark in node.decorator_list)
            yield Function(
                where=f"{module}:{node.lineno} {node.name}",
                node=node,
                text=ast.get_docstring(node) or "",
                is_command=bool(re.search(r"\.command\b|\.group\b|\blisted\b", marks)),
            )


def raised(function: ast.FunctionDef) -> set[str]:
    """Return the names of fgsched's errors in the raise statements of a function."""
    calls = [node.exc for node in ast.walk(function) if isinstance(node, ast.Raise) and node.exc]
    kinds = [call.func if isinstance(call, ast.Call) else call for call in calls]
    return {kind.id for kind in kinds if isinstance(kind, ast.Name)} & ERRORS


def test_a_public_function_names_the_errors_that_it_raises():
    unnamed = [
        f"{function.where} raises {name}"
        for module in MODULES
        for function in functions(module)
        if function.is_public and not function.is_command
        for name in sorted(raised(function.node))
        if name not in function.text
    ]
    assert unnamed == []


# -- numbers with a unit: sizes, shares and times of parameters, and of the fields of records ---------

QUANTITIES = {
    "a time": {*TIMES, "deadline", "duration", "elapsed"},
    "a size": {"memory", "size", "headroom", "tolerance"},
    "a share": {"share"},
}
UNIT_OF = {
    "a time": re.compile(r"second|minute|hour|epoch|\b[mµn]?s\b|clock ticks", re.IGNORECASE),
    "a size": re.compile(r"byte|MiB|GiB|ten-thousandth|weight|factor|from 0 to 1", re.IGNORECASE),
    "a share": re.compile(r"ten-thousandth|from 0 to 1|weight|factor", re.IGNORECASE),
}
NUMBER = re.compile(r"(int|float)( \| (int|float|None))*")


def quantity_of(name: str, annotation: ast.expr | None) -> str:
    """Return what a number of this name measures, "" if that is not known."""
    if annotation is None or not NUMBER.fullmatch(ast.unparse(annotation).strip("\"'")):
        return ""
    return next((kind for kind, names in QUANTITIES.items() if {name, name.split("_")[-1]} & names), "")


def without_unit(text: str) -> Iterator[str]:
    """Yield each parameter and field of a module whose unit neither a docstring nor a comment names."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        about = ast.get_docstring(node) or "" if isinstance(node, ast.ClassDef | ast.FunctionDef) else ""
        if isinstance(node, ast.FunctionDef):
            yield from _unnamed_parameters(node, "", lines)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for one in node.body:
                if isinstance(one, ast.FunctionDef):
                    yield from _unnamed_parameters(one, about, lines)
                elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                    comments = {comment(lines, one.lineno), comment(lines, one.end_lineno or one.lineno)}
                    yield from _unnamed(one.target.id, one.annotation, " ".join([about, *comments]))


def _unnamed_parameters(function: ast.FunctionDef, about: str, lines: list[str]) -> Iterator[str]:
    marks = " ".join(ast.unparse(mark) for mark in function.decorator_list)
    if (function.name.startswith("_") and function.name != "__init__") or ".command" in marks:
        return
    about += ast.get_docstring(function) or ""
    for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
        yield from _unnamed(one.arg, one.annotation, f"{about} {comment(lines, one.lineno)}")


def _unnamed(name: str, annotation: ast.expr | None, said: str) -> Iterator[str]:
    kind = quantity_of(name, annotation)
    if kind and not UNIT_OF[kind].search(said):
        yield f"{name} is {kind}"


def comment(lines: list[str], number: int) -> str:
    """Return the comment at the end of a line, and the one that fills the line above."""
    above = lines[number - 2].strip() if number > 1 else ""
    return lines[number - 1].partition("#")[2] + (above if above.startswith("#") else "")


def test_a_size_a_share_and_a_time_name_their_unit():
    missing = [
        f"{module}: {name}" for module in MODULES for name in without_unit((PACKAGE / module).read_text())
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("def f(timeout: float): ...", "timeout is a time"),
        ("def f(*, max_size: int | None): ...", "max_size is a size"),
        ('class C:\n    """A job."""\n    share: int = 0', "share is a share"),
        (
            'class C:\n    """A job."""\n    def __init__(self, memory: int):\n        """Do it."""',
            "memory is a size",
        ),
    ],
)
def test_a_number_without_a_unit_is_found(text, fault):
    assert list(without_unit(text)) == [fault]


@pytest.mark.parametrize(
    "text",
    [
        'def f(timeout: float):\n    """Wait for `timeout` seconds."""',
        "class C:\n    share: int = 0  # ten-thousandths of a GPU",
        "class C:\n    # bytes of device memory\n    memory: int = 0",
        'def f(size: str):\n    """Parse a size."""',
        "def _f(timeout: float): ...",
    ],
)
def test_a_number_with_a_unit_is_accepted(text):
    assert list(without_unit(text)) == []


DOCUMENTED = ("config/", "gpus/", "launch/", "simulate/", "system/")  # packages; this list may only grow


def test_everything_public_has_a_docstring_in_the_packages_that_are_done():
    trees = {name: ast.parse((PACKAGE / name).read_text()) for name in MODULES if name.startswith(DOCUMENTED)}
    missing = [
        f"{name}:{node.lineno} {node.name}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
        if not ast.get_docstring(node)
    ]
    assert missing == []
