"""reportseff: the efficiency of jobs that sacct reports, with Slurm's files as its input."""

import subprocess
import sys
from pathlib import Path

program = Path(sys.executable).parent / "reportseff"
script = "srun python3 -c 'x = bytearray(50_000_000); sum(range(100_000_000))'"
for name in ("good", "long"):
    words = ["sbatch", "--parsable", "--wait", "-J", name, "-t", "10", "--mem=500M", "-n1", "--wrap", script]
    subprocess.run(words, check=True)
shown = subprocess.run([program, "--no-color", "1", "2"], capture_output=True, text=True, check=True)
print(shown.stdout, shown.stderr)
lines = shown.stdout.splitlines()
assert lines[0].split() == ["JobID", "State", "Elapsed", "TimeEff", "CPUEff", "MemEff"]
assert [line.split()[:2] for line in lines[1:]] == [["1", "COMPLETED"], ["2", "COMPLETED"]]
assert all("---" not in line.split()[3:] for line in lines[1:]), "no efficiency"
shown = subprocess.run(
    [program, "--no-color", "--user", "root", "--since", "d=1", "--format", "+jobname"],
    capture_output=True,
    text=True,
    check=True,
)
print(shown.stdout, shown.stderr)
assert "good" in shown.stdout
shown = subprocess.run([program, "--no-color", "--parsable"], capture_output=True, text=True, check=True)
print(shown.stdout, shown.stderr)
