"""A turn as data: the events that it takes in, its effects, and its interface to the engine."""

import logging
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from fgsched.config.schema import Config
from fgsched.controller.containment import Containment
from fgsched.controller.gpustate import GpuStates
from fgsched.controller.jobtable import JobTable
from fgsched.crash import point
from fgsched.domain.errors import FgschedError, Refused
from fgsched.domain.job import Gpu, HostLimits, Job, Readings
from fgsched.domain.policy import Policy
from fgsched.domain.states import JobState
from fgsched.lifecycle import mps
from fgsched.lifecycle.transitions import Finish, Seen, Shepherd
from fgsched.lifecycle.watchdog import Fault
from fgsched.protocol import Outcome, Problem
from fgsched.store import GpuAllocation, Store

# -- events ----------------------------------------------------------------------------------------


class AttemptLauncher(Protocol):
    """The engine's interface to processes. Every call may be repeated after a crash.

    An order to a job returns whether it was delivered to the job's supervisor: its shepherd, or the spawner
    that inherited the job from a killed shepherd.
    """

    boot: str

    def start(self, job: Job, allocations: Sequence[GpuAllocation]) -> None:
        """Begin an attempt, leaving a trace that `seize` finds. JobStarted or StartFailed follows."""

    def follow(self, job: Job, shepherd: Shepherd) -> None:
        """Watch a shepherd. JobEnded follows, immediately if the shepherd has already ended."""

    def has_supervisor(self, job: Job) -> bool:
        """Tell whether the job has a supervisor that accepts orders."""

    def cancel(self, job: Job) -> bool:
        """Make the supervisor end the job."""

    def deliver(self, job: Job, signal: int, target: str) -> bool:
        """Make the supervisor send the job a signal."""

    def join(self, job: Job, caller: int) -> bool:
        """Make the supervisor start an agent in the job. The caller repeats it if it has no effect."""

    def suspend(self, job: Job) -> bool:
        """Make the supervisor suspend the job and its time limit."""

    def resume(self, job: Job) -> bool:
        """Make the supervisor resume the job."""

    def relimit(self, job: Job) -> bool:
        """Make the supervisor use the job's current time limit."""

    def requeue(self, job: Job) -> bool:
        """Make the supervisor end the job, with a line about the requeue in its standard error."""

    def preempt(self, job: Job) -> bool:
        """Make the supervisor warn the job and end it after its grace time. Repetition has no effect."""

    def seize(self, job: Job) -> Seen:
        """Return the outcome of the attempt; an unclaimed one can no longer be claimed after this call."""

    def kill_remaining(self, job: Job) -> bool:
        """Kill the remaining processes of a job without shepherd; return whether none is left."""

    def forget(self, job: Job) -> None:
        """Remove the files of an attempt whose end is committed."""

    def sweep(self, keep: Container[tuple[int, int]]) -> None:
        """Remove the traces of all attempts except `keep` (job, attempt)."""


class JobStarted(NamedTuple):
    """The spawner has forked the shepherd of an attempt."""

    job: int
    attempt: int
    shepherd: Shepherd


class StartFailed(Struct, frozen=True):
    """An attempt could not be started; nothing was executed."""

    job: int
    attempt: int
    why: str


class HostShort(Struct, frozen=True):
    """An attempt could not be started because the host lacked resources; nothing was executed."""

    job: int
    attempt: int
    why: str


class PrologFailed(Struct, frozen=True):
    """The prolog of an attempt failed; nothing was executed. `why`: such as "exited with status 1"."""

    job: int
    attempt: int
    why: str


class EpilogDone(Struct, frozen=True):
    """The epilog of an attempt has run. `why`: how it failed; "": it succeeded."""

    job: int
    attempt: int
    why: str = ""


class MpsDaemonAnswered(Struct, frozen=True):
    """The answer of an MPS daemon to the question for its server. `why`: why there is none."""

    job: int  # id of the daemon
    attempt: int  # its number
    pids: tuple[int, ...]  # of its servers
    has_answered: bool = True
    why: str = ""


