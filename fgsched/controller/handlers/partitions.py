"""What operators change of the site while the controller runs: the configuration read anew, and partitions.

Whatever an operator says of a partition is kept beside the file, and laid over it.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import structs

from fgsched.config.keys import KEYS
from fgsched.config.load import Config, check_preemption
from fgsched.config.overrides import apply_overrides, decode_values, key_of
from fgsched.controller.caller import Caller
from fgsched.controller.effects import NO_REPLY, Reconfigure, Reply
from fgsched.controller.engine import Engine
from fgsched.domain.errors import BadUsage, FgschedError, Refused
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
    """What this desk reaches into: the file, and whoever obeys it."""

    load: Callable[[], Config]
    obey: Callable[[Config], None]  # everything but the policy and the limits


class PartitionHandlers:
    """`answer = desk.operations[name](caller, arguments, now)`, inside the turn's transaction."""

    def __init__(self, engine: Engine, config: Config, hands: ConfigActions) -> None:
        self._engine, self._hands = engine, hands
        self._config = config  # as read in this turn
        self._in_force = config  # as of the last turn that was committed
        self.operations: dict[str, Callable[[Caller, dict[str, Any], float], Any]] = {
            "reconfigure": self.reconfigure,
            "create_partition": self.create,
            "update_partition": self.update,
            "delete_partition": self.delete,
        }
        engine.forgotten.append(self._forget)
        self._govern(self._policy_kept(config))

    @property
    def _overlay(self) -> Overlay:
        """Asked of the store each time: a turn that is undone takes its changes with it."""
        found: Overlay = self._engine.store.kept.recall_json(_PARTITIONS, {})
        return found

    def _policy_kept(self, config: Config) -> Policy:
        """The policy with what operators said; without it, if it does not fit the configuration any more."""
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
        """From now on go by this, others of this turn too; the reservations are another desk's."""
        self._engine.policy = structs.replace(policy, reservations=self._engine.policy.reservations)
        self._engine.limits = self._config.limits

    def _forget(self) -> None:
        """The turn was undone: what was in force before it is."""
        self._config = self._in_force
        self._govern(self._policy_kept(self._config))

    def reconfigure(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        """Read the file anew; what is wrong with it is told, and the settings in force stay."""
        caller.must_operate("have the configuration read anew")
        return self.reread()

    def reread(self) -> dict[str, Any]:
        """The same, for a signal. Names what differs, and what waits for a new controller."""
        before, config = self._config, self._hands.load()
        policy = self._policy(config, self._overlay)
        differing = [
            name for name in Config.__struct_fields__ if getattr(before, name) != getattr(config, name)
        ]
        self._config = obeyed = structs.replace(config, **{name: getattr(before, name) for name in _AT_START})
        self._govern(policy)

        self._engine.then(Reconfigure(self._put_in_force, obeyed))
        return {
            "changed": [_shown(name) for name in differing if name not in _AT_START],
            "later": [_shown(name) for name in differing if name in _AT_START],
        }

    def _put_in_force(self, config: Config) -> None:
        self._in_force = config
        self._hands.obey(config)

    def hang_up(self, now: float) -> Reply:
        """SIGHUP: as `reconfigure`, with the log as the only reader."""
        try:
            said = self.reread()
        except FgschedError as error:
            log.error("the configuration stays as it was: %s", error)
            return NO_REPLY
        names = ", ".join(said["changed"]) or "nothing"
        return Reply(partial(log.info, "read the configuration anew; changed: %s"), names)

    # -- partitions -----------------------------------------------------------------------------

    def create(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        """Another partition, after those of the file."""
        name = self._name(caller, arguments, "create")
        if self._engine.policy.partition(name) is not None:
            raise Refused(
                f"there is a partition {name} already", f"fgctl update partition={name} changes it."
            )
        return self._lay_over(name, _given(arguments))

    def update(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        """Change a partition; a key without a value goes back to what the file says."""
        name = self._name(caller, arguments, "change")
        self._must_exist(name)
        values = self._overlay.get(name, {}) | _given(arguments)
        return self._lay_over(name, {key: text for key, text in values.items() if text})

    def delete(self, caller: Caller, arguments: dict[str, Any], now: float) -> dict[str, Any]:
        """Remove a partition that an operator created, once it has no jobs."""
        name = self._name(caller, arguments, "delete")
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

    def _name(self, caller: Caller, arguments: Mapping[str, Any], what: str) -> str:
        caller.must_operate(f"{what} a partition")
        name = arguments.get("name")
        if not isinstance(name, str):
            raise BadUsage("a partition is named by a text")
        return name

    def _must_exist(self, name: str) -> None:
        if self._engine.policy.partition(name) is None:
            legal = ", ".join(one.name for one in self._engine.policy.partitions)
            raise Refused(f"invalid partition name specified: {name[:80]}", f"This host has {legal}.")

    def _lay_over(self, name: str, values: dict[str, str]) -> dict[str, Any]:
        return self._put(self._overlay | {name: values}, name)

    def _put(self, overlay: Overlay, name: str) -> dict[str, Any]:
        """Write it down and obey it at once: jobs may start in this very turn."""
        policy = self._policy(self._config, overlay)
        self._engine.store.kept.remember(_PARTITIONS, json.dumps(overlay))
        self._govern(policy)
        return {"partition": name}


def _given(arguments: Mapping[str, Any]) -> dict[str, str]:
    """{key: text} of a message, with the keys as the file spells them. Every value is checked."""
    values = arguments.get("values")
    if not isinstance(values, dict) or any(type(text) is not str for text in values.values()):
        raise BadUsage("values is not an object of texts")
    found = {key_of(key): text for key, text in values.items()}
    decode_values({key: text for key, text in found.items() if text})
    return found


def _shown(name: str) -> str:
    key = KEYS.get(name)
    return f"{key.table}.{key.name}" if key else name
