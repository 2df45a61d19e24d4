"""Records of jobs as clients receive them."""

from msgspec.structs import replace

from fgsched.protocol import JobInfo


def completed(job: JobInfo) -> JobInfo:
    """Return a job with the attributes that the controller takes from its request."""
    request, demand = job.request, job.request.demand
    names, needs = "name account wckey qos reservation nice", "gpus gpu_type cpus host_memory memory_part"
    own = {name: getattr(request, name) for name in names.split()}
    own |= {name: getattr(demand, name) for name in needs.split()}
    limits = {"time_limit": request.time_limit, "ntasks": request.tasks, "task_cpus": request.task_cpus}
    secrets = {"comment": request.comment, "chdir": request.chdir, "command": request.submit_line}
    hidden = dict.fromkeys(secrets) if job.is_private else secrets
    return replace(job, **own, **limits, **hidden)
