"""Write Slurm's documents as text: JSON, and YAML with the type of each value, as Slurm writes it."""

import json
import re
from collections.abc import Iterator
from typing import Any

_PLAIN = re.compile(r"(?:[A-Za-z0-9_/(%](?:[^:#{}\[\]\"'\\\n]*[^:#{}\[\]\"'\\\s])?)?")
_TAGS = ((bool, "!!bool"), (int, "!!int"), (float, "!!float"), (str, "!!str"), (type(None), "!!null"))


def document(syntax: str, content: dict[str, Any]) -> str:
    """Return a document as text; `syntax`: "json" or "yaml"."""
    if syntax == "json":
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    return "\n".join(["%YAML 1.1", "--- !!map", *_lines(content, ""), "...", "", ""])


def _lines(value: Any, indent: str) -> Iterator[str]:
    """Yield the lines of the items of a map or list."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _item(f"{indent}!!str {key}:", item, f"{indent}  ", indent)
    else:
        for item in value:
            yield from _item(f"{indent}-", item, f"{indent}  ", f"{indent}  ")


def _item(start: str, value: Any, of_map: str, of_list: str) -> Iterator[str]:
    """Yield a value after its key or dash.

    Args:
        of_map: the blanks before the items of a map.
        of_list: those before the items of a list.
    """
    if isinstance(value, dict):
        yield f"{start} !!map" if value else f"{start} !!map {{}}"
        yield from _lines(value, of_map)
    elif isinstance(value, list):
        yield f"{start} !!seq" if value else f"{start} !!seq []"
        yield from _lines(value, of_list)
    else:
        yield f"{start} {_scalar(value)}".rstrip()


def _scalar(value: Any) -> str:
    tag = next(tag for kind, tag in _TAGS if isinstance(value, kind))
    if isinstance(value, bool) or value is None:
        return f"{tag} {json.dumps(value)}"
    if isinstance(value, float):
        return f"{tag} {value:f}"
    text = str(value)
    return f"{tag} {text}" if _PLAIN.fullmatch(text) else f"{tag} {json.dumps(text)}"
