"""The packing benchmark, on a trace of a few hosts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "scripts" / "bench" / "packing"
HOSTS = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"h{i},32000,65536,4,V100\n" for i in range(3))
TASKS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
    + "".join(f"a{i},4000,1024,1,{share},\n" for i, share in enumerate([300, 500, 700, 250, 1000] * 3))
    + "b,8000,1024,4,1000,\nc,1000,1024,0,,\nd,1000,1024,1,1000,A100\n"
)


@pytest.fixture
def trace(tmp_path):
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(HOSTS)
    (tmp_path / "openb_pod_list_default.csv").write_text(TASKS)
    return tmp_path


def run(*words):
    return subprocess.run([sys.executable, BENCH, *words], capture_output=True, text=True)


def test_every_policy_gives_out_no_more_than_there_is_or_was_asked_for(trace):
    table = json.loads(run(trace, "--seeds=42-43", "--json").stdout)
    assert list(table) == ["random", "bestfit", "fgd", "pack"]
    for found in table.values():
        for row in found["runs"]:
            assert row == sorted(row)
            assert all(0 < given <= 100 * mark for given, mark in zip(row, found["at"], strict=True))


def test_a_seed_means_one_order(trace):
    one, other = (json.loads(run(trace, "--seeds=7", "--json").stdout)["pack"]["runs"] for _ in range(2))
    assert one == other


@pytest.mark.skipif(not os.environ.get("FG_OPENB"), reason="needs the openb trace: FG_OPENB names its folder")
def test_on_the_real_trace_pack_gives_out_a_point_more_than_fgd():
    table = json.loads(run("--seeds=42", "--policies=fgd,pack", "--json").stdout)
    fgd, pack = (table[policy]["mean"][-1] for policy in ("fgd", "pack"))
    assert pack >= 95.3
    assert pack >= fgd + 1


def test_a_trace_that_is_not_there_is_named_as_missing(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 2
    assert "the trace is not there: name its folder, or set FG_OPENB" in done.stderr