class ClientsEnded(Struct, frozen=True):
    """The work of a job on its GPU, by MPS, was ended, or that took too long."""

    job: int
    attempt: int


class JobEnded(NamedTuple):
    """The end of a job or of its shepherd."""

    job: int
    attempt: int = 0  # the attempt of the event; 0: the current one


class Recovery(Struct, frozen=True):
    """The controller has started, and the state of the jobs that it took over could not be stored yet."""

    job: int = 0  # it is no single job's


class Faulted(Struct, frozen=True):
    """An effect for an attempt raised an unexpected exception; it may have been carried out in part."""

    job: int
    attempt: int
    why: str


class WatchdogFinding(Struct, frozen=True):
    """A finding of the watchdog about an attempt."""

    job: int
    attempt: int
    warn: tuple[Fault, ...]
    end: Fault | None


class ClientRequest(Struct, frozen=True):
    """A request that writes.

    `act` is called within the transaction and returns the reply, an effect; `refuse` is called if the
    transaction fails.
    """

    act: Callable[[float], Any]
    refuse: Callable[[FgschedError], None]
    by: str = ""  # name of the user who sent it
    stores: bool = True  # False: it changes nothing that is stored


_Ends = JobEnded | PrologFailed | EpilogDone
_Mps = MpsDaemonAnswered | ClientsEnded
Event = (
    JobStarted | StartFailed | HostShort | _Ends | _Mps | Faulted | Recovery | WatchdogFinding | ClientRequest
)


def without_overtaken(events: Sequence[Event]) -> list[Event]:
    """Leave out each start whose end has arrived with it: the result of the job tells both.

    A record of the start costs as much as one of the end, and of short jobs a third or more end so soon.
    """
    ended = {(event.job, event.attempt) for event in events if type(event) is JobEnded}
    if not ended:
        return list(events)
    return [event for event in events if type(event) is not JobStarted or not _is_over(event, ended)]


def _is_over(start: JobStarted, ended: Container[tuple[int, int]]) -> bool:
    return (start.job, start.attempt) in ended or (start.job, 0) in ended


# -- effects ---------------------------------------------------------------------------------------
#
# An effect may be repeated after a crash without harm: the next controller carries out every effect that it
# cannot know to be done. Each effect has a crash point before it, and most have one after it.


log = logging.getLogger(__name__)
RETRY = 1.0  # seconds after which an order that was not delivered is given again
_SUPERVISED = {JobState.RUNNING, JobState.SUSPENDED}  # an earlier state has no supervisor yet


class LaunchAttempt(Struct, frozen=True):
    """Start an attempt on its allocated GPUs."""

    job: Job
    allocations: Sequence[GpuAllocation]


class Follow(Struct, frozen=True):
    """Watch a job's shepherd, and send it the stored orders."""

    job: Job
    shepherd: Shepherd


class ResendOrders(Struct, frozen=True):
    """Send a job's supervisor the stored orders again, because it may not have received them."""

    job: Job
    is_again: bool = False  # an earlier try failed


class Forget(Struct, frozen=True):
    """Remove the files of an attempt whose end is committed."""

    job: Job
    marks: bool = False  # a failure marks the job, which is still being cleaned up


class RunEpilog(Struct, frozen=True):
    """Run the site's epilog for an ended attempt. EpilogDone follows."""

    job: Job
    allocations: Sequence[GpuAllocation]


class Order(Struct, frozen=True):
    """An order to a job's supervisor. It is stored, and repeated until it is delivered."""

    job: Job
    answer: Outcome | None = None  # becomes an error if the order is not delivered


class CancelOrder(Order, frozen=True):
    """End the job."""


class RequeueOrder(Order, frozen=True):
    """End the job and requeue it."""


class PreemptOrder(Order, frozen=True):
    """Warn the job, and end it after its grace time."""


class SuspendOrder(Order, frozen=True):
    """Stop the job's processes and its time limit."""


class ResumeOrder(Order, frozen=True):
    """Continue the job's processes."""


class RelimitOrder(Order, frozen=True):
    """Send the job's current time limit to its shepherd."""


