"""The statements of the store, each by its name."""

import re
from importlib.resources import files


def named(text: str) -> dict[str, str]:
    """{name: statement} of a file whose statements each begin with '-- name: x'."""
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def source(name: str) -> str:
    return files("fgsched.store").joinpath(name).read_text()


SQL = named(source("queries.sql"))
