"""sacctmgr: show accounts, users, associations, qualities of service and the cluster."""

import os
import pwd
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fgsched import protocol
from fgsched.client import Client, find_paths
from fgsched.domain.policy import Limits, Qos
from fgsched.domain.text import word_list
from fgsched.slurm import tables
from fgsched.slurm.getopt import BadLine, parse
from fgsched.views.display import SLURM_VERSION, host_name
from fgsched.views.listing import TableColumn

CLUSTER = "fgsched"
_CHANGES = (
    "add",
    "create",
    "modify",
    "delete",
    "remove",
    "update",
    "archive",
    "dump",
    "load",
    "clear",
    "reconfigure",
)
_CONDITIONS = ("format", "names", "name", "user", "users", "account", "accounts", "cluster", "clusters")
_EMPTY = word_list(  # entities of which a host of fgsched has none
    """event events federation problem reservation resource runawayjobs stats transaction tres wckey
    instance"""
)


class Association(NamedTuple):
    """An account, or a user of one."""

    account: str
    user: str
    shares: int
    limits: Limits
    default: str = ""  # the user's default account


def _number_or_blank(number: int) -> str:
    return str(number) if number else ""


def _minutes(limits: Limits) -> str:
    return f"gres/gpu={limits.gpu_seconds // 60}" if limits.gpu_seconds else ""


