"""Propose a request for the next run in the mail about the end of a job. Times are in epoch seconds."""

from fgsched.domain.usage import JobUsage
from fgsched.mail.letters import JobMail
from fgsched.reports.efficiency import (
    JobRun,
    MeasuredNeeds,
    charge_sentences,
    for_slurm,
    needs_of,
    propose,
)

_LEAST_RUN = 60.0  # seconds: a shorter run shows little of what a job needs


def advised(mail: JobMail, usage: JobUsage | None) -> tuple[list[str], list[str]]:
    """Return sentences about the next run and the words of its header line; nothing if the request fits.

    Only a completed run shows what a job needs. After GPU memory ran out, the line asks for enough memory.
    """
    ran = mail.run_seconds
    if mail.is_summary or mail.ended_at is None or ran is None:
        return [], []
    needs = _refused(mail) if mail.state == "OUT_OF_MEMORY" else None
    if needs is None and mail.state == "COMPLETED" and ran >= _LEAST_RUN:
        needs = needs_of([JobRun(job=mail.info(usage), total=mail.total or None)])
    found = propose(needs) if needs is not None else None
    if found is None:
        return [], []
    found = for_slurm(found) if mail.slurm else found
    charge = charge_sentences(found, usage.charged if usage is not None else 0.0)
    return [" ".join([*found.reasons, *charge])], [found.mark, *found.tokens]


def _refused(mail: JobMail) -> MeasuredNeeds | None:
    """Return the bytes that a job without enough GPU memory needed; None if no allocation was refused."""
    if mail.oom is None or not mail.oom.asked:
        return None
    return MeasuredNeeds(
        gpus=len(mail.gpus), share=mail.share, memory=None, refused=mail.oom.held + mail.oom.asked
    )
