"""submitit: a job, an array, tasks of one job, a checkpoint with requeue, and a cancelled job."""

import os
import sys
import time
from pathlib import Path

import submitit
from submitit.helpers import DelayedSubmission


class Counter:
    """Counts up over two runs: the first waits for the signal before the time limit."""

    def __call__(self, number, mark):
        if number == 0:
            Path(mark).touch()
            time.sleep(120)
        return number, os.environ["SLURM_JOB_ID"]

    def checkpoint(self, number, mark):
        return DelayedSubmission(self, number + 1, mark)


def add(a, b):
    return a + b


def rank():
    here = submitit.JobEnvironment()
    return here.global_rank, here.num_tasks


def main():
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    executor = submitit.AutoExecutor(folder="log/%j")
    assert executor.cluster == "slurm", executor.cluster
    executor.update_parameters(timeout_min=5, slurm_partition="main", gpus_per_node=1, cpus_per_task=1)
    job = executor.submit(add, 5, 7)
    assert job.result() == 12
    executor.update_parameters(slurm_array_parallelism=2)
    assert [one.result() for one in executor.map_array(add, range(4), range(4))] == [0, 2, 4, 6]
    executor.update_parameters(tasks_per_node=2)
    assert executor.submit(rank).results() == [(0, 2), (1, 2)]
    executor.update_parameters(tasks_per_node=1)
    mark = Path("mark")
    job = executor.submit(Counter(), 0, str(mark.resolve()))
    while not mark.exists():
        time.sleep(0.1)
    job._interrupt(timeout=False)
    assert job.result() == (1, job.job_id)
    job = executor.submit(time.sleep, 300)
    job.cancel()
    seen = ""
    for _ in range(60):
        seen = job.watcher.get_state(job.job_id, mode="force")
        if seen.startswith("CANCELLED"):
            break
        time.sleep(0.5)
    assert seen.startswith("CANCELLED"), seen


main()