_ASSOCIATION = (
    TableColumn("Cluster", lambda row: CLUSTER, width=10),
    TableColumn("Account", lambda row: row.account, width=10),
    TableColumn("User", lambda row: row.user, width=10),
    TableColumn("Partition", lambda row: "", width=10),
    TableColumn("Share", lambda row: row.shares, width=9),
    TableColumn("Priority", lambda row: "", width=10),
    TableColumn("GrpJobs", lambda row: _number_or_blank(row.limits.running), width=7),
    TableColumn("GrpTRES", lambda row: "", width=13),
    TableColumn("GrpSubmit", lambda row: "", width=9),
    TableColumn("GrpWall", lambda row: "", width=11),
    TableColumn("GrpTRESMins", lambda row: _minutes(row.limits), width=13),
    TableColumn("MaxJobs", lambda row: _number_or_blank(row.limits.running), width=7),
    TableColumn("MaxTRES", lambda row: "", width=13),
    TableColumn("MaxTRESPerNode", lambda row: "", width=14),
    TableColumn("MaxSubmit", lambda row: _number_or_blank(row.limits.pending), width=9),
    TableColumn("MaxWall", lambda row: "", width=11),
    TableColumn("MaxTRESMins", lambda row: "", width=13),
    TableColumn("QOS", lambda row: "normal", width=20),
    TableColumn("Def QOS", lambda row: "", width=9),
    TableColumn("GrpTRESRunMins", lambda row: "", width=13),
    TableColumn("Fairshare", lambda row: row.shares, width=9),
    TableColumn("ID", lambda row: "0", width=6),
    TableColumn("ParentName", lambda row: "" if row.user else "root", width=10),
)
_USER = (
    TableColumn("User", lambda row: row.user, width=10),
    TableColumn("Def Acct", lambda row: row.default, width=10),
    TableColumn("DefaultAccount", lambda row: row.default, width=10),
    TableColumn("Admin", lambda row: "None", width=9),
    TableColumn("AdminLevel", lambda row: "None", width=10),
    TableColumn("Coord Accounts", lambda row: "", width=20),
    *(field for field in _ASSOCIATION if field.heading != "User"),
)
_ACCOUNT = (
    TableColumn("Account", lambda row: row.account, width=10),
    TableColumn("Descr", lambda row: row.account, width=20),
    TableColumn("Description", lambda row: row.account, width=20),
    TableColumn("Org", lambda row: CLUSTER, width=20),
    TableColumn("Organization", lambda row: CLUSTER, width=20),
    *(field for field in _ASSOCIATION if field.heading != "Account"),
)
_QOS = (
    TableColumn("Name", lambda row: row.name, width=10),
    TableColumn("Priority", lambda row: row.priority, width=10),
    TableColumn("GraceTime", lambda row: "00:00:00", width=10),
    TableColumn("Preempt", lambda row: ",".join(row.preempt), width=10),
    TableColumn("PreemptMode", lambda row: "cluster", width=11),
    TableColumn("Flags", lambda row: "", width=10),
    TableColumn("UsageThres", lambda row: "", width=10),
    TableColumn("UsageFactor", lambda row: "1.000000", width=11),
    TableColumn("GrpTRES", lambda row: "", width=13),
    TableColumn("GrpJobs", lambda row: _number_or_blank(row.total.running), width=7),
    TableColumn("GrpSubmit", lambda row: _number_or_blank(row.total.pending), width=9),
    TableColumn("MaxWall", lambda row: "", width=11),
    TableColumn("MaxTRES", lambda row: "", width=13),
    TableColumn("MaxTRESPU", lambda row: "", width=13),
    TableColumn("MaxJobsPU", lambda row: _number_or_blank(row.per_user.running), width=9),
    TableColumn("MaxSubmitPU", lambda row: _number_or_blank(row.per_user.pending), width=11),
    TableColumn("ID", lambda row: "1", width=6),
)
_CLUSTER = (
    TableColumn("Cluster", lambda row: CLUSTER, width=10),
    TableColumn("ControlHost", lambda row: "127.0.0.1", width=15),
    TableColumn("ControlPort", lambda row: "0", width=12),
    TableColumn("RPC", lambda row: "9728", width=5),
    TableColumn("Share", lambda row: "1", width=9),
    TableColumn("QOS", lambda row: "normal", width=20),
    TableColumn("Def QOS", lambda row: "", width=9),
    TableColumn("TRES", lambda row: "cpu,mem,node,billing,gres/gpu", width=20),
    TableColumn("NodeCount", lambda row: "1", width=10),
    TableColumn("ClusterNodes", lambda row: host_name(), width=15),
)
_KINDS = {  # entity -> fields, and the fields that are printed by default
    "account": (_ACCOUNT, "Account,Descr,Org"),
    "user": (_USER, "User,DefAcct,Admin"),
    "association": (
        _ASSOCIATION,
        "Cluster,Account,User,Partition,Share,Priority,GrpJobs,GrpTRES,GrpSubmit,GrpWall,GrpTRESMins,"
        "MaxJobs,MaxTRES,MaxTRESPerNode,MaxSubmit,MaxWall,MaxTRESMins,QOS,DefQOS,GrpTRESRunMins",
    ),
    "qos": (
        _QOS,
        "Name,Priority,GraceTime,Preempt,PreemptMode,Flags,UsageThres,UsageFactor,GrpTRES,GrpJobs,GrpSubmit,"
        "MaxWall,MaxTRES,MaxTRESPU,MaxJobsPU,MaxSubmitPU",
    ),
    "cluster": (_CLUSTER, "Cluster,ControlHost,ControlPort,RPC,Share,QOS,DefQOS"),
}
_WITH_ASSOCIATIONS = {
    "user": "User,DefAcct,Admin,Cluster,Account,Partition,Share,Priority,MaxJobs,MaxWall,QOS,DefQOS",
    "account": "Account,Descr,Org,Cluster,ParentName,User,Share,Priority,GrpJobs,MaxJobs,QOS,DefQOS",
}


