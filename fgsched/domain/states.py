"""States of a job with the permitted changes, and reasons."""

from enum import Enum


class JobState(Enum):
    """The state of a job. The value is stored in the database and printed by fgq; never rename one."""

    PENDING = "PENDING"  # queued, holds nothing
    STARTING = "CONFIGURING"  # hold reserved in the store, process not yet known
    RUNNING = "RUNNING"  # its shepherd is known by pid and start time
    SUSPENDED = "SUSPENDED"  # its processes are stopped; it holds all that it held
    COMPLETING = "COMPLETING"  # ended, but a GPU still lists its processes, so it keeps its share
    COMPLETED = "COMPLETED"  # exited with status 0
    FAILED = "FAILED"  # exited otherwise, or could not be started
    CANCELLED = "CANCELLED"  # ended by its owner or an operator
    TIMEOUT = "TIMEOUT"  # ended because its time was up
    OUT_OF_MEMORY = "OUT_OF_MEMORY"  # host or device memory; the reason says which
    NODE_FAIL = "NODE_FAIL"  # the host restarted while it ran
    DEADLINE = "DEADLINE"  # it could not, or did not, end before its deadline
    PREEMPTED = "PREEMPTED"  # ended because another job needed its allocation

    word: str  # equal to `value`, at a tenth of its cost
    code: str  # Slurm's short form: PD, R, CG …
    holds: bool  # whether a job in this state holds its share of the GPUs
    is_final: bool
    is_failure: bool  # it ended neither as it should nor by an order

    __hash__ = object.__hash__  # there is one of each: by its name it costs ten times as much


_ENDS = {
    JobState.COMPLETED: "CD",
    JobState.FAILED: "F",
    JobState.CANCELLED: "CA",
    JobState.TIMEOUT: "TO",
    JobState.OUT_OF_MEMORY: "OOM",
    JobState.NODE_FAIL: "NF",
    JobState.DEADLINE: "DL",
    JobState.PREEMPTED: "PR",
}
_FAILURES = {JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.NODE_FAIL}
_CODES = {
    JobState.PENDING: "PD",
    JobState.STARTING: "CF",
    JobState.RUNNING: "R",
    JobState.SUSPENDED: "S",
    JobState.COMPLETING: "CG",
    **_ENDS,
}
_NEXT: dict[JobState, set[JobState]] = {
    JobState.PENDING: {JobState.STARTING, JobState.CANCELLED, JobState.DEADLINE},
    JobState.STARTING: {JobState.PENDING, JobState.RUNNING, JobState.COMPLETING, *_ENDS},
    # PENDING: it did not start after all, or it is requeued
    JobState.RUNNING: {JobState.PENDING, JobState.SUSPENDED, JobState.COMPLETING, *_ENDS},
    JobState.SUSPENDED: {JobState.PENDING, JobState.RUNNING, JobState.COMPLETING, *_ENDS},
    JobState.COMPLETING: {JobState.PENDING, *_ENDS},
    **{end: set() for end in _ENDS},
}
for _state in JobState:  # plain attributes: each turn reads them several times for each job
    _state.word, _state.code = _state.value, _CODES[_state]
    _state.is_final, _state.is_failure = not _NEXT[_state], _state in _FAILURES
    _state.holds = _state in {JobState.STARTING, JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING}


