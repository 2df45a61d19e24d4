"""Regular expressions that are compiled at their first use: a command uses few of those that it imports."""

import re
from typing import Any, AnyStr, cast


class _Pattern:
    def __init__(self, text: Any, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        """Compile, and keep the methods of the compiled expression as attributes."""
        compiled = re.compile(self._text, self._flags)
        for method in ("fullmatch", "match", "search", "sub", "split", "finditer", "findall"):
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


def lazy_regex(text: AnyStr, flags: int = 0) -> "re.Pattern[AnyStr]":
    """Return a regular expression as `re.compile` does, compiled at its first use.

    Raises: re.error at the first use, if `text` is not a regular expression.
    """
    return cast("re.Pattern[AnyStr]", _Pattern(text, flags))
