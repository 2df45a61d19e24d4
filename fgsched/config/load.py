"""Read the settings from fgsched.toml; a missing file means the defaults."""

import os
import re
import stat
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from fgsched.config.forms import Unlikely
from fgsched.config.keys import KEYS, SECTIONS, TABLES, ConfigKey
from fgsched.config.schema import NAME, NAME_RULE, Config, PartitionSettings
from fgsched.domain.errors import BadUsage
from fgsched.domain.policy import Policy, find_rule_error
from fgsched.domain.text import lazy_regex, quoted
from fgsched.hooks.programs import check_programs
from fgsched.system.paths import Paths
from fgsched.system.safeopen import refuse_unless_safe

_PLACE = lazy_regex(r" \((?:at line (\d+), column (\d+)|at end of document)\)$")
_TOKEN = lazy_regex(
    r"""(?P<whole>\#[^\n]* | \"{3}(?:\\.|[^\\])*?\"{3} | '{3}.*?'{3} |
        "(?!"")(?:\\.|[^"\\\n])*" | '(?!'')[^'\n]*')
    | (?P<unclosed>["']) | (?P<open>[\[{]) | (?P<close>[\]}]) | (?P<line>\n)""",
    re.DOTALL | re.VERBOSE,
)
_CLOSE_TEXT = "the text is not closed", "End the text with the quotation mark that begins it."
_SPANNING = {  # reasons of the parser about a value that may have begun lines before
    "Unterminated string": _CLOSE_TEXT,
    "Illegal character '\\n'": _CLOSE_TEXT,
    "Found invalid character '\\n'": _CLOSE_TEXT,
    "Expected \"'": _CLOSE_TEXT,
    "Unclosed array": ("the list is not closed", "Separate its values by commas, and end it with ]."),
    "Unclosed inline table": ("the table is not closed", "End it with } on the same line."),
}
_ON_THE_LINE = {
    "Expected ']": ("the name of a table is not closed", "Write it alone on its line, as in [gpus]."),
    "Expected '='": ("Expected '=' after a key", "Write KEY = VALUE."),
    "Expected newline": (
        "the line continues after the value",
        "Write a text between quotation marks, and one key on a line.",
    ),
    "Invalid value": (
        "the value is not one of TOML",
        "Write a text between quotation marks; true, false and numbers have none.",
    ),
    "Invalid statement": ("this is neither a key nor a table", "Write KEY = VALUE, or [TABLE]."),
    "Cannot overwrite": ("Cannot overwrite a value: it is set before this line", "Keep one of the two."),
    "Cannot declare": ("the table is declared before this line", "Write all of its keys in one place."),
}
_MISSING = (
    "the value is missing or not complete",
    'Write a whole value after =, such as true, 30, "2h" or [0, 1].',
)
_LONG_NUMBER = lazy_regex(r"[0-9_]{4300}")  # more digits than Python converts
_OTHER = "man fgsched.toml describes the file."
__all__ = ["Config", "check_preemption", "load"]

_FIELDS = {(key.table, key.name): field for field, key in KEYS.items()}
_SHORT = {"resources": "count", "gpu_types": "model"}  # table -> the key of an entry that is no table
_ALL_TABLES = {table for table, _ in _FIELDS} | TABLES.keys()
_REMOVED = {
    ("gpus", "defragment"): (
        "running jobs are no longer requeued so that a pending job fits",
        "Delete the key. `preempt` of a partition or a QOS lets its jobs preempt others;"
        " fgctl requeue requeues one job.",
    )
}
_MOST = 1 << 20  # bytes of a configuration file
_HEADER = re.compile(r"\s*\[{1,2}\s*([^\[\]]+?)\s*\]{1,2}\s*(#.*)?$")
_ASSIGNMENT = re.compile(r"\s*([\w\-.\"' ]+?)\s*=")


def unreadable_value(path: Path, text: str) -> BadUsage:
    """Return the error about a value that is nested too deeply, or is a number of thousands of digits."""
    lines = text.split("\n")
    long = [number for number, line in enumerate(lines, 1) if _LONG_NUMBER.search(line)]
    deepest = max(range(len(lines)), key=lambda at: lines[at].count("[") + lines[at].count("{")) + 1
    fault = "has too many digits" if long else "is nested too deeply"
    return BadUsage(f"{path}:{(*long, deepest)[0]}: the value {fault}.", _OTHER)