class SendSignal(Struct, frozen=True):
    """Send a running job a signal. It is not stored, so the client must repeat a lost one."""

    job: Job
    number: int
    target: str  # all, shell or children
    answer: Outcome


class StartAgent(Struct, frozen=True):
    """Start an agent in a running job. It is not stored, so the client must repeat a lost one."""

    job: Job
    caller: int
    answer: Outcome


class SendReply(Struct, frozen=True):
    """Answer a request. `send` is called with the answer, or with the error that refuses the request."""

    send: Callable[[Any], None]
    answer: Any = None


NO_REPLY = SendReply(lambda answer: None)  # to a request that has no reader


class ApplyConfig(Struct, frozen=True):
    """Apply a changed configuration in the parts outside the engine."""

    configure: Callable[[Config], None]
    config: Config


class AskGpus(Struct, frozen=True):
    """Request a reading of the GPUs."""


class QueueMail(Struct, frozen=True):
    """Put a mail, which the queue has until then, into the queue of mails. A repetition has no effect."""

    name: str
    data: bytes


Effect = (
    LaunchAttempt
    | Follow
    | ResendOrders
    | Forget
    | RunEpilog
    | mps.StartDaemon
    | mps.AskDaemon
    | mps.StopDaemon
    | Order
    | SendSignal
    | StartAgent
    | SendReply
    | ApplyConfig
    | AskGpus
    | QueueMail
)


class MailPost(Protocol):
    """The interface to the queue of mails."""

    def post(self, name: str, data: bytes) -> None:
        """Put a mail into the queue of mails, or try it again later."""


class Epilogs(Protocol):
    """The interface to the site's epilog."""

    @property
    def is_configured(self) -> bool:
        """Whether the site has an epilog."""

    def runs(self, job_id: int) -> bool:
        """Tell whether the epilog of this job is running."""

    def run(self, job: Job, allocations: Sequence[GpuAllocation]) -> None:
        """Run the epilog of an attempt; EpilogDone follows. It may be repeated after a crash."""


class NoEpilogs:
    """A site without epilog."""

    is_configured = False

    def runs(self, job_id: int) -> bool:
        """Return False."""
        return False

    def run(self, job: Job, allocations: Sequence[GpuAllocation]) -> None:
        """Never called."""


class RunningDaemon(NamedTuple):
    """A daemon that runs when a controller starts."""

    id: int
    number: int
    shepherd: Shepherd


class MpsHost(Protocol):
    """The interface to the processes of daemons. Every call may be repeated after a crash."""

    settings: mps.MpsSettings

    def directory(self, server: int, number: int) -> str:
        """Return the directory of a daemon: its pipes and its log."""

    def start(self, step: mps.StartDaemon) -> None:
        """Launch a daemon. JobStarted or Failed follows."""

    def ask(self, step: mps.AskDaemon) -> None:
        """Ask a daemon for its server. MpsDaemonAnswered follows."""

    def stop(self, step: mps.StopDaemon) -> None:
        """End a daemon. JobEnded follows."""

    def follow(self, server: mps.MpsDaemon, shepherd: Shepherd) -> None:
        """Watch the shepherd of a daemon. JobEnded follows, immediately if it has ended."""

    def end_clients(self, job: Job) -> bool:
        """Begin to end the work of a job on its GPU; False: that was done. ClientsEnded follows."""

    def why_ended(self, server: int, number: int) -> str:
        """Return why a daemon has ended, and remove what it left; "": it runs."""

    def find(self, names: Iterable[tuple[int, int]]) -> list[RunningDaemon]:
        """Return the daemons that run, `names` (id, number) among them. Remove the files of ended ones."""


class EngineContext(Protocol):
    """The turn as it is made: its state, and how that is changed. The engine is one."""

    jobtable: JobTable
    store: Store
    gpu_states: GpuStates
    launcher: AttemptLauncher
    epilogs: Epilogs
    orphans: dict[int, float]
    undelivered: dict[int, float]  # job -> when an order to it was tried last
    containment: Containment

    @property
    def mail(self) -> MailPost: ...

    @property
    def mps_host(self) -> MpsHost: ...

    @property
    def policy(self) -> Policy: ...

    @property
    def limits(self) -> HostLimits: ...

    def step(self, before: Job, after: Job, now: float) -> bool: ...

    def change(self, before: Job, now: float, **changes: object) -> Job: ...

    def end(self, job: Job, finish: Finish, now: float) -> None: ...

    def take_up(self, job: Job, status: Seen, now: float) -> None: ...

    def then(self, effect: Effect) -> None: ...