def answer(words: Sequence[str]) -> str:
    """Return what sacctmgr prints. Raises BadLine in the words of Slurm."""
    spelled, operands = parse("sacctmgr", words, permute=True)
    options = dict(spelled)
    if "version" in options or operands[:1] == ["version"]:
        return f"slurm-wlm {SLURM_VERSION}\n"
    verb = operands[0].lower() if operands else ""
    if verb in _CHANGES:
        raise BadLine("error: accounts are tables of fgsched.toml: [accounts.NAME], [users.NAME], [qos.NAME]")
    if verb not in ("show", "list", "sh", "li"):
        raise BadLine(f"error: invalid keyword: {verb}" if verb else "error: no command was given")
    if len(operands) < 2:  # the verb and what to show
        raise BadLine("error: Input line must include an entity such as user, account or qos")
    return _shown(operands[1].lower(), operands[2:], options)


def _shown(what: str, words: Sequence[str], options: Mapping[str, str]) -> str:
    single = "qos" if what == "qos" else what.rstrip("s")
    kind = next((name for name in _KINDS if name.startswith(single)), "")
    if what in _EMPTY:
        return ""
    if what.startswith("config"):
        return f"Configuration data of fgsched in Slurm's keys\nClusterName            = {CLUSTER}\n"
    if not kind:
        raise BadLine(f"error: Invalid entity: {what}")
    conditions = _asked(kind, words)
    fields, usual = _KINDS[kind]
    related = "associations" in options or "withassoc" in conditions
    usual = _WITH_ASSOCIATIONS.get(kind, usual) if related else usual
    chosen = tables.columns(conditions.get("format", usual), fields, owner="")
    return tables.text(_rows(kind, conditions, related=related), chosen, options)


def _asked(kind: str, words: Sequence[str]) -> dict[str, str]:
    """Return the conditions of 'user ann account=a format=account%20'; a bare word is a name."""
    conditions: dict[str, str] = {}
    operands = list(words)
    while operands:
        word = operands.pop(0)
        key, equals, value = word.partition("=")
        name = key.lower()
        if name in ("where", "set"):
            continue
        if name.startswith("withassoc"):
            conditions["withassoc"] = ""
        elif name in (
            "format",
            "names",
            "name",
            "user",
            "users",
            "account",
            "accounts",
            "cluster",
            "clusters",
        ):
            value = value if equals else operands.pop(0) if operands else ""
            name = name.rstrip("s")
            conditions[kind if name == "name" else name] = value
        elif not equals and not name.startswith(("with", "wo", "tree", "only")):
            conditions[kind] = word
    return conditions


def _rows(kind: str, conditions: Mapping[str, str], *, related: bool) -> list[Any]:
    if kind == "cluster":
        return [CLUSTER]
    with Client(find_paths()) as client:
        answer_of_accounts = client.call(protocol.ListAssociations())
    if kind == "qos":
        qoses = answer_of_accounts.qos or [Qos(name="normal")]
        return [qos for qos in qoses if _named(conditions.get("qos", ""), qos.name)]
    rows = associations(answer_of_accounts)
    if kind == "user" and not related:
        rows = list({row.user: row for row in rows if row.user}.values())
    elif kind == "account" and not related:
        rows = [row for row in rows if not row.user]
    elif kind == "user":
        rows = [row for row in rows if row.user]
    return [
        row
        for row in rows
        if _named(conditions.get("user", ""), row.user) and _named(conditions.get("account", ""), row.account)
    ]


def _named(wanted: str, name: str) -> bool:
    return not wanted or name in wanted.split(",")


def associations(answer_of_accounts: protocol.Associations) -> list[Association]:
    """Return every declared account with its users; an account without a list has the caller.

    Without declared accounts, jobs can name any; then there are none to list.
    """
    defaults = {user.name: user for user in answer_of_accounts.users}
    mine = pwd.getpwuid(os.geteuid()).pw_name
    rows = []
    for account in answer_of_accounts.accounts:
        rows.append(Association(account.name, "", account.shares, account.limits))
        for name in account.users or dict.fromkeys([mine, *defaults]):
            user = defaults.get(name)
            rows.append(
                Association(
                    account.name,
                    name,
                    user.shares if user else 1,
                    user.limits if user else Limits(),
                    user.account if user else "",
                )
            )
    return rows
