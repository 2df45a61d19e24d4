"""simple_slurm: sbatch, squeue and scancel by its objects."""

import time

from simple_slurm import Slurm

slurm = Slurm(cpus_per_task=1, job_name="simple", output=f"{Slurm.JOB_ID}.out", gres=["gpu:1"])
slurm.add_cmd("echo job $SLURM_JOB_ID")
first = slurm.sbatch("sleep 100", shell="/bin/bash")
assert isinstance(first, int), first
slurm.squeue.update_squeue()
assert list(slurm.squeue.jobs) == [first], slurm.squeue.jobs
slurm.scancel.cancel_job(first)
for _ in range(50):
    slurm.squeue.update_squeue()
    if not slurm.squeue.jobs:
        break
    time.sleep(0.2)
assert not slurm.squeue.jobs, slurm.squeue.jobs
tasks = Slurm(array="1-3%2", job_name="later", dependency={"afterany": first}, gres="gpu:1")
assert tasks.sbatch("true") > first