def require_supervisor(host: EngineContext, job: Job) -> None:
    """Check that a supervisor can carry out an order, before anything is stored. Raises Refused."""
    if job.state in _SUPERVISED and not host.launcher.has_supervisor(job):
        raise Refused(
            f"job {job.id}: not delivered: the job's supervisor is gone",
            f"The remaining processes of the job are being ended. See: fgctl show job {job.id}",
        )


def job_to_mark(effect: Effect) -> Job | None:
    """Return the job to mark if the effect fails unexpectedly, because its state is unknown then."""
    if isinstance(effect, LaunchAttempt | Follow | ResendOrders) or (
        isinstance(effect, Forget) and effect.marks
    ):
        return effect.job
    return None


class Executor:
    """Carries out one effect after another."""

    def __init__(self, host: EngineContext) -> None:
        self._host = host
        orders: dict[type[Order], Callable[[AttemptLauncher, Job], bool]] = {
            CancelOrder: lambda launcher, job: launcher.cancel(job),
            RequeueOrder: lambda launcher, job: launcher.requeue(job),
            PreemptOrder: lambda launcher, job: launcher.preempt(job),
            SuspendOrder: lambda launcher, job: launcher.suspend(job),
            ResumeOrder: lambda launcher, job: launcher.resume(job),
            RelimitOrder: lambda launcher, job: launcher.relimit(job),
        }
        self._orders = orders
        acts: dict[type, tuple[str, Callable[[Any], None]]] = {
            LaunchAttempt: ("launch", self._launch),
            Follow: ("follow", self._follow),
            ResendOrders: ("signal", self._remind),
            Forget: ("forget", self._forget),
            RunEpilog: ("epilog", self._run_epilog),
            mps.StartDaemon: ("mps", lambda step: host.mps_host.start(step)),
            mps.AskDaemon: ("mps", lambda step: host.mps_host.ask(step)),
            mps.StopDaemon: ("mps", lambda step: host.mps_host.stop(step)),
            SendSignal: ("signal", self._signal),
            StartAgent: ("signal", self._join),
            SendReply: ("answer", self._reply),
            ApplyConfig: ("reconfigure", self._reconfigure),
            AskGpus: ("ask", self._ask),
            QueueMail: ("mail", self._mail),
        }
        acts |= dict.fromkeys(orders, ("signal", self._order))
        self._acts = {
            kind: (f"controller_before_{name}", act, f"controller_after_{name}")
            for kind, (name, act) in acts.items()
        }

    def perform(self, effect: Effect) -> None:
        """Carry out one effect. Tests kill the controller immediately before and after it."""
        before, act, after = self._acts[type(effect)]
        point(before)
        act(effect)
        point(after)

    def _launch(self, effect: LaunchAttempt) -> None:
        self._host.launcher.start(effect.job, effect.allocations)

    def _follow(self, effect: Follow) -> None:
        """Watch the shepherd, unless the end of the attempt arrived together with its start."""
        job, now = effect.job, self._host.jobtable.under_way(effect.job.id)
        if now is not None and now.attempt == job.attempt:
            self._host.launcher.follow(job, effect.shepherd)
            if not self._is_reminded(job):
                self._host.undelivered.setdefault(job.id, 0.0)

    def _remind(self, effect: ResendOrders) -> None:
        if self._is_reminded(effect.job):
            if effect.is_again:
                self._host.undelivered.pop(effect.job.id, None)
        elif not effect.is_again:
            self._host.undelivered.setdefault(effect.job.id, 0.0)

    def _is_reminded(self, job: Job) -> bool:
        return all([self._is_given(order) for order in pending_orders(job)])

    def _order(self, effect: Order) -> None:
        """Send an order. A starting job has no supervisor yet and receives it when it is followed."""
        if self._is_given(effect) or effect.job.state is JobState.STARTING:
            return
        self._host.undelivered[effect.job.id] = 0.0
        if effect.answer is not None:
            remedy = "The order is kept and given again until the job has heard of it."
            _amend(effect.answer, effect.job, remedy)

    def _signal(self, effect: SendSignal) -> None:
        launcher, job = self._host.launcher, effect.job
        if not _delivered(lambda: launcher.deliver(job, effect.number, effect.target)):
            _amend(effect.answer, job, "Repeat the command.")

    def _join(self, effect: StartAgent) -> None:
        if not _delivered(lambda: self._host.launcher.join(effect.job, effect.caller)):
            _amend(effect.answer, effect.job, "Repeat the command.")

    def _is_given(self, order: Order) -> bool:
        """Give an order; True if it was delivered, or follows when the job's clients of MPS have ended."""
        if _ends_at_once(order) and mps.is_client(order.job) and self._host.mps_host.end_clients(order.job):
            return True
        give = self._orders[type(order)]
        return _delivered(lambda: give(self._host.launcher, order.job))

    def _forget(self, effect: Forget) -> None:
        self._host.launcher.forget(effect.job)

    def _run_epilog(self, effect: RunEpilog) -> None:
        self._host.epilogs.run(effect.job, effect.allocations)

    def _reply(self, effect: SendReply) -> None:
        effect.send(effect.answer)

    def _reconfigure(self, effect: ApplyConfig) -> None:
        effect.configure(effect.config)

    def _ask(self, effect: AskGpus) -> None:
        self._host.gpu_states.ask()

    def _mail(self, effect: QueueMail) -> None:
        self._host.mail.post(effect.name, effect.data)