class Reason(Enum):
    """Why a job is pending, or how it ended. The value is what fgq prints: Slurm's word if it has one."""

    NONE = "None"
    PRIORITY = "Priority"  # jobs of higher rank start first
    RESOURCES = "Resources"
    GPU_MEMORY = "GpuMemory"  # the fraction fits, the bytes do not
    GPU_FRAGMENTED = "GpuFragmented"  # enough GPU time is free in total, but not on one GPU
    GPU_EXTERNAL_USE = "GpuExternalUse"  # processes outside fgsched hold the memory
    GPU_DRAINED = "GpuDrained"
    GPU_MAX_JOBS = "GpuMaxJobs"
    RESERVED_FOR_TOP = "ReservedForTop"  # it fits, but would delay the backfill reservation
    GPU_CLEANING = "GpuCleaning"  # an ended job's processes still hold memory
    LICENSES = "Licenses"  # a countable resource of the site is short
    PARTITION_DOWN = "PartitionDown"  # or deleted, or closed to this job
    PARTITION_INACTIVE = "PartitionInactive"
    PARTITION_TIME_LIMIT = "PartitionTimeLimit"  # its time limit exceeds the partition's
    MAX_JOBS_PER_USER = "QOSMaxJobsPerUserLimit"
    MAX_JOBS_PER_ACCOUNT = "MaxJobsPerAccount"
    MAX_JOBS = "QOSGrpJobsLimit"
    MAX_GPUS_PER_USER = "QOSMaxGRESPerUser"
    MAX_GPUS_PER_ACCOUNT = "MaxGRESPerAccount"
    MAX_GPUS = "QOSGrpGRES"
    ACCOUNT_MAX_JOBS = "AssocGrpJobsLimit"
    ACCOUNT_MAX_GPUS = "AssocGrpGRES"
    ACCOUNT_GPU_MINUTES = "AssocGrpGRESMinutes"
    RESERVATION = "Reservation"  # its reservation is not active, or another one occupies the GPUs
    DEPENDENCY = "Dependency"  # other jobs have not reached the required state
    DEPENDENCY_NEVER = "DependencyNeverSatisfied"
    BEGIN_TIME = "BeginTime"  # --begin, or the pause before a restart
    HOST_SHORTAGE = "HostShortage"  # no space, processes or files at its start: see its warning
    HOST_WAIT = "HostWait"  # running: its start or its end waits for a file system: see its warning
    ARRAY_TASK_LIMIT = "JobArrayTaskLimit"  # the maximum of its array's tasks are running
    HELD_USER = "JobHeldUser"
    HELD_ADMIN = "JobHeldAdmin"
    HELD_MAX_REQUEUE = "JobHoldMaxRequeue"  # the host caused too many of its failures
    PROLOG_FAILED = "PrologFailed"  # held, because the site's prolog failed on its GPUs
    LAUNCH_FAILURE = "JobLaunchFailure"
    EXIT_CODE = "NonZeroExitCode"
    SIGNALED = "RaisedSignal"
    OUT_OF_MEMORY = "OutOfMemory"
    GPU_OUT_OF_MEMORY = "GpuOutOfMemory"
    TIME_LIMIT = "TimeLimit"
    DEADLINE = "DeadLine"
    PREEMPTED = "Preempted"  # another job needed its allocation
    SYSTEM_FAILURE = "SystemFailure"
    INTERNAL_ERROR = "InternalError"  # a bug of fgsched or a damaged row: see the job's warning
    GPU_OVER_LIMIT = "GpuOverLimit"  # the watchdog: it holds more than its limit and the tolerance
    GPU_NOT_GIVEN = "GpuNotGiven"  # the watchdog: it uses a GPU that is not its own
    GPU_UNHOOKED = "GpuUnhooked"  # the watchdog: it holds device memory past the hook
    GPU_UNHEALTHY = "GpuUnhealthy"  # it failed on a GPU that was drained for its errors meanwhile
    GPU_LOST = "GpuLost"  # its GPU fell off the bus

    word: str  # as that of a state
    __hash__ = object.__hash__


for _reason in Reason:
    _reason.word = _reason.value


def may_become(old: JobState, new: JobState) -> bool:
    return new in _NEXT[old]


class Tier(Enum):
    """The enforcement level of a job. The value is stored and shown."""

    DRIVER = "driver"  # the kernel limits the job's cgroup; the hook reports the limit to the job
    MIG = "mig"  # the hardware limits each MIG instance; the hook shows the job its instances only
    SHIM = "shim"  # the hook
    WATCHDOG = "watchdog"  # only the controller's queries of the GPUs
    NONE = "none"
