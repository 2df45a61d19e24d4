"""snakemake with its Slurm executor: ten rules with GPUs and an account, then a failing rule; the report."""

import subprocess
import sys
from pathlib import Path

RULES = (
    """
rule all:
    input: "end.txt"
"""
    + "".join(
        f"""
rule step{n}:
    output: "step{n}.txt"
    resources: slurm_partition="main", runtime=5, mem_mb=600, gpu=1
    threads: 1
    shell: "echo {n} $SLURM_JOB_ID > {{output}}"
"""
        for n in range(9)
    )
    + """
rule end:
    input: expand("step{n}.txt", n=range(9))
    output: "end.txt"
    resources: slurm_partition="main", runtime=5
    shell: "cat {input} > {output}"
"""
)
FAILING = """
rule all:
    output: "never.txt"
    resources: slurm_partition="main", runtime=5
    shell: "exit 7"
"""


def run(rules, *more):
    Path("Snakefile").write_text(rules)
    program = Path(sys.executable).parent / "snakemake"
    words = ["--executor", "slurm", "--jobs", "4", "--latency-wait", "5", "--default-resources"]
    words += ["slurm_account=research", "slurm_partition=main", "mem_mb=600", *more]
    words += ["--slurm-init-seconds-before-status-checks", "2", "--slurm-efficiency-report"]
    words += ["--slurm-efficiency-report-path", "reports", "--seconds-between-status-checks", "2"]
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=400)
    print(done.stdout, done.stderr)
    return done


done = run(RULES)
assert done.returncode == 0
assert len(Path("end.txt").read_text().splitlines()) == 9
assert "ERROR" not in done.stderr.upper().replace("ERRORS", ""), "an error was reported"
done = run(FAILING)
assert done.returncode != 0
assert "FAILED" in done.stderr
assert list(Path("reports").glob("*")), "no efficiency report"
