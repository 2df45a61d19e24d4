"""The CPUs that jobs may run on: what the controller was given, since they inherit it."""

import os

from fgsched.jobs.cpubinding import Binding


def binding(word: str) -> Binding:
    """How a host with this setting binds jobs."""
    return Binding(allowed=frozenset(os.sched_getaffinity(0)) if word == "near" else frozenset())
