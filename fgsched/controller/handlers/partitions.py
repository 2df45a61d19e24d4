"""Handle changes of the configuration at run time: reread the file, and change partitions.

Changes of partitions by operators are stored in the queue and override the file.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import structs

from fgsched import protocol
from fgsched.config.keys import KEYS
from fgsched.config.load import Config, check_preemption
from fgsched.config.overrides import apply_overrides, decode_values, key_of
from fgsched.controller.caller import Caller
from fgsched.controller.effects import NO_REPLY, Reconfigure, Reply
from fgsched.controller.engine import Engine
from fgsched.domain.errors import FgschedError, Refused
from fgsched.domain.policy import Policy

log = logging.getLogger("fgsched.controller")
_PARTITIONS = "partitions"  # what operators said of them, in the store
_AT_START = {
    "devices",
    "headroom",
    "tmp",
    "run_space",
    "max_processes",
    "deadline",
}  # fields that only a new controller obeys
Overlay = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class ConfigActions:
    """Actions on the configuration file and on the parts that use it."""

    load: Callable[[], Config]
    obey: Callable[[Config], None]  # everything but the policy and the limits


class PartitionHandlers:
    """The handlers by operation; each is called as handler(caller, call, now) within the transaction."""

    def __init__(self, engine: Engine, config: Config, hands: ConfigActions) -> None:
        self._engine, self._hands = engine, hands
        self._config = config  # as read in this turn
        self._in_force = config  # as of the last turn that was committed
        self.calls: dict[type[protocol.Call[Any]], Callable[[Caller, Any, float], Any]] = {
            protocol.Reconfigure: self.reconfigure,
            protocol.CreatePartition: self.create,
            protocol.UpdatePartition: self.update,
            protocol.DeletePartition: self.delete,
        }
        engine.forgotten.append(self._forget)
        self._govern(self._policy_kept(config))

    @property
    def _overlay(self) -> Overlay:
        """Read the operators' changes from the store, so that a rollback also reverts them."""
        found: Overlay = self._engine.store.kept.recall_json(_PARTITIONS, {})
        return found

    def _policy_kept(self, config: Config) -> Policy:
        """Return the policy with the operators' changes, or without them if they no longer fit."""
        overlay = self._overlay
        try:
            return self._policy(config, overlay)
        except Exception as error:
            if not overlay:
                raise
            log.error("the partitions as operators changed them are left out: %s", error)
            return self._policy(config, {})

    def _policy(self, config: Config, overlay: Overlay) -> Policy:
        return check_preemption(apply_overrides(config, overlay).policy)

    def _govern(self, policy: Policy) -> None:
        """Use this policy from now on, also for other requests of this turn."""
        self._engine.policy = structs.replace(policy, reservations=self._engine.policy.reservations)
        self._engine.limits = self._config.limits

    def _forget(self) -> None:
        """Restore the previous policy after a rollback."""
        self._config = self._in_force
        self._govern(self._policy_kept(self._config))

    def reconfigure(self, caller: Caller, call: protocol.Reconfigure, now: float) -> protocol.Reconfigured:
        """Read the configuration file again. If it is wrong, the settings in force stay.

        Raises: NotPermitted; the error of a file that is wrong.
        """
        caller.must_operate("read the configuration again")
        return self.reread()

    def reread(self) -> protocol.Reconfigured:
        """Read the configuration file again, on behalf of an operator."""
        before, config = self._config, self._hands.load()
        policy = self._policy(config, self._overlay)
        differing = [
            name for name in Config.__struct_fields__ if getattr(before, name) != getattr(config, name)
        ]
        self._config = obeyed = structs.replace(config, **{name: getattr(before, name) for name in _AT_START})
        self._govern(policy)

        self._engine.then(Reconfigure(self._put_in_force, obeyed))
        return protocol.Reconfigured(
            changed=[_shown(name) for name in differing if name not in _AT_START],
            later=[_shown(name) for name in differing if name in _AT_START],
        )

    def _put_in_force(self, config: Config) -> None:
        self._in_force = config
        self._hands.obey(config)

    def hang_up(self, now: float) -> Reply:
        """Reread the configuration at SIGHUP, with errors in the log only."""
        try:
            said = self.reread()
        except FgschedError as error:
            log.error("the configuration stays as it was: %s", error)
            return NO_REPLY
        names = ", ".join(said.changed) or "nothing"
        return Reply(partial(log.info, "read the configuration anew; changed: %s"), names)

    # -- partitions -----------------------------------------------------------------------------

    def create(self, caller: Caller, call: protocol.CreatePartition, now: float) -> protocol.PartitionName:
        """Add a partition after those of the configuration file.

        Raises: NotPermitted; Refused if there is one of that name; BadUsage for a bad value.
        """
        caller.must_operate("create a partition")
        name = call.name
        if self._engine.policy.partition(name) is not None:
            raise Refused(
                f"there is a partition {name} already", f"fgctl update partition={name} changes it."
            )
        return self._lay_over(name, _checked(call.values))

    def update(self, caller: Caller, call: protocol.UpdatePartition, now: float) -> protocol.PartitionName:
        """Change settings of a partition; an empty value restores the one of the configuration file.

        Raises: NotPermitted; Refused if there is no such partition; BadUsage for a bad value.
        """
        caller.must_operate("change a partition")
        name = call.name
        self._must_exist(name)
        values = self._overlay.get(name, {}) | _checked(call.values)
        return self._lay_over(name, {key: text for key, text in values.items() if text})

    def delete(self, caller: Caller, call: protocol.DeletePartition, now: float) -> protocol.PartitionName:
        """Remove a partition that an operator created and that has no jobs.

        Raises: NotPermitted; Refused if it has jobs, is in the configuration file or does not exist.
        """
        caller.must_operate("delete a partition")
        name = call.name
        self._must_exist(name)
        overlay = self._overlay
        if name in self._config.partitions or name not in overlay:
            raise Refused(
                f"partition {name} is in the configuration file",
                "Remove it there, then: fgctl reconfigure. To close it: fgctl update partition=… state=down",
            )
        for job in self._engine.jobtable.jobs.values():
            if name in (job.partition or job.request.partition).split(","):
                raise Refused(f"job {job.id} is in partition {name}", "Wait for its jobs, or cancel them.")
        return self._put({one: values for one, values in overlay.items() if one != name}, name)

    def _must_exist(self, name: str) -> None:
        if self._engine.policy.partition(name) is None:
            legal = ", ".join(one.name for one in self._engine.policy.partitions)
            raise Refused(f"invalid partition name specified: {name[:80]}", f"This host has {legal}.")

    def _lay_over(self, name: str, values: dict[str, str]) -> protocol.PartitionName:
        return self._put(self._overlay | {name: values}, name)

    def _put(self, overlay: Overlay, name: str) -> protocol.PartitionName:
        """Store the changes and use them at once, so that jobs may start in this turn."""
        policy = self._policy(self._config, overlay)
        self._engine.store.kept.remember(_PARTITIONS, json.dumps(overlay))
        self._govern(policy)
        return protocol.PartitionName(partition=name)


def _checked(values: Mapping[str, str]) -> dict[str, str]:
    """Return {key: text} with the keys as in the configuration file, after checking every value."""
    found = {key_of(key): text for key, text in values.items()}
    decode_values({key: text for key, text in found.items() if text})
    return found


def _shown(name: str) -> str:
    key = KEYS.get(name)
    return f"{key.table}.{key.name}" if key else name
