"""srun inside a job: read its command line, and run the tasks of one step."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fgsched.domain.text import BadValue
from fgsched.lifecycle.containers import options as options_of_container
from fgsched.lifecycle.containers import parse_image, parse_mounts
from fgsched.slurm.getopt import BadLine, of_srun, of_step, parse
from fgsched.slurm.running import run
from fgsched.slurm.step import (
    GpuBinding,
    SrunStep,
    StepRefused,
    by_option,
    read_binding,
    read_gpu_binding,
    read_programs,
)

_SEVERAL = "Start a step for each component with & and then wait, or one with --multi-prog."


def read(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options and the command of a command line. Raises BadLine or Refusal."""
    settings, command = parse("srun", words, permute=False)
    options = dict(settings)
    if ":" in command[:-1] or options.get("het-group", "0") != "0":
        component = (
            f"--het-group={options['het-group']}" if "het-group" in options else "':' between two commands"
        )
        raise StepRefused(
            f"srun: error: {component}: heterogeneous steps are not supported yet\n{_SEVERAL}", 1
        )
    return options, command


def step_of(words: Sequence[str], environ: Mapping[str, str]) -> SrunStep:
    """Return the step that a command line describes. Raises BadLine or Refusal."""
    typed, command = read(words)
    step = _checked(of_step(environ, _with_tres(typed)))
    if not command:
        raise StepRefused("srun: fatal: No command given to execute.", 1)
    of_job = _per_task(environ.get("SLURM_TRES_PER_TASK", ""))
    cpus = step.get("cpus-per-task") or environ.get("SRUN_CPUS_PER_TASK") or of_job.get("cpu", "")
    each = _gpus_each(step, of_job)
    has_tasks, tasks = _tasks(step, environ, _number({"cpus-per-task": cpus or "1"}, "cpus-per-task", "1"))
    return SrunStep(
        command=tuple(command),
        programs=read_programs(command, tasks) if "multi-prog" in step else (),
        tasks=tasks,
        has_tasks=has_tasks,
        cpus=int(cpus or "1"),
        has_cpus=bool(cpus),
        is_exact="exact" in step,
        distribution=step.get("distribution", ""),
        gpus=each * tasks if each else _gpus(step),
        gpus_each=each,
        gpu_binding=_gpu_binding(step, environ, each),
        overlaps="overlap" in step,
        label="label" in step,
        **_streams(step),
        directory=step.get("chdir", ""),
        export=step.get("export", "ALL"),
        kill_on_bad_exit=step.get("kill-on-bad-exit", "0") != "0",
        wait=_number(step, "wait", "0"),
        patience=_number(step, "immediate", "0") if step.get("immediate") else int("immediate" in step),
        binding=read_binding(step.get("cpu-bind", ""), tasks),
        quiet="quiet" in step,
        terminal="pty" in step,
        name=step.get("job-name", os.path.basename(command[0])),
        variables=by_option(step),
        enters=_enters(step, environ),
    )


