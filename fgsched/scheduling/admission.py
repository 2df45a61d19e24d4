"""Check a request against the site's policy, and fill in partition, account and time limit."""

from collections.abc import Iterable, Sequence
from itertools import islice
from operator import attrgetter

from msgspec import Struct, field
from msgspec.structs import replace

from fgsched.domain.errors import BadUsage, NotPermitted, Refused
from fgsched.domain.job import NO_LIMIT, WHOLE, Demand, Gpu, Hold, HostLimits, Request, with_defaults
from fgsched.domain.policy import DRAIN, NORMAL, Partition, Policy
from fgsched.domain.text import is_plain, quoted, shown
from fgsched.domain.times import format_limit
from fgsched.domain.units import MIB, format_mebibytes, format_share, neighbours
from fgsched.scheduling.placement import cost, is_of_type, is_suitable


class Submitter(Struct, frozen=True, kw_only=True, gc=False):
    """The user who submits a request."""

    user: str
    groups: tuple[str, ...] = ()
    is_operator: bool = False


class AdmissionContext(Struct, frozen=True, kw_only=True):
    """The host and the policy to which requests are submitted."""

    gpus: Sequence[Gpu]
    limits: HostLimits
    are_gpus_unknown: bool = False  # the driver has not answered yet: requests for GPUs are taken unchecked
    policy: Policy = field(default_factory=Policy)
    default_time: int = 0  # seconds; 0: none
    tier: str = ""  # best enforcement level of the host


def admit(request: Request, submitter: Submitter, context: AdmissionContext) -> Request:
    """Return the request with the site's defaults.

    Raises:
        BadUsage: the request names something that does not exist.
        NotPermitted: the user may not use the partition, account or quality of service.
        Refused: the request exceeds a limit; the remedy names what the site permits.
    """
    policy = context.policy
    partitions = partitions_of(request.partition, policy)
    account = _account(request.account or policy.user(submitter.user).account, submitter, policy)
    for partition in partitions:
        _check_access(partition, submitter, account)
    _check_quality(request.qos, submitter, account, policy)
    if request.nice < 0 and not submitter.is_operator:
        raise NotPermitted(f"--nice={request.nice}: only operators raise a job's priority", "Give 0 or more.")
    _check_resources(request.demand, policy)
    completed = with_defaults(
        request,
        partition=",".join([partition.name for partition in partitions]),
        account=account,
        qos=request.qos or NORMAL,
        time_limit=_time(request.time_limit, partitions, context.default_time),
    )
    _check_any(completed, partitions, context)
    if request.reservation:
        _check_reservation(completed, submitter, account, context)
    return completed


_NAMES = ("partition", "account", "qos", "reservation", "array", "dependency")  # neither paths nor free text
_NAMED = attrgetter(*_NAMES)


def check_plain(request: Request) -> None:
    """Check the names that a request refers to. Raises BadUsage if one is not plain UTF-8."""
    values = _NAMED(request)
    if is_plain("".join(values)):
        return
    for name, value in zip(_NAMES, values, strict=True):
        if not is_plain(value):
            raise BadUsage(f"request: {name}={quoted(value)} is not UTF-8, or has control characters")


def partitions_of(text: str, policy: Policy) -> list[Partition]:
    """Return the partitions of a list, in order; the default partition for "".

    Raises:
        BadUsage: the list is malformed.
        Refused: a partition does not exist.
    """
    if not text:
        return [policy.default]
    partitions = []
    for name in dict.fromkeys(word for word in text.split(",") if word):
        partition = policy.partition(name)
        if partition is None:
            allowed = ", ".join(partition.name for partition in policy.partitions)
            raise Refused(f"invalid partition: {shown(name)}", f"This host has {allowed}.")
        partitions.append(partition)
    if not partitions:
        raise BadUsage(f"{shown(text)} names no partition")
    return partitions


def _account(name: str, submitter: Submitter, policy: Policy) -> str:
    """Return the account to charge; it must be declared, if any account is, and open to the user."""
    if not name or not policy.accounts:
        return name
    allowed = [account for account in policy.accounts if not account.users or submitter.user in account.users]
    if name not in {account.name for account in policy.accounts}:
        raise Refused(
            f"invalid account: {shown(name)}",
            _choice([charge_account.name for charge_account in allowed], "account"),
        )
    if name not in {charge_account.name for charge_account in allowed}:
        raise Refused(
            f"{submitter.user} may not charge account {name}",
            _choice([charge_account.name for charge_account in allowed], "account"),
        )
    return name