def _ends_at_once(order: Order) -> bool:
    """Tell whether the supervisor sends the job SIGTERM for an order to end, without a warning before."""
    preemption = order.job.preemption
    return isinstance(order, CancelOrder | RequeueOrder) or (
        isinstance(order, PreemptOrder) and not (preemption and preemption.grace)
    )


def pending_orders(job: Job) -> list[Order]:
    """Return the stored orders of a running job. Each may be sent twice without harm."""
    orders: list[Order] = [RelimitOrder(job)] if job.relimited else []
    if job.is_to_end:
        orders.append(CancelOrder(job))
    elif job.is_being_preempted and not job.wish:
        orders.append(PreemptOrder(job))
    elif job.wish:
        orders.append(RequeueOrder(job))
    elif job.state is JobState.SUSPENDED:
        orders.append(SuspendOrder(job))
    elif job.suspended:
        orders.append(ResumeOrder(job))
    return orders


def _delivered(give: Callable[[], bool]) -> bool:
    """Tell whether an order was delivered; False if sending it failed."""
    try:
        return give()
    except OSError:
        log.exception("an order to a job could not be given")
        return False


def _amend(answer: Outcome, job: Job, remedy: str) -> None:
    """Replace the outcome of an order that was not delivered by an error, before its answer is sent."""
    error = Refused(f"job {job.id}: not delivered: the job's supervisor cannot be reached", remedy)
    answer.outcome, answer.error = "", Problem.of(error)


# -- the engine, as the parts of a turn see it -----------------------------------------------------


class PlannedGpus(Protocol):
    """The GPUs as a plan sees them."""

    @property
    def readings(self) -> Readings: ...

    def gpus_for_planning(self, now: float) -> Iterable[Gpu]: ...


class PreemptionHost(Protocol):
    """A host on which jobs are preempted: the engine's, or a simulated one."""

    @property
    def jobtable(self) -> JobTable: ...

    @property
    def gpu_states(self) -> PlannedGpus: ...

    @property
    def limits(self) -> HostLimits: ...

    @property
    def policy(self) -> Policy: ...

    def step(self, before: Job, after: Job, now: float) -> bool: ...

    def change(self, before: Job, now: float, **changes: object) -> Job: ...

    def then(self, effect: Effect) -> None: ...