def _streams(step: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a step with its input and output."""
    return {
        "output": step.get("output", ""),
        "error": step.get("error", ""),
        "input": step.get("input", ""),
        "append": step.get("open-mode", "")[:1] == "a",
    }


def _enters(options: Mapping[str, str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words before a task's program that enter its container. Raises StepRefused."""
    image = options.get("container") or options.get("container-image") or ""
    mounts, workdir = options.get("container-mounts", ""), options.get("container-workdir", "")
    if not image:
        if mounts or workdir:
            raise StepRefused("srun: error: --container-mounts and --container-workdir need --container", 1)
        return ()
    try:
        words = options_of_container(parse_image(image), mounts, workdir)
        if mounts:
            parse_mounts(mounts)
    except BadValue as error:
        raise StepRefused(f"srun: error: {error.cause}", 1) from None
    return environ["FG_PYTHON"], "-I", "-m", "fgsched.interactive.containers", *words, "--"


def _checked(options: dict[str, str]) -> dict[str, str]:
    """Return the options of a step that runs on this host. Raises StepRefused."""
    if set("./%").intersection(options.get("gpus-per-task", "")):
        del options["gpus-per-task"]  # fractions: the tasks share the GPUs of the job
    _check_host(options)
    return options


def _check_host(options: Mapping[str, str]) -> None:
    least = options.get("nodes", "1").partition("-")[0]
    if not least.isdecimal():
        raise StepRefused(f'srun: error: Invalid node count "{options["nodes"]}"', 1)
    if int(least) > 1:
        raise StepRefused(
            "srun: error: Unable to create step for job: Node count specification invalid\n"
            f"srun: --nodes={options['nodes']}: fgsched runs on one host; use --nodes=1",
            1,
        )


def _with_tres(typed: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a command line, with --tres-per-task as the options of its parts."""
    parts = _per_task(typed.get("tres-per-task", ""))
    named = {"cpu": "cpus-per-task", "gres/gpu": "gpus-per-task"}
    if unknown := [part for part in parts if part not in named]:
        raise StepRefused(f"srun: error: --tres-per-task: {unknown[0]}: only cpu and gres/gpu are known", 1)
    return {**{named[part]: amount for part, amount in parts.items()}, **typed}


def _per_task(text: str) -> dict[str, str]:
    """Return {resource: amount} of a value such as 'cpu=2,gres/gpu:a100=1'."""
    parts = {}
    for part in filter(None, text.split(",")):
        name, amount = [*re.split(r"[=:]", part, maxsplit=1), "1"][:2]
        parts[name] = re.split(r"[=:]", amount)[-1]
    return parts


def _gpus_each(step: Mapping[str, str], of_job: Mapping[str, str]) -> int:
    """Return the GPUs of each task; 0: nothing was said, or an amount for the step."""
    if "gpus-per-task" in step:
        return _amount(step["gpus-per-task"])
    of_step_itself = {"gpus", "gpus-per-node", "gres"}.intersection(step)
    return 0 if of_step_itself else _amount(of_job.get("gres/gpu", "0"))


def _gpu_binding(step: Mapping[str, str], environ: Mapping[str, str], each: int) -> GpuBinding:
    """Return the binding of the step, of the job, or that of an amount of GPUs for each task."""
    inherited = environ.get("SLURM_TRES_BIND", "").removeprefix("gres/gpu:")
    of_gpu = step.get("ntasks-per-gpu")
    implied = f"per_task:{each}" if each else f"single:{of_gpu}" if of_gpu else ""
    if inherited.startswith("per_task:"):  # of the job's amount for each task, which the step can replace
        inherited = implied or inherited
    return read_gpu_binding(step.get("gpu-bind") or inherited or implied)


def _tasks(options: Mapping[str, str], environ: Mapping[str, str], cpus: int) -> tuple[bool, int]:
    """Return whether the number of tasks was said, and the number.

    As in Slurm, a step for which only the CPUs of each task were said has as many tasks as fit on them.
    """
    for name in ("ntasks", "ntasks-per-node", "tasks-per-node"):
        if name in options:
            return True, _number(options, name, "1")
    gpus = len(environ.get("FG_JOB_GPUS", "").split(",")) if environ.get("FG_JOB_GPUS") else 0
    if "ntasks-per-gpu" in options and (gpus := _gpus(options) or gpus):
        return True, gpus * _number(options, "ntasks-per-gpu", "1")
    of_job = environ.get("SLURM_NTASKS") or ("" if "SLURM_JOB_ID" in environ else environ.get("FG_NTASKS"))
    if of_job:
        return True, _number({}, "ntasks", of_job)
    has_cpus = (
        "cpus-per-task" in options or environ.get("SLURM_TRES_PER_TASK") or "SRUN_CPUS_PER_TASK" in environ
    )
    return False, max(1, int(environ.get("FG_CPUS_ON_NODE") or 1) // cpus) if has_cpus else 1


def _number(options: Mapping[str, str], name: str, default: str) -> int:
    text = options.get(name, default)
    if not text.isdecimal() or (int(text) < 1 and name != "wait"):
        raise StepRefused(f'srun: error: Invalid numeric value "{text}" for --{name}.', 1)
    return int(text)


def _gpus(step: Mapping[str, str]) -> int | None:
    """Return the number of GPUs of the step; None: all of the job."""
    if "gpus" in step or "gpus-per-node" in step:
        return _amount(step.get("gpus") or step["gpus-per-node"])
    if "gres" not in step:
        return None
    names = [part.removeprefix("gres/").removeprefix("gres:") for part in step["gres"].split(",")]
    parts = [part for part in names if part.partition(":")[0].partition("=")[0] == "gpu"]
    return _amount(parts[0].removeprefix("gpu")[1:] or "1") if parts else 0


def _amount(text: str) -> int:
    """Return the count in '[type:]N'; a type alone means one."""
    last = re.split("[:=]", text)[-1]
    return int(last) if last.isdecimal() else 1


def _run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a step of this job, or outside a job a job of its own; return the exit code."""
    options, command = read(words)
    job = environ.get("FG_JOB_ID", "")
    if job and options.get("jobid", job) == job:
        return run(step_of(words, environ), environ)
    from fgsched.slurm import outside

    options = of_step(environ, options) if job else of_srun(environ, options)
    return outside.join(options, command) if "jobid" in options else outside.srun(options, command)


def main() -> None:
    """Run srun; exit with the highest exit code of its tasks."""
    try:
        sys.exit(_run(sys.argv[1:], os.environ))
    except BadLine as error:
        print(f'srun: {error}\nTry "srun --help" for more information', file=sys.stderr)
        sys.exit(255)
    except StepRefused as error:
        print(error.text, file=sys.stderr)
        sys.exit(error.status)
    except OSError as error:  # of a file of the command line
        print(f"srun: error: {error.filename or 'srun'}: {error.strerror}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
