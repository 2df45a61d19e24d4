"""Manage the policy of the site: the configuration, operators' changes of partitions, and reservations.

Changes and reservations are in the store and are read from it each time, so rolling back a turn also rolls
back its changes. `restore` then returns to the policy in the store.
"""

import json
import logging
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct, ValidationError, convert, structs, to_builtins

from fgsched.config.contradictions import HostSize, doubts
from fgsched.config.keys import apply_overrides, usable_overrides
from fgsched.config.load import check_preemption
from fgsched.config.schema import Config
from fgsched.controller.gpustate import GpuStates
from fgsched.domain.job import WHOLE, Hold, HostLimits
from fgsched.domain.policy import Access, Policy, Reservation
from fgsched.scheduling.reservations import boundaries
from fgsched.store import Store

log = logging.getLogger("fgsched.controller")
_PARTITIONS, _RESERVATIONS = "partitions", "reservations"  # keys in the store
_AT_START = {
    "devices",
    "exclusive",
    "features",
    "headroom",
    "oversubscribe",
    "per_gpu",
    "share_instances",
    "tmp",
    "run_space",
    "max_processes",
    "deadline",
}  # settings read at start only
Overrides = dict[str, dict[str, str]]  # partition -> setting -> value


class ReservationRecord(Struct, frozen=True, kw_only=True):
    """A reservation as it is stored: GPUs by UUID, since indices change."""

    name: str
    start: int  # seconds since the epoch
    end: int  # seconds since the epoch
    by: str  # its creator
    gpus: tuple[tuple[str, int], ...] = ()  # (UUID, share in ten-thousandths)
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


class Changes(NamedTuple):
    """The settings in which a configuration differs from the one before."""

    now: list[str]  # in force
    later: list[str]  # in force after a restart of the controller


class SitePolicy:
    """The policy in effect. Before `configure` it has no limits."""

    def __init__(self, store: Store, gpus: GpuStates, limits: HostLimits) -> None:
        self.policy = Policy()
        self.limits = limits
        self._store, self._gpus = store, gpus
        self._config: Config | None = None  # as of this turn
        self._in_force: Config | None = None  # as of the last turn that was committed

    @property
    def config(self) -> Config:
        """The configuration as of this turn, for a site that has one."""
        assert self._config is not None, "configure() comes first"
        return self._config

    def configure(self, config: Config) -> None:
        """Apply a configuration and the changes in the store, at the start."""
        self._config = self._in_force = config
        for refusal in usable_overrides(self.overrides)[1]:  # told once, and not for each turn
            log.error("a partition as operators changed it: %s", refusal)
        self.restore()

    def restore(self) -> None:
        """Return to the policy in the store after a turn was rolled back."""
        if self._in_force is not None:
            self._config = self._in_force
            self._use(self._stored_policy(self._in_force))
            self._use_reservations()

    def reread(self, config: Config) -> Changes:
        """Apply a reread configuration in this turn.

        Raises: BadUsage, if it contradicts the operators' changes; nothing is changed then.
        """
        before = self.config
        policy = _policy(config, self.overrides)
        names = [name for name in Config.__struct_fields__ if getattr(before, name) != getattr(config, name)]
        self._config = structs.replace(config, **{name: getattr(before, name) for name in _AT_START})
        self._use(policy)
        now = [name for name in names if name not in _AT_START]
        return Changes(now, [name for name in names if name in _AT_START])

    def put_in_force(self, config: Config) -> None:
        """Make the configuration of `reread` permanent, after the commit of its turn."""
        self._in_force = config

    def _use(self, policy: Policy) -> None:
        """Use a policy from now on, also for other requests of this turn."""
        self.policy = structs.replace(policy, reservations=self.policy.reservations)
        self.limits = self.config.limits

    # -- partitions -----------------------------------------------------------------------------

    @property
    def overrides(self) -> Overrides:
        """The partition settings that operators changed."""
        stored: Overrides = self._store.kept.recall_json(_PARTITIONS, {})
        return stored

    def doubts(self, host: HostSize) -> list[str]:
        """Return the warnings about the settings in effect, with the operators' changes."""
        usable, refusals = usable_overrides(self.overrides)
        return [*refusals, *doubts(apply_overrides(self.config, usable), host)]

    def override(self, overrides: Overrides) -> None:
        """Store partition settings and use them at once, so that jobs may start in this turn.

        Raises: BadUsage, if the policy would be wrong; then nothing changes.
        """
        policy = _policy(self.config, overrides)
        self._store.kept.remember(_PARTITIONS, json.dumps(overrides))
        self._use(policy)

    def _stored_policy(self, config: Config) -> Policy:
        """Return the policy with the operators' changes, or without them if they no longer fit."""
        overrides = self.overrides
        try:
            return _policy(config, overrides)
        except Exception as error:
            if not overrides:
                raise
            log.error("the partitions as operators changed them are left out: %s", error)
            return _policy(config, {})

    # -- reservations ---------------------------------------------------------------------------

    @property
    def records(self) -> list[ReservationRecord]:
        """The reservations in the store."""
        records = (_record(value) for value in self._store.kept.recall_json(_RESERVATIONS, []))
        return [record for record in records if record is not None]

    def reserve(self, records: Iterable[ReservationRecord], now: float) -> None:
        """Store reservations and use them at once. `now`: seconds since the epoch."""
        documents = [to_builtins(record) for record in records if record.end > now]
        self._store.kept.remember(_RESERVATIONS, json.dumps(documents))
        self._use_reservations()

    def _use_reservations(self) -> None:
        reservations = tuple(self.reservation(record) for record in self.records)
        self.policy = structs.replace(self.policy, reservations=reservations)

    def reservation(self, record: ReservationRecord) -> Reservation:
        """Convert a stored reservation. GPUs that no longer exist are omitted."""
        gpu_of = {gpu.uuid: gpu for gpu in self._gpus.gpus}
        holds = [
            Hold(gpu=gpu.index, share=share, memory=gpu.usable * share // WHOLE)
            for uuid, share in record.gpus
            if (gpu := gpu_of.get(uuid))
        ]
        return Reservation(
            name=record.name,
            start=record.start,
            end=record.end,
            holds=tuple(sorted(holds, key=lambda hold: hold.gpu)),
            access=Access(users=record.users, groups=record.groups, accounts=record.accounts),
            is_maintenance="maint" in record.flags,
            by=record.by,
        )

    def tidy(self, now: float) -> None:
        """Forget the reservations that ended before `now` (seconds since the epoch)."""
        if any(reservation.end <= now for reservation in self.policy.reservations):
            current = tuple(reservation for reservation in self.policy.reservations if reservation.end > now)
            self.policy = structs.replace(self.policy, reservations=current)

    def next_due(self, now: float) -> float | None:
        """Return the next begin or end of a reservation (seconds since the epoch), or None."""
        return next(iter(boundaries(self.policy.reservations, now)), None)


def _policy(config: Config, overrides: Overrides) -> Policy:
    usable, _ = usable_overrides(overrides)
    return check_preemption(apply_overrides(config, usable).policy)


def _record(value: object) -> ReservationRecord | None:
    """Return the record in a stored value; None if it is damaged: then it keeps no job from its GPUs."""
    try:
        return convert(value, ReservationRecord)
    except ValidationError:
        log.error("a reservation in the queue cannot be read and is left out: %.200r", value)
        return None
