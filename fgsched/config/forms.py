"""Forms of the values in fgsched.toml: sizes, times, shares of GPUs and lists of GPUs."""

import json
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, Struct, convert

from fgsched.domain import times, units
from fgsched.domain.times import FOREVER
from fgsched.lifecycle.mail import is_address

_LEAST_WITHOUT_UNIT = 256 << 20  # bytes
_LARGEST_WEIGHT = 1e6  # of a model of GPU
_LONGEST_RETENTION = 100 * 366 * 86_400  # seconds


def _as_toml(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


class Form(Struct, frozen=True, kw_only=True):
    """The syntax of a kind of value: its description, its parser from TOML and its writer."""

    takes: str
    read: Callable[[object], object] = lambda value: value  # raises ValueError or BadUsage
    show: Callable[[Any], str] = _as_toml


def _text(value: object) -> str:
    return convert(value, str)


def _quantity(value: object) -> str:
    """Return a number or a text as a text."""
    return str(convert(value, int | float | str))


def _integer(value: object) -> int:
    return convert(value, int)


def _gpu_request(value: object) -> str:
    text = _quantity(value)
    units.parse_gpus(text)
    return text


class Unlikely(ValueError):
    """A value that can be read, and was probably meant otherwise. Its text says how."""


def _size(value: object) -> int:
    """Return the bytes of a size. A small number is MiB without a unit, and often meant as GiB."""
    text = _text(value)
    size = units.parse_bytes(text)
    if 0 < size < _LEAST_WITHOUT_UNIT and text[-1].isdecimal():
        raise Unlikely(f'has no unit, and would be MiB; did you mean "{text}G"? Else write "{text}M"')
    return size


def _gpu_memory(value: object) -> str:
    text = _text(value)
    units.parse_share(text) if text.endswith("%") else _size(text)
    return text


def _indices(value: object) -> tuple[int, ...]:
    if isinstance(value, list):
        return tuple(sorted(set(convert(value, list[int]))))
    return units.parse_indices(_text(value))


def _devices(value: object) -> str:
    """Return a device list in the form of FG_DEVICES: a count, or a list that ends with a comma."""
    if isinstance(value, list):
        items = [str(item) for item in convert(value, list[int | str])]
        return ",".join(items) + "," if items else "none"
    return str(convert(value, int | str))


def _weights(value: object) -> list[tuple[str, float]]:
    pairs = [text.rpartition("=") for text in convert(value, list[str])]
    weights = [(model.strip(), float(weight)) for model, _, weight in pairs]
    if any(not model or not 0 <= weight <= _LARGEST_WEIGHT for model, weight in weights):
        raise ValueError
    return weights


def _address(value: object) -> str:
    text = _text(value)
    if text and not is_address(text):
        raise ValueError(text)
    return text


def _recipient(value: object) -> str:
    text = _text(value)
    if not is_address(text):
        raise ValueError(text)
    return text


def _domain(value: object) -> str:
    text = _text(value)
    if text and not is_address(f"any@{text}"):
        raise ValueError(text)
    return text


def _addresses(value: object) -> tuple[str, ...]:
    addresses = tuple(convert(value, list[str]))
    for address in addresses:
        _domain(address[1:]) if address.startswith("@") and len(address) > 1 else _address(address or "@")
    return addresses


def _retention(value: object) -> int:
    return FOREVER if value == "forever" else times.parse_duration(_text(value), _LONGEST_RETENTION)


def _show_retention(seconds: int) -> str:
    return {FOREVER: '"forever"', 0: '"0"'}.get(seconds) or _show_time(seconds)


def _show_time(seconds: float) -> str:
    return f'"{times.format_limit(round(seconds))}"'


def _show_period(seconds: float) -> str:
    return _show_time(seconds) if seconds else '"0"'


def _show_share(share: float) -> str:
    return f'"{units.format_share(round(share))}"'


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


WHOLE = Form(takes="a whole number")
NAMES = Form(takes="a list of names")
ANY_CASE = Form(takes="", read=_lower)  # a word that may be in Slurm's capitals

Whole = Annotated[int, WHOLE]
Seconds = Annotated[float, Form(takes="seconds")]
Switch = Annotated[bool, Form(takes="true or false")]
Name = Annotated[str, Form(takes="a name")]
Names = Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], NAMES]
UserNames = Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Form(takes="a list of user names")]
Commands = Annotated[
    tuple[Annotated[str, Meta(min_length=1)], ...],
    Form(takes='a list of commands, with * and ?, such as ["Xorg", "dcgm*"]'),
]
RECIPIENT = Form(takes="a user name or an address", read=_recipient)
Word = Annotated[str, Form(takes="a text"), Meta(pattern=r"^[^\0-\x1f]*\Z")]
ADDRESS = Form(takes="an address such as fgsched@example.org", read=_address)
DOMAIN = Form(takes="a domain such as example.org", read=_domain)
Addresses = Annotated[
    tuple[str, ...], Form(takes='a list of addresses, or of domains such as "@example.org"', read=_addresses)
]
Program = Annotated[str, Form(takes='an absolute path, or "" for none'), Meta(pattern=r"^(/[^\0]*)?\Z")]
AbsolutePath = Annotated[str, Form(takes="an absolute path"), Meta(pattern=r"^/[^\0]*\Z")]
Bytes = Annotated[
    int,
    Form(
        takes='a size such as "256M"',
        read=_size,
        show=lambda size: f'"{units.format_mebibytes(round(size))}"',
    ),
]
Share = Annotated[  # ten-thousandths of one GPU
    int,
    Form(
        takes='a share such as 0.05 or "5%"',
        read=lambda value: units.parse_share(_quantity(value)),
        show=_show_share,
    ),
]
Factor = Annotated[  # ten-thousandths
    int,
    Form(
        takes="a factor such as 1.5 or 2.0",
        read=lambda value: units.parse_units(_quantity(value)),
        show=lambda factor: units.format_share(round(factor)),
    ),
]
GpuAmount = Annotated[  # ten-thousandths of a GPU, of several GPUs together
    int,
    Form(
        takes="an amount of GPUs such as 0.5 or 2",
        read=lambda value: units.parse_units(_quantity(value)),
        show=_show_share,
    ),
]
GpuRequest = Annotated[str, Form(takes='an amount of GPUs such as 0.5, 2 or "a100:1"', read=_gpu_request)]
GpuMemory = Annotated[str, Form(takes='memory of a GPU such as "8G" or "50%"', read=_gpu_memory)]
Duration = Annotated[  # seconds
    int,
    Form(
        takes='a time such as "1-12:00:00"; a bare number is minutes, "0" no limit',
        read=lambda value: times.parse_duration(_text(value)),
        show=_show_time,
    ),
]
Period = Annotated[  # seconds
    int,
    Form(
        takes='a time such as "30", which are minutes, or "1:00:00"',
        read=lambda value: times.parse_duration(_text(value)),
        show=_show_period,
    ),
]
Retention = Annotated[  # seconds, or FOREVER
    int,
    Form(
        takes='a time such as "30-00:00:00"; a bare number is minutes, "0" is not at all, or "forever"',
        read=_retention,
        show=_show_retention,
    ),
]
GpuIndices = Annotated[
    tuple[int, ...],
    Form(
        takes='a list of GPUs such as [0, 1] or "0-1"',
        read=_indices,
        show=lambda indices: f'"{units.format_indices(indices)}"',
    ),
]
Weights = Annotated[  # (part of the name of a model, weight)
    tuple[tuple[str, float], ...],
    Form(
        takes='a list of weights of models such as ["A100=2", "A6000=1"]',
        read=_weights,
        show=lambda weights: json.dumps([f"{model}={weight:g}" for model, weight in weights]),
    ),
]
XidNumbers = Annotated[tuple[int, ...], Form(takes="a list of Xid numbers such as [48, 79]", read=_indices)]
Devices = Annotated[
    str,
    Form(
        takes='"auto", "none", "sim:4x80G:H100", how many, or a list of indices or UUIDs',
        read=_devices,
    ),
]
