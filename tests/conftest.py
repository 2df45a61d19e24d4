"""What all tests share."""

from fixtures_cuda import built_driver, driver, job, new_job
from home import home

__all__ = ["built_driver", "driver", "home", "job", "new_job"]
