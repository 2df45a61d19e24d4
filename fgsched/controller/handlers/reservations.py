"""Handle the requests about reservations, which are stored beside the queue."""

from collections.abc import Iterable, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from fgsched import protocol
from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.controller.handlers.registration import reads, writes
from fgsched.controller.sitepolicy import ReservationRecord
from fgsched.domain.errors import BadUsage, Refused
from fgsched.domain.job import WHOLE, Job
from fgsched.domain.policy import Reservation
from fgsched.domain.states import JobState
from fgsched.domain.text import shown
from fgsched.domain.times import format_time
from fgsched.domain.units import format_indices
from fgsched.scheduling.reservations import conflicting_jobs, find_overbooking


class ReservationHandlers:
    """Create, change, delete and list reservations."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # -- requests -------------------------------------------------------------------------------

    @reads(protocol.ListReservations)
    def reservations(
        self, caller: Caller, call: protocol.ListReservations, now: float
    ) -> protocol.Reservations:
        """Return all active and future reservations with their jobs."""
        jobs: dict[str, list[Job]] = {}
        for job in self._engine.jobtable.jobs.values():
            if job.request.reservation and caller.may_see(job):
                jobs.setdefault(job.request.reservation, []).append(job)
        reservations = sorted(
            self._engine.policy.reservations, key=lambda reservation: (reservation.start, reservation.name)
        )
        return protocol.Reservations(
            reservations=[
                _info(reservation, jobs.get(reservation.name, []), now)
                for reservation in reservations
                if reservation.end > now
            ]
        )

    @writes(protocol.CreateReservation)
    def create(
        self, caller: Caller, call: protocol.CreateReservation, now: float
    ) -> protocol.ReservationName:
        """Reserve GPUs from `start` to `end`.

        Raises: NotPermitted; Refused if there is one of that name or the GPUs are not free; BadUsage.
        """
        name = _checked_name(caller, call.name, "create")
        records = self._engine.site.records
        if any(
            reservation_record.name == name and reservation_record.end > now for reservation_record in records
        ):
            raise Refused(
                f"there is a reservation {name} already", f"fgctl update reservation={name} changes it."
            )
        if call.end is UNSET:
            raise BadUsage("a reservation needs an end", "Give endtime= or duration=.")
        record = self._settled(
            ReservationRecord(name=name, start=int(now), end=call.end, by=caller.name), call, now
        )
        self._keep(
            [reservation_record for reservation_record in records if reservation_record.name != name]
            + [record],
            name,
            "create",
            now,
        )
        return protocol.ReservationName(reservation=name)

    @writes(protocol.UpdateReservation)
    def update(
        self, caller: Caller, call: protocol.UpdateReservation, now: float
    ) -> protocol.ReservationName:
        """Change a reservation.

        Raises: NotPermitted; Refused if it does not exist, or its jobs would not fit it any more; BadUsage.
        """
        name = _checked_name(caller, call.name, "change")
        records = self._engine.site.records
        record = self._settled(self._found(records, name, now), call, now)
        self._must_keep_jobs(self._engine.site.reservation(record), now)
        self._keep(
            [
                record if reservation_record.name == name else reservation_record
                for reservation_record in records
            ],
            name,
            "update",
            now,
        )
        return protocol.ReservationName(reservation=name)

    @writes(protocol.DeleteReservation)
    def delete(
        self, caller: Caller, call: protocol.DeleteReservation, now: float
    ) -> protocol.ReservationName:
        """Delete a reservation.

        Raises: NotPermitted; Refused if it does not exist or jobs run in it.
        """
        name = _checked_name(caller, call.name, "delete")
        records = self._engine.site.records
        self._found(records, name, now)
        running = [job.id for job in self._of(name) if job.state.holds]
        if running:
            raise Refused(
                f"jobs of reservation {name} run: {format_indices(running)}", "Wait for them, or cancel them."
            )
        self._keep([record for record in records if record.name != name], name, "delete", now)
        return protocol.ReservationName(reservation=name)

    def _keep(self, records: Iterable[ReservationRecord], name: str, action: str, now: float) -> None:
        self._engine.site.reserve(records, now)
        self._engine.log.note("reservation", reservation=name, action=action)

    # -- checks ---------------------------------------------------------------------------------

    def _settled(
        self, record: ReservationRecord, call: protocol.ReservationChanges, now: float
    ) -> ReservationRecord:
        """Return the record with the requested changes and its GPUs. Raises Refused."""
        record = _with_changes(record, call)
        if call.accounts is not UNSET:
            self._must_be_declared(call.accounts)
        share = WHOLE if call.share is UNSET else call.share
        if record.end <= max(now, record.start):
            start, end = format_time(record.start), format_time(record.end)
            raise BadUsage(f"a reservation from {start} to {end} ends before it begins")
        if not (record.users or record.groups or record.accounts or "maint" in record.flags):
            raise BadUsage("a reservation needs users=, groups= or accounts=", "Or give flags=maint.")
        if call.gpus is not UNSET:
            record = replace(record, gpus=tuple((self._uuid(index), share) for index in call.gpus))
        elif call.count is not UNSET and call.count:
            record = replace(record, gpus=self._some(record, call.count, share, now))
        if not record.gpus:
            raise BadUsage("a reservation keeps GPUs", "Give gpu=0,1 or gpus=0.5.")
        if problem := self._problem(record, now):
            raise problem
        record = replace(record, flags=tuple(flag for flag in record.flags if flag == "maint"))
        if not (call.users is UNSET and call.groups is UNSET and call.accounts is UNSET):
            self._must_be_for(self._engine.site.reservation(record))
        return record

    def _must_be_declared(self, accounts: Iterable[str]) -> None:
        """Check the accounts, if the site declares any: no job can be charged to others. Raises Refused."""
        declared = [account.name for account in self._engine.policy.accounts]
        for name in accounts:
            if declared and name not in declared:
                raise Refused(f"invalid account: {shown(name)}", f"There is {', '.join(declared)}.")

    def _uuid(self, index: int) -> str:
        if index not in self._engine.gpu_states:
            raise Refused(f"this host has no GPU {index}", "fginfo -g lists its GPUs.")
        return self._engine.gpu_states.gpu(index).uuid

    def _some(
        self, record: ReservationRecord, count: int, share: int, now: float
    ) -> tuple[tuple[str, int], ...]:
        """Return (UUID, share) of `count` GPUs that can be reserved in the period, in index order."""
        free_gpus: list[tuple[str, int]] = []
        why: Refused | None = None
        for gpu in self._engine.gpu_states.gpus:
            problem = self._problem(replace(record, gpus=((gpu.uuid, share),)), now)
            if problem is None:
                free_gpus.append((gpu.uuid, share))
            why = why or problem
        if len(free_gpus) < count:
            first = f"; the first of the others: {why.cause}" if why else ""
            raise Refused(
                f"{len(free_gpus)} GPUs of {len(self._engine.gpu_states.gpus)} can be reserved so{first}",
                "fgctl show reservation shows the reserved GPUs. flags=ignore_jobs ignores running jobs.",
            )
        return tuple(free_gpus[:count])

    def _problem(self, record: ReservationRecord, now: float) -> Refused | None:
        """Return why the record conflicts: another reservation, or jobs that may run then."""
        engine, reservation = self._engine, self._engine.site.reservation(record)
        other_reservations = [
            self._engine.site.reservation(reservation_record)
            for reservation_record in self._engine.site.records
            if reservation_record.end > now
        ]
        usable = {gpu.index: gpu.usable for gpu in engine.gpu_states.gpus}
        if over := find_overbooking(reservation, other_reservations, usable):
            return Refused(
                f"GPU {over[0]} has not so much left then: reservation {over[1]} keeps part of it",
                "fgctl show reservation tells when and how much.",
            )
        snapshot = engine.jobtable.snapshot(
            engine.gpu_states.gpus, engine.gpu_states.readings, limits=engine.limits, now=now
        )
        jobs = conflicting_jobs(reservation, other_reservations, snapshot.running, snapshot.free, now)
        if jobs and "ignore_jobs" not in record.flags:
            return Refused(
                f"jobs may still run on its GPUs when it begins: {format_indices(jobs)}",
                "Let it begin later, or take other GPUs; flags=ignore_jobs reserves what they leave.",
            )
        return None

    def _must_be_for(self, reservation: Reservation) -> None:
        """Check that pending jobs which name this reservation may use it. Raises Refused."""
        for job in self._of(reservation.name):
            if job.state is JobState.PENDING and not reservation.admits(job.user, (), job.request.account):
                raise Refused(
                    f"job {job.id} of {job.user} waits for a reservation of this name, and it is for others",
                    "Give it another name.",
                )

    def _must_keep_jobs(self, reservation: Reservation, now: float) -> None:
        """Check that its running jobs still fit into the reservation. Raises Refused."""
        share_of = {hold.gpu: hold.share for hold in reservation.holds}
        used: dict[int, int] = {}
        for job in self._of(reservation.name):
            for hold in job.holds:
                used[hold.gpu] = used.get(hold.gpu, 0) + hold.share
            if job.state.holds and (reservation.start > now or (job.deadline or 0) > reservation.end):
                raise Refused(f"job {job.id} runs in it, and not within that time", "Wait for it.")
        if over := [gpu for gpu, share in used.items() if share > share_of.get(gpu, 0)]:
            raise Refused(f"its jobs have more of GPU {min(over)} than that", "Wait for them.")

    def _found(self, records: Iterable[ReservationRecord], name: str, now: float) -> ReservationRecord:
        for record in records:
            if record.name == name and record.end > now:
                return record
        raise Refused(f"invalid reservation name: {shown(name)}", "fgctl show reservation lists them.")

    def _of(self, name: str) -> list[Job]:
        return [job for job in self._engine.jobtable.jobs.values() if job.request.reservation == name]


def _with_changes(record: ReservationRecord, call: protocol.ReservationChanges) -> ReservationRecord:
    """Return the record with the requested fields; its GPUs are unchanged."""
    return ReservationRecord(
        name=record.name,
        by=record.by,
        gpus=record.gpus,
        start=record.start if call.start is UNSET else call.start,
        end=record.end if call.end is UNSET else call.end,
        users=record.users if call.users is UNSET else tuple(call.users),
        groups=record.groups if call.groups is UNSET else tuple(call.groups),
        accounts=record.accounts if call.accounts is UNSET else tuple(call.accounts),
        flags=record.flags if call.flags is UNSET else tuple(call.flags),
    )


def _checked_name(caller: Caller, name: str, action: str) -> str:
    """Check the name in an operator's request. Raises BadUsage."""
    caller.must_operate(f"{action} a reservation")
    if not name.isprintable() or "," in name:
        raise BadUsage("a reservation is named by a text of up to 64 characters")
    return name


def _info(reservation: Reservation, jobs: Sequence[Job], now: float) -> protocol.ReservationInfo:
    return protocol.ReservationInfo(
        reservation=reservation,
        is_active=reservation.start <= now < reservation.end,
        running=[job.id for job in jobs if job.state.holds],
        pending=[job.id for job in jobs if job.state is JobState.PENDING],
    )
