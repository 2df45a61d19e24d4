"""Name the variables that describe one job or step, which a job that is submitted inside must not inherit.

They are set by `launchspec.variables`, by srun for a step, and by sbatch for its options. `JobVariables` are
taken out of each submitted environment. The variables of the fence, which other programs read too, are taken
out if the environment is that of a job. What users set stays: FG_HOME, FG_CONFIG, FGSUB_, SBATCH_, and the
input variables of srun.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from fgsched.domain.job import Job, is_instance
from fgsched.domain.text import word_list

MARK = "FG_JOB_DIR"  # every process of a job has it
_PREFIXES = word_list(
    """FG_JOB_ FG_ARRAY_ FG_GPU_ FG_GRES_ SLURM_JOB_ SLURM_ARRAY_ SLURM_STEP_ SLURM_NTASKS_PER_ SLURM_MEM_PER_
    SLURM_GPUS_PER_ SLURM_CPUS_PER_ SLURM_TOPOLOGY_ADDR"""
)
_NAMES = frozenset(
    word_list(
        """FG_SLOT FG_SUBMIT_DIR FG_SUBMIT_HOST FG_NNODES FG_CPUS_ON_NODE FG_CPUS_PER_TASK FG_NTASKS
        FG_RESTART_COUNT FG_ERROR_FILE FG_ENFORCE FG_GPUS_ON_NODE FG_ATTEMPT FG_MEM_PER_NODE FG_PYTHON
        FG_TASK_PROLOG FG_TASK_PROLOG_TIME FG_SIM_LOAD SLURM_JOBID SLURM_STEPID SLURM_NNODES SLURM_NODELIST
        SLURMD_NODENAME SLURM_NTASKS SLURM_NPROCS SLURM_TASKS_PER_NODE SLURM_CPUS_ON_NODE SLURM_SUBMIT_DIR
        SLURM_TMPDIR SLURM_SUBMIT_HOST SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_GTIDS
        SLURM_PRIO_PROCESS SLURM_GPUS SLURM_CLUSTER_NAME SLURM_RESTART_COUNT SLURM_GPUS_ON_NODE
        SLURM_LAUNCH_NODE_IPADDR SLURM_SRUN_COMM_HOST SLURM_TRES_PER_TASK SLURM_TRES_BIND SLURMD_TRES_BIND
        SLURM_DISTRIBUTION SLURM_OOM_KILL_STEP SLURM_UMASK"""
    )
)
_DIGITS = 16  # more than any id of a job has
OF_FENCE = frozenset({"TMPDIR"})  # with the variables of the GPU vendors


def is_of_job(name: str) -> bool:
    """Tell whether fgsched sets this variable for one job or step."""
    return name in _NAMES or name.startswith(_PREFIXES)


def without_outer_job(environ: Mapping[str, str], of_gpus: Callable[[], frozenset[str]]) -> dict[str, str]:
    """Return an environment without the variables of the job and the step in which it was read.

    `of_gpus` returns the variables of jobs of every GPU vendor.
    """
    left_out = _NAMES | OF_FENCE | of_gpus() if MARK in environ else _NAMES
    return {
        name: text
        for name, text in environ.items()
        if name not in left_out and not name.startswith(_PREFIXES)
    }


def outer_job(environ: Mapping[str, str]) -> int:
    """Return the id of the job in which an environment was read; 0: none."""
    text = environ.get("FG_JOB_ID", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS else 0


def common_variables(job: Job, host: str) -> dict[str, str]:
    """Return the variables that a job and the programs that a site runs around it have, `host` among them."""
    request = job.request
    return {
        "FG_JOB_ID": str(job.id),
        "FG_JOB_NAME": request.name,
        "FG_JOB_PARTITION": job.partition or request.partition,
        "FG_JOB_ACCOUNT": request.account,
        "FG_JOB_QOS": request.qos,
        "FG_JOB_USER": job.user,
        "FG_JOB_NODELIST": host,
        "FG_SLOT": str(job.slot),
        "FG_CPUS_ON_NODE": str(request.demand.cpus),
        "FG_RESTART_COUNT": str(job.restarts),
    }


# -- words that select GPUs ----------------------------------------------------------------------------


VisibleDevices = Literal["numbers", "uuids"]  # of the setting
WORDS = "FG_GPU_DEVICES"  # the words for all GPUs of a job, in the order of FG_GPU_UUIDS and FG_JOB_GPUS


def words_of(
    gpus: Sequence[tuple[int, str]], setting: VisibleDevices, *, hooked: bool, other_nodes: str
) -> tuple[str, ...]:
    """Return the word for each GPU of a job.

    With the hook a number is a position among the GPUs of the job, for every library. Without it the driver
    counts the GPUs whose device nodes the job can open, in the order of their indices.

    The driver shows a process one MIG instance, and frameworks count with a library that counts whole GPUs. A
    job with several instances therefore has UUIDs. Without the hook no number selects an instance for sure.

    Args:
        gpus: (index, UUID) of each.
        other_nodes: whether the job can open the device nodes of other GPUs: "closed" or "open".
    """
    uuids = tuple(uuid for _, uuid in gpus)
    has_instances = any(map(is_instance, uuids))
    if setting == "uuids" or (has_instances and not (hooked and len(gpus) == 1)):
        return uuids
    indices = sorted(index for index, _ in gpus)
    if hooked:
        return tuple(map(str, range(len(gpus))))
    return tuple(str(indices.index(index) if other_nodes == "closed" else index) for index, _ in gpus)


def translated(words: str, environ: Mapping[str, str], into: str) -> str:
    """Return a list of words that select GPUs in a job as another variable of the job lists its GPUs.

    Words that select no GPU of the job are left as they are, and so are all words outside jobs.

    Args:
        into: FG_GPU_UUIDS or FG_JOB_GPUS.
    """
    names = zip(environ.get(WORDS, "").split(","), environ.get(into, "").split(","), strict=False)
    name_of = {word: name for word, name in names if word and name}
    return ",".join(name_of.get(word.strip(), word) for word in words.split(",")) if words else ""
