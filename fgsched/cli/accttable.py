"""Format the output of fgacct: aligned columns, delimited fields, or JSON."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fgsched.cli import acctfields as fields
from fgsched.cli import machine
from fgsched.cli.acctfields import Field, Record, field
from fgsched.cli.cells import clean, fit
from fgsched.domain.errors import BadUsage
from fgsched.domain.text import shown

_ITEM = re.compile(r"([A-Za-z]+)(?:%(-?)([0-9]{1,4}))?")
USUAL = "JobID,JobName,Partition,User,ReqGPU,MaxGPUMem,Elapsed,State,ExitCode"
BRIEF = "JobID,State,ExitCode"
LONG = (
    "JobID,JobName,Partition,User,ReqGPU,ReqGPUMem,MaxGPUMem,GPUIdx,GPUHours,AllocCPUS,MaxRSS,TotalCPU,"
    "Submit,Start,End,Elapsed,Timelimit,State,ExitCode,Reason,Enforce"
)
_FORMULA = ("=", "+", "-", "@")  # with which a spreadsheet would begin to calculate


@dataclass(frozen=True, slots=True)
class Column:
    field: Field
    width: int
    left: bool


def columns(text: str) -> list[Column]:
    """Parse a list of columns such as 'JobID,JobName%20,State%-15'. Raises BadUsage.

    A negative width aligns to the left.
    """
    found = []
    for part in text.split(","):
        match = _ITEM.fullmatch(part)
        if not match:
            raise BadUsage(f"{shown(part)} is not a field", "Such as: -o JobID,JobName%20,State%-15")
        known = field(match[1])
        width = int(match[3]) if match[3] else known.width
        found.append(Column(known, width, bool(match[2]) if match[3] else known.left))
    return found


def aligned(records: Iterable[Record], chosen: list[Column], unit: str, *, header: bool) -> Iterator[str]:
    """Yield lines with columns of fixed width; a truncated value ends with '+'."""
    if header:
        yield _line([column.field.name for column in chosen], chosen)
        yield _line(["-" * column.width for column in chosen], chosen)
    for record in records:
        yield _line([clean(column.field.show(record, unit)) for column in chosen], chosen)


def _line(cells: list[str], chosen: list[Column]) -> str:
    return " ".join(
        fit(cell, column.width, right=not column.left, mark="+")
        for cell, column in zip(cells, chosen, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Delimited:
    """Fields separated by a delimiter without padding; with a comma, quoted according to RFC 4180."""

    delimiter: str
    trailing: bool = False  # one after the last field too

    def lines(
        self, records: Iterable[Record], chosen: list[Column], unit: str, *, header: bool
    ) -> Iterator[str]:
        end = self.delimiter if self.trailing else ""
        if header:
            yield self.delimiter.join(column.field.name for column in chosen) + end
        for record in records:
            cells = (self._cell(clean(column.field.show(record, unit))) for column in chosen)
            yield self.delimiter.join(cells) + end

    def _cell(self, text: str) -> str:
        if self.delimiter != ",":
            return text.replace(self.delimiter, "?")  # one more field would shift all those after it
        if text.startswith(_FORMULA):
            text = f"'{text}"
        return f'"{text.replace(chr(34), chr(34) * 2)}"' if "," in text or '"' in text else text


def as_json(records: Iterable[Record]) -> str:
    """Return {"meta": …, "jobs": [ … ]} as JSON, with all fields in base units."""
    return machine.document(jobs=[_json(record) for record in records])


def _json(record: Record) -> dict[str, Any]:
    request = record["request"]
    names = {"submit": "submitted_at", "eligible": "eligible_at", "start": "started_at", "end": "ended_at"}
    moments = {name: record[key] for name, key in names.items()}
    return {
        "job_id": record["id"],
        "name": request["name"],
        "partition": record["partition"],
        "account": request.get("account", ""),
        "qos": request.get("qos", ""),
        "user": record["user"],
        "uid": record["uid"],
        "gid": record["gid"],
        "state": record["state"],
        "reason": fields.reason(record),
        "cancelled_by": record["cancelled_by"],
        "exit_code": record["exit_code"],
        "signal": record["signal"],
        **machine.times(**moments),
        "planned": fields.planned(record),
        "elapsed": record["elapsed"],
        "time_limit": request.get("time_limit") or None,
        "req_gpu": machine.gpus(fields.requested_share(record)),
        "req_gpu_mem": fields.requested_memory(record),
        "alloc_gpu": machine.gpus(fields.allocated_share(record)),
        "gpu_idx": [card["gpu"] for card in record["allocated"]],
        "gpu_type": fields.models(record) or None,
        "gpu_hours": fields.gpu_hours(record),
        "max_gpu_mem": fields.peak(record),
        "wasted_gpu_mem_hours": fields.wasted_hours(record),
        **_fence(record),
        "req_cpus": fields.cpus(record),
        "req_mem": fields.demand(record).get("host_memory") or None,
        "max_rss": record["max_rss"],
        "cpu_seconds": record["cpu_seconds"],
        "restarts": fields.restarts(record),
        **_secrets(record),
        "std_out": field("StdOut").show(record, "") or None,
        "std_err": field("StdErr").show(record, "") or None,
    }


def _fence(record: Record) -> dict[str, Any]:
    """Return how GPU memory was enforced for the job, and the findings."""
    return {
        "oom_kind": fields.oom_kind(record) or None,
        "post_mortem": record["post_mortem"],
        "warning": record["warning"] or None,
        "enforce": record["tier"],
        "gpu_compute": record["gpu_compute"] if record["allocated"] else None,
    }


def _secrets(record: Record) -> dict[str, Any]:
    """Return the fields that only the owner and operators may see."""
    names = {"comment": "", "chdir": "/", "submit_line": ""}
    told = {
        name: None if record["is_private"] else fields.owned(record, name, default)
        for name, default in names.items()
    }
    return {"comment": told["comment"], "work_dir": told["chdir"], "submit_line": told["submit_line"]}
