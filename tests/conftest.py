"""What all tests share."""

from fixtures_cuda import built_driver, driver, job, new_job

__all__ = ["built_driver", "driver", "job", "new_job"]
