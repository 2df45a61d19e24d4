"""Carry out the policies of the site: on jobs that do not use their GPUs, and on GPU processes of no job."""

import os
import pwd
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

from fgsched import protocol
from fgsched.accounting import guard, policies
from fgsched.accounting.ledger import LedgerReader
from fgsched.accounting.policies import IdleJob, IdleRules, RunningJob, Stranger
from fgsched.accounting.records import Warned
from fgsched.client import Client, find_paths
from fgsched.config.load import load
from fgsched.domain.errors import NotPermitted
from fgsched.domain.states import JobState
from fgsched.domain.text import clean
from fgsched.domain.times import DAY, MINUTE, format_runtime
from fgsched.domain.units import format_indices, format_mebibytes
from fgsched.gpus import vendors
from fgsched.views.display import host_name, text_table

if TYPE_CHECKING:
    from fgsched.config.load import Config

_FIELDS = ("id", "name", "user", "partition", "started_at", "gpus")


def idle(*, is_dry: bool, now: float) -> str:
    """Find idle jobs and take the next step of the policy for each; return a table of them.

    Args:
        is_dry: only find them.
        now: epoch seconds.

    Raises:
        NotPermitted: the caller is not an operator, or may not read the accounts.
        StorageError: the accounts cannot be read.
        Unreachable: the controller is not running.
    """
    config = load(find_paths())
    rules = config.idle_rules
    if rules.action == "off" and not is_dry:
        return ""
    with Client(find_paths(), may_start=False) as client:
        idle_jobs = _found(rules, _running(client), now)
        if not is_dry:
            for idle_job in idle_jobs:
                _act(client, idle_job, config)
    return _table(idle_jobs, now)


def _running(client: Client) -> list[RunningJob]:
    where = protocol.Where(state=[JobState.RUNNING])
    return [
        RunningJob(
            id=job.id, name=job.name, user=job.user, partition=job.partition, started_at=job.started_at
        )
        for job in client.call(protocol.ListQueue(fields=_FIELDS, where=where)).jobs
        if job.gpus and job.started_at is not None
    ]


def _found(rules: IdleRules, jobs: list[RunningJob], now: float) -> list[IdleJob]:
    if not jobs:
        return []
    with _accounts() as reader:
        if reader is None:
            return []
        running_jobs = [_known(reader, job) for job in jobs]
        uses = reader.owner_uses(MINUTE, now - rules.window, now)
        warned = reader.warnings(min(job.started_at for job in jobs), now + 1)
        return policies.idle_jobs(rules, running_jobs, uses, warned, now)


@contextmanager
def _accounts() -> Iterator[LedgerReader | None]:
    """Read the accounts at one time; None if they have not begun. Raises NotPermitted or StorageError."""
    path = find_paths().accounts
    if path.exists() and not os.access(path, os.R_OK):
        raise NotPermitted(f"you may not read the accounts {path}", "Run it as the user of the controller.")
    if not path.exists():
        guard.refuse_missing(path)
        yield None
        return
    reader = LedgerReader(path)
    try:
        with reader.reading():
            yield reader
    finally:
        reader.close()


def _known(reader: LedgerReader, job: RunningJob) -> RunningJob:
    from msgspec.structs import replace

    usage = reader.sample(job.id)
    return replace(job, was_busy=usage is not None and usage.active > 0)


def _act(client: Client, idle_job: IdleJob, config: "Config") -> None:
    """Take the next step: end the job if it is an action, mail the user, and record it, in this order."""
    if not idle_job.action:
        return
    if idle_job.action == "requeue":
        client.call(protocol.Requeue(ids=[idle_job.job.id]))
    elif idle_job.action == "cancel":
        client.call(protocol.Cancel(ids=[idle_job.job.id], reason=f"idle GPU: {idle_job.finding}"))
    _mail(idle_job, config)
    note = protocol.NoteWarning(
        job=idle_job.job.id, policy=policies.IDLE, finding=idle_job.finding, action=idle_job.action
    )
    client.call(note)


