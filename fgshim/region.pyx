"""Create, read and update the region of a job, and queue signals with a value, for controller and tests."""

import os
import stat
from collections import namedtuple
from functools import lru_cache
from uuid import UUID

from libc.errno cimport ENOSYS, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from fgshim.owner cimport fg_owner_lives, fg_owner_namespace
from fgshim.pace cimport *
from fgshim.region cimport (
    FG_MAX_GPUS,
    FG_MAX_SLOTS,
    FG_REGION_MAGIC,
    FG_REGION_VERSION,
    fg_region,
    fg_region_flaw,
    fg_region_gpu,
    fg_region_counts,
    fg_region_held,
    fg_region_lock_init,
    fg_region_tagged,
    fg_region_seal,
    fg_region_share,
    fg_region_shares,
    fg_region_slot,
    fg_region_slots,
    fg_region_tell,
    fg_region_past_bytes,
    FG_TAG_SHIFT,
    FG_MAX_TAGGED,
)

cdef extern from "queue_signal.h" nogil:
    int fg_queue_signal(int pidfd, int number, uint64_t value)

cdef extern from "open_below.h" nogil:
    int fg_open_below(int where, const char *path, unsigned long flags)

cdef extern from "outer_pid.h" nogil:
    uint32_t fg_outer_pid(const fg_region_slot *slot)
    bint fg_slot_has_ended(const fg_region_slot *slot, uint64_t own, uint32_t *pid)

cdef extern from "region_file.h":
    size_t FG_HEADER
    size_t FG_WRITTEN(size_t gpus)
    size_t FG_READ_SIZE
    size_t FG_UNTRACKED_AT(size_t position)
    size_t FG_SEEN_AT(size_t slot, size_t position)

include "region_pace.pxi"
include "region_turns.pxi"

SIZE = sizeof(fg_region)
SLOTS_AT = FG_HEADER  # offset of the slots in bytes
SLOT_SIZE = sizeof(fg_region_slot)

# One GPU of the job; amounts are bytes. held: by living processes, with untracked; peak: the maximum of it;
# last_asked, last_held: the last refused allocation, and `held` at that time.
Gpu = namedtuple("Gpu", "index uuid limit held peak refusals untracked last_asked last_held")
# One process; pid: 0 if it cannot be found from here; the tuples have an element for each GPU, in the order of Region.gpus, in bytes. bytes: allocated by
# calls; past: held outside the calls, as charged; contexts: the estimate for its live contexts; marks: the tags of
# the estimates, for `set_seen`; given: counted in shares, but in the driver's figure of this process.
Process = namedtuple("Process", "pid start image bytes past contexts marks slot given")
# refusal: the last refused allocation in one line for a person; "": none.
Region = namedtuple("Region", "job attempt gpus processes refusal")


def pack(job: int, attempt: int, gpus, pacing=(), contexts=()) -> bytes:
    """Return the first bytes of a new region; the file continues with zeros up to SIZE.

    `gpus`: (NVML index, UUID as NVML writes it, limit in bytes) of each GPU, the job's `cuda:0` first.
    `pacing`: (word of POLICIES, ten-thousandths of the GPU's time) of each GPU; empty: not paced.
    `contexts`: (bytes to reserve for the contexts of a process, whether they were measured) of each GPU; empty: nothing is
    reserved. The hook adds the stacks of the GPU's threads to bytes that were not measured.

    Raises: ValueError for a wrong number of GPUs or a malformed UUID; KeyError for an unknown policy.
    """
    cdef fg_region region
    if not 1 <= len(gpus) <= FG_MAX_GPUS:
        raise ValueError(f"a region is for 1 to {FG_MAX_GPUS} GPUs, not {len(gpus)}")
    memset(&region, 0, FG_HEADER)  # only the header is used here
    region.magic = FG_REGION_MAGIC
    region.version = FG_REGION_VERSION
    region.size = sizeof(region)
    region.job = job
    region.attempt = attempt
    region.gpus = len(gpus)
    region.by_position = 1
    if fg_region_lock_init(&region):
        raise OSError("no lock can be shared between processes here")
    for at, (index, uuid, limit) in enumerate(gpus):
        region.gpu[at].index = index
        region.gpu[at].limit = limit
        raw = _uuid_bytes(uuid)
        memcpy(region.gpu[at].uuid, <const char *> raw, 16)
        region.gpu[at].is_instance = uuid.startswith("MIG-")
    for at, (policy, share) in enumerate(pacing[:len(gpus)]):
        _set_pace(&region.pace[at], policy, share)
    for at, (cost, is_measured) in enumerate(contexts[:len(gpus)]):
        region.gpu[at].context = cost
        region.gpu[at].is_assumed = not is_measured
    region.seal = fg_region_seal(&region)
    return (<const char *> &region)[:FG_WRITTEN(region.gpus)]


