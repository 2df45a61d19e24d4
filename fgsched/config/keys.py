"""The keys of the settings: their documentation, and changes that operators make at run time."""

import json
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, convert, to_builtins
from msgspec.structs import fields, replace

from fgsched.config.forms import NAMES, WHOLE, Form, Unlikely
from fgsched.config.schema import (
    NAME,
    NAME_RULE,
    AccountSettings,
    Config,
    FeatureSettings,
    GpuTypeSettings,
    PartitionSettings,
    PerGpuSettings,
    QosSettings,
    ResourceSettings,
    UserSettings,
)
from fgsched.domain.errors import BadUsage
from fgsched.domain.text import quoted, shown

# -- the keys --------------------------------------------------------------------------------------


class ConfigKey(Struct, frozen=True, kw_only=True):
    """A key of the file."""

    name: str
    table: str  # "" in a table per name
    description: str
    type: Any  # with its bounds, for msgspec
    form: Form
    default: Any
    default_text: str  # of a default that depends on the host
    bounds: tuple[float, float] | None

    @property
    def allowed(self) -> str:
        """Describe the values that the key takes."""
        if self.bounds is None:
            return self.form.takes
        low, high = map(self.form.show, self.bounds)
        return f"{self.form.takes}, from {low} to {high}"

    def decode(self, value: object) -> Any:
        """Convert a TOML value to the value of the field.

        Raises:
            ValueError: the value has another type or form, or is out of range.
        """
        try:
            return convert(self.form.read(value), self.type)
        except BadUsage as error:
            raise ValueError(error.cause) from error


def _keys_of(struct: type[Struct]) -> dict[str, ConfigKey]:
    """Return the keys of a table by the names of the fields that hold them."""
    types = get_type_hints(struct, include_extras=True)
    defaults = {field.name: field.default for field in fields(struct)}
    return {
        name: _key_of(name, types[name], default)
        for name, default in defaults.items()
        if get_origin(types[name]) is not dict
    }


def _key_of(name: str, declared: Any, default: object) -> ConfigKey:
    notes = declared.__metadata__
    about = next(note for note in reversed(notes) if isinstance(note, Meta) and note.description)
    extra = about.extra or {}
    return ConfigKey(
        name=extra.get("name", name),
        table=extra.get("table", ""),
        description=about.description or "",
        type=declared,
        form=_form_of(declared.__origin__, [note for note in notes if isinstance(note, Form)]),
        default=default,
        default_text=extra.get("default", ""),
        bounds=None if about.ge is None or about.le is None else (about.ge, about.le),
    )


def _form_of(plain: Any, declared: list[Form]) -> Form:
    """Return the declared form, or the words of a Literal or of a list of Literals."""
    if declared and declared[-1].takes:
        return declared[-1]
    is_list = get_origin(plain) is tuple
    words = [json.dumps(word) for word in _words(get_args(plain)[0] if is_list else plain) if word]
    takes = f"a list of some of [{', '.join(words)}]" if is_list else " or ".join(words)
    return Form(takes=takes, read=declared[-1].read) if declared else Form(takes=takes)


def _words(plain: Any) -> list[str]:
    """Return the words of a Literal or of a union of Literals."""
    if get_origin(plain) is Literal:
        return [*get_args(plain)]
    return [word for argument in get_args(plain) for word in _words(argument)]


TABLES: dict[str, type[Struct]] = {
    "partitions": PartitionSettings,
    "qos": QosSettings,
    "accounts": AccountSettings,
    "users": UserSettings,
    "resources": ResourceSettings,
    "gpu_types": GpuTypeSettings,
    "features": FeatureSettings,
    "per_gpu": PerGpuSettings,
}
KEYS = _keys_of(Config)  # by the name of the field
SECTIONS = {table: _keys_of(struct) for table, struct in TABLES.items()}


def document(config: Config) -> dict[str, Any]:
    """Return the settings in force as the JSON object of `fgctl show config`."""
    values: dict[str, Any] = to_builtins(config)
    named = {table: entries for table in TABLES if (entries := values.pop(table))}
    return values | {"named": named}


# -- changes of partitions at run time, applied on top of the file ---------------------------------


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
    key = _OWN_KEYS.get(plain) or _SLURM_KEYS.get(plain)
    if key is None:
        from difflib import get_close_matches  # 0.2 MiB, and only needed for this message

        near = get_close_matches(plain, _OWN_KEYS, n=1, cutoff=0.5)
        raise BadUsage(
            f"a partition has no {quoted(word)}",
            f"Did you mean {_OWN_KEYS[near[0]]}?" if near else f"A partition has {', '.join(_KEYS)}.",
        )
    return key


def decode_values(values: Mapping[str, str]) -> dict[str, Any]:
    """Decode the texts of a command line, {key: text}, to the values of the fields.

    Raises:
        BadUsage: a text is not a legal value of its key.
    """
    fields = {}
    for name, text in values.items():
        partition_key = _KEYS[name]
        try:
            fields[name] = partition_key.decode(_as_toml(partition_key, text))
        except Unlikely as error:
            raise BadUsage(f"{name}={shown(text)} {error}".replace('"', "")) from None
        except ValueError:
            raise BadUsage(f"{name}={shown(text)} is not {partition_key.allowed}") from None
    return fields


def _as_toml(key: ConfigKey, text: str) -> object:
    """Convert a word of the command line to the syntax of the file."""
    plain = key.type.__origin__
    if plain is bool:
        return _SWITCH.get(text.lower(), text)
    if key.form is WHOLE:
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text
    if key.form is NAMES:
        return [word for word in text.split(",") if word]
    return text.lower() if key.name == "state" else text


def usable_overrides(
    overrides: Mapping[str, object],
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Return the stored overrides that can be used, and a sentence for each of the others.

    An earlier version can have stored a value that this one refuses when it is typed.
    """
    usable: dict[str, dict[str, str]] = {}
    refusals = []
    for name, values in overrides.items():
        if not isinstance(values, Mapping):
            refusals.append(f"[partitions.{name}] {values!r} is no table; the stored value is not used")
            continue
        usable[name] = {}
        for key, text in values.items():
            try:
                decode_values({key: text})
                usable[name][key] = text
            except (BadUsage, KeyError) as error:
                why = error.cause if isinstance(error, BadUsage) else f"a partition has no {shown(key)}"
                refusals.append(f"[partitions.{name}] {why}; the stored value is not used")
    return usable, refusals


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
    defaults = [name for name, settings in partitions.items() if settings.default]
    if len(defaults) > 1:
        raise BadUsage(
            f"{' and '.join(defaults)} cannot both be the default", "Set default=no for one of them."
        )
    return replace(config, partitions=partitions)
