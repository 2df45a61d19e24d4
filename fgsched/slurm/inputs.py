"""The input variables of Slurm's commands: options that the environment gives. The command line wins."""

from collections.abc import Iterable, Mapping, Sequence

from fgsched.slurm.getopt import BadLine, parse
from fgsched.views import options as table
from fgsched.views.getopt import Known


def _named(prefix: str, names: str) -> dict[str, str]:
    """Return {variable: option} of options whose variables have their names."""
    return {f"{prefix}_{name.upper().replace('-', '_')}": name for name in names.split()}


_OF_STEP = {
    **_named(
        "SLURM",
        """cpu-bind exclusive gpus-per-task immediate mem-bind open-mode overcommit overlap wait
        distribution hint network task-epilog task-prolog threads-per-core""",
    ),
    "SLURM_EXPORT_ENV": "export",
    "SRUN_EXPORT_ENV": "export",
    "SLURM_KILL_BAD_EXIT": "kill-on-bad-exit",
    "SLURM_LABELIO": "label",
    "SLURM_MPI_TYPE": "mpi",
    "SLURM_REMOTE_CWD": "chdir",
    "SLURM_WORKING_DIR": "chdir",
    "SLURM_STDERRMODE": "error",
    "SLURM_STDINMODE": "input",
    "SLURM_STDOUTMODE": "output",
    **_named("SRUN", "error input output"),
    "SLURM_STEP_GRES": "gres",
    "SLURM_UNBUFFEREDIO": "unbuffered",
}
_OF_JOB = """account constraint cpus-per-gpu dependency exclusive gpus gpus-per-node gpus-per-task gres
    job-name mem-per-cpu mem-per-gpu network no-kill ntasks ntasks-per-gpu partition qos reservation signal
    wckey gpu-bind gpu-freq hint distribution threads-per-core immediate"""
_OF_SRUN = {
    **_OF_STEP,
    **_named("SLURM", _OF_JOB),
    "SLURM_JOB_ID": "jobid",
    "SLURM_MEM_PER_NODE": "mem",
    "SLURM_TIMELIMIT": "time",
    "SRUN_CPUS_PER_TASK": "cpus-per-task",
}
_OF_SALLOC = {
    **_named("SALLOC", f"{_OF_JOB} bell no-bell overcommit wait-all-nodes"),
    "SALLOC_KILL_CMD": "kill-command",
    "SALLOC_MEM_PER_NODE": "mem",
    "SALLOC_TIMELIMIT": "time",
}
_FLAGS = ("bell", "label", "no-bell", "overcommit", "overlap", "unbuffered")
_GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")  # one of them replaces all
_SQUEUE = {
    **_named("SQUEUE", "account all array partition qos sort states"),
    **{"SQUEUE_FORMAT2": "Format", "SQUEUE_NAMES": "name", "SQUEUE_USERS": "user"},
}
_SCANCEL = _named(
    "SCANCEL", "account batch ctld full hurry interactive name partition qos state user verbose wckey"
)
_SINFO = _named("SINFO", "all format partition sort")
_OF_QUEUE = table.known_of("fgq")
_OF_QUEUE = Known({**_OF_QUEUE.long, "steps": "?"}, {**_OF_QUEUE.short, "s": "steps"})
_READ = {"squeue": (_SQUEUE, _OF_QUEUE), "scancel": (_SCANCEL, table.known_of("fgcancel"))}
_ONE_OF = {"Format": ("format", "Format", "long", "start", "json"), "user": ("user", "me")}


def of_step(environ: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of srun inside a job, from its variables and from its command line."""
    return _merged(_OF_STEP, environ, given)


def of_srun(environ: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of srun outside of a job, from its variables and from its command line."""
    return _merged(_OF_SRUN, environ, given)


def of_salloc(environ: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of salloc, from its variables and from its command line."""
    return _merged(_OF_SALLOC, environ, given)


def of_sinfo(environ: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of sinfo, from its variables and from its command line."""
    found = _merged(_SINFO, environ, given)
    if "Format" in given and "format" not in given:
        found.pop("format", None)
    return found


def _merged(
    variables: Mapping[str, str], environ: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """Return `given` and the options of variables that are not empty; an amount of GPUs replaces all."""
    found = {
        option: "" if option in _FLAGS else environ[name]
        for name, option in variables.items()
        if environ.get(name)
    }
    if any(name in given for name in _GPUS):
        found = {name: text for name, text in found.items() if name not in _GPUS}
    return {**found, **given}


def with_variables(name: str, words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return a command line of squeue or scancel with the options of its variables before it."""
    if name not in _READ:
        return list(words)
    variables, known = _READ[name]
    if not any(variable in environ for variable in variables):
        return list(words)
    try:
        options = {option for option, _ in parse(known, words, permute=True)[0]}
    except BadLine:  # the command refuses it
        return list(words)
    return [*_spelled(variables, environ, options), *words]


def _spelled(variables: Mapping[str, str], environ: Mapping[str, str], given: Iterable[str]) -> list[str]:
    """Return the options of variables that the command line does not give."""
    found, present = [], set(given)
    for variable, option in variables.items():
        if variable not in environ or not present.isdisjoint(_ONE_OF.get(option, (option,))):
            continue
        is_flag = option in ("all", "array", "batch", "full", "interactive", "verbose", "ctld", "hurry")
        if is_flag or environ[variable]:
            found.append(f"--{option}" if is_flag else f"--{option}={environ[variable]}")
    return found
