"""sshare: show fair-share shares, usage and factors in Slurm's layout."""

import os
import pwd
from collections.abc import Mapping, Sequence

from fgsched import protocol
from fgsched.client import Client, find_places
from fgsched.slurm import tables
from fgsched.slurm.getopt import options, parse
from fgsched.slurm.tables import SlurmField

KNOWN = options(
    """all accounts= cluster= clusters= helpformat long format= noheader json parsable parsable2 partition
    users= user= Users verbose version accounts-only""",
    """a:all A:accounts M:clusters e:helpformat l:long o:format n:noheader h:noheader p:parsable P:parsable2
    m:partition u:users U:Users v:verbose V:version""",
)
FIELDS = (
    SlurmField("Account", 20, lambda row: (" " if row.user else "") + (row.account or "root")),
    SlurmField("Partition", 12, lambda row: ""),
    SlurmField("User", 10, lambda row: row.user),
    SlurmField("RawShares", 10, lambda row: row.shares),
    SlurmField("NormShares", 11, lambda row: f"{row.part:.6f}"),
    SlurmField("RawUsage", 11, lambda row: round(row.seconds)),
    SlurmField("NormUsage", 11, lambda row: f"{row.used:.6f}"),
    SlurmField("EffectvUsage", 13, lambda row: f"{row.used:.6f}"),
    SlurmField("FairShare", 10, lambda row: f"{row.factor:.6f}"),
    SlurmField("LevelFS", 10, lambda row: ""),
    SlurmField("GrpTRESMins", 30, lambda row: ""),
    SlurmField("TRESRunMins", 30, lambda row: ""),
    SlurmField("ID", 6, lambda row: "0"),
    SlurmField("Cluster", 10, lambda row: "fgsched"),
)
_USUAL = "Account%-20,User,RawShares,NormShares,RawUsage,EffectvUsage,FairShare"
_LONG = (
    "Account%-20,User,RawShares,NormShares,RawUsage,NormUsage,EffectvUsage,FairShare,LevelFS,GrpTRESMins,"
    "TRESRunMins"
)


def answer(words: Sequence[str]) -> str:
    """Return what sshare prints. Raises BadLine in the words of getopt_long."""
    found, _ = parse(KNOWN, words, permute=True)
    given = dict(found)
    if "version" in given:
        return "slurm-wlm 22.05.8\n"
    if "helpformat" in given:
        return "".join(f"{field.name}\n" for field in FIELDS)
    with Client(find_places()) as client:
        shares = client.call(protocol.ListShares()).shares
    usual = _LONG if "long" in given else _USUAL
    chosen = tables.columns(given.get("format", usual), FIELDS, owner="")
    delimiter = "|" if "parsable" in given or "parsable2" in given else ""
    layout = tables.Layout(chosen, "noheader" not in given, delimiter, "parsable" in given)
    return tables.text([row for row in shares if _is_wanted(row, given)], layout)


def _is_wanted(row: protocol.ShareInfo, given: Mapping[str, str]) -> bool:
    accounts = [name for name in given.get("accounts", "").split(",") if name]
    users = [name for name in (given.get("users") or given.get("user") or "").split(",") if name]
    mine = pwd.getpwuid(os.geteuid()).pw_name
    if "Users" in given:
        return row.user in (users or [mine])
    if accounts and row.account not in accounts:
        return False
    return not row.user or "all" in given or row.user in (users or [mine])
