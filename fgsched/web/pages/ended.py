"""A job that has ended: what happened, and the header line for the next run."""

from collections.abc import Sequence

from msgspec import Struct

from fgsched.domain.job import OomReport
from fgsched.domain.states import Reason
from fgsched.protocol import JobInfo
from fgsched.reports.efficiency import MeasuredNeeds, Proposal, charge_sentences, proposal_of, propose, run_of
from fgsched.reports.model import DASH
from fgsched.reports.numbers import brief_hours
from fgsched.views import job as view
from fgsched.web.pages import words
from fgsched.web.pages.gpubars import UseBar, use_bar
from fgsched.web.reading import JobData


class Fact(Struct, frozen=True):
    """A name and a value of what happened."""

    name: str
    text: str
    is_given: bool = False  # a user gave it


class EndedPart(Struct, frozen=True, kw_only=True):
    """The part of the page of a job that has ended."""

    facts: Sequence[Fact]
    uses: Sequence[UseBar]
    line: str  # header line for the next run; "": the request fits, or too little was measured
    reasons: Sequence[str]


def part(data: JobData) -> EndedPart:
    """Return the part of a job that has ended."""
    job = data.job
    totals = {info.gpu.uuid: info.gpu.total for info in data.look.frame.gpus}
    proposal = _proposal(job, totals)
    reasons = (
        []
        if proposal is None
        else [*proposal.reasons, *charge_sentences(proposal, view.charged_seconds(job))]
    )
    return EndedPart(
        facts=_facts(job),
        uses=_uses(job),
        line="" if proposal is None else proposal.line,
        reasons=reasons,
    )


def _proposal(job: JobInfo, totals: dict[str, int]) -> Proposal | None:
    proposal = proposal_of([run_of(job, totals)])
    report = job.post_mortem
    if proposal is None and report is not None and report.asked:
        needs = MeasuredNeeds(
            gpus=len(job.allocated),
            share=view.gpu_share(job),
            memory=None,
            refused=report.held + report.asked,
        )
        return propose(needs)
    return proposal


def _facts(job: JobInfo) -> list[Fact]:
    facts = _memory(job.post_mortem, job) if job.post_mortem else []
    if job.reason is not Reason.NONE:
        facts.append(Fact("Reason", view.last_reason(job)))
    if job.started_at is not None:
        facts.append(Fact("Charged", f"{brief_hours(view.charged_seconds(job))} GPU-hours"))
        idle = view.idle_seconds(job)
        if idle is not None:
            facts.append(Fact("Idle", f"{brief_hours(idle)} GPU-hours"))
    return facts


def _memory(report: OomReport, job: JobInfo) -> list[Fact]:
    """Return the facts of a job that ran out of GPU memory."""
    refused = f"{words.gib(report.asked)} on GPU {report.gpu}" if report.asked else DASH
    others = [f"{name} {words.gib(size)}" for name, size in view.oom_others(report)]
    beside = ", ".join(others) if others else "none"
    return [
        Fact("Refused", refused),
        Fact("Held", words.gib(report.held)),
        Fact("Limit", words.gib(report.limit)),
        Fact(
            "Others on the GPU", f"{beside}: not the cause; the limit was the job's own" if others else beside
        ),
    ]


def _uses(job: JobInfo) -> list[UseBar]:
    """Return what the job used of its request, as fgeff has it."""
    if job.started_at is None:
        return []
    bars = []
    if job.allocated:
        peak, memory = view.gpu_peak(job), view.gpu_memory(job)
        bars.append(use_bar("GPU memory", words.used_of(peak, memory), view.memory_part(job)))
        sm = view.sm_part(job)
        bars.append(use_bar("GPU time", DASH if sm is None else f"{100 * sm:.0f} % of its share", sm))
    cpus = view.busy_cpus(job)
    bars.append(
        use_bar("CPUs", f"{DASH if cpus is None else f'{cpus:.1f}'} of {job.cpus}", view.cpu_part(job))
    )
    host = words.used_of(view.host_peak(job), job.host_memory)
    bars.append(use_bar("Host memory", host, view.host_part(job)))
    limit = f" of {words.span(job.time_limit)}" if job.time_limit > 0 else ""
    bars.append(use_bar("Time", f"{words.span(job.elapsed)}{limit}", view.time_part(job)))
    return bars