def _choice(names: Iterable[str], kind: str) -> str:
    listed = ", ".join(names)
    return f"There is {listed}." if listed else f"Ask an operator for an {kind}."


def _check_access(partition: Partition, submitter: Submitter, account: str) -> None:
    if not partition.takes:
        state = "drained" if partition.state == DRAIN else partition.state
        raise Refused(f"partition {partition.name} takes no jobs: it is {state}", "fginfo lists partitions.")
    access = partition.access
    if submitter.is_operator or access.admits(submitter.user, submitter.groups, account):
        return
    if access.accounts and access.admits(submitter.user, submitter.groups, access.accounts[0]):
        raise Refused(
            f"partition {partition.name} is not for account {shown(account)}",
            f"Use --account={access.accounts[0]}.",
        )
    raise Refused(f"{submitter.user} may not use partition {partition.name}", "fginfo lists partitions.")


def _check_quality(name: str, submitter: Submitter, account: str, policy: Policy) -> None:
    quality = policy.quality(name)
    if quality is None:
        allowed = ", ".join(qos.name for qos in policy.qos)
        raise Refused(f"invalid quality of service: {shown(name)}", f"This host has {allowed}.")
    if not submitter.is_operator and not quality.access.admits(submitter.user, submitter.groups, account):
        raise Refused(f"{submitter.user} may not use --qos={quality.name}", "Leave --qos out.")


def _check_resources(demand: Demand, policy: Policy) -> None:
    for name, count in demand.resources:
        resource = policy.resource(name)
        if resource is None:
            allowed = ", ".join(["gpu", *(known.name for known in policy.resources)])
            raise Refused(
                f"invalid generic resource specification: there is no {shown(name)} here",
                f"This host has {allowed}.",
            )
        if count > resource.count:
            raise Refused(
                f"requested configuration not available: {count} {name} of {resource.count}",
                f"Ask for at most --gres={name}:{resource.count}.",
            )


def _check_reservation(
    request: Request, submitter: Submitter, account: str, context: AdmissionContext
) -> None:
    """Check that the reservation exists, is open to the user, and can hold such a job."""
    reservation = context.policy.reservation(request.reservation)
    if reservation is None:
        raise Refused(
            f"invalid reservation: {shown(request.reservation)}", "fgctl show reservation lists them."
        )
    if not submitter.is_operator and not reservation.admits(submitter.user, submitter.groups, account):
        raise Refused(
            f"{submitter.user} may not use reservation {reservation.name}", "Leave --reservation out."
        )
    longest = reservation.end - reservation.start
    if not 0 < request.time_limit <= longest:
        limit = format_limit(request.time_limit)
        raise Refused(
            f"reservation {reservation.name} lasts {format_limit(longest)}; the job's time limit is {limit}",
            f"Ask for at most --time={format_limit(longest)}.",
        )
    if context.are_gpus_unknown:
        return
    demand, step = request.demand, context.limits.share_step
    holds = {hold.gpu: hold for hold in reservation.holds}
    fitting = [
        gpu
        for gpu in context.gpus
        if gpu.index in holds and is_suitable(gpu, demand) and _is_within(demand, gpu, holds[gpu.index], step)
    ]
    if len(fitting) < demand.gpus:
        gpus = ", ".join(f"{format_share(hold.share)} of GPU {hold.gpu}" for hold in reservation.holds)
        raise Refused(
            f"reservation {reservation.name} never has room for this job", f"It keeps {gpus or 'no GPU'}."
        )


def _is_within(demand: Demand, gpu: Gpu, reserved: Hold, step: int) -> bool:
    hold = cost(demand, gpu, step)
    return hold.share <= reserved.share and hold.memory <= reserved.memory


def _time(time_limit: int, partitions: Sequence[Partition], default: int) -> int:
    """Return the requested time limit in seconds, or the default of the partition or site, or the maximum.

    An explicit request for no limit means the maximum of the partition.
    """
    first = partitions[0]
    if time_limit == NO_LIMIT:
        return first.most.time
    return time_limit or first.defaults.time or _at_most(default, first.most.time) or first.most.time


