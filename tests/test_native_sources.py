"""Each part of the hook and of the spawner says at its top what it exports and what it needs of others."""

import functools
import re
from pathlib import Path

import pytest

import fgshim

ROOT = Path(fgshim.__file__).parent
PARTS = {
    folder: {path.stem: path.read_text() for path in sorted((ROOT / folder).glob("[a-z]*.pxi"))}
    for folder in ("hook", "spawner")
}
NAMES = [f"{folder}/{name}" for folder, parts in PARTS.items() for name in parts if name != "libc"]
KINDS = r"(?!public|extern|enum|struct|packed|inline)"


def code_of(text):
    """The text without comments, docstrings and strings."""
    for pattern in (r'"""(?:.|\n)*?"""', r"#[^\n]*", r'[bc]?"[^"\n]*"'):
        text = re.sub(pattern, "", text)
    return text


@functools.cache
def defined(code):
    """Functions, types and variables at module level. Hooked calls and constants are not listed."""
    functions = re.findall(r"^cdef (?!public|extern|enum|struct|packed)[^(\n=]*?\b(\w+) *\(", code, re.M)
    types = re.findall(r"^(?:cdef|ctypedef public) (?:packed )?(?:struct|enum) (\w+)", code, re.M)
    variables = re.findall(rf"^cdef {KINDS}[^(\n=]*?\b(\w+)(?:\[[^\n]*\])?\s*$", code, re.M)
    return {name for name in (*functions, *types, *variables) if not name.isupper()}


@functools.cache
def used(code):
    """All words of the code but its local variables."""
    declared = re.findall(r"^ +cdef ([^\n]*)", code, re.M)
    local = {word for line in declared for word in re.findall(r"\b\w+\b(?=\s*(?:=|,|\[|$))", line)}
    return set(re.findall(r"\b[A-Za-z_]\w*\b", code)) - local


def said(text, label):
    """What the head of a file lists after a label."""
    head = re.match(r"(?:#[^\n]*\n)+", text)[0].replace("\n#   ", " ")
    return re.search(rf"^# {label}: (.*)\.$", head, re.M)[1].replace(", and its constants", "")


@pytest.mark.parametrize("name", NAMES)
def test_a_part_names_what_others_use_of_it_and_what_it_uses_of_others(name):
    folder, own = name.split("/")
    codes = {part: code_of(text) for part, text in PARTS[folder].items()}
    others = {part: code for part, code in codes.items() if part != own}
    exports = sorted(
        word for word in defined(codes[own]) if any(word in used(code) for code in others.values())
    )
    needs = {part: sorted(defined(code) & used(codes[own])) for part, code in others.items()}
    listed = "; ".join(f"{part} ({', '.join(words)})" for part, words in needs.items() if words)
    assert said(PARTS[folder][own], "Exports") == (", ".join(exports) or "nothing")
    assert said(PARTS[folder][own], "Needs") == (listed or "nothing")


def test_no_c_stands_in_cython_strings():
    for path in [*ROOT.rglob("*.px[di]"), *ROOT.glob("*.pyx")]:
        assert "cdef extern from *" not in path.read_text(), path