def _mail(idle_job: IdleJob, config: "Config") -> None:
    subject, text = policies.message(idle_job, config.idle_rules, host_name())
    _post(idle_job.job.user, subject, text, config)


def _post(to: str, subject: str, text: str, config: "Config") -> None:
    """Send a mail, if this host sends mails."""
    if config.mails.way == "off":
        return
    from fgsched.cli.posting import post_message
    from fgsched.mail.letters import Message

    post_message(Message(at=time.time(), to=(to,), subject=subject, text=text), config.mails)


def _table(idle_jobs: list[IdleJob], now: float) -> str:
    if not idle_jobs:
        return ""
    rows = [
        [
            str(idle_job.job.id),
            idle_job.job.user,
            idle_job.job.partition,
            format_runtime(now - idle_job.job.started_at),
            f"{idle_job.charged / 3600:.1f}",
            idle_job.finding,
            idle_job.action or "none yet",
        ]
        for idle_job in idle_jobs
    ]
    head = ["JOBID", "USER", "PARTITION", "TIME", "GPU-HOURS", "FINDING", "ACTION"]
    return text_table(head, rows, header=True)


# -- processes outside of jobs -------------------------------------------------------------------------


def strangers(*, is_dry: bool, now: float) -> str:
    """Find GPU processes outside of jobs, and mail about new ones; return a table of all.

    Args:
        is_dry: send and record nothing.
        now: epoch seconds.

    Raises:
        NotPermitted: the caller is not an operator, or may not read the accounts.
        StorageError: the accounts cannot be read.
        Unreachable: the controller is not running.
    """
    config = load(find_paths())
    rules = config.stranger_rules(vendors.of_host().facts.service)
    if rules.action == "off" and not is_dry:
        return ""
    with Client(find_paths(), may_start=False) as client:
        processes = client.call(protocol.ListGpuProcesses()).processes
        stranger_list = policies.strangers(rules, processes, _reported(now), now)
        due = [stranger for stranger in stranger_list if stranger.action]
        if due and not is_dry:
            _report(client, due, config, now)
    return _stranger_table(stranger_list, now)


def _reported(now: float) -> list[Warned]:
    """Return the warnings of the last two days."""
    with _accounts() as reader:
        return list(reader.warnings(now - 2 * DAY, now + 1)) if reader is not None else []


def _report(client: Client, due: list[Stranger], config: "Config", now: float) -> None:
    """Mail the administrator, and the users if the site wants that, and then record it."""
    rules = config.stranger_rules(vendors.of_host().facts.service)
    _post(rules.to, *policies.stranger_report(due, host_name(), now), config)
    for user, processes_of_user in groupby(
        sorted(due, key=lambda stranger: stranger.user), key=lambda stranger: stranger.user
    ):
        if rules.action == "warn" and _is_account(user):
            _post(user, *policies.stranger_warning(processes_of_user, host_name(), now), config)
    for stranger in due:
        client.call(
            protocol.NoteWarning(
                job=0, policy=policies.STRANGERS, finding=stranger.finding, action=stranger.action
            )
        )


def _is_account(user: str) -> bool:
    """Tell whether a name belongs to a user of this host, who has a mailbox."""
    try:
        return bool(pwd.getpwnam(user))
    except KeyError:
        return False


def _stranger_table(stranger_list: list[Stranger], now: float) -> str:
    if not stranger_list:
        return ""
    rows = [
        [
            str(stranger.pid),
            clean(stranger.user),
            format_indices(stranger.gpus),
            format_mebibytes(stranger.memory),
            format_runtime(now - stranger.since),
            stranger.action or "none today",
            clean(stranger.command),
        ]
        for stranger in stranger_list
    ]
    return text_table(["PID", "USER", "GPU", "MEM", "TIME", "ACTION", "COMMAND"], rows, header=True)
