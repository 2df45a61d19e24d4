"""What would have been: a log, a trace or a made-up workload, through the same planner, in virtual time.

workload    what is replayed, and which of it can run on a host at all
logs        workloads out of files: fgacct --json, the openb trace
made        workloads that are made up
host        the host: how its jobs stand, and when each of them ends
replay      the clock: jobs come, start when the planner says so, make room for others, and end
outcome     what became of each task
figures     what came of it, in numbers
drawing     the same as a picture
"""

from fgsched.simulate.host import SimHost
from fgsched.simulate.outcome import Outcome, Simulated
from fgsched.simulate.replay import replay
from fgsched.simulate.workload import Task

__all__ = ["Outcome", "SimHost", "Simulated", "Task", "replay"]
