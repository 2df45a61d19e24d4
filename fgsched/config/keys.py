"""The keys of fgsched.toml and how messages describe them, derived from the schema."""

import json
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, convert, to_builtins
from msgspec.structs import fields

from fgsched.config.forms import Form
from fgsched.config.schema import (
    AccountSettings,
    Config,
    PartitionSettings,
    QosSettings,
    ResourceSettings,
    UserSettings,
)
from fgsched.domain.errors import BadUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
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


def _keys_of(struct: type[Struct]) -> dict[str, Key]:
    """Return the keys of a table by the names of the fields that hold them."""
    types = get_type_hints(struct, include_extras=True)
    defaults = {field.name: field.default for field in fields(struct)}
    return {
        name: _key_of(name, types[name], default)
        for name, default in defaults.items()
        if get_origin(types[name]) is not dict
    }


def _key_of(name: str, declared: Any, default: object) -> Key:
    notes = declared.__metadata__
    about = next(note for note in reversed(notes) if isinstance(note, Meta) and note.description)
    extra = about.extra or {}
    return Key(
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
    return [word for one in get_args(plain) for word in _words(one)]


TABLES: dict[str, type[Struct]] = {
    "partitions": PartitionSettings,
    "qos": QosSettings,
    "accounts": AccountSettings,
    "users": UserSettings,
    "resources": ResourceSettings,
}
KEYS = _keys_of(Config)  # by the name of the field
SECTIONS = {table: _keys_of(struct) for table, struct in TABLES.items()}


def document(config: Config) -> dict[str, Any]:
    """Return the settings in force as the JSON object of `fgctl show config`."""
    values: dict[str, Any] = to_builtins(config)
    named = {table: entries for table in TABLES if (entries := values.pop(table))}
    return values | {"named": named}
