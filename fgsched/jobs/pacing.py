"""Choose the compute-sharing policy of a job, and the values written into its region."""

from fgsched.domain.job import GPU_COMPUTE, WHOLE, Job
from fgsched.domain.policy import Policy

HARD, FAIR, NONE = GPU_COMPUTE


def policy_of(job: Job, site: Policy) -> str:
    """Return the requested policy, or that of the partition or site. Only fractions of a GPU are paced."""
    demand = job.request.demand
    is_whole = all(hold.share == WHOLE for hold in job.holds) if job.holds else demand.is_whole
    if not demand.gpus or is_whole:
        return NONE
    partition = site.partition(job.partition or job.request.partition)
    return job.request.gpu_compute or (partition.gpu_compute if partition else "") or site.gpu_compute
