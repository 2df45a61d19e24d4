"""`--export`: select the variables of the submitter that the job gets."""

import re
from collections.abc import Iterator, Mapping

from fgsched.domain.errors import BadUsage
from fgsched.domain.text import BadValue, lazy_regex, shown

_LARGEST = 1 << 20  # bytes of a job's environment
_LARGEST_VARIABLE = 128 << 10  # the kernel's limit for one string of exec
_NAME = lazy_regex(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = lazy_regex(r"""((?:[^,'"]|'[^']*'|"[^"]*"|['"])*)(,|$)""", re.DOTALL)
_QUOTED = lazy_regex(r"""'([^']*)'|"([^"]*)\"""", re.DOTALL)
_PATH = "/usr/local/bin:/usr/bin:/bin"
_LOGIN = ("HOME", "USER", "LOGNAME", "SHELL")
_HOOK = "libfgshim.so"


def exported(text: str, environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the environment that `--export=text` gives a job, and warnings. Raises BadValue.

    A value in the list overrides that of the submitter.
    """
    warnings: list[str] = []
    sane, junk = _sane(environ)
    if junk:
        warnings.append(f"{junk} entries of the environment have no proper name and were dropped")
    result: dict[str, str] = {}
    explicit: dict[str, str] = {}
    for name, value in _tokens(text):
        if value is None and name.upper() == "ALL":
            result = sane
        elif value is None and name.upper() == "NONE":
            result = _login(sane)
        elif not _NAME.fullmatch(name):
            raise BadValue(text, f": {shown(name)} is not a variable's name")
        elif value is not None:
            explicit[name] = value
        elif name in sane:
            explicit[name] = sane[name]
        else:
            warnings.append(f"--export: {name} is not set, so the job will not have it")
    result = _without_hook({**result, **explicit})
    _check_size(result)
    return result, warnings


def _tokens(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield (name, value) of each part; commas inside quotes belong to the value."""
    at = 0
    while at <= len(text):
        match = _TOKEN.match(text, at)
        assert match is not None  # the pattern also matches nothing
        name, equals, value = match[1].partition("=")
        yield name, _QUOTED.sub(lambda quoted: quoted[1] or quoted[2] or "", value) if equals else None
        if not match[2]:
            return
        at = match.end()


def _sane(environ: Mapping[str, str]) -> tuple[dict[str, str], int]:
    kept = {
        name: value
        for name, value in environ.items()
        if name and "=" not in name and "\0" not in name + value
    }
    return kept, len(environ) - len(kept)


def _login(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a minimal login environment from the variables of the submitter's session."""
    return {"PATH": _PATH, **{name: environ[name] for name in _LOGIN if name in environ}}


def _without_hook(environment: dict[str, str]) -> dict[str, str]:
    """Remove the hook of the submitting job: it would count against that job's share."""
    preload = environment.get("LD_PRELOAD", "")
    if _HOOK not in preload:
        return environment
    kept = [path for path in re.split(r"[ :]+", preload) if path and not path.endswith(f"/{_HOOK}")]
    rest = {name: value for name, value in environment.items() if name != "LD_PRELOAD"}
    return {**rest, "LD_PRELOAD": ":".join(kept)} if kept else rest


def _check_size(environment: Mapping[str, str]) -> None:
    total = 0
    for name, value in environment.items():
        size = len(name) + len(value.encode("utf-8", "surrogateescape")) + 2
        if size > _LARGEST_VARIABLE:
            raise BadUsage(
                f"--export: the variable {shown(name)} is {size} bytes; limit {_LARGEST_VARIABLE}",
                "Put it into a file, or leave it out with --export=A,B,….",
            )
        total += size
    if total > _LARGEST:
        raise BadUsage(
            f"--export: the environment is {total} bytes; limit {_LARGEST}",
            "Export only what the job needs: --export=A,B=x, or --export=NONE.",
        )
