"""slurmpy: a script by name, with a dependency on it."""

from slurmpy import Slurm

first = Slurm("first", {"time": "00:05:00", "cpus-per-task": 1}, bash_strict=False)
number = first.run("echo first", tries=1)
assert int(number)
assert int(Slurm("second", {"time": "00:05:00"}).run("echo second", depends_on=[number])) > int(number)
