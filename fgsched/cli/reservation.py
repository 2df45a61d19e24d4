"""Translate KEY=VALUE words into requests about reservations, and format reservations."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from fgsched.cli.changes import no_pair
from fgsched.client import Client
from fgsched.domain.errors import BadUsage, Refused
from fgsched.domain.job import WHOLE
from fgsched.domain.text import BadValue, quoted, shown
from fgsched.domain.times import format_runtime, format_time, parse_duration, parse_time
from fgsched.domain.units import (
    format_indices,
    format_mebibytes,
    format_share,
    parse_gpus,
    parse_indices,
    parse_share,
)
from fgsched.protocol import (
    Call,
    CreateReservation,
    DeleteReservation,
    ReservationName,
    UpdateReservation,
)

Record = dict[str, Any]
_NAMES = {"reservation", "reservationname"}
_SAME = {  # other spellings, Slurm's among them
    **{"starttime": "start", "endtime": "end", "user": "users", "group": "groups", "account": "accounts"},
    **{"gpuidx": "gpu", "flag": "flags"},
}
_TYPED = {"start": "starttime", "end": "endtime"}
KEYS = ("starttime", "endtime", "duration", "users", "groups", "accounts", "gpu", "gpus", "share", "flags")
_ALL = "all"
_FLAGS = ("maint", "ignore_jobs")


def is_about_reservation(words: Sequence[str]) -> bool:
    keys = {word.partition("=")[0].lower() for word in words}
    return bool(keys & _NAMES) and not keys & {"job", "jobid"}


def _by_key(words: Sequence[str]) -> tuple[str, dict[str, str]]:
    found: dict[str, str] = {}
    name = ""
    for word in words:
        key, equals, text = word.partition("=")
        plain = _SAME.get(key.lower(), key.lower())
        if not equals:
            raise no_pair(word)
        if plain in found or (plain in _NAMES and name):
            raise BadUsage(f"{shown(key)} is given twice")
        if plain in _NAMES:
            name = text
        elif plain in _READ:
            found[plain] = text
        else:
            raise BadUsage(f"{shown(key)} is nothing of a reservation", f"There are: {' '.join(KEYS)}")
    if not name:
        raise BadUsage("reservation=NAME says which one is meant", "fgctl show reservation lists them.")
    return name, found


def _names(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _moment(text: str) -> int:
    return math.floor(parse_time(text, time.time()))


def _flags(text: str) -> list[str]:
    flags = [word.lower() for word in _names(text)]
    for flag in flags:
        if flag not in _FLAGS:
            raise BadUsage(f"reservation: no flag {quoted(flag)}", f"There are {', '.join(_FLAGS)}.")
    return flags


def _length(text: str) -> int:
    seconds = parse_duration(text)
    if not seconds:
        raise BadValue(text, " is no length of time")
    return seconds


def _amount(text: str) -> tuple[int, int]:
    kind, count, share = parse_gpus(text)
    if kind or not count:
        raise BadValue(text, " is not a number of GPUs, or part of one")
    return count, share


_READ: dict[str, Callable[[str], Any]] = {
    "start": _moment,
    "end": _moment,
    "duration": _length,
    "users": _names,
    "groups": _names,
    "accounts": _names,
    "gpu": lambda text: None if text.lower() == _ALL else list(parse_indices(text)),
    "gpus": _amount,
    "share": parse_share,
    "flags": _flags,
}


def reservation_call(client: Client, verb: str, words: Sequence[str]) -> Call[ReservationName]:
    """Return the request that creates, updates or deletes a reservation.

    Raises: BadUsage or BadValue, which name the word that is not right.
    """
    name, texts = _by_key(words)
    given: Record = {}
    for key, text in texts.items():
        try:
            given[key] = _READ[key](text)
        except BadValue as error:
            raise BadValue(text, error.why, label=f"{_TYPED.get(key, key)}=") from None
    if verb == "delete" and given:
        raise BadUsage("delete takes reservation=NAME alone")
    if verb == "delete":
        return DeleteReservation(name=name)
    if verb == "update" and not given:
        raise BadUsage("there is nothing to change", f"What can be: {' '.join(KEYS)}")
    kind = CreateReservation if verb == "create" else UpdateReservation
    return kind(name=name, **_window(client, name, _cards(client, given)))


def _cards(client: Client, given: Record) -> Record:
    """Return the selected GPUs: by index (gpu=, with a share of each), or by number (gpus=)."""
    if "gpus" in given and ("gpu" in given or "share" in given):
        raise BadUsage("gpus= lets the cards be chosen; gpu= names them, with share= of each: give one")
    if "share" in given and "gpu" not in given:
        raise BadUsage("share= is a part of each of the cards that gpu= names")
    if "gpus" in given:
        given["count"], given["share"] = given.pop("gpus")
    if "gpu" in given:
        cards = given.pop("gpu")
        given["cards"] = [card["index"] for card in client.ask("gpus")["gpus"]] if cards is None else cards
        given.setdefault("share", WHOLE)
    return given


def _window(client: Client, name: str, given: Record) -> Record:
    """Compute the end of the reservation from its duration."""
    if "duration" not in given:
        return given
    if "end" in given:
        raise BadUsage("endtime= and duration= say the same; give one")
    there = {one["name"]: one["start"] for one in client.ask("reservations")["reservations"]}
    start = given.setdefault("start", there.get(name, math.floor(time.time())))
    return {key: value for key, value in given.items() if key != "duration"} | {
        "end": start + given["duration"]
    }


def records(client: Client, words: Sequence[str]) -> list[Record]:
    """Return the named reservations, or all. Raises Refused for an unknown name."""
    found = {one["name"]: one for one in client.ask("reservations")["reservations"]}
    for word in words:
        if word not in found:
            raise Refused(
                f"invalid reservation name: {shown(word)}",
                f"There is {', '.join(found) or 'none'}: fgctl create reservation=NAME makes one.",
            )
    return [found[name] for name in dict.fromkeys(words or found)]


def lines(found: Record) -> list[list[tuple[str, object]]]:
    """Format a reservation as Key=Value pairs."""
    cards = found["cards"]
    return [
        [("ReservationName", found["name"]), ("State", _state(found))],
        [("StartTime", format_time(found["start"])), ("EndTime", format_time(found["end"]))],
        [("Duration", format_runtime(found["end"] - found["start"]))],
        [
            (f"{name.capitalize()}", ",".join(found[name]) or "(null)")
            for name in ("users", "groups", "accounts")
        ],
        [
            ("GpuIdx", format_indices(card["gpu"] for card in cards)),
            ("GpuFraction", format_share(sum(card["share"] for card in cards))),
            ("GpuMem", ",".join(dict.fromkeys(format_mebibytes(card["memory"]) for card in cards))),
        ],
        [("Flags", ",".join(found["flags"]).upper() or "(null)"), ("CreatedBy", found["by"])],
        [("JobsRunning", len(found["running"])), ("JobsPending", len(found["pending"]))],
    ]


def _state(found: Record) -> str:
    return "ACTIVE" if found["is_active"] else "INACTIVE"


HEADINGS = "RESV_NAME STATE START_TIME END_TIME DURATION GPUS GPUIDX USERS"


def row(found: Record) -> list[str]:
    """Format a reservation as a row of a table."""
    whose = [*found["users"], *(f"@{name}" for name in found["groups"])]
    whose += [f"account:{name}" for name in found["accounts"]]
    return [
        found["name"],
        _state(found),
        format_time(found["start"]),
        format_time(found["end"]),
        format_runtime(found["end"] - found["start"]),
        format_share(sum(card["share"] for card in found["cards"])),
        format_indices(card["gpu"] for card in found["cards"]) or "-",
        ",".join(whose) or ",".join(found["flags"]) or "-",
    ]
