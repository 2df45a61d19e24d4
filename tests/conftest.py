"""What all tests share."""

from fixtures_cuda import built_driver, cuda_runtime, driver, job, new_job
from home import home

__all__ = ["built_driver", "cuda_runtime", "driver", "home", "job", "new_job"]
