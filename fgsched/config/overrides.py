"""What operators say of partitions while the controller runs, laid over what the file says."""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from fgsched.config import settings as kinds
from fgsched.config.schema import NAME, SECTIONS, PartitionSettings, Sections
from fgsched.config.settings import Key, Unfit
from fgsched.domain.errors import BadUsage
from fgsched.domain.text import quoted, shown

_KEYS = SECTIONS["partitions"]
_SAME = {  # Slurm's spellings, without capitals
    **{"maxtime": "max_time", "defaulttime": "time", "allowgroups": "groups", "allowaccounts": "accounts"},
    **{"gracetime": "preempt_grace", "preemptexempttime": "preempt_exempt"},
    **{"gpumem": "gpu_mem", "maxgpumem": "max_gpu_mem", "maxcpus": "max_cpus", "maxmem": "max_mem"},
}
_PLAIN = {key.replace("_", ""): key for key in _KEYS}


def key_of(word: str) -> str:
    """The key of a partition that is meant; case, '-' and '_' do not matter."""
    plain = word.lower().replace("-", "").replace("_", "")
    found = _PLAIN.get(plain) or _SAME.get(plain)
    if found is None:
        near = get_close_matches(plain, _PLAIN, n=1, cutoff=0.5)
        raise BadUsage(
            f"a partition has no {quoted(word)}",
            f"Did you mean {_PLAIN[near[0]]}?" if near else f"There are {', '.join(_KEYS)}.",
        )
    return found


def changed(values: Mapping[str, str]) -> dict[str, Any]:
    """{key: value} of texts; BadUsage says what may be."""
    found = {}
    for name, text in values.items():
        key = _KEYS[name]
        try:
            found[name] = key.read(_plain(key, text))
        except Unfit:
            raise BadUsage(f"{name}={shown(text)} is not {key.allowed}") from None
    return found


def _plain(key: Key, text: str) -> object:
    """A word of a command line as the file would have it."""
    if key.kind is kinds.SWITCH:
        return {"yes": True, "true": True, "no": False, "false": False}.get(text.lower(), text)
    if key.kind is kinds.WHOLE:
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text
    if key.kind is kinds.NAMES:
        return [word for word in text.split(",") if word]
    return text.lower() if key.name == "state" else text


def overlaid(named: Sections, overlay: Mapping[str, Mapping[str, str]]) -> Sections:
    """The tables of the file, with these values of its partitions, and with those that are only here."""
    partitions = dict(named.get("partitions", {}))
    for name, values in overlay.items():
        if not NAME.fullmatch(name):
            raise BadUsage(f"{quoted(name)} is not a name", "Letters, digits, '_', '.' and '-', at most 64.")
        partitions[name] = replace(partitions.get(name) or PartitionSettings(), **changed(values))
    defaults = [name for name, one in partitions.items() if one.default]
    if len(defaults) > 1:
        raise BadUsage(f"{' and '.join(defaults)} would both be the default", "default=no at one of them.")
    return {**named, "partitions": partitions}
