"""A short run of the fuzz of everything that a controller takes in about one job."""

import os
import subprocess
import sys

import pytest

from live_host import ROOT


@pytest.mark.compiler
@pytest.mark.parametrize("seed", [1, 2])
def test_no_mutation_ends_a_controller_or_touches_another_job(tmp_path, seed):
    words = ["--mutations", "2500", "--each", "100", "--seed", str(seed)]
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if os.geteuid() == 0 else []
    bench = [*alone, sys.executable, ROOT / "scripts/bench/contain", *words]
    # The mutations hide processes from their controllers: they end with the namespace.
    done = subprocess.run(
        bench, env={"PATH": "/usr/bin:/bin", "FG_BENCH_DIR": str(tmp_path)}, capture_output=True
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()[-4000:]
