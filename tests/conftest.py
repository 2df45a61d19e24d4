"""What all tests share."""

from fixtures_cuda import built_driver, cuda_runtime, driver, job, new_job
from fixtures_spawner import gate, go, spawner
from home import home
from simulated import simulate

__all__ = [
    "built_driver",
    "cuda_runtime",
    "driver",
    "gate",
    "go",
    "home",
    "job",
    "new_job",
    "simulate",
    "spawner",
]