def read(path, owner=None) -> Region:
    """Read the region at `path`.

    Raises: ValueError if it is not a valid region, or does not belong to `owner` (a uid); OSError.
    """
    cdef fg_region region
    cdef const char *flaw
    fd = _opened(path, os.O_RDONLY, owner)
    try:
        data = os.read(fd, FG_READ_SIZE)
        size = os.fstat(fd).st_size if len(data) == FG_READ_SIZE else len(data)
    finally:
        os.close(fd)
    memcpy(&region, <const char *> data, len(data))
    flaw = fg_region_flaw(&region, size)
    if flaw:
        raise ValueError(f"{path} {flaw.decode()}")
    living = _living(&region)
    processes = _processes(&region, living)
    return Region(region.job, region.attempt, _gpus(&region, processes, living), processes, _refusal(&region))


def set_untracked(path, int gpu_position, bytes, owner=None) -> None:
    """Count `bytes` as held on a GPU of the job, in processes without a slot.

    Raises: ValueError if the region is invalid or has no such GPU; OSError.
    """
    if not 0 <= gpu_position < len(read(path, owner).gpus):
        raise ValueError(f"{path} has no GPU number {gpu_position}")
    fd = _opened(path, os.O_WRONLY, owner)
    try:
        os.pwrite(fd, int(bytes).to_bytes(8, "little"), FG_UNTRACKED_AT(gpu_position))
    finally:
        os.close(fd)


def set_seen(path, process, int gpu_position, bytes, owner=None) -> None:
    """Record that `process` holds `bytes` outside the calls on a GPU. Void once its contexts change.

    Raises: ValueError if the region is invalid or has no such GPU; OSError.
    """
    if not 0 <= gpu_position < len(read(path, owner).gpus):
        raise ValueError(f"{path} has no GPU number {gpu_position}")
    cdef uint64_t word = fg_region_tagged(process.marks[gpu_position], bytes)
    fd = _opened(path, os.O_WRONLY, owner)
    try:
        os.pwrite(fd, int(word).to_bytes(8, "little"), FG_SEEN_AT(process.slot, gpu_position))
    finally:
        os.close(fd)


def queue_signal(int pidfd, int signal, uint64_t value) -> None:
    """Queue a signal with a value of 64 bits to the process of `pidfd`.

    Raises: OSError if it cannot be sent.
    """
    if fg_queue_signal(pidfd, signal, value):
        raise OSError(errno, os.strerror(errno))