def _at_most(limit: int, maximum: int) -> int:
    return min(limit, maximum) if maximum else limit


def _check_any(request: Request, partitions: Sequence[Partition], context: AdmissionContext) -> None:
    """Check that at least one partition can run the request; raise the error of the first otherwise."""
    refusal: Refused | BadUsage | None = None
    for partition in partitions:
        try:
            check_partition(request, partition, context)
        except (Refused, BadUsage) as error:
            refusal = refusal or error
        else:
            return
    assert refusal is not None
    raise refusal


def check_partition(request: Request, partition: Partition, context: AdmissionContext) -> None:
    """Check that the partition can run the request. Raises Refused."""
    gpus = context.gpus
    if partition.gpus:
        gpus = [gpu for gpu in gpus if gpu.index in partition.gpus]
    limits = partition.limits(context.limits)
    if context.are_gpus_unknown:
        gpus = []
        _check_host(request.demand, limits)
    else:
        check_demand(request.demand, gpus if context.gpus else (), limits)
    maximum = partition.most
    label = f"partition {partition.name}"
    if maximum.time and request.time_limit > maximum.time:
        raise Refused(
            f"requested time limit {format_limit(request.time_limit)} is above that of {label}",
            f"Ask for at most --time={format_limit(maximum.time)}.",
        )
    _check_maximum(request.demand, partition, gpus, limits)


def _check_maximum(demand: Demand, partition: Partition, gpus: Sequence[Gpu], limits: HostLimits) -> None:
    maximum = partition.most
    if not (maximum.share or maximum.gpu_memory or maximum.cpus or maximum.memory):
        return
    costs = [cost(demand, gpu, limits.share_step) for gpu in gpus] if demand.gpus else []
    share = min((hold.share for hold in costs), default=0) * demand.gpus
    memory = min((hold.memory for hold in costs), default=0)
    for is_more, amount, option in (
        (maximum.share and share > maximum.share, _gpus(share), f"--gpus={format_share(maximum.share)}"),
        (
            maximum.gpu_memory and memory > maximum.gpu_memory,
            f"{format_mebibytes(memory)} of GPU memory",
            f"--gpu-mem={format_mebibytes(maximum.gpu_memory)}",
        ),
        (
            maximum.cpus and demand.cpus > maximum.cpus,
            f"{demand.cpus} CPUs",
            f"--cpus-per-task={maximum.cpus}",
        ),
        (
            maximum.memory and demand.host_memory > maximum.memory,
            f"{format_mebibytes(demand.host_memory)} of host memory",
            f"--mem={format_mebibytes(maximum.memory)}",
        ),
    ):
        if is_more:
            raise Refused(
                f"job violates a policy limit: {amount} asked of partition {partition.name}",
                f"Ask for at most {option}.",
            )


def _gpus(share: int) -> str:
    return format_share(share) + (" GPU" if share <= WHOLE else " GPUs")


# -- the host ------------------------------------------------------------------------------------------


def check_demand(demand: Demand, gpus: Sequence[Gpu], limits: HostLimits) -> None:
    """Check that `demand` can run on the host; drained GPUs count as available.

    Raises:
        Refused: the demand can never run; the remedy is the nearest possible request.
    """
    _check_host(demand, limits)
    possible = (gpu for gpu in gpus if is_suitable(gpu, demand) and _fits_alone(demand, gpu, limits))
    if len([*islice(possible, demand.gpus)]) < demand.gpus:
        _refuse_gpus(demand, gpus, limits)


def _check_host(demand: Demand, limits: HostLimits) -> None:
    """Check what does not depend on the GPUs."""
    _check_form(demand, limits)
    if demand.cpus > limits.cpus:
        raise Refused(
            f"requested configuration not available: {demand.cpus} CPUs of {limits.cpus}",
            f"Ask for at most {limits.cpus}: --cpus-per-task times --ntasks.",
        )
    if demand.host_memory > limits.host_memory:
        raise Refused(
            f"requested configuration not available: {format_mebibytes(demand.host_memory)} of host memory;"
            f" the host has {format_mebibytes(limits.host_memory)} for jobs",
            f"Ask for at most --mem={format_mebibytes(limits.host_memory)}.",
        )


