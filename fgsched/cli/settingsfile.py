"""The settings in force, as a file that says the same."""

import json
from typing import Any

from fgsched.config.load import KEYS, SECTIONS, Config, Key
from fgsched.config.settings import INDICES
from fgsched.system.paths import Paths


def as_toml(config: Config, places: Paths) -> str:
    """Every key with its meaning; where the default depends on the host the key is a comment."""
    is_there = "" if places.config_file.exists() else " (there is none: these are the defaults)"
    lines = [f"# {places.config_file}{is_there}"]
    table = ""
    for name, key in KEYS.items():
        if key.table != table:
            table = key.table
            lines += ["", f"[{table}]"]
        lines += [f"# {key.says} Takes {key.allowed}.", _line(key, getattr(config, name))]
    for table, keys in SECTIONS.items():
        for name, found in config.named.get(table, {}).items():
            lines += ["", f"[{table}.{name}]"]
            given = {own: getattr(found, own) for own in keys}
            lines += [_line(keys[own], value) for own, value in given.items() if value != keys[own].default]
    return "\n".join(lines) + "\n"


def _line(key: Key, value: Any) -> str:
    if key.default_text and value == key.default:
        return f"# {key.name} = … ({key.default_text})"
    is_list = isinstance(value, tuple) and key.kind is not INDICES
    return f"{key.name} = {json.dumps(list(value)) if is_list else key.kind.show(value)}"
