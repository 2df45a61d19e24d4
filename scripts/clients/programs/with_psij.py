"""PSI/J: a job to its end, a failing one, and a cancelled one."""

from datetime import timedelta

from psij import Job, JobAttributes, JobExecutor, JobSpec, JobState, ResourceSpecV1

executor = JobExecutor.get_instance("slurm")


def job(program, *words, launcher="single"):
    spec = JobSpec(program, list(words), launcher=launcher)
    spec.resources = ResourceSpecV1(node_count=1, processes_per_node=1, cpu_cores_per_process=1)
    spec.attributes = JobAttributes(duration=timedelta(minutes=5), queue_name="main")
    return Job(spec)


def end_of(one):
    executor.submit(one)
    return one.wait(timeout=timedelta(seconds=120))


assert end_of(job("/bin/sleep", "1")).state == JobState.COMPLETED
assert end_of(job("/bin/true", launcher="srun")).state == JobState.COMPLETED
assert end_of(job("/bin/false")).state == JobState.FAILED
long = job("/bin/sleep", "300")
executor.submit(long)
long.wait(target_states=[JobState.ACTIVE], timeout=timedelta(seconds=90))
long.cancel()
assert long.wait(timeout=timedelta(seconds=90)).state == JobState.CANCELED
