"""Memory does not grow with the number of jobs that have run."""

import subprocess
import sys

from live_host import ROOT

PROGRAM = """
import logging, sys
from pathlib import Path
logging.disable(logging.CRITICAL)
sys.path.append("tests")
from manyjobs import ManyJobs, resident
jobs = ManyJobs(Path(sys.argv[1]))
jobs.run(12_000)
before = resident()
jobs.run(12_000)
print(resident() - before, jobs.accounts.stat().st_size / jobs.done)
jobs.close()
"""


def test_ended_jobs_leave_no_memory_behind_and_less_than_half_a_kilobyte_in_the_accounts(tmp_path):
    words = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    grown, size = map(float, done.stdout.split())
    assert grown < 2.0, "MiB: 170 bytes for each job"
    assert size < 512, "bytes of the accounts for each job"
