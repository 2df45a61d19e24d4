"""The names of resource limits, as people set them."""

import resource

_NAMES = {
    resource.RLIMIT_AS: "virtual memory (ulimit -v)",
    resource.RLIMIT_CORE: "core files (ulimit -c)",
    resource.RLIMIT_CPU: "CPU time (ulimit -t)",
    resource.RLIMIT_DATA: "data (ulimit -d)",
    resource.RLIMIT_FSIZE: "file size (ulimit -f)",
    resource.RLIMIT_MEMLOCK: "locked memory (ulimit -l)",
    resource.RLIMIT_NOFILE: "open files (ulimit -n)",
    resource.RLIMIT_NPROC: "processes of the user (ulimit -u)",
    resource.RLIMIT_STACK: "stack (ulimit -s)",
}


def name_of(limit: int) -> str:
    """Return the name of a resource limit, with the option of ulimit."""
    return _NAMES.get(limit, f"resource limit {limit}")
