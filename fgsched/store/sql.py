"""The statements of the store, by name. Parts in braces are derived from the fields of a job."""

import re
from importlib.resources import files

from fgsched.store.columns import PARTS

_PART = re.compile(r"\{(\w+)\}")


def named(text: str) -> dict[str, str]:
    """Return {name: statement} of a file whose statements each begin with '-- name: x'."""
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def source(name: str) -> str:
    """Return the text of a file of statements, with its parts filled in."""
    text = files("fgsched.store").joinpath(name).read_text()
    return _PART.sub(lambda found: PARTS.get(found[1], found[0]), text)


SQL = named(source("queries.sql"))
