"""qtoolkit: submit, follow and cancel a job by the commands that it writes."""

import subprocess
import time

from qtoolkit.host.local import LocalHost
from qtoolkit.io.slurm import SlurmIO
from qtoolkit.manager import QueueManager

manager = QueueManager(SlurmIO(), LocalHost())
done = manager.submit("sleep 300", options={"time": "0:10:00"}, work_dir=".", create_submit_dir=False)
assert done.job_id, done
for _ in range(40):
    job = manager.get_job(done.job_id)
    if job is not None and job.state.name == "RUNNING":
        break
    time.sleep(0.2)
assert job.state.name == "RUNNING", job
assert [one.job_id for one in manager.get_jobs_list(user=subprocess.getoutput("id -un"))] == [done.job_id]
cancelled = manager.cancel(done.job_id)
assert cancelled.status.name == "SUCCESSFUL", cancelled
