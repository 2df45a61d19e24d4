"""The variables of a step and of its tasks, as Slurm sets them."""

import os
from collections.abc import Mapping

from fgsched.gpus import vendors
from fgsched.lifecycle.visible import translated
from fgsched.slurm.step import SrunStep

_OF_JOB = {  # ours -> Slurm's, for the scripts without SLURM_ variables
    "FG_JOB_ID": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "FG_JOB_NAME": ("SLURM_JOB_NAME",),
    "FG_JOB_PARTITION": ("SLURM_JOB_PARTITION",),
    "FG_JOB_USER": ("SLURM_JOB_USER",),
    "FG_SUBMIT_DIR": ("SLURM_SUBMIT_DIR",),
    "FG_SUBMIT_HOST": ("SLURM_SUBMIT_HOST",),
    "FG_JOB_NODELIST": ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST", "SLURMD_NODENAME"),
    "FG_CPUS_ON_NODE": ("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"),
    "FG_ARRAY_JOB_ID": ("SLURM_ARRAY_JOB_ID",),
    "FG_ARRAY_TASK_ID": ("SLURM_ARRAY_TASK_ID",),
}


def of_step(step: SrunStep, environ: Mapping[str, str], number: int, gpus: list[str]) -> dict[str, str]:
    """Return the variables that all tasks of a step have."""
    tasks = str(step.tasks)
    return _exported(step.export, environ) | {
        **{twin: environ[own] for own, twins in _OF_JOB.items() if own in environ for twin in twins},
        **dict.fromkeys(("SLURM_STEP_ID", "SLURM_STEPID"), str(number)),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), tasks),
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), tasks),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"), "1"),
        **dict.fromkeys(("SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST"), "127.0.0.1"),
        "SLURM_NODEID": "0",
        "SLURM_GTIDS": ",".join(map(str, range(step.tasks))),
        **({"SLURM_CPUS_PER_TASK": str(step.cpus)} if step.has_cpus else {}),
        "SLURM_STEP_NAME": step.name,
        "SLURM_CLUSTER_NAME": "fgsched",
        **(_of_gpus(",".join(gpus), environ) if gpus else {}),
    }


def _of_gpus(words: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the GPUs of a step: the words that select them, and the indices on the host."""
    selection = vendors.of_job(environ).facts.selection
    return {selection: words, "SLURM_STEP_GPUS": translated(words, environ, "FG_JOB_GPUS")}


def of_task(base: Mapping[str, str], task: int) -> dict[str, str]:
    """Return the variables of one task."""
    return {**base, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)}


def _exported(text: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that --export selects: ALL, NONE, or names and NAME=value."""
    words = [word for word in text.split(",") if word]
    kept = dict(environ)
    if "ALL" not in words:
        of_gpus = vendors.of_job(environ).facts.prefix or "FG_"
        own = ("FG_", "SLURM_", of_gpus, "LD_PRELOAD", "TMPDIR", "PATH", "HOME", "USER")
        kept = {name: value for name, value in environ.items() if name.startswith(own) or name in words}
    given = dict(word.split("=", 1) for word in words if "=" in word)
    return kept | {name: os.path.expandvars(value) for name, value in given.items()}
