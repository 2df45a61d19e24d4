"""Translate KEY=VALUE words into requests about reservations, and format reservations."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar

from msgspec import to_builtins

from fgsched import protocol
from fgsched.client import Client
from fgsched.domain.errors import BadUsage, Refused
from fgsched.domain.job import WHOLE
from fgsched.domain.policy import Reservation
from fgsched.domain.text import BadValue, quoted, shown
from fgsched.domain.times import format_runtime, parse_duration, parse_time
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
    ReservationInfo,
    ReservationName,
    UpdateReservation,
)
from fgsched.views.display import host_name, shown_time
from fgsched.views.listing import TableColumn

Record = dict[str, Any]
_Entry = TypeVar("_Entry")  # of the name service
_NAMES = {"reservation", "reservationname"}
_SAME = {  # other spellings, Slurm's among them
    **{"starttime": "start", "endtime": "end", "user": "users", "group": "groups", "account": "accounts"},
    **{"gpuidx": "gpu", "flag": "flags", "node": "nodes"},
}
_TYPED = {"start": "starttime", "end": "endtime"}
KEYS = ("starttime", "endtime", "duration", "users", "groups", "accounts", "gpu", "gpus", "share", "flags")
_ALL = "all"
_FLAGS = ("maint", "ignore_jobs")


def is_about_reservation(words: Sequence[str]) -> bool:
    keys = {word.partition("=")[0].lower() for word in words}
    return bool(keys & _NAMES) and not keys & {"job", "jobid"}


def _by_key(words: Sequence[str]) -> tuple[str, dict[str, str]]:
    by_key: dict[str, str] = {}
    name = every = ""
    for word in words:
        key, equals, text = word.partition("=")
        plain = _SAME.get(key.lower(), key.lower())
        if not equals:
            from fgsched.cli.changes import no_pair

            raise no_pair(word)
        if plain in by_key or (plain in _NAMES and name):
            raise BadUsage(f"{shown(key)} is given twice")
        if plain in _NAMES:
            name = text
        elif plain == "nodes":
            every = _every_gpu(text)
        elif plain in _READ:
            by_key[plain] = text
        else:
            raise BadUsage(f"{shown(key)} is not a key of a reservation", f"Keys: {' '.join(KEYS)}")
    if every and not by_key.keys() & {"gpu", "gpus"}:
        by_key["gpu"] = every
    if not name:
        raise BadUsage("reservation=NAME is missing", "fgctl show reservation lists the reservations.")
    return name, by_key


def _every_gpu(nodes: str) -> str:
    """Return the GPUs of Nodes=ALL or Nodes=HOST. Raises BadUsage for another host."""
    if nodes.upper() != "ALL" and nodes.partition(".")[0] != host_name():
        raise BadUsage(f"there is no node {shown(nodes)}", f"This host is {host_name()}.")
    return _ALL


def _names(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _users(text: str) -> list[str]:
    """Return the names of users of this host; a uid is looked up. Raises Refused."""
    import pwd  # for these two keys alone

    return [_entry(word, "user", pwd.getpwnam, pwd.getpwuid).pw_name for word in _names(text)]


def _groups(text: str) -> list[str]:
    """Return the names of groups of this host; a gid is looked up. Raises Refused."""
    import grp

    return [_entry(word, "group", grp.getgrnam, grp.getgrgid).gr_name for word in _names(text)]


def _entry(word: str, what: str, by_name: Callable[[str], _Entry], by_id: Callable[[int], _Entry]) -> _Entry:
    """Look up a user or a group as Slurm does: by name, then by number. Raises Refused."""
    with suppress(KeyError, ValueError):  # the second: bytes that are no UTF-8
        return by_name(word)
    with suppress(KeyError, ValueError, OverflowError):  # a number that is none of an account, or none at all
        return by_id(int(word))
    base = "passwd" if what == "user" else "group"
    raise Refused(
        f"invalid {what}: {shown(word)}: this host has no {what} of that name or number",
        f"getent {base} NAME looks one up, also in a directory service.",
    )


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
    "users": _users,
    "groups": _groups,
    "accounts": _names,
    "gpu": lambda text: None if text.lower() == _ALL else list(parse_indices(text)),
    "gpus": _amount,
    "share": parse_share,
    "flags": _flags,
}


def reservation_call(client: Client, verb: str, words: Sequence[str]) -> Call[ReservationName]:
    """Return the request that creates, updates or deletes a reservation.

    Raises: BadUsage or BadValue, which name the invalid word.
    """
    name, texts = _by_key(words)
    values: Record = {}
    for key, text in texts.items():
        try:
            values[key] = _READ[key](text)
        except BadValue as error:
            raise BadValue(text, error.why, label=f"{_TYPED.get(key, key)}=") from None
    if verb == "delete" and values:
        raise BadUsage("delete takes reservation=NAME alone")
    if verb == "delete":
        return DeleteReservation(name=name)
    if verb == "update" and not values:
        raise BadUsage("there is nothing to change", f"What can be: {' '.join(KEYS)}")
    kind = CreateReservation if verb == "create" else UpdateReservation
    return kind(name=name, **_window(client, name, _gpus(client, values)))


def new_name(client: Client, words: Sequence[str]) -> str:
    """Return a name for a reservation without one, as Slurm does: the first user or account, and a number."""
    texts = {_SAME.get(key.lower(), key.lower()): text for key, _, text in (w.partition("=") for w in words)}
    who = next((first[0] for key in ("users", "accounts") if (first := _names(texts.get(key, "")))), "resv")
    names = {info.reservation.name for info in client.call(protocol.ListReservations()).reservations}
    return next(name for number in count(1) if (name := f"{who}_{number}") not in names)


def _gpus(client: Client, values: Record) -> Record:
    """Return the selected GPUs: by index (gpu=, with a share of each), or by number (gpus=)."""
    if "gpus" in values and ("gpu" in values or "share" in values):
        raise BadUsage(
            "gpus= lets the controller choose GPUs; gpu= names them, with share= of each: give one"
        )
    if "share" in values and "gpu" not in values:
        raise BadUsage("share= is a part of each of the GPUs that gpu= names")
    if "gpus" in values:
        values["count"], values["share"] = values.pop("gpus")
    if "gpu" in values:
        gpus = values.pop("gpu")
        values["gpus"] = (
            [gpu.gpu.index for gpu in client.call(protocol.ListGpus()).gpus] if gpus is None else gpus
        )
        values.setdefault("share", WHOLE)
    return values


def _window(client: Client, name: str, values: Record) -> Record:
    """Compute the end of the reservation from its duration."""
    if "duration" not in values:
        return values
    if "end" in values:
        raise BadUsage("endtime= and duration= say the same; give one")
    reservations = client.call(protocol.ListReservations()).reservations
    starts = {reservation.reservation.name: reservation.reservation.start for reservation in reservations}
    start = values.setdefault("start", starts.get(name, math.floor(time.time())))
    return {key: value for key, value in values.items() if key != "duration"} | {
        "end": start + values["duration"]
    }


def named(client: Client, words: Sequence[str]) -> list[ReservationInfo]:
    """Return the named reservations, or all. Raises Refused for a name that no reservation has."""
    reservations = {
        reservation.reservation.name: reservation
        for reservation in client.call(protocol.ListReservations()).reservations
    }
    for word in words:
        if word not in reservations:
            raise Refused(
                f"invalid reservation name: {shown(word)}",
                f"There is {', '.join(reservations) or 'none'}: fgctl create reservation=NAME makes one.",
            )
    return [reservations[name] for name in dict.fromkeys(words or reservations)]


def record(info: ReservationInfo) -> dict[str, Any]:
    """Return a reservation for a JSON document."""
    reservation = info.reservation
    return {
        "name": reservation.name,
        "start": reservation.start,
        "end": reservation.end,
        "is_active": info.is_active,
        "cards": to_builtins(reservation.holds),
        **to_builtins(reservation.access),
        "flags": _flags_of(reservation),
        "by": reservation.by,
        "running": info.running,
        "pending": info.pending,
    }


def _flags_of(reservation: Reservation) -> list[str]:
    return ["maint"] if reservation.is_maintenance else []


def lines(info: ReservationInfo) -> list[list[tuple[str, object]]]:
    """Return the lines of (key, value)."""
    reservation = info.reservation
    return [
        [("ReservationName", reservation.name), ("State", _state(info))],
        [("StartTime", shown_time(reservation.start)), ("EndTime", shown_time(reservation.end))],
        [("Duration", _duration(info))],
        [
            ("Users", ",".join(reservation.access.users) or "(null)"),
            ("Groups", ",".join(reservation.access.groups) or "(null)"),
            ("Accounts", ",".join(reservation.access.accounts) or "(null)"),
        ],
        [
            ("GpuIdx", _gpu_indices(info)),
            ("GpuFraction", _gpu_share(info)),
            ("GpuMem", ",".join(dict.fromkeys(format_mebibytes(hold.memory) for hold in reservation.holds))),
        ],
        [("Flags", ",".join(_flags_of(reservation)).upper() or "(null)"), ("CreatedBy", reservation.by)],
        [("JobsRunning", len(info.running)), ("JobsPending", len(info.pending))],
    ]


def _state(info: ReservationInfo) -> str:
    return "ACTIVE" if info.is_active else "INACTIVE"


def _gpu_share(info: ReservationInfo) -> str:
    return format_share(sum(hold.share for hold in info.reservation.holds))


def _gpu_indices(info: ReservationInfo) -> str:
    return format_indices(hold.gpu for hold in info.reservation.holds)


def _members(info: ReservationInfo) -> str:
    """Return the users, groups and accounts of a reservation, or its flags."""
    access = info.reservation.access
    accounts = [f"account:{name}" for name in access.accounts]
    members = [*access.users, *(f"@{name}" for name in access.groups), *accounts]
    return ",".join(members or _flags_of(info.reservation)) or "-"


def _duration(info: ReservationInfo) -> str:
    return format_runtime(info.reservation.end - info.reservation.start)


COLUMNS = (  # of fginfo
    TableColumn("RESV_NAME", lambda info: info.reservation.name),
    TableColumn("STATE", _state),
    TableColumn("START_TIME", lambda info: shown_time(info.reservation.start)),
    TableColumn("END_TIME", lambda info: shown_time(info.reservation.end)),
    TableColumn("DURATION", _duration),
    TableColumn("GPUS", _gpu_share),
    TableColumn("GPUIDX", lambda info: _gpu_indices(info) or "-"),
    TableColumn("USERS", _members),
)