def syntax_error(path: Path, text: str, error: tomllib.TOMLDecodeError) -> BadUsage:
    """Return the error about a file with this text: `file:line: 'gpus =': what is wrong`, and a remedy."""
    place = _PLACE.search(str(error))
    reason = _PLACE.sub("", str(error))
    lines = text.split("\n")
    at_end = place is None or not place[1]
    number = len(text.rstrip().split("\n")) if place is None or at_end else int(place[1])
    tail = "" if place is None or at_end else lines[number - 1][int(place[2]) - 1 :]
    if at_end or _advice(_SPANNING, reason):
        number = _begin(lines, number)
    if reason.startswith("Invalid value") and tail.partition("#")[0].strip() == "":
        cause, remedy = _MISSING
    else:
        cause, remedy = _advice(_SPANNING | _ON_THE_LINE, reason) or (reason, _OTHER)
    return BadUsage(f"{path}:{number}: {quoted(lines[number - 1].strip())}: {cause}.", remedy)


def _advice(advices: dict[str, tuple[str, str]], reason: str) -> tuple[str, str] | None:
    return next((advice for begin, advice in advices.items() if reason.startswith(begin)), None)


def _begin(lines: list[str], number: int) -> int:
    """Return the line on which the statement begins that a line belongs to."""
    begin, now, depth = 1, 1, 0
    for token in _TOKEN.finditer("\n".join(lines[:number])):
        now += token[0].count("\n")
        match token.lastgroup:
            case "line" if depth <= 0:
                begin = now
            case "unclosed":
                break
            case "open" | "close":
                depth += 1 if token.lastgroup == "open" else -1
    return begin


def load(paths: Paths) -> Config:
    """Load the settings of this host or user.

    Raises:
        BadUsage: the file cannot be read, or a value is wrong; names the file, the line and the key.
        Refused: in system mode, the file can be changed by another user than root; or a program that it
            names can be changed by others.
    """
    path = paths.config_file
    try:
        data = _content(path)
    except FileNotFoundError:
        if paths.config_named:
            raise BadUsage(
                f"{path}: there is no such file.", f"Correct or unset {paths.config_named}."
            ) from None
        return Config()
    except OSError as error:
        raise BadUsage(f"{path}: cannot be read: {error.strerror}.") from error
    if paths.mode == "system" and os.geteuid() == 0:
        refuse_unless_safe(path, owner=0)
    config = _parse(path, data)
    check_programs(config.hooks, paths.mode)
    return config


