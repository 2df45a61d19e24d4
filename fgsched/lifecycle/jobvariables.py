"""Name the variables that describe one job or step, which a job that is submitted inside must not inherit.

They are set by `launchspec.variables`, by srun for a step, and by sbatch for its options. `JobVariables` are
taken out of each submitted environment. The variables of the fence, which other programs read too, are taken
out if the environment is that of a job. What users set stays: FG_HOME, FG_CONFIG, FGSUB_, SBATCH_, and the
input variables of srun.
"""

from collections.abc import Mapping

MARK = "FG_JOB_DIR"  # every process of a job has it
_PREFIXES = (
    *("FG_JOB_", "FG_ARRAY_", "FG_GPU_", "FG_GRES_"),
    *("SLURM_JOB_", "SLURM_ARRAY_", "SLURM_STEP_", "SLURM_NTASKS_PER_", "SLURM_MEM_PER_", "SLURM_GPUS_PER_"),
    *("SLURM_CPUS_PER_", "SLURM_TOPOLOGY_ADDR"),
)
_NAMES = frozenset(
    {
        *("FG_SLOT", "FG_SUBMIT_DIR", "FG_SUBMIT_HOST", "FG_NNODES", "FG_CPUS_ON_NODE", "FG_CPUS_PER_TASK"),
        *("FG_NTASKS", "FG_RESTART_COUNT", "FG_ERROR_FILE", "FG_ENFORCE", "FG_GPUS_ON_NODE", "FG_ATTEMPT"),
        *("FG_MEM_PER_NODE", "FG_PYTHON", "FG_TASK_PROLOG", "FG_TASK_PROLOG_TIME", "FG_SIM_LOAD"),
        *("SLURM_JOBID", "SLURM_STEPID", "SLURM_NNODES", "SLURM_NODELIST", "SLURMD_NODENAME", "SLURM_NTASKS"),
        *("SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_ON_NODE", "SLURM_SUBMIT_DIR", "SLURM_TMPDIR"),
        *("SLURM_SUBMIT_HOST", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS"),
        *(
            "SLURM_PRIO_PROCESS",
            "SLURM_GPUS",
            "SLURM_CLUSTER_NAME",
            "SLURM_RESTART_COUNT",
            "SLURM_GPUS_ON_NODE",
        ),
        *("SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST", "SLURM_GPUS_ON_NODE"),
    }
)
OF_FENCE = frozenset({"TMPDIR"})  # with the variables of the GPU vendors


def is_of_job(name: str) -> bool:
    """Tell whether fgsched sets this variable for one job or step."""
    return name in _NAMES or name.startswith(_PREFIXES)


def without_outer_job(environ: Mapping[str, str], of_gpus: frozenset[str]) -> dict[str, str]:
    """Return an environment without the variables of the job and the step in which it was read.

    `of_gpus`: the variables of jobs of every GPU vendor.
    """
    fence = OF_FENCE | of_gpus if MARK in environ else frozenset()
    return {name: text for name, text in environ.items() if not is_of_job(name) and name not in fence}
