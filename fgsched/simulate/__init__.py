"""Simulate a workload in virtual time with the planner of the controller.

workload    the tasks that are replayed, and which of them can run on a host
traces      workloads from files: `fgacct --json`, the openb trace
synthetic   generated workloads
host        the simulated host and the ends of its jobs
clock       virtual time: tasks are submitted, start, are preempted and end
outcome     the runs of each task
metrics     wait times, utilisation and preemption costs, and their curves
reporter    process beside the controller that makes reports, some of them by a replay
"""

from fgsched.simulate.metrics import Simulated, TaskOutcome
from fgsched.simulate.replay import SimHost, replay
from fgsched.simulate.workload import Task

__all__ = ["SimHost", "Simulated", "Task", "TaskOutcome", "replay"]
