"""The named tables of the configuration: partitions, qualities of service, accounts, users, resources."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from fgsched.config import settings as kinds
from fgsched.config.precedence import PartitionPrecedence, QosPrecedence
from fgsched.config.settings import Key, declared, key
from fgsched.domain.errors import BadUsage
from fgsched.domain.policy import (
    MAIN,
    NORMAL,
    STATES,
    UP,
    Access,
    Account,
    Defaults,
    Limits,
    Partition,
    PerJobLimits,
    Policy,
    Qos,
    Resource,
    User,
    Weights,
)
from fgsched.domain.text import quoted

Sections = Mapping[str, Mapping[str, Any]]  # table -> name -> its settings
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_JOBS = {"low": 0, "high": 1_000_000}
_GPUS = {"low": 0, "high": 1024 * 10_000}


def _limit(table: str, says: str) -> Any:
    return key(table, kinds.WHOLE, 0, says=says, **_JOBS)


def _share(table: str, says: str) -> Any:
    return key(table, kinds.GPUS, 0, says=says, **_GPUS)


def _minutes(table: str) -> Any:
    says = "Minutes of a GPU, with the decay of the fair share."
    return key(table, kinds.WHOLE, 0, low=0, high=10**12, says=says)


def _bytes(says: str) -> Any:
    return key("partitions", kinds.SIZE, 0, low=0, high=1 << 50, says=says)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSettings(PartitionPrecedence):
    """[partitions.NAME]. Their order in the file is the order of their priority."""

    default: bool = key("partitions", kinds.SWITCH, False, says="Jobs that name no partition come here.")
    state: str = key(
        "partitions",
        kinds.one_of(*STATES),
        UP,
        says="down starts no jobs, drain takes none, inactive neither.",
    )
    gpus: str = key("partitions", kinds.CARDS, "", says="GPUs of a job that asks for none.")
    gpu_mem: str = key("partitions", kinds.GPU_MEMORY, "", says="GPU memory of a job that asks for none.")
    cpus: int = key("partitions", kinds.WHOLE, 0, low=0, high=65_536, says="CPUs of a job that names none.")
    mem: int = _bytes("Host memory of a job that names none.")
    time: int = key("partitions", kinds.DURATION, 0, says="Time limit of a job that names none.")
    max_gpus: int = _share("partitions", "GPUs that one job may ask for; 0 is no limit.")
    max_gpu_mem: int = _bytes("Memory of each GPU that one job may ask for.")
    max_cpus: int = key(
        "partitions", kinds.WHOLE, 0, low=0, high=65_536, says="CPUs that one job may ask for."
    )
    max_mem: int = _bytes("Host memory that one job may have.")
    max_time: int = key("partitions", kinds.DURATION, 0, says="Longest time limit of a job.")
    max_running: int = _limit("partitions", "Jobs that run at a time.")
    max_pending: int = _limit("partitions", "Jobs that wait at a time.")
    max_running_per_user: int = _limit("partitions", "The same of one user.")
    max_pending_per_user: int = _limit("partitions", "Jobs of one user that wait.")
    max_running_per_account: int = _limit("partitions", "Jobs of one account that run.")
    max_pending_per_account: int = _limit("partitions", "Jobs of one account that wait.")
    max_gpus_running: int = _share("partitions", "GPUs that its running jobs hold together.")
    max_gpus_per_user: int = _share("partitions", "GPUs that running jobs of one user hold together.")
    max_gpus_per_account: int = _share("partitions", "GPUs that running jobs of one account hold.")
    devices: tuple[int, ...] = key("partitions", kinds.INDICES, (), says="GPUs that it may use; default all.")
    placement: str = key(
        "partitions", kinds.one_of("pack", "spread"), "", says="As [gpus] placement, for its jobs."
    )
    max_jobs_per_gpu: int = key(
        "partitions", kinds.WHOLE, 0, low=0, high=1000, says="As [gpus] max_jobs_per_gpu, for its jobs."
    )
    share_step: int = key(
        "partitions", kinds.SHARE, 0, low=1, high=10_000, says="As [gpus] share_step, for its jobs."
    )
    gpu_compute: str = key(
        "partitions", kinds.one_of("hard", "fair", "none"), "", says="How its jobs share compute."
    )
    users: tuple[str, ...] = key("partitions", kinds.NAMES, (), says="Users who may use it; default all.")
    groups: tuple[str, ...] = key("partitions", kinds.NAMES, (), says="Groups whose members may use it.")
    accounts: tuple[str, ...] = key("partitions", kinds.NAMES, (), says="Accounts that may use it.")

    def made(self, name: str) -> Partition:
        return Partition(
            name=name,
            is_default=self.default,
            state=self.state,
            defaults=Defaults(
                gpus=self.gpus, gpu_mem=self.gpu_mem, cpus=self.cpus, memory=self.mem, time=self.time
            ),
            most=PerJobLimits(
                share=self.max_gpus,
                gpu_memory=self.max_gpu_mem,
                cpus=self.max_cpus,
                memory=self.max_mem,
                time=self.max_time,
            ),
            total=Limits(running=self.max_running, pending=self.max_pending, share=self.max_gpus_running),
            per_user=Limits(
                running=self.max_running_per_user,
                pending=self.max_pending_per_user,
                share=self.max_gpus_per_user,
            ),
            per_account=Limits(
                running=self.max_running_per_account,
                pending=self.max_pending_per_account,
                share=self.max_gpus_per_account,
            ),
            access=Access(users=self.users, groups=self.groups, accounts=self.accounts),
            cards=self.devices,
            placement=self.placement,
            max_jobs_per_gpu=self.max_jobs_per_gpu,
            share_step=self.share_step,
            gpu_compute=self.gpu_compute,
            **self.precedence,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QosSettings(QosPrecedence):
    """[qos.NAME]."""

    priority: int = key("qos", kinds.WHOLE, 0, low=0, high=10**6, says="The higher, the earlier.")
    max_running: int = _limit("qos", "Jobs that run at a time.")
    max_pending: int = _limit("qos", "Jobs that wait at a time.")
    max_running_per_user: int = _limit("qos", "Jobs of one user that run.")
    max_pending_per_user: int = _limit("qos", "Jobs of one user that wait.")
    max_gpus_running: int = _share("qos", "GPUs that its running jobs hold together.")
    max_gpus_per_user: int = _share("qos", "GPUs that running jobs of one user hold together.")
    users: tuple[str, ...] = key("qos", kinds.NAMES, (), says="Users who may ask for it; default all.")
    groups: tuple[str, ...] = key("qos", kinds.NAMES, (), says="Groups whose members may ask for it.")
    accounts: tuple[str, ...] = key("qos", kinds.NAMES, (), says="Accounts that may ask for it.")

    def made(self, name: str) -> Qos:
        return Qos(
            name=name,
            priority=self.priority,
            total=Limits(running=self.max_running, pending=self.max_pending, share=self.max_gpus_running),
            per_user=Limits(
                running=self.max_running_per_user,
                pending=self.max_pending_per_user,
                share=self.max_gpus_per_user,
            ),
            access=Access(users=self.users, groups=self.groups, accounts=self.accounts),
            **self.precedence,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountSettings:
    """[accounts.NAME]."""

    shares: int = key(
        "accounts", kinds.WHOLE, 1, low=1, high=10**6, says="Its part, beside the other accounts."
    )
    gpu_minutes: int = _minutes("accounts")
    max_running: int = _limit("accounts", "Jobs that run at a time.")
    max_pending: int = _limit("accounts", "Jobs that wait at a time.")
    max_gpus_running: int = _share("accounts", "GPUs that its running jobs hold together.")
    users: tuple[str, ...] = key("accounts", kinds.NAMES, (), says="Users who may charge it; default all.")

    def made(self, name: str) -> Account:
        return Account(name=name, shares=self.shares, caps=_caps(self), users=self.users)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSettings:
    """[users.NAME]."""

    shares: int = key(
        "users", kinds.WHOLE, 1, low=1, high=10**6, says="Their part, beside others of the account."
    )
    account: str = key("users", kinds.WORD, "", says="Account of their jobs that name none.")
    gpu_minutes: int = _minutes("users")
    max_running: int = _limit("users", "Jobs that run at a time.")
    max_pending: int = _limit("users", "Jobs that wait at a time.")
    max_gpus_running: int = _share("users", "GPUs that their running jobs hold together.")

    def made(self, name: str) -> User:
        return User(name=name, shares=self.shares, account=self.account, caps=_caps(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSettings:
    """[resources.NAME], or NAME = count in [resources]."""

    count: int = key("resources", kinds.WHOLE, 1, low=1, high=65_536, says="How many there are.")
    visible_env: str = key("resources", kinds.WORD, "", says="Variable that tells a job which it was given.")

    def made(self, name: str) -> Resource:
        return Resource(name=name, count=self.count, visible_env=self.visible_env)


def _caps(found: AccountSettings | UserSettings) -> Limits:
    return Limits(
        running=found.max_running,
        pending=found.max_pending,
        share=found.max_gpus_running,
        gpu_seconds=found.gpu_minutes * 60,
    )


_KINDS: dict[str, type] = {
    "partitions": PartitionSettings,
    "qos": QosSettings,
    "accounts": AccountSettings,
    "users": UserSettings,
    "resources": ResourceSettings,
}
SECTIONS: dict[str, dict[str, Key]] = {table: declared(kind) for table, kind in _KINDS.items()}


def read(path: str, text: str, table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """{name: settings} of one of these tables; BadUsage names the file, the line and the key."""
    found: dict[str, Any] = {}
    for name, entry in values.items():
        where = f"{path}:{kinds.line_of(text, (table, name))}"
        if not NAME.fullmatch(name):
            raise BadUsage(
                f"{where}: {quoted(name)} is not a name.", "Letters, digits, '_', '.' and '-', at most 64."
            )
        if table == "resources" and not isinstance(entry, dict):
            entry = {"count": entry}
        if not isinstance(entry, dict):
            raise BadUsage(
                f"{where}: {table}.{name} is not a table.", f"Write [{table}.{name}] and its keys."
            )
        given = {
            own: value_of(f"{path}:{kinds.line_of(text, (table, name, own))}", table, name, (own, value))
            for own, value in entry.items()
        }
        found[name] = _KINDS[table](**given)
    if table == "partitions" and sum(one.default for one in found.values()) > 1:
        where = f"{path}:{kinds.line_of(text, (table,))}"
        raise BadUsage(f"{where}: more than one partition is the default.", "Leave default = true at one.")
    return found


def value_of(where: str, table: str, name: str, pair: tuple[str, object]) -> Any:
    """The value of one key (`pair`: key, value) of [table.name]."""
    own, value = pair
    keys = SECTIONS[table]
    if own not in keys:
        near = get_close_matches(own, keys, n=1, cutoff=0.5)
        remedy = f"Did you mean {near[0]}?" if near else f"There are {', '.join(keys)}."
        raise BadUsage(f"{where}: [{table}.{name}] has no key {own}.", remedy)
    return kinds.value_of(where, f"{table}.{name}.{own}", keys[own], value)


def policy(found: Sections, weights: Weights) -> Policy:
    """What these tables allow. Unless one is said to be the default, `main` is there too, the last."""

    def all_of(table: str) -> tuple[Any, ...]:
        return tuple(one.made(name) for name, one in found.get(table, {}).items())

    partitions = dict(found.get("partitions", {}))
    if not any(one.default for one in partitions.values()):
        main = partitions.get(MAIN) or PartitionSettings()
        partitions[MAIN] = PartitionSettings(
            **{own: getattr(main, own) for own in SECTIONS["partitions"]} | {"default": True}
        )
    qualities = {NORMAL: QosSettings()} | dict(found["qos"]) if found.get("qos") else {}
    return Policy(
        partitions=tuple(one.made(name) for name, one in partitions.items()),
        qos=tuple(one.made(name) for name, one in qualities.items()),
        accounts=all_of("accounts"),
        users=all_of("users"),
        resources=all_of("resources"),
        weights=weights,
    )
