"""sshare: show fair-share shares, usage and factors in Slurm's layout."""

import os
import pwd
from collections.abc import Mapping, Sequence

from fgsched import protocol
from fgsched.client import Client, find_paths
from fgsched.slurm import tables
from fgsched.slurm.getopt import parse
from fgsched.views.display import SLURM_VERSION
from fgsched.views.listing import TableColumn

FIELDS = (
    TableColumn("Account", lambda row: (" " if row.user else "") + (row.account or "root"), width=20),
    TableColumn("Partition", lambda row: "", width=12),
    TableColumn("User", lambda row: row.user, width=10),
    TableColumn("RawShares", lambda row: row.shares, width=10),
    TableColumn("NormShares", lambda row: f"{row.part:.6f}", width=11),
    TableColumn("RawUsage", lambda row: round(row.seconds), width=11),
    TableColumn("NormUsage", lambda row: f"{row.used:.6f}", width=11),
    TableColumn("EffectvUsage", lambda row: f"{row.used:.6f}", width=13),
    TableColumn("FairShare", lambda row: f"{row.factor:.6f}", width=10),
    TableColumn("LevelFS", lambda row: "", width=10),
    TableColumn("GrpTRESMins", lambda row: "", width=30),
    TableColumn("TRESRunMins", lambda row: "", width=30),
    TableColumn("ID", lambda row: "0", width=6),
    TableColumn("Cluster", lambda row: "fgsched", width=10),
)
_USUAL = "Account%-20,User,RawShares,NormShares,RawUsage,EffectvUsage,FairShare"
_LONG = (
    "Account%-20,User,RawShares,NormShares,RawUsage,NormUsage,EffectvUsage,FairShare,LevelFS,GrpTRESMins,"
    "TRESRunMins"
)


def answer(words: Sequence[str]) -> str:
    """Return what sshare prints. Raises BadLine in the words of getopt_long."""
    spelled, _ = parse("sshare", words, permute=True)
    options = dict(spelled)
    if "version" in options:
        return f"slurm-wlm {SLURM_VERSION}\n"
    if "helpformat" in options:
        return "".join(f"{field.heading}\n" for field in FIELDS)
    with Client(find_paths()) as client:
        shares = client.call(protocol.ListShares()).shares
    usual = _LONG if "long" in options else _USUAL
    chosen = tables.columns(options.get("format", usual), FIELDS, owner="")
    return tables.text([row for row in shares if _is_wanted(row, options)], chosen, options)


def _is_wanted(row: protocol.ShareInfo, options: Mapping[str, str]) -> bool:
    accounts = [name for name in options.get("accounts", "").split(",") if name]
    users = [name for name in (options.get("users") or options.get("user") or "").split(",") if name]
    mine = pwd.getpwuid(os.geteuid()).pw_name
    if "Users" in options:
        return row.user in (users or [mine])
    if accounts and row.account not in accounts:
        return False
    return not row.user or "all" in options or row.user in (users or [mine])
