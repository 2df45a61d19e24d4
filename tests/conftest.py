"""What all tests share.

Hypothesis tries the same examples in each run, so that a change is judged by itself; those that look for
new ones run `scripts/test --hypothesis-profile=hunt`.
"""

import signal

from hypothesis import settings

from fixtures_cuda import built_driver, cuda_runtime, driver, driver_tools, job, new_job
from fixtures_spawner import gate, go, spawner
from live_host import home
from simulated import simulate

__all__ = [
    "built_driver",
    "cuda_runtime",
    "driver",
    "driver_tools",
    "gate",
    "go",
    "home",
    "job",
    "new_job",
    "simulate",
    "spawner",
]

settings.register_profile("steady", derandomize=True, print_blob=True)
settings.register_profile("hunt", derandomize=False, print_blob=True)
settings.load_profile("steady")

# A shell that starts the tests in the background has them ignore it, and whatever they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
