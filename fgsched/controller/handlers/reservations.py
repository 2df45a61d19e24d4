"""Reservations that operators make: made, changed, deleted, told of. They are kept beside the queue."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.domain.errors import BadUsage, Refused
from fgsched.domain.job import WHOLE, Hold, Job, JobState
from fgsched.domain.policy import Access, Reservation
from fgsched.domain.text import quoted, shown
from fgsched.domain.times import format_time
from fgsched.domain.units import format_indices
from fgsched.scheduling.reservations import boundaries, in_its_way, overbooked

log = logging.getLogger(__name__)
_KEY = "reservations"  # in the store
_LISTS = ("users", "groups", "accounts")
_NUMBERS = ("start", "end", "share", "count")
_FLAGS = ("maint", "ignore_jobs")
_FIELDS = {"name", "cards", "flags", *_LISTS, *_NUMBERS}
_LATEST = 2**40
Record = dict[str, Any]  # as it is kept: cards by UUID, since indices change


class ReservationHandlers:
    """`answer = desk.operations[name](caller, arguments, now)`, inside the turn's transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.operations: dict[str, Callable[[Caller, dict[str, Any], float], Any]] = {
            "create_reservation": self.create,
            "update_reservation": self.update,
            "delete_reservation": self.delete,
        }
        self.reading: dict[str, Callable[[Caller, dict[str, Any], float], Any]] = {
            "reservations": self.reservations
        }
        engine.forgotten.append(self._obey)
        self._obey()

    # -- what is kept ---------------------------------------------------------------------------

    def _records(self) -> list[Record]:
        """Asked of the store each time: a turn that is undone takes its changes with it."""
        found: list[Record] = self._engine.store.kept.recall_json(_KEY, [])
        return [record for record in found if self._is_sound(record)]

    def _is_sound(self, record: Any) -> bool:
        """Whether a record can be read; a damaged one is left out, and keeps nobody from anything."""
        try:
            self._booking(record)
        except (TypeError, ValueError, KeyError, AttributeError):
            log.error("a reservation in the queue cannot be read and is left out: %.200r", record)
            return False
        return True

    def _keep(self, records: Iterable[Record], now: float) -> None:
        """Write them down and obey them at once: jobs may start in this very turn."""
        kept = [record for record in records if record["end"] > now]
        self._engine.store.kept.remember(_KEY, json.dumps(kept))
        self._obey()

    def _obey(self) -> None:
        engine = self._engine
        reservations = tuple(self._booking(record) for record in self._records())
        engine.policy = replace(engine.policy, reservations=reservations)

    def tidy(self, now: float) -> None:
        """Forget those that are over."""
        policy = self._engine.policy
        if any(one.end <= now for one in policy.reservations):
            left = tuple(one for one in policy.reservations if one.end > now)
            self._engine.policy = replace(policy, reservations=left)

    def next_due(self, now: float) -> float | None:
        """When the next begins or ends."""
        return next(iter(boundaries(self._engine.policy.reservations, now)), None)

    def _booking(self, record: Record) -> Reservation:
        """A card that is gone keeps nothing."""
        there = {gpu.uuid: gpu for gpu in self._engine.cards.gpus}
        holds = [
            Hold(gpu=gpu.index, share=share, memory=gpu.usable * share // WHOLE)
            for uuid, share in record["cards"]
            if (gpu := there.get(uuid))
        ]
        return Reservation(
            name=record["name"],
            start=record["start"],
            end=record["end"],
            holds=tuple(sorted(holds, key=lambda hold: hold.gpu)),
            access=Access(**{name: tuple(record[name]) for name in _LISTS}),
            is_maintenance="maint" in record["flags"],
            by=record["by"],
        )

    # -- requests -------------------------------------------------------------------------------

    def reservations(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        """Each one that is not over, with the jobs that are of it."""
        jobs = self._engine.jobtable.jobs.values()
        reservations = sorted(self._engine.policy.reservations, key=lambda one: (one.start, one.name))
        return {"reservations": [_told(one, jobs, now) for one in reservations if one.end > now]}

    def create(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        name, given = self._read(caller, arguments, "create")
        records = self._records()
        if any(one["name"] == name and one["end"] > now for one in records):
            raise Refused(
                f"there is a reservation {name} already", f"fgctl update reservation={name} changes it."
            )
        if "end" not in given:
            raise BadUsage("a reservation needs an end", "Give endtime= or duration=.")
        fresh = {"name": name, "start": int(now), "flags": [], "by": caller.name, "cards": []}
        record = fresh | {one: [] for one in _LISTS} | given
        self._settle(record, given, now)
        self._keep([one for one in records if one["name"] != name] + [record], now)
        return {"reservation": name}

    def update(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        name, given = self._read(caller, arguments, "change")
        records = self._records()
        record = self._found(records, name, now) | given
        self._settle(record, given, now)
        self._must_keep_jobs(self._booking(record), now)
        self._keep([record if one["name"] == name else one for one in records], now)
        return {"reservation": name}

    def delete(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        name, _ = self._read(caller, arguments, "delete")
        records = self._records()
        self._found(records, name, now)
        running = [job.id for job in self._of(name) if job.state.holds]
        if running:
            raise Refused(
                f"jobs of reservation {name} run: {format_indices(running)}", "Wait for them, or cancel them."
            )
        self._keep([one for one in records if one["name"] != name], now)
        return {"reservation": name}

    # -- what is asked for ----------------------------------------------------------------------

    def _read(self, caller: Caller, arguments: Mapping[str, Any], what: str) -> tuple[str, Record]:
        """(name, what is given), every value checked."""
        caller.must_operate(f"{what} a reservation")
        if unknown := set(arguments) - _FIELDS:
            raise BadUsage(f"reservation: unknown field {quoted(min(unknown))}")
        name = arguments.get("name")
        if not isinstance(name, str) or not 0 < len(name) <= 64 or not name.isprintable() or "," in name:
            raise BadUsage("a reservation is named by a text of up to 64 characters")
        given = {key: value for key, value in arguments.items() if key != "name"}
        for key, value in given.items():
            if key in _NUMBERS and (type(value) is not int or not 0 <= value <= _LATEST):
                raise BadUsage(f"reservation: {key} is not a number")
            if key in (*_LISTS, "flags") and not _is_list(value, str):
                raise BadUsage(f"reservation: {key} is not a list of texts")
            if key == "cards" and not _is_list(value, int):
                raise BadUsage("reservation: cards is not a list of indices")
        if unknown := set(given.get("flags", ())) - set(_FLAGS):
            raise BadUsage(f"reservation: no flag {quoted(min(unknown))}", f"There are {', '.join(_FLAGS)}.")
        return name, given

    def _settle(self, record: Record, given: Record, now: float) -> None:
        """Check a reservation as it is to be, with its cards named or found."""
        share, count = record.pop("share", WHOLE), record.pop("count", 0)
        if not 0 < share <= WHOLE:
            raise BadUsage("reservation: a share of a card is between 0 and 1")
        if record["end"] <= max(now, record["start"]):
            start, end = format_time(record["start"]), format_time(record["end"])
            raise BadUsage(f"a reservation from {start} to {end} is over before it begins")
        if not any(record[name] for name in _LISTS) and "maint" not in record["flags"]:
            raise BadUsage(
                "a reservation is for somebody", "Give users=, groups= or accounts=, or flags=maint."
            )
        if "cards" in given:
            record["cards"] = [[self._uuid(index), share] for index in given["cards"]]
        elif count:
            record["cards"] = self._some(record, count, share, now)
        if not record["cards"]:
            raise BadUsage("a reservation keeps GPUs", "Give gpu=0,1 or gpus=0.5.")
        if problem := self._problem(record, now):
            raise problem
        record["flags"] = [flag for flag in record["flags"] if flag == "maint"]
        if any(name in given for name in _LISTS):
            self._must_be_for(self._booking(record))

    def _uuid(self, index: int) -> str:
        if index not in self._engine.cards:
            raise Refused(f"this host has no GPU {index}", "fginfo -g lists its GPUs.")
        return self._engine.cards.gpu(index).uuid

    def _some(self, record: Record, count: int, share: int, now: float) -> list[list[Any]]:
        """So many cards that can be reserved then, the first by index."""
        found, why = [], None
        for gpu in self._engine.cards.gpus:
            problem = self._problem(record | {"cards": [[gpu.uuid, share]]}, now)
            if problem is None:
                found.append([gpu.uuid, share])
            why = why or problem
        if len(found) < count:
            first = f"; the first of the others: {why.cause}" if why else ""
            raise Refused(
                f"{len(found)} GPUs of {len(self._engine.cards.gpus)} can be reserved so{first}",
                "fgctl show reservation tells what is reserved. flags=ignore_jobs overlooks jobs that run.",
            )
        return found[:count]

    def _problem(self, record: Record, now: float) -> Refused | None:
        """Why this cannot be reserved then: another reservation, or jobs that may still run."""
        engine, reservation = self._engine, self._booking(record)
        others = [self._booking(one) for one in self._records() if one["end"] > now]
        usable = {gpu.index: gpu.usable for gpu in engine.cards.gpus}
        if over := overbooked(reservation, others, usable):
            return Refused(
                f"GPU {over[0]} has not so much left then: reservation {over[1]} keeps part of it",
                "fgctl show reservation tells when and how much.",
            )
        snapshot = engine.jobtable.snapshot(
            engine.cards.gpus, engine.cards.readings, limits=engine.limits, now=now
        )
        jobs = in_its_way(reservation, others, snapshot.running, snapshot.free, now)
        if jobs and "ignore_jobs" not in record["flags"]:
            return Refused(
                f"jobs may still run on its GPUs when it begins: {format_indices(jobs)}",
                "Let it begin later, or take other GPUs; flags=ignore_jobs reserves what they leave.",
            )
        return None

    def _must_be_for(self, reservation: Reservation) -> None:
        """A waiting job that names it must not come by a reservation of others with the same name."""
        for job in self._of(reservation.name):
            if job.state is JobState.PENDING and not reservation.admits(job.user, (), job.request.account):
                raise Refused(
                    f"job {job.id} of {job.user} waits for a reservation of this name, and it is for others",
                    "Give it another name.",
                )

    def _must_keep_jobs(self, reservation: Reservation, now: float) -> None:
        """Running jobs stay inside."""
        kept = {hold.gpu: hold.share for hold in reservation.holds}
        used: dict[int, int] = {}
        for job in self._of(reservation.name):
            for hold in job.holds:
                used[hold.gpu] = used.get(hold.gpu, 0) + hold.share
            if job.state.holds and (reservation.start > now or (job.deadline or 0) > reservation.end):
                raise Refused(f"job {job.id} runs in it, and not within that time", "Wait for it.")
        if over := [gpu for gpu, share in used.items() if share > kept.get(gpu, 0)]:
            raise Refused(f"its jobs have more of GPU {min(over)} than that", "Wait for them.")

    def _found(self, records: Iterable[Record], name: str, now: float) -> Record:
        for record in records:
            if record["name"] == name and record["end"] > now:
                return record
        raise Refused(f"invalid reservation name: {shown(name)}", "fgctl show reservation lists them.")

    def _of(self, name: str) -> list[Job]:
        return [job for job in self._engine.jobtable.jobs.values() if job.request.reservation == name]


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and len(value) <= 1024 and all(type(one) is kind for one in value)


def _told(reservation: Reservation, jobs: Iterable[Job], now: float) -> Record:
    own = [job for job in jobs if job.request.reservation == reservation.name]
    return {
        "name": reservation.name,
        "start": reservation.start,
        "end": reservation.end,
        "is_active": reservation.start <= now < reservation.end,
        "cards": [
            {"gpu": hold.gpu, "share": hold.share, "memory": hold.memory} for hold in reservation.holds
        ],
        **{name: list(getattr(reservation.access, name)) for name in _LISTS},
        "flags": ["maint"] if reservation.is_maintenance else [],
        "by": reservation.by,
        "running": [job.id for job in own if job.state.holds],
        "pending": [job.id for job in own if job.state is JobState.PENDING],
    }
