"""`fgctl adopt`: make a process that was started outside of fgsched a job."""

import secrets
from collections.abc import Mapping

from fgsched import protocol
from fgsched.client import Client
from fgsched.domain.job import Demand
from fgsched.domain.text import BadValue
from fgsched.domain.units import (
    SubmitContext,
    format_indices,
    format_mebibytes,
    format_share,
    parse_count,
    parse_indices,
)
from fgsched.gpus.processnames import ProcessNames
from fgsched.submission.options import AnySetting, Setting, Settings, demand
from fgsched.submission.table import BY_NAME


def adopt(client: Client, word: str, given: Mapping[str, str], gpus: str) -> str:
    """Adopt the process with the pid `word`; return the line to print.

    Args:
        given: texts of the options gpus, gpu-mem, time and job-name that were given.
        gpus: indices of GPUs; "": all that the process uses.

    Raises:
        BadUsage: a value is invalid.
        Refused, NotPermitted: the process cannot be adopted.
    """
    pid = parse_count(word)
    settings = {name: _setting(name, text) for name, text in given.items()}
    person = ProcessNames().of([pid]).get(pid)
    named = settings.pop("job-name", None)
    name = named.text if named is not None else (person.command if person else "") or "adopted"
    limit = settings.pop("time", None)
    amounts = demand_of(settings, client.call(protocol.Ping()).site) if settings else Demand()
    call = protocol.Adopt(
        key=secrets.token_hex(16),
        pid=pid,
        name=name,
        demand=amounts,
        gpus=tuple(parse_indices(gpus)) if gpus else (),
        time_limit=_seconds(limit),
    )
    return said(pid, client.call(call))


def _setting(name: str, text: str) -> AnySetting:
    option = BY_NAME[name]
    try:
        return Setting(option, text, option.parse(text), f"--{name}")
    except BadValue as error:
        raise BadValue(text, error.why, label=f"--{name}=") from None


def _seconds(limit: AnySetting | None) -> int:
    """Return a time limit; -1: none was asked for explicitly, 0: the default applies."""
    if limit is None:
        return 0
    return limit.value or -1 if isinstance(limit.value, int) else 0


def demand_of(settings: Mapping[str, AnySetting], site: SubmitContext) -> Demand:
    """Return what options ask for, read as by fgsub. Raises BadUsage."""
    return demand(Settings((one.option.slot, one) for one in settings.values()), site)


def said(pid: int, found: protocol.Adopted) -> str:
    """Return the line that is printed."""
    share, memory = format_share(found.share), format_mebibytes(found.memory)
    where = f"GPU {format_indices(found.gpus)}"
    each = " each" if len(found.gpus) > 1 else ""
    return f"process {pid} is job {found.job} on {where} ({share}, {memory}{each})\n"
