"""Propose a request for the next run in the mail about the end of a job. Times are in epoch seconds."""

from fgsched.domain.usage import JobUsage
from fgsched.mail.letters import JobMail
from fgsched.reports.efficiency import charge_sentences
from fgsched.reports.proposal import MeasuredNeeds, for_slurm, propose
from fgsched.views import job as view

_LEAST_RUN = 60.0  # seconds: a shorter run shows little of what a job needs


def run_seconds(mail: JobMail) -> float | None:
    """Return the run time of a job in seconds, without suspended time; None: it was not started."""
    if mail.started_at is None:
        return None
    end = mail.at if mail.ended_at is None else mail.ended_at
    return max(0.0, end - mail.started_at - mail.suspended)


def advised(mail: JobMail, usage: JobUsage | None) -> tuple[list[str], list[str]]:
    """Return sentences about the next run and the words of its header line; nothing if the request fits.

    Only a completed run shows what a job needs. After GPU memory ran out, the line asks for enough memory.
    """
    ran = run_seconds(mail)
    if mail.is_summary or mail.ended_at is None or ran is None:
        return [], []
    needs = _refused(mail) if mail.state == "OUT_OF_MEMORY" else None
    if needs is None and mail.state == "COMPLETED" and ran >= _LEAST_RUN:
        needs = _needs(mail, usage, ran)
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


def _needs(mail: JobMail, usage: JobUsage | None, ran: float) -> MeasuredNeeds:
    used = usage.used if usage and usage.sampled and mail.gpus else None
    sm = used / usage.sampled / len(mail.gpus) if usage and used is not None else None
    return MeasuredNeeds(
        gpus=len(mail.gpus),
        share=mail.share,
        memory=mail.memory,
        total=mail.total or None,
        peak=view.peak(mail.gpu_peak, usage),
        sm=None if sm is None else min(1.0, sm),
        sampled=usage.sampled if usage is not None else 0.0,
        with_process=usage.with_process if usage is not None else None,
        cpus=mail.cpus,
        tasks=mail.ntasks,
        cpu=mail.cpu_seconds / ran,
        host_memory=mail.host_memory,
        rss=mail.max_rss or None,
        time_limit=mail.time_limit,
        longest=ran,
    )
