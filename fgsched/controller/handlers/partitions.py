"""Handle changes of the configuration at run time: reread the file, and change partitions.

Changes of partitions by operators are stored in the queue and override the file.
"""

import logging
from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from fgsched import protocol
from fgsched.config import contradictions
from fgsched.config.contradictions import HostSize
from fgsched.config.keys import KEYS, decode_values, key_of
from fgsched.config.schema import Config
from fgsched.controller.caller import Caller
from fgsched.controller.engine import Engine
from fgsched.controller.handlers.registration import writes
from fgsched.controller.sitepolicy import Overrides
from fgsched.controller.turn import NO_REPLY, ApplyConfig, SendReply
from fgsched.domain.errors import FgschedError, Refused

log = logging.getLogger("fgsched.controller")


class ConfigActions(Struct, frozen=True):
    """Actions on the configuration file and on the parts that use it."""

    load: Callable[[], Config]
    configure: Callable[[Config], None]  # everything but the policy and the limits


class PartitionHandlers:
    """The handlers of partitions. Each is called as handler(caller, call, now) within the transaction."""

    def __init__(self, engine: Engine, actions: ConfigActions) -> None:
        self._engine, self._actions = engine, actions

    @writes(protocol.Reconfigure)
    def reconfigure(self, caller: Caller, call: protocol.Reconfigure, now: float) -> protocol.Reconfigured:
        """Reread the configuration file. If it has an error, the present settings remain.

        Raises: NotPermitted; the error in the file.
        """
        caller.must_operate("read the configuration again")
        return self.reread()

    def reread(self) -> protocol.Reconfigured:
        """Reread the configuration file on behalf of an operator.

        Raises: the error in the file.
        """
        site = self._engine.site
        changes = site.reread(self._actions.load())
        changed = [_shown(name) for name in changes.now]
        self._engine.then(ApplyConfig(self._put_in_force, site.config))
        self._engine.log.note("reconfigure", changed=",".join(changed) or "nothing")
        warnings = site.doubts(self._host())
        later = [_shown(name) for name in changes.later]
        return protocol.Reconfigured(changed=changed, later=later, warnings=warnings)

    def _put_in_force(self, config: Config) -> None:
        self._engine.site.put_in_force(config)
        self._actions.configure(config)

    def hang_up(self, now: float) -> SendReply:
        """Reread the configuration at SIGHUP, with errors in the log only."""
        try:
            answer = self.reread()
        except FgschedError as error:
            log.error("the configuration stays as it was: %s", error)
            return NO_REPLY
        for warning in answer.warnings:
            log.warning("the configuration: %s", warning)
        return NO_REPLY

    # -- partitions -----------------------------------------------------------------------------

    @writes(protocol.CreatePartition)
    def create(self, caller: Caller, call: protocol.CreatePartition, now: float) -> protocol.PartitionName:
        """Add a partition after those of the configuration file.

        Raises: NotPermitted; Refused if the name exists; BadUsage for a bad value.
        """
        caller.must_operate("create a partition")
        name = call.name
        if self._engine.policy.partition(name) is not None:
            raise Refused(
                f"there is a partition {name} already", f"fgctl update partition={name} changes it."
            )
        return self._put(self._engine.site.overrides | {name: _checked(call.values)}, name, "create")

    @writes(protocol.UpdatePartition)
    def update(self, caller: Caller, call: protocol.UpdatePartition, now: float) -> protocol.PartitionName:
        """Change settings of a partition; an empty value restores the one of the configuration file.

        Raises: NotPermitted; Refused if there is no such partition; BadUsage for a bad value.
        """
        caller.must_operate("change a partition")
        name = call.name
        self._must_exist(name)
        overrides = self._engine.site.overrides
        values = overrides.get(name, {}) | _checked(call.values)
        return self._put(
            overrides | {name: {key: text for key, text in values.items() if text}}, name, "update"
        )

    @writes(protocol.DeletePartition)
    def delete(self, caller: Caller, call: protocol.DeletePartition, now: float) -> protocol.PartitionName:
        """Remove a partition that an operator created and that has no jobs.

        Raises: NotPermitted; Refused if it has jobs, is in the configuration file or does not exist.
        """
        caller.must_operate("delete a partition")
        name = call.name
        self._must_exist(name)
        overrides = self._engine.site.overrides
        if name in self._engine.site.config.partitions or name not in overrides:
            raise Refused(
                f"partition {name} is in the configuration file",
                "Remove it there, then: fgctl reconfigure. To close it: fgctl update partition=… state=down",
            )
        for job in self._engine.jobtable.jobs.values():
            if name in (job.partition or job.request.partition).split(","):
                raise Refused(f"job {job.id} is in partition {name}", "Wait for its jobs, or cancel them.")
        return self._put(
            {
                partition_name: values
                for partition_name, values in overrides.items()
                if partition_name != name
            },
            name,
            "delete",
        )

    def _must_exist(self, name: str) -> None:
        if self._engine.policy.partition(name) is None:
            legal = ", ".join(partition.name for partition in self._engine.policy.partitions)
            raise Refused(f"invalid partition name specified: {name[:80]}", f"This host has {legal}.")

    def _put(self, overrides: Overrides, name: str, action: str) -> protocol.PartitionName:
        self._engine.site.override(overrides)
        self._engine.log.note("partition", partition=name, action=action)
        table = f"[partitions.{name}] "
        warnings = [text for text in self._engine.site.doubts(self._host()) if text.startswith(table)]
        return protocol.PartitionName(partition=name, warnings=warnings)

    def _host(self) -> HostSize:
        gpus = self._engine.gpu_states.gpus
        return replace(
            contradictions.this_host(),
            gpus=tuple(gpu.index for gpu in gpus),
            gpu_memory=max((gpu.usable for gpu in gpus), default=0),
        )


def _checked(values: Mapping[str, str]) -> dict[str, str]:
    """Return {key: text} with the keys as in the configuration file, after checking every value."""
    texts = {key_of(key): text for key, text in values.items()}
    decode_values({key: text for key, text in texts.items() if text})
    return texts


def _shown(name: str) -> str:
    key = KEYS.get(name)
    return f"{key.table}.{key.name}" if key else name
