"""Directives of other schedulers, and slips in headers: read, named, or refused, never silently ignored."""

import pytest

from fgsched.domain.errors import BadUsage
from fgsched.lifecycle.jobscript import directives
from fgsched.submission.jobwarnings import about_unread
from fgsched.submission.options import from_script


def read(*lines, body="true", has_gpus=False, **options):
    """Return the options of a script and its warnings."""
    script = directives("\n".join(["#!/bin/bash", *lines, body, ""]), "train.sh", **options)
    settings, warnings = from_script(script, "train.sh")
    has_gpus = has_gpus or any(setting.option.slot == "gpus" for setting in settings)
    warnings = [*script.warnings, *warnings, *about_unread(script.unread, "train.sh", has_gpus=has_gpus)]
    return [f"--{each.option.name}={each.text}".removesuffix("=") for each in settings], warnings


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("#PBS -l nodes=1:ppn=4:gpus=2,walltime=24:00:00", "--ntasks-per-node=4 --gpus=2 --time=24:00:00"),
        ("#PBS -l select=1:ncpus=8:ngpus=1:mem=16gb", "--cpus-per-task=8 --gpus=1 --mem=16gb"),
        ("#PBS -l walltime=3600", "--time=3600s"),
        ("#PBS -l walltime=1:00:00:00", "--time=1-00:00:00"),
        ("#PBS -lnodes=1:gpus=1:exclusive_process", "--gpus=1"),
        ("#PBS -N name -q gpu -A lab", "--job-name=name --partition=gpu --account=lab"),
        ("#PBS -o host:logs/ -e err.$PBS_JOBID -j oe", "--output=logs/%x.o%j --error=err.%j"),
        ("#PBS -m abe -M a@example.org", "--mail-type=FAIL,BEGIN,END --mail-user=a@example.org"),
        ("#PBS -J 0-15 -h -r n -V", "--array=0-15 --hold --no-requeue"),
        ("#PBS -W depend=afterok:7", "--dependency=afterok:7"),
        ('#BSUB -gpu "num=1:mode=shared:gmem=8G:gmodel=A100"', "--gpus=1 --gpu-mem=8G --gpu-type=A100"),
        ('#BSUB -R "rusage[ngpus_excl_p=2] span[hosts=1]"', "--gpus=2"),
        ("#BSUB -W 24:00", "--time=24:00:00"),
        ("#BSUB -W 30", "--time=30"),
        ('#BSUB -J "train[1-10]%2" -n 4', "--job-name=train --array=1-10%2 --ntasks=4"),
        ("#BSUB -oo out.%J.%I -eo err -x", "--output=out.%j.%a --error=err --exclusive=yes"),
        ('#BSUB -w "done(7) && ended(8)"', "--dependency=afterok:7,afterany:8"),
        ("#BSUB -M 16GB -q gpu -u a@example.org", "--mem=16GB --partition=gpu --mail-user=a@example.org"),
    ],
)
def test_the_plain_directives_of_pbs_and_lsf_are_read_as_slurm_reads_them(line, options):
    assert read(line) == (options.split(), [])


def test_several_lines_of_pbs_are_one_request():
    lines = ("#PBS -l nodes=1:ppn=4", "#PBS -l gpus=1", "#PBS -l walltime=1:00:00")
    assert read(*lines) == (["--ntasks-per-node=4", "--gpus=1", "--time=1:00:00"], [])


@pytest.mark.parametrize("own", ["#FG --time=1", "#SBATCH --time=1"])
def test_directives_of_others_beside_own_ones_are_for_another_scheduler(own):
    assert read("#PBS -l gpus=1", own, "#$ -l gpu=1") == (["--time=1"], [])


def test_ignore_pbs_ignores_them():
    assert read("#PBS -l gpus=1", "#BSUB -W 30", "#HQ --resource gpus=1", ignore_pbs=True) == ([], [])


@pytest.mark.parametrize(
    "line",
    [
        "#PBS -l accelerator=True",
        "#PBS -l gputype=v100",
        "#PBS -W x=GRES:gpu@1",
        '#BSUB -R "select[gpu_model==A100]"',
        '#BSUB -w "done(prepare)"',
        "#BSUB -gpu num=1:gvendor=amd",
    ],
)
def test_a_gpu_or_a_dependency_that_cannot_be_read_is_refused_with_its_line(line):
    with pytest.raises(BadUsage) as refusal:
        read("", line)
    assert refusal.value.cause.startswith("train.sh:3: #")
    assert "has no translation here" in refusal.value.cause
    assert "--ignore-pbs" in refusal.value.remedy


def test_another_option_that_cannot_be_read_is_named():
    found, warnings = read("#BSUB -M 16000", "#BSUB -W 30")
    assert found == ["--time=30"]
    assert warnings == ["train.sh: line 2: #BSUB -M 16000 has no meaning here and is ignored"]


