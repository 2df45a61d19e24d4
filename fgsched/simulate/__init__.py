"""Simulate a workload in virtual time with the planner of the controller.

metrics   wait times by job size, overtaking, preemption costs and GPU utilisation
replay    replay a workload in virtual time on a simulated host
reporter  process beside the controller that makes reports, some of them by a replay
workload  tasks with a submission time, a demand and a run time, recorded or synthetic
"""

from fgsched.simulate.metrics import Simulated, TaskOutcome
from fgsched.simulate.replay import SimHost, replay
from fgsched.simulate.workload import Task

__all__ = ["SimHost", "Simulated", "Task", "TaskOutcome", "replay"]
