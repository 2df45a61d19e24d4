"""Docstrings: an imperative first line, the errors that are raised, and the units of numbers."""

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
# Parameters whose unit docs/glossary.md fixes: now, seconds, size, memory and share.
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
UNITS = re.compile(r"seconds|minutes|epoch|bytes|ten-thousandths|MiB")
NOT_IMPERATIVE = {
    *(
        "a",
        "all",
        "an",
        "and",
        "as",
        "at",
        "every",
        "everything",
        "he",
        "her",
        "his",
        "how",
        "if",
        "in",
        "it",
    ),
    *("its", "no", "nobody", "none", "of", "on", "one", "so", "somebody", "that", "the", "their", "they"),
    *("these", "this", "those", "to", "what", "when", "where", "whether", "which", "who", "whoever", "whom"),
    *("whose", "why", "with", "you"),
}


# Modules that are being rewritten.
LATER = {
    *(
        "client.py",
        "server.py",
        "cli/choices.py",
        "cli/queuecolumns.py",
        "cli/queueformat.py",
        "cli/queuejson.py",
    ),
    *(module for module in MODULES if module.startswith(("controller/", "gpus/", "simulate/", "system/"))),
}
every_module = pytest.mark.parametrize("module", [module for module in MODULES if module not in LATER])


class Function(NamedTuple):
    where: str
    node: ast.FunctionDef
    text: str  # its docstring; "": none
    is_command: bool  # the docstring of a click command is its help
    is_property: bool

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
                is_command=bool(re.search(r"\.command\b|\.group\b", marks)),
                is_property="property" in marks,
            )


def raised(function: ast.FunctionDef) -> set[str]:
    """Return the names of fgsched's errors in the raise statements of a function."""
    calls = [node.exc for node in ast.walk(function) if isinstance(node, ast.Raise) and node.exc]
    kinds = [call.func if isinstance(call, ast.Call) else call for call in calls]
    return {kind.id for kind in kinds if isinstance(kind, ast.Name)} & ERRORS


@every_module
def test_a_public_function_names_the_errors_that_it_raises(module):
    for function in functions(module):
        if function.is_public and not function.is_command:
            unnamed = {name for name in raised(function.node) if name not in function.text}
            assert not unnamed, f"{function.where} raises {unnamed}"


@every_module
def test_a_public_function_with_a_docstring_names_the_unit_of_a_time(module):
    for function in functions(module):
        names = {one.arg for one in [*function.node.args.args, *function.node.args.kwonlyargs]}
        if function.is_command or not function.is_public or not function.text:
            continue
        if names & TIMES and not UNITS.search(function.text):
            pytest.fail(f"{function.where}: {names & TIMES}")


@every_module
def test_the_docstring_of_a_public_function_begins_with_an_imperative(module):
    for function in functions(module):
        if function.is_public and function.text and not function.is_property:
            first = function.text.split(maxsplit=1)[0]
            assert first[0].isupper() or first.startswith("`"), function.where
            assert first.strip(":,.;").lower() not in NOT_IMPERATIVE, f"{function.where}: {function.text}"