def _opened(path, flags, owner):
    """Open a region; the job's user may have put anything in its place.

    No link is followed, no pipe is waited for, and nothing is asked of a file system that is mounted there.
    Raises: OSError; ValueError if it is no regular file of `owner`'s (a uid; None: of any user's).
    """
    fd = _opened_here(os.fspath(path), flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    about = os.fstat(fd)
    if stat.S_ISREG(about.st_mode) and (owner is None or about.st_uid == owner):
        return fd
    os.close(fd)
    raise ValueError(f"{path} is not a file of its job's user")


def _opened_here(path, flags):
    """Open a file in a job's directory. Both have to be on the file system of the directory above.

    The job's directory may be a link, made by root, to the directory in the space of the job's user.
    """
    directory, name = os.path.split(path)
    try:
        directory = os.path.join(os.path.dirname(directory), os.readlink(directory))
    except OSError:
        pass
    above, last = os.path.split(directory)
    cdef bytes below = os.fsencode(f"{last}/{name}" if last else name)
    cdef int where = os.open(above or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    cdef int fd = fg_open_below(where, below, flags)
    cdef int error = errno
    os.close(where)
    if fd < 0 and error == ENOSYS:
        return os.open(path, flags)
    if fd < 0:
        raise OSError(error, os.strerror(error), path)
    return fd


@lru_cache(maxsize=64)
def _uuid_bytes(uuid):
    """Convert GPU-1b2c… or MIG-1b2c… to 16 bytes, as CUDA does. Cached: each job needs it, with few values."""
    if not uuid.startswith(("GPU-", "MIG-")):
        raise ValueError(f"{uuid!r} is not the UUID of a GPU, such as GPU-1b2c3d4e-…")
    return UUID(uuid[4:]).bytes


cdef _refusal(const fg_region *region):
    cdef char line[600]
    length = fg_region_tell(region, line, sizeof(line))
    return line[:length].decode("ascii", "replace")


_outer_pids: dict = {}  # (pid, start, image) of a slot of another pid namespace -> its pid in this one
_MOST_OUTER_PIDS = 4096


cdef uint32_t _here(const fg_region_slot *slot, uint64_t own):
    """Return the pid that the process of a slot has in this pid namespace `own`; 0 if it has ended or has none."""
    if not slot.pid_namespace or slot.pid_namespace == own:
        return slot.pid if fg_owner_lives(slot.pid, slot.start, slot.image) != 0 else 0
    key = (slot.pid, slot.start, slot.image)
    cdef uint32_t pid = _outer_pids.get(key, 0)
    if pid and fg_owner_lives(pid, slot.start, slot.image) == 1:
        return pid
    pid = fg_outer_pid(slot)
    pid = pid if pid <= <uint32_t> 1 << 22 else 0
    if len(_outer_pids) >= _MOST_OUTER_PIDS:
        _outer_pids.clear()
    _outer_pids[key] = pid
    return pid


cdef _living(const fg_region *region):
    """Return {slot: pid here} of the processes that still execute the program that took the slot."""
    cdef uint32_t pid
    cdef uint64_t own = fg_owner_namespace()
    living = {}
    for slot in range(fg_region_slots(region)):
        if region.slot[slot].pid == 0:
            continue
        here = _here(&region.slot[slot], own)
        if here or not fg_slot_has_ended(&region.slot[slot], own, &pid):
            living[slot] = here
    return living


cdef _processes(const fg_region *region, living):
    cdef const fg_region_slot *taken
    found = []
    shown = _shown(region, living)
    for slot, pid in living.items():
        taken = &region.slot[slot]
        held = tuple(region.counts[gpu].bytes[<uint32_t> slot] for gpu in range(region.gpus))
        given = tuple(shown.get((slot, gpu), 0) for gpu in range(region.gpus))
        found.append(Process(pid, taken.start, taken.image, held, *_past(region, slot), slot, given))
    return found


cdef _past(const fg_region *region, uint32_t slot):
    """Return (bytes outside the calls, estimate for contexts, tags) of a slot, each by GPU."""
    cdef const fg_region_counts *counts
    charged, contexts, tags = [], [], []
    for gpu in range(region.gpus):
        counts = &region.counts[gpu]
        charged.append(fg_region_past_bytes(counts.context[slot], counts.seen[slot]))
        contexts.append(counts.context[slot] & FG_MAX_TAGGED)
        tags.append(counts.context[slot] >> FG_TAG_SHIFT)
    return tuple(charged), tuple(contexts), tuple(tags)


cdef _holders(const fg_region_share *share, living):
    """Return the living slots that hold a share."""
    return [slot for slot in living if share.holder[slot // 64] >> (slot % 64) & 1]


cdef _shown(const fg_region *region, living):
    """Return {(slot, GPU): bytes} of the shares that the driver includes in the figure of that slot's process.

    The driver shows shared memory in the figure of the process that exported it, if it still holds it, else in that of
    a sole holder. In every other process it is a duplicate, which the driver does not show.
    """
    cdef const fg_region_share *share
    shown = {}
    for at in range(fg_region_shares(region)):
        share = &region.share[at]
        holders = _holders(share, living)
        owner = share.giver - 1 if share.giver - 1 in holders else holders[0] if len(holders) == 1 else None
        if owner is not None:
            shown[owner, share.gpu] = shown.get((owner, share.gpu), 0) + share.bytes
    return shown


cdef _shared(const fg_region *region, uint32_t gpu, living):
    """Return the bytes on a GPU that processes of the job share."""
    total = 0
    for at in range(fg_region_shares(region)):
        if region.share[at].gpu == gpu and _holders(&region.share[at], living):
            total += region.share[at].bytes
    return total


cdef _gpus(const fg_region *region, processes, living):
    found = []
    for at in range(region.gpus):
        own = sum(process.bytes[at] + process.past[at] for process in processes)
        found.append(_gpu(&region.gpu[at], own + _shared(region, at, living)))
    return found


cdef _gpu(const fg_region_gpu *gpu, held):
    kind = "MIG" if gpu.is_instance else "GPU"
    uuid = f"{kind}-{UUID(bytes=(<const char *> gpu.uuid)[:16])}"
    counts = (gpu.peak, gpu.refusals, gpu.untracked, gpu.last_asked, gpu.last_held)
    return Gpu(gpu.index, uuid, gpu.limit, gpu.untracked + held, *counts)