def _check_form(demand: Demand, limits: HostLimits) -> None:
    """Check rules that fgsub enforces itself, but that a change of a job can violate."""
    for amount, kind in ((demand.memory, "GPU memory"), (demand.host_memory, "host memory")):
        if 0 < amount < MIB:
            raise BadUsage(
                f"request: {amount} bytes of {kind}", "A request names bytes: 8 GiB are 8589934592."
            )
    if demand.gpus == 0 and (demand.share or demand.memory or demand.memory_part):
        raise BadUsage("a part of a GPU is requested, but no GPU", "Request a GPU, too, such as gpus=1.")
    if demand.gpus and not (demand.share or demand.memory or demand.memory_part):
        raise BadUsage("GPUs are requested, but no share of them", "Use --gpus or --gpu-mem.")
    if demand.gpus > 1 and demand.share not in {0, WHOLE}:
        raise BadUsage(
            "fractions above one GPU are not possible", "Ask for whole GPUs, or for a part of one."
        )
    if demand.share % limits.share_step:
        low, high = neighbours(demand.share, limits.share_step)
        raise BadUsage(
            f"--gpus={format_share(demand.share)} is not a multiple of this site's step"
            f" {format_share(limits.share_step)}",
            f"Use {format_share(low)} or {format_share(high)}.",
        )


def _refuse_gpus(demand: Demand, gpus: Sequence[Gpu], limits: HostLimits) -> None:
    """Refuse a demand for which the host has too few GPUs, with the first reason that applies."""
    if not gpus:
        raise Refused(
            "no GPU in this host can ever satisfy this: the host has no GPUs",
            "fgsched status shows the reason. A controller keeps the FG_DEVICES and FG_CONFIG with which it "
            "was started: fgsched stop, and the next command starts yours with those of the shell. "
            "Without --gpus and --gpu-mem the job can run.",
        )
    suitable = [gpu for gpu in gpus if is_of_type(gpu, demand.gpu_type)]
    if not suitable:
        kinds = ", ".join(sorted({gpu.model for gpu in gpus}))
        raise Refused(f"no GPU of type {quoted(demand.gpu_type)} in this host", f"It has: {kinds}.")
    typed, suitable = suitable, [gpu for gpu in suitable if is_suitable(gpu, demand)]
    if not suitable:
        _refuse_instances(demand, typed, limits)
    if demand.gpus > len(suitable):
        kind = f"{demand.gpu_type} GPU" if demand.gpu_type else "GPU"
        plural = "" if len(suitable) == 1 else "s"
        raise Refused(
            f"this host has {len(suitable)} {kind}{plural}", f"Ask for at most --gpus={len(suitable)}."
        )
    _refuse_memory(demand, suitable, limits)


def _refuse_instances(demand: Demand, gpus: Sequence[Gpu], limits: HostLimits) -> None:
    """Refuse a request for which all GPUs of its type are MIG instances, or GPUs that are not shared."""
    if demand.memory and (not demand.share or demand.is_whole):
        _refuse_memory(replace(demand, gpus=1), gpus, limits)
    profiles = ", ".join(dict.fromkeys(gpu.profile or gpu.model for gpu in gpus))
    raise Refused(
        f"these GPUs are allocated as a whole: {profiles}",
        "Ask for one by its type, as in --gpus=TYPE:1, or for its memory, as in --gpu-mem=8G.",
    )


def _fits_alone(demand: Demand, gpu: Gpu, limits: HostLimits) -> bool:
    hold = cost(demand, gpu, limits.share_step)
    return hold.share <= WHOLE and hold.memory <= gpu.usable and hold.share > 0


def _refuse_memory(demand: Demand, suitable: Sequence[Gpu], limits: HostLimits) -> None:
    largest = sorted(suitable, key=lambda gpu: gpu.usable)[-demand.gpus]
    memory = demand.memory or cost(demand, largest, limits.share_step).memory
    raise Refused(
        f"no GPU in this host can ever satisfy this: {format_mebibytes(memory)} asked of a GPU,"
        f" {format_mebibytes(largest.usable)} on GPU {largest.index} ({largest.model})",
        f"Ask for at most --gpu-mem={format_mebibytes(largest.usable)}.",
    )
