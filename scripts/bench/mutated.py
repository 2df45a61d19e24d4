"""A plugin of pytest for `mutants`: run the tests nearest to a function first, or those of many changes.

A test is near to a function if it shares rare words with its source. With MUTANTS=IN,OUT, two descriptors,
the tests are collected once. For each change that is read from IN, a fork of this process replaces the code
of the changed functions and runs the nearest tests until one fails or the processor time is used up. A test
that starts an interpreter is skipped there, as that would import the source without the change.
"""

import ctypes
import gc
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from math import log
from types import CodeType, FunctionType

import pytest

from fgsched.system.process import descendants, kill

HISTORY = "test_no_promise_is_broken_where_faults_are_many"
_BEFORE_HISTORY = 60  # tests
_PR_SET_CHILD_SUBREAPER = 36
_SLOW = {"home", "spawner", "driver", "built_driver", "framework", "driver_package"}  # fixtures
_WORD = re.compile(r"[A-Za-z]\w{2,}")


@cache
def _words(function) -> frozenset[str]:
    try:
        return frozenset(_WORD.findall(inspect.getsource(function)))
    except (OSError, TypeError):  # as of a state machine
        return frozenset()


def _file(item) -> str:
    return item.nodeid.partition("::")[0]


class Order:
    """The order of tests by the rare words that each shares with a text."""

    def __init__(self, items) -> None:
        self._functions = {item: getattr(item, "function", None) for item in items}
        self._counts = Counter(
            word for function in set(self._functions.values()) for word in _words(function)
        )

    def nearness(self, item, wanted: set[str]) -> float:
        words = _words(self._functions[item])
        shared = sum(log(1 + len(self._functions) / self._counts[word]) for word in words & wanted)
        return shared / (1 + len(words)) ** 0.5

    def sorted(self, items, text: str, weights: Mapping[str, float] | None = None):
        """Return the tests, nearest first; `weights` are factors for those of a file."""
        wanted = set(_WORD.findall(text))

        def key(item) -> float:
            weight = weights[_file(item)] if weights else 1
            return -weight * self.nearness(item, wanted)

        return sorted(items, key=key)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    if text := os.environ.get("NEAREST_TO"):
        items[:] = Order(items).sorted(items, text)


def pytest_runtestloop(session):
    if "MUTANTS" not in os.environ:
        return None
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    source, answers = map(int, os.environ["MUTANTS"].split(","))
    order, loaded = Order(session.items), _loaded()
    session.testsfailed, session.shouldfail = 0, False  # a file that cannot be imported
    gc.freeze()  # a fork shares what the collector does not visit
    with open(source) as changes:
        for line in changes:
            change = json.loads(line)
            answer = _tried(session, order, loaded.get(change["file"], []), change)
            os.write(answers, json.dumps(answer).encode() + b"\n")
    return True


def _loaded() -> dict[str, list[FunctionType]]:
    """Return all functions of fgsched by their files."""
    functions = defaultdict(list)
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and "/fgsched/" in each.__code__.co_filename:
            functions[each.__code__.co_filename].append(each)
    return functions


def _tried(session, order: Order, functions: list[FunctionType], change) -> tuple[str, str]:
    """Try a change in a fork; return (killed, survived, timed out, or disk; the last test)."""
    output, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(output)
        _try(session, order, functions, change, theirs)
    os.close(theirs)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGXCPU))
    signal.alarm(int(change["limit"] * 12))
    with open(output) as lines:
        ran = [line.strip() for line in lines]
    signal.alarm(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    while left := descendants(os.getpid()):
        for process in left:
            kill(process, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)
    verdict = {0: "survived", 3: "disk", -signal.SIGXCPU: "timed out", -signal.SIGPROF: "timed out"}
    return verdict.get(status, "killed"), ran[-1] if ran else "none ran"


def _try(session, order: Order, functions: list[FunctionType], change, output: int) -> None:
    status = 2
    try:
        _start_no_interpreters()
        signal.setitimer(signal.ITIMER_PROF, change["limit"])
        session.config.option.basetemp = change["directory"]
        if not _replace(functions, change["file"], change["before"], change["after"]):
            os._exit(3)
        chosen = _chosen(session.items, order, change)
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            os.write(output, item.nodeid.encode() + b"\n")
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                os._exit(1)
        status = 0
    finally:
        os._exit(status)


def _start_no_interpreters() -> None:
    start = subprocess.Popen.__init__

    def checked(self, args, *more, **options):
        if sys.executable in args or re.search("fgsched|/.venv/", str(args[0])):
            pytest.skip("starts an interpreter")
        start(self, args, *more, **options)

    subprocess.Popen.__init__ = checked


def _chosen(items, order: Order, change):
    if test := change["test"]:
        return [item for item in items if item.nodeid == test or item.nodeid.startswith(f"{test}[")]
    bad = set(change["unreliable"])
    near = [
        item
        for item in items
        if _file(item) in change["tests"]
        and item.nodeid not in bad
        and not _SLOW.intersection(item.fixturenames)
    ]
    history = [item for item in items if change["history"] and item.name == HISTORY]
    near = order.sorted(near, change["around"], change["tests"])
    return near[:_BEFORE_HISTORY] + history + near[_BEFORE_HISTORY:]


def _replace(loaded: list[FunctionType], file: str, before: str, after: str) -> bool:
    """Give the functions of a module the code of its changed source; tell whether all could take it."""
    old, new = (list(_functions(compile(text, file, "exec"))) for text in (before, after))
    pairs = {(code.co_qualname, code.co_firstlineno): other for code, other in zip(old, new, strict=True)}
    for function in loaded:
        code = pairs.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
        if code is not None and code.co_freevars != function.__code__.co_freevars:
            return False
        function.__code__ = code or function.__code__
    return bool(loaded)


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of the functions and methods, not of functions inside functions."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & inspect.CO_NEWLOCALS:
                yield each
            else:
                yield from _functions(each)
