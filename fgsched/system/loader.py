"""Variables of the dynamic loader: jobs and commands of users get them, and the own interpreters do not.

The native commands put them aside before they execute the interpreter (fgshim/front/interpreter.c).
"""

from collections.abc import Mapping, MutableMapping

_ASIDE = "FG_CALLER_"  # before the name of a variable that is put aside
_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT")
_own: dict[str, str | None] = {}  # variable that was put aside -> its value for the own interpreters


def restore(environ: MutableMapping[str, str]) -> None:
    """Give the variables back to the environment; the loader of this process has read it."""
    for name in _VARIABLES:
        if (value := environ.pop(_ASIDE + name, None)) is not None:
            _own[name] = environ.get(name)
            environ[name] = value


def put_aside(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for another own interpreter: the variables are put aside as for this process."""
    changed = dict(environ)
    for name, own in _own.items():
        if (value := changed.pop(name, None)) is not None:
            changed[_ASIDE + name] = value
        if own is not None:
            changed[name] = own
    return changed


def of_users(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the variables as the caller of the first command had them."""
    changed = dict(environ)
    for name in _VARIABLES:
        if (value := changed.pop(_ASIDE + name, None)) is not None:
            changed[name] = value
    return changed
