"""Frames for the tests of fgtop: the host of the design, with eight GPUs and 34 jobs."""

from msgspec import structs

from fgsched import protocol
from fgsched.cli.top.snapshot import FIELDS, LookHistory
from fgsched.domain.job import Gpu, GpuState, JobUsage, Reading
from fgsched.domain.states import JobState, Reason

GIB = 1 << 30
NOW = 1_794_493_387.0  # Thu 12 Nov 2026 14:23:07 UTC
HOST = "hopper"
_USERS = {"ines": 1, "grace": 2, "mei": 3, "nadia": 4, "ben": 5, "hiro": 6, "farid": 7, "ann": 8, "kemal": 9}


def usage(seconds, sm, memory, *, kind="active", share=1.0, first=0.0):
    """The sums of a job that did the same all the time; `first`: seconds before."""
    charged = seconds * share
    parts = {name: charged if name == kind else 0.0 for name in ("active", "held", "empty")}
    return JobUsage(
        sampled=seconds + first,
        charged=charged,
        **parts,
        used=sm * seconds,
        memory=memory * GIB * seconds,
        peak=int(memory * GIB),
        with_process=0.0 if kind == "empty" else seconds,
        busy=seconds if kind == "active" else 0.0,
        longest_idle=0.0 if kind == "active" else seconds,
    )


def running(id, user, name, gpus, share, sm, used, asked, elapsed, limit, kind="active"):  # noqa: PLR0917
    """A running job; `share` of each GPU in hundredths, memory in GiB, times in seconds."""
    allocated = [
        protocol.Allocation(
            gpu=gpu,
            uuid=f"GPU-{gpu}",
            model="A100 80GB" if gpu < 4 else "A6000",
            share=share * 100,
            memory=asked * GIB,
            charged=share * 100,
        )
        for gpu in gpus
    ]
    return protocol.JobInfo(
        id=id,
        user=user,
        uid=_USERS[user],
        name=name,
        partition="main",
        state=JobState.RUNNING,
        submitted_at=NOW - elapsed - 600,
        eligible_at=NOW - elapsed - 600,
        started_at=NOW - elapsed,
        elapsed=float(elapsed),
        time_limit=limit,
        gpus=len(gpus),
        share=share * 100 * len(gpus),
        memory=asked * GIB,
        indices=list(gpus),
        allocated=allocated,
        usage=None if sm is None else usage(elapsed, sm, used, kind=kind, share=share / 100 * len(gpus)),
    )


def pending(id, user, name, share, memory, reason, priority):  # noqa: PLR0917
    return protocol.JobInfo(
        id=id,
        user=user,
        uid=_USERS[user],
        name=name,
        partition="main",
        state=JobState.PENDING,
        reason=reason,
        priority=float(priority),
        submitted_at=NOW - 9_840,
        eligible_at=NOW - 9_840,
        gpus=1,
        share=share * 100,
        memory=memory * GIB,
    )


def gpu(index, sm, used, heat, watts, *, note="", external=0):
    model, total = ("A100 80GB", 80) if index < 4 else ("A6000", 48)
    gpu = Gpu(
        index=index,
        uuid=f"GPU-{index}",
        model=model,
        total=total * GIB,
        state=GpuState.DOWN if note else GpuState.OK,
        note=note,
    )
    seen = None
    if not note:
        seen = Reading(
            gpu=index,
            used=used * GIB,
            utilisation=sm,
            temperature=heat,
            power=watts * 1000,
            external=external,
        )
    return protocol.GpuInfo(
        gpu=gpu,
        usable=gpu.usable,
        free_share=0,
        free_memory=0,
        external=external,
        jobs=[],
        seen=seen,
        kept_as="",
    )


CARDS = [
    gpu(0, 44, 18, 53, 155),
    gpu(1, 74, 31, 65, 224),
    gpu(2, 4, 17, 36, 58),
    gpu(3, 0, 22, 33, 51, external=22 * GIB),
    gpu(4, 100, 9, 79, 291),
    gpu(5, None, 0, None, 0, note="Xid 94, contained ECC error"),
    gpu(6, 93, 9, 75, 264),
    gpu(7, 86, 35, 70, 249),
]
DAY = 86_400
JOBS = [
    running(41021, "farid", "md-membrane-300K", [6], 100, 0.93, 9.0, 48, 26_160, 2 * DAY),
    running(41024, "farid", "md-membrane-300K", [4], 100, 1.0, 9.2, 48, 17_760, 2 * DAY),
    running(41036, "nadia", "rl-atari", [2], 30, 0.0, 3.7, 24, 26_160, DAY, "held"),
    structs.replace(
        running(41040, "mei", "diffusion-2gpu", [1, 3], 100, 1.48, 61.8, 80, 16_620, 28_800),
        now=[
            protocol.OnGpu(gpu=1, memory=31 * GIB, busy=7400),
            protocol.OnGpu(gpu=3, memory=0, busy=None),
        ],
    ),
    running(41075, "ines", "prep-and-train", [0], 50, 0.0, 0.0, 40, 9_660, 43_200, "empty"),
    running(41076, "grace", "seg-3d-unet", [7], 50, 0.84, 17.3, 24, 6_780, 21_600),
    running(41080, "nadia", "rl-atari", [2], 30, 0.14, 2.9, 24, 7_140, DAY),
    running(41104, "grace", "seg-3d-unet", [0], 50, 0.88, 18.3, 40, 3_780, 21_600),
    running(41108, "ben", "sweep-lr", [7], 25, 0.89, 8.5, 12, 3_360, 7_200),
    running(41109, "ben", "sweep-lr", [2], 25, 0.0, 9.0, 20, 2_940, 7_200, "held"),
    running(41110, "ben", "sweep-lr", [7], 25, None, 0, 12, 2_820, 7_200),
    running(41123, "hiro", "debug", [2], 10, 0.0, 1.7, 8, 2_700, 7_200, "held"),
    pending(41098, "ann", "llama-ft-2", 100, 80, Reason.RESOURCES, 900),
    pending(41099, "kemal", "gan-finetune", 60, 26, Reason.GPU_MEMORY, 800),
    *(
        pending(41130 + at, "ann", f"sweep\u202e-{at}", 100, 48, Reason.PRIORITY, 700 - at)
        for at in range(20)
    ),
]
assert set(FIELDS) <= set(protocol.JobInfo.__struct_fields__)


def frame(gpus=CARDS, jobs=JOBS, looks=20):
    """A frame after some looks, 30 seconds apart, and their history."""
    history = LookHistory()
    for look in reversed(range(1, looks)):
        at = NOW - 30 * look
        moved = [gpu(one.gpu.index, (7 * look + one.gpu.index * 13) % 101, 9, 50, 90) for one in gpus]
        history.frame(moved, [], at, HOST)
    return history.frame(gpus, jobs, NOW, HOST), history
