"""What would have been: a log, a trace or a made-up workload, through the same planner, in virtual time.

workload    what is replayed, and which of it can run on a host at all
logs        workloads out of files: fgacct --json, the openb trace
made        workloads that are made up
replay      the host: jobs come, start when the planner says so, and end
figures     what came of it, in numbers
drawing     the same as a picture
"""

from fgsched.simulate.replay import Outcome, Simulated, Site, replay
from fgsched.simulate.workload import Task

__all__ = ["Outcome", "Simulated", "Site", "Task", "replay"]