@pytest.mark.parametrize(
    ("line", "scheduler", "options"),
    [
        ("#$ -l gpu=1,h_rt=24:00:00 -pe smp 4", "Grid Engine", "--gpus=1 --time=24:00:00 --cpus-per-task=4"),
        ("#HQ --resource gpus=0.5", "HyperQueue", "--gpus=0.5"),
        ("#HQ --resource gpus/nvidia=2", "HyperQueue", "--gpus=2"),
        ("#GFLOW --gpus 1", "gflow", "--gpus=1"),
        ("#MSUB -l nodes=1:gpus=2", "Moab", "--gpus=2"),
        ("#PJM -L elapse=1:00:00,gpu=4", "PJM", "--gpus=4 --time=1:00:00"),
        ("#OAR -l /gpu=1,walltime=2:00:00", "OAR", "--gpus=1 --time=2:00:00"),
    ],
)
def test_a_request_of_gpus_for_another_scheduler_is_refused_with_the_options_for_it(line, scheduler, options):
    with pytest.raises(BadUsage) as refusal:
        read(line)
    mark = line.split()[0]
    about = f"{mark} is a directive of {scheduler}, which is not read"
    assert refusal.value.cause == f"train.sh:2: {about}; the job would get no GPU"
    assert refusal.value.remedy == f"write #FG {options}, or --gpus=0."
    assert read(line, has_gpus=True)[1] == [f"train.sh: line 2: {about}; write #FG {options}"]


def test_other_requests_for_another_scheduler_are_named():
    about = "#$ is a directive of Grid Engine, which is not read"
    assert read("#$ -l h_rt=1:00:00", "#$ -cwd")[1] == [
        f"train.sh: line 2: {about}; write #FG --time=1:00:00",
        f"train.sh: line 3: {about}; write its options as #FG lines",
    ]


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("#SBTACH --gres=gpu:1", "#SBATCH"),
        ("#SBATC --gres=gpu:1", "#SBATCH"),
        ("#BATCH --gres=gpu:1", "#SBATCH"),
        ("#SBACTH --gpus 1", "#SBATCH"),
        ("#sbatch --gres=gpu:1", "#SBATCH"),
        ("#!SBATCH --gres=gpu:1", "#SBATCH"),
        ("#SLURM --gres=gpu:1", "#SBATCH"),
        ("#FGsched --gpus=1", "#FG"),
        ("#FGSUB --gpus=1", "#FG"),
        ("#fg --gpus=1", "#FG"),
    ],
)
def test_a_misspelt_header_that_asks_for_gpus_is_refused(line, meant):
    with pytest.raises(BadUsage) as refusal:
        read(line)
    assert refusal.value.cause == (
        f"train.sh:2: looks like an {meant} header but is a comment; the job would get no GPU"
    )
    assert refusal.value.remedy == f"write {meant}, or --gpus=0."


@pytest.mark.parametrize(
    "line", ["# SBATCH --gres=gpu:1", "#sbatch --time=5", "#SBATHC -t 5", "#\tSBATCH -n 1"]
)
def test_a_slip_that_takes_no_gpu_away_and_a_disabled_header_are_named(line):
    said = "train.sh: line 2: looks like an #SBATCH header but is a comment; write #SBATCH"
    assert read(line, has_gpus=True) == ([], [said])
    assert "--gres" not in line or read(line) == ([], [said])


@pytest.mark.parametrize(
    "line",
    [
        "##SBATCH --gpus=1",
        "# sbatch -p gpu train.sh",
        "# fgsub --gpus=1 train.sh",
        "# Search -n 3 things",
        "# Batch - sizes",
        "#----- gpu -----",
        "# Usage: sbatch --gres=gpu:1 x.sh",
        "#$Id: x $",
    ],
)
def test_a_comment_is_a_comment(line):
    assert read(line) == ([], [])


def test_variables_of_the_other_scheduler_are_named_with_those_to_use():
    script = 'cd "$PBS_O_WORKDIR"\necho ${PBS_ARRAY_INDEX} $PBS_NODEFILE $PBS_O_WORKDIR'
    assert read("#PBS -l walltime=1:00:00", body=script)[1] == [
        "train.sh: line 3: $PBS_O_WORKDIR is not set here; use $FG_SUBMIT_DIR",
        "train.sh: line 4: $PBS_ARRAY_INDEX is not set here; use $FG_ARRAY_TASK_ID",
        "train.sh: line 4: $PBS_NODEFILE is not set here",
    ]


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("#flux: -g1 -c4", "--gpus=1 --cpus-per-task=4"),
        ("# flux: -N1 -g 2", "--gpus=2"),
        ("#FLUX: --gpus-per-task=1", "--gpus=1"),
        ("#flux: -t 30 -q gpu -g1", "--gpus=1 --time=30 --partition=gpu"),
    ],
)
def test_a_request_of_gpus_for_flux_is_refused_in_each_form_that_flux_reads(line, options):
    with pytest.raises(BadUsage) as error:
        read(line)
    assert "#flux: is a directive of Flux, which is not read" in str(error.value)
    assert options in str(error.value)


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("#COBALT -n 1 -t 30 -q debug", "--time=30 --partition=debug"),
        ("#$ -t 1-10 -p -100 -N train", "--job-name=train --array=1-10"),
        ("#flux: -N4 -n8", "--ntasks=8"),
        ("#flux: -t 1h", ""),
        ("#OAR -n train -t besteffort -p host", "--job-name=train"),
        ("#GFLOW -c env", ""),
        ("#PJM -N train -L elapse=1:00:00", "--time=1:00:00 --job-name=train"),
    ],
)
def test_the_letters_of_another_scheduler_mean_what_they_mean_there(line, options):
    """-t is an array in Grid Engine, and minutes in Cobalt; -p is no partition."""
    (warning,) = read(line)[1]
    assert warning.endswith(f"write #FG {options}" if options else "write its options as #FG lines")
