"""Changes that operators make to partitions at run time, applied on top of the file."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from msgspec.structs import replace

from fgsched.config.forms import NAMES, WHOLE
from fgsched.config.keys import SECTIONS, Key
from fgsched.config.schema import NAME, NAME_RULE, Config, PartitionSettings
from fgsched.domain.errors import BadUsage
from fgsched.domain.text import quoted, shown

_KEYS = SECTIONS["partitions"]
_SLURM_KEYS = {  # in lower case
    **{"maxtime": "max_time", "defaulttime": "time", "allowgroups": "groups", "allowaccounts": "accounts"},
    **{"gracetime": "preempt_grace", "preemptexempttime": "preempt_exempt"},
    **{"gpumem": "gpu_mem", "maxgpumem": "max_gpu_mem", "maxcpus": "max_cpus", "maxmem": "max_mem"},
}
_OWN_KEYS = {key.replace("_", ""): key for key in _KEYS}
_SWITCH = {"yes": True, "true": True, "no": False, "false": False}


def key_of(word: str) -> str:
    """Return the partition key that `word` names. Case, '-' and '_' are ignored; Slurm's names are accepted.

    Raises:
        BadUsage: there is no such key; suggests the most similar one.
    """
    plain = word.lower().replace("-", "").replace("_", "")
    found = _OWN_KEYS.get(plain) or _SLURM_KEYS.get(plain)
    if found is None:
        near = get_close_matches(plain, _OWN_KEYS, n=1, cutoff=0.5)
        raise BadUsage(
            f"a partition has no {quoted(word)}",
            f"Did you mean {_OWN_KEYS[near[0]]}?" if near else f"A partition has {', '.join(_KEYS)}.",
        )
    return found


def decode_values(values: Mapping[str, str]) -> dict[str, Any]:
    """Decode the texts of a command line, {key: text}, to the values of the fields.

    Raises:
        BadUsage: a text is not a legal value of its key.
    """
    found = {}
    for name, text in values.items():
        key = _KEYS[name]
        try:
            found[name] = key.decode(_as_toml(key, text))
        except ValueError:
            raise BadUsage(f"{name}={shown(text)} is not {key.allowed}") from None
    return found


def _as_toml(key: Key, text: str) -> object:
    """Convert a word of the command line to the syntax of the file."""
    plain = key.type.__origin__
    if plain is bool:
        return _SWITCH.get(text.lower(), text)
    if key.form is WHOLE:
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text
    if key.form is NAMES:
        return [word for word in text.split(",") if word]
    return text.lower() if key.name == "state" else text


def apply_overrides(config: Config, overrides: Mapping[str, Mapping[str, str]]) -> Config:
    """Return `config` with `overrides`, {partition: {key: text}}; unknown partitions are added.

    Raises:
        BadUsage: a name or a value is not legal, or two partitions would be the default.
    """
    partitions = dict(config.partitions)
    for name, values in overrides.items():
        if not NAME.fullmatch(name):
            raise BadUsage(f"{quoted(name)} is not a name", NAME_RULE)
        partitions[name] = replace(partitions.get(name) or PartitionSettings(), **decode_values(values))
    defaults = [name for name, one in partitions.items() if one.default]
    if len(defaults) > 1:
        raise BadUsage(
            f"{' and '.join(defaults)} cannot both be the default", "Set default=no for one of them."
        )
    return replace(config, partitions=partitions)
