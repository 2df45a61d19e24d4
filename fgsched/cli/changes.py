"""`fgctl update`: changes of a request, a partition or this host from KEY=VALUE words."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fgsched import protocol
from fgsched.client import Client
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import GpuState
from fgsched.domain.policy import DOWN, UP
from fgsched.domain.text import BadValue, shown
from fgsched.domain.units import SubmitContext
from fgsched.lifecycle.mail import parse_mail_user
from fgsched.protocol import (
    Call,
    CreatePartition,
    DeletePartition,
    DemandChanges,
    JobChanges,
    PartitionName,
    UpdatePartition,
)
from fgsched.submission import table as values
from fgsched.submission.options import Setting, Settings, demand
from fgsched.submission.table import BY_NAME, AnyOption
from fgsched.views.display import host_name
from fgsched.views.options import rows_of

_OUT = ("drain", "down", "fail")
_IN = ("resume", "undrain", "idle", "up")
_KEYS = {"nodename", "node", "state", "reason"}


_PARTITION = {"partition", "partitionname"}
_OPTIONS = {row.update.split()[0]: row for row in rows_of("fgsub") if row.update}  # by key
KEYS = tuple(_OPTIONS)
_SAME = {  # every spelling of a key without dashes, Slurm's among them
    word.replace("-", ""): key for key, row in _OPTIONS.items() for word in row.update.split()
}
_AMOUNTS = {  # key -> fields of the demand
    "gpus": ("gpus", "share"),
    "gpu-mem": ("memory", "memory_part"),
    "cpus": ("cpus",),
    "mem": ("host_memory",),
}


def _or(empty: object, read: Callable[[str], object]) -> Callable[[str], object]:
    """Return a parser with a value for no text, which removes what was there."""
    return lambda text: read(text) if text else empty


_READ: dict[str, Callable[[str], object]] = {  # keys whose values are read otherwise than those of options
    "reservation": _or("", values.reservation),
    "dependency": _or("", values.dependency),
    "begin": values.begin,
    "deadline": _or(0, values.deadline),
    "requeue": lambda text: bool(_number(text, 1)),
    "arraytaskthrottle": lambda text: _number(text, 10**6),
    "mailuser": _or("", parse_mail_user),
}
_FIELDS = {"timelimit": "time_limit", "arraytaskthrottle": "throttle"}  # that are not the field of the option


def _number(text: str, most: int) -> int:
    if not text.isascii() or not text.isdecimal() or int(text[:9]) > most:
        raise BadValue(text, f" is not a whole number from 0 to {most}")
    return int(text[:9])


def no_pair(word: str) -> BadUsage:
    return BadUsage(f"{shown(word)} is not KEY=VALUE", "Join the two with =, as in job=7 or gpu=0.")


def words_by_key(words: Sequence[str]) -> dict[str, str]:
    """Parse KEY=VALUE words into {'job': '7', …}. Raises BadUsage.

    Case, '-' and '_' in a key are ignored.
    """
    words_by_kind: dict[str, str] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise no_pair(word)
        plain = key.lower().replace("-", "").replace("_", "")
        plain = _SAME.get(plain, plain)
        if plain in words_by_kind:
            raise BadUsage(f"{shown(key)} is given twice")
        words_by_kind[plain] = text
    return words_by_kind


def read_changes(texts: Mapping[str, str], site: SubmitContext) -> JobChanges:
    """Return the changes that KEY=VALUE words ask for. Raises BadUsage for the first invalid word."""
    if not texts:
        raise BadUsage("there is nothing to change", f"What can be: {' '.join(KEYS)}")
    changes: dict[str, Any] = {}
    needs: dict[str, Any] = {}
    for key, text in texts.items():
        if key not in _OPTIONS:
            raise BadUsage(f"{shown(key)} cannot be changed", f"What can be: {' '.join(KEYS)}")
        if key in _AMOUNTS:
            needs |= _amount(key, text, site)
        elif key == "gpu-type":
            needs["gpu_type"] = _value(key, text) if text else ""
        else:
            changes[field_of(key)] = _value(key, text)
    if needs:
        changes["demand"] = DemandChanges(**needs)
    return JobChanges(**changes)


def field_of(key: str) -> str:
    """Return the field of the changes that a key of `fgctl update` has."""
    if key in _AMOUNTS or key == "gpu-type":
        return "demand"
    return _FIELDS.get(key) or _option(key).field


def _option(key: str) -> AnyOption:
    """Return the option of fgsub that sets what a key changes."""
    return BY_NAME[_OPTIONS[key].name]


def _value(key: str, text: str) -> object:
    try:
        return _READ.get(key, _option(key).parse)(text)
    except BadValue as error:
        raise BadValue(text, error.why, label=f"{key}=") from None


def _amount(key: str, text: str, site: SubmitContext) -> dict[str, Any]:
    """Return the fields of the demand that a GPU amount sets, parsed as by fgsub."""
    option = _option(key)
    demanded = demand(Settings({option.slot: Setting(option, text, _value(key, text), key)}), site)
    amount = {field: getattr(demanded, field) for field in _AMOUNTS[key]}
    if key == "gpus" and (demanded.gpu_type or not demanded.gpus):
        amount["gpu_type"] = demanded.gpu_type
    if key == "gpus" and not demanded.gpus:
        amount |= {"memory": 0, "memory_part": 0}
    return amount


def is_about_partition(words: Sequence[str]) -> bool:
    keys = {word.partition("=")[0].lower() for word in words}
    return bool(keys & _PARTITION) and not keys & {"job", "jobid"}


def partition_call(verb: str, words: Sequence[str]) -> Call[PartitionName]:
    """Return the request that create, update or delete sends for 'partition=night max_time=8h'.

    Raises: BadUsage for a word that is not KEY=VALUE. The controller checks the keys.
    """
    pairs = [word.partition("=") for word in words]
    for (key, equals, _), word in zip(pairs, words, strict=True):
        if not equals or not key:
            raise no_pair(word)
    names = [text for key, _, text in pairs if key.lower() in _PARTITION]
    if not names:
        raise BadUsage(
            f"{verb} needs partition=NAME or reservation=NAME",
            "fginfo lists the partitions, and fgctl show reservation the reservations.",
        )
    if len(names) != 1 or not names[0]:
        raise BadUsage("exactly one partition=NAME is required", "fginfo lists the partitions.")
    values = {key: text for key, _, text in pairs if key.lower() not in _PARTITION}
    if verb == "delete":
        return DeletePartition(name=names[0])
    kind = CreatePartition if verb == "create" else UpdatePartition
    return kind(name=names[0], values=values)


def update_node(client: Client, texts: Mapping[str, str]) -> None:
    """Start no new jobs on this host, or start them again: GPUs are drained, partitions are down.

    Raises BadUsage for another host, or a change that one host cannot have.
    """
    name = texts.get("nodename") or texts.get("node", "")
    if name.upper() != "ALL" and name.partition(".")[0] != host_name():
        raise BadUsage(f"there is no node {shown(name)}", f"This host is {host_name()}.")
    if unknown := sorted(texts.keys() - _KEYS):
        raise BadUsage(f"{shown(unknown[0])} of a node cannot be changed", "Keys: state reason.")
    state = texts.get("state", "").lower()
    if state in _OUT:
        _take_out(client, texts.get("reason", ""))
    elif state in _IN:
        _take_back(client)
    else:
        raise BadUsage(f"state={shown(state)} is no state of this host", f"Give {' '.join((*_OUT, *_IN))}.")


def _take_out(client: Client, reason: str) -> None:
    for row in client.call(protocol.ListGpus()).gpus:
        client.call(protocol.DrainGpu(gpu=row.gpu.index, reason=reason))
    for partition in _partitions(client, UP):
        client.call(protocol.UpdatePartition(name=partition, values={"state": DOWN}))


def _take_back(client: Client) -> None:
    for row in client.call(protocol.ListGpus()).gpus:
        if row.gpu.state is not GpuState.OK:
            client.call(protocol.ResumeGpu(gpu=row.gpu.index))
    for partition in _partitions(client, DOWN):
        client.call(
            protocol.UpdatePartition(name=partition, values={"state": ""})
        )  # that of the configuration


def _partitions(client: Client, state: str) -> list[str]:
    rows = client.call(protocol.ListPartitions()).partitions
    return [row.partition.name for row in rows if row.partition.state == state]
