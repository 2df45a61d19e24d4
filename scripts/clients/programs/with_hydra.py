"""hydra with its submitit launcher: a sweep of two values as a job array."""

import os
import subprocess
import sys
from pathlib import Path

APPLICATION = """
import os
from pathlib import Path
import hydra


@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config):
    Path(os.environ["RESULTS"], str(config.x)).write_text(os.environ["SLURM_JOB_ID"])


main()
"""
WORDS = """--multirun +x=1,2 hydra/launcher=submitit_slurm hydra.launcher.timeout_min=5
hydra.launcher.partition=main hydra.launcher.mem_gb=1"""
Path("application.py").write_text(APPLICATION)
results = Path("results").resolve()
results.mkdir()
environ = {**os.environ, "RESULTS": str(results)}
subprocess.run([sys.executable, "application.py", *WORDS.split()], check=True, env=environ)
assert sorted(one.name for one in results.iterdir()) == ["1", "2"]
