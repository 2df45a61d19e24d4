"""clusterjob: submit a script, follow its state, cancel another."""

from clusterjob import Job
from clusterjob.status import CANCELLED, COMPLETED, str_status

Job.default_backend = "slurm"


def job(body, name):
    options = {"time": "00:05:00", "nodes": 1, "threads": 1, "mem": 100}
    return Job(jobscript=body, jobname=name, backend="slurm", filename=f"./{name}.sh", **options)


first = job("#!/bin/bash\n{options}\necho done\n", "short").submit()
first.wait()
assert first.status == COMPLETED, str_status[first.status]
second = job("#!/bin/bash\n{options}\nsleep 300\n", "long").submit()
second.cancel()
second.wait()
assert second.status == CANCELLED, str_status[second.status]
