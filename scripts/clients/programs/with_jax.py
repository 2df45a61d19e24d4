"""jax.distributed.initialize() in two tasks of srun."""

import os
import subprocess
import sys
from pathlib import Path

TASK = """
import jax
jax.distributed.initialize()
print("process", jax.process_index(), "of", jax.process_count(), flush=True)
"""
if "SLURM_STEP_ID" not in os.environ:
    Path("task.py").write_text(TASK)
    script = f"#!/bin/bash\n#SBATCH -n 2 -o out.txt\nsrun -n 2 {sys.executable} task.py\n"
    Path("job.sh").write_text(script)
    done = subprocess.run(["sbatch", "--wait", "job.sh"])
    text = Path("out.txt").read_text()
    print(text)
    assert done.returncode == 0
    assert sorted(line for line in text.splitlines() if line.startswith("process")) == [
        "process 0 of 2",
        "process 1 of 2",
    ]
