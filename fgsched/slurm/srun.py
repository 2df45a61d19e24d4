"""srun inside a job: read its command line, and run the tasks of one step."""

import os
import sys
from collections.abc import Mapping, Sequence

from fgsched.domain.text import BadValue
from fgsched.lifecycle.containers import options as options_of_container
from fgsched.lifecycle.containers import parse_image, parse_mounts
from fgsched.slurm.getopt import BadLine, of_srun, of_step, parse
from fgsched.slurm.running import run
from fgsched.slurm.step import SrunStep, StepRefused, read_binding, read_programs

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
    step, command = read(words)
    step = of_step(environ, step)
    if set("./%").intersection(step.get("gpus-per-task", "")):
        del step["gpus-per-task"]  # fractions: the tasks share the GPUs of the job
    _check_host(step)
    if not command:
        raise StepRefused("srun: fatal: No command given to execute.", 1)
    tasks = _tasks(step, environ)
    return SrunStep(
        command=tuple(command),
        programs=read_programs(command, tasks) if "multi-prog" in step else (),
        tasks=tasks,
        cpus=_number(step, "cpus-per-task", _cpus_of_job(environ) or "1"),
        has_cpus="cpus-per-task" in step or bool(_cpus_of_job(environ)),
        gpus=_gpus(step, tasks),
        gpus_each=_amount(step["gpus-per-task"]) if "gpus-per-task" in step else 0,
        overlaps="overlap" in step,
        label="label" in step,
        output=step.get("output", ""),
        error=step.get("error", ""),
        input=step.get("input", ""),
        append=step.get("open-mode", "")[:1] == "a",
        directory=step.get("chdir", ""),
        export=step.get("export", "ALL"),
        kill_on_bad_exit=step.get("kill-on-bad-exit", "0") != "0",
        wait=_number(step, "wait", "0"),
        patience=_number(step, "immediate", "0") if step.get("immediate") else int("immediate" in step),
        binding=read_binding(step.get("cpu-bind", ""), tasks),
        quiet="quiet" in step,
        terminal="pty" in step,
        name=step.get("job-name", os.path.basename(command[0])),
        enters=_enters(step, environ),
    )


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


def _cpus_of_job(environ: Mapping[str, str]) -> str:
    """Return the CPUs of each task that the job or the caller has set for its steps, or ""."""
    cpus = dict(part.partition("=")[::2] for part in environ.get("SLURM_TRES_PER_TASK", "").split(","))
    return environ.get("SRUN_CPUS_PER_TASK") or cpus.get("cpu", "")


def _tasks(options: Mapping[str, str], environ: Mapping[str, str]) -> int:
    for name in ("ntasks", "ntasks-per-node", "tasks-per-node"):
        if name in options:
            return _number(options, name, "1")
    return _number({}, "ntasks", environ.get("SLURM_NTASKS") or environ.get("FG_NTASKS") or "1")


def _number(options: Mapping[str, str], name: str, default: str) -> int:
    text = options.get(name, default)
    if not text.isdecimal() or (int(text) < 1 and name != "wait"):
        raise StepRefused(f'srun: error: Invalid numeric value "{text}" for --{name}.', 1)
    return int(text)


def _gpus(options: Mapping[str, str], tasks: int) -> int:
    """Return the number of GPUs of the step; 0: all of the job."""
    if "gpus-per-task" in options:
        return _amount(options["gpus-per-task"]) * tasks
    if "gpus" in options or "gpus-per-node" in options:
        return _amount(options.get("gpus") or options["gpus-per-node"])
    parts = [part for part in options.get("gres", "").split(",") if part.partition(":")[0] == "gpu"]
    return _amount(parts[0].removeprefix("gpu").removeprefix(":")) if parts else 0


def _amount(text: str) -> int:
    """Return the count in '[type:]N'; a type alone means one."""
    last = text.rpartition(":")[2]
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
        sys.exit(1)
    except StepRefused as error:
        print(error.text, file=sys.stderr)
        sys.exit(error.status)
    except OSError as error:  # of a file of the command line
        print(f"srun: error: {error.filename or 'srun'}: {error.strerror}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