def _content(path: Path) -> bytes:
    """Return the content of a file that is small enough to be a configuration. Raises BadUsage."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BadUsage(
                f"{path}: this is a device, a pipe or a socket, not a file.", "Name a regular file."
            )
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise BadUsage(
            f"{path}: this file has more than 1 MiB, so it is no configuration of fgsched.",
            "man fgsched.toml describes the file.",
        )
    return data


def check_preemption(policy: Policy) -> Policy:
    """Return `policy` if its rules of preemption agree with the order of priority.

    Raises:
        BadUsage: a partition or QOS would preempt another of the same or a higher priority.
    """
    if (rule_error := find_rule_error(policy)) is not None:
        raise BadUsage(rule_error.why, rule_error.remedy)
    return policy


class _Source(Struct, frozen=True):
    """The text of a file, in which errors name the line."""

    path: Path
    text: str

    def at(self, *keys: str) -> str:
        """Return `file:line` of a key or a table."""
        return f"{self.path}:{_line_of(self.text, keys)}"

    def error(self, keys: Sequence[str], cause: str, remedy: str = "") -> BadUsage:
        """Return an error about a key or a table."""
        return BadUsage(f"{self.at(*keys)}: {cause}", remedy)


def _parse(path: Path, data: bytes) -> Config:
    try:
        text = data.decode("utf-8-sig")
        tree = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(10, 0, error.start) + 1
        raise BadUsage(f"{path}:{line}: this is not UTF-8.", "Save the file as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise syntax_error(path, text, error) from error
    except (RecursionError, ValueError):
        raise unreadable_value(path, text) from None
    source = _Source(path, text)
    values: dict[str, Any] = {}
    for table, entries in tree.items():
        if table not in _ALL_TABLES:
            raise source.error([table], f"there is no table [{table}].", _nearest_table(table))
        if not isinstance(entries, dict):
            raise source.error([table], f"{table} is a table, not a key.", f"Write [{table}] and its keys.")
        if table in TABLES:
            values[table] = _read_named(source, table, entries)
        else:
            values |= _read_table(source, table, entries)
    config = Config(**values)
    if (rule_error := find_rule_error(config.policy)) is not None:
        raise source.error(
            [rule_error.table, rule_error.name, "preempt"], f"{rule_error.why}.", rule_error.remedy
        )
    return config


def _read_table(source: _Source, table: str, entries: Mapping[str, object]) -> dict[str, Any]:
    """Return the fields of Config that a table with a fixed name sets."""
    fields = {}
    for name, value in entries.items():
        if (table, name) in _REMOVED:
            why, remedy = _REMOVED[table, name]
            raise source.error([table, name], f"{name} was removed: {why}.", remedy)
        if (field := _FIELDS.get((table, name))) is None:
            raise source.error([table, name], f"[{table}] has no key {name}.", _nearest_key(table, name))
        fields[field] = _decode(source, [table, name], KEYS[field], value)
    return fields


def _read_named(source: _Source, table: str, entries: Mapping[str, object]) -> dict[str, Struct]:
    """Return the settings of each name in a table such as [partitions]."""
    structs = {name: _read_entry(source, table, name, entry) for name, entry in entries.items()}
    if sum(isinstance(struct, PartitionSettings) and struct.default for struct in structs.values()) > 1:
        raise source.error(
            [table], "more than one partition is the default.", "Set default = true in only one of them."
        )
    return structs


def _read_entry(source: _Source, table: str, name: str, entry: object) -> Struct:
    if not NAME.fullmatch(name):
        raise source.error([table, name], f"{quoted(name)} is not a name.", NAME_RULE)
    if table == "per_gpu" and not (name.isascii() and name.isdecimal()):
        raise source.error([table, name], f"{quoted(name)} is not the index of a GPU.", "Write [per_gpu.0].")
    if table in _SHORT and not isinstance(entry, dict):
        entry = {_SHORT[table]: entry}
    if not isinstance(entry, dict):
        raise source.error(
            [table, name], f"{table}.{name} is not a table.", f"Write [{table}.{name}] and its keys."
        )
    keys = SECTIONS[table]
    values = {}
    for key, value in entry.items():
        if key not in keys:
            raise source.error(
                [table, name, key],
                f"[{table}.{name}] has no key {key}.",
                _nearest(f"{table}.{name}", key, keys),
            )
        values[key] = _decode(source, [table, name, key], keys[key], value)
    return TABLES[table](**values)


def _decode(source: _Source, path: Sequence[str], key: ConfigKey, value: object) -> Any:
    try:
        return key.decode(value)
    except Unlikely as error:
        raise source.error(path, f'{".".join(path)} = "{value}" {error}.') from None
    except ValueError:
        shown = f'"{value}"' if isinstance(value, str) else str(value)
        raise source.error(path, f"{'.'.join(path)} = {shown} is not {key.allowed}.") from None


# -- remedies ---------------------------------------------------------------------------------------


def _nearest(table: str, name: str, keys: Collection[str]) -> str:
    """Suggest the most similar key of a table, or list all of them."""
    from difflib import get_close_matches  # 0.2 MiB, and only needed for this message

    near = get_close_matches(name, keys, n=1, cutoff=0.5)
    return f"Did you mean {near[0]}?" if near else f"[{table}] has {', '.join(keys)}."


def _nearest_key(table: str, name: str) -> str:
    if elsewhere := _tables_with(name):
        return f"{name} belongs to [{elsewhere[0]}]."
    return _nearest(table, name, [key for home, key in _FIELDS if home == table])


def _nearest_table(name: str) -> str:
    from difflib import get_close_matches  # 0.2 MiB, and only needed for this message

    if near := get_close_matches(name, _ALL_TABLES, n=1, cutoff=0.5):
        return f"Did you mean [{near[0]}]?"
    if homes := _tables_with(name):
        return f"{name} is a key of [{homes[0]}]."
    return f"The tables are {', '.join(f'[{table}]' for table in sorted(_ALL_TABLES))}."


def _tables_with(name: str) -> list[str]:
    return [table for table, key in _FIELDS if key == name]


# -- lines ------------------------------------------------------------------------------------------


def _line_of(text: str, path: Iterable[str]) -> int:
    """Return the line of a key, else of the innermost table above it that is found, else 1."""
    table: tuple[str, ...] = ()
    lines: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            key_path = table = _parts(header[1])
        elif assignment := _ASSIGNMENT.match(line):
            key_path = (*table, *_parts(assignment[1]))
        else:
            continue
        for length in range(1, len(key_path) + 1):
            lines.setdefault(key_path[:length], number)
    wanted_path = tuple(path)
    return next(
        (lines[wanted_path[:n]] for n in range(len(wanted_path), 0, -1) if wanted_path[:n] in lines), 1
    )


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
