"""fginfo: the cards, and what is left of them."""

import os
import pwd

import pytest

from fgsched.cli.fginfo import _who
from fgsched.domain.job import Gpu, GpuState
from fgsched.protocol import GpuInfo
from fgsched.views.host import gpu_state, gpus_state
from live_host import living

ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture(scope="module")
def gpus(tmp_path_factory):
    """Four cards: a quarter of 0 is taken by job 1, 2 is drained; one job waits, held."""
    path = tmp_path_factory.mktemp("cards") / "home"
    with living(path, devices="sim:4x16G:H100") as home:
        home.running(share=2500)
        home.submit(hold=True)
        home.client.ask("drain", gpu=2, reason="fan is loud")
        yield home


def gpu(free=10_000, state="ok", jobs=()):
    gpu = Gpu(index=0, uuid="GPU-x", model="H100", total=1 << 30, state=GpuState(state))
    more = {"usable": 1 << 30, "free_memory": 0, "external": 0, "seen": None, "kept_as": ""}
    return GpuInfo(gpu=gpu, free_share=free, jobs=list(jobs), **more)


def test_the_partition_is_shown_in_amounts_of_gpus(gpus):
    done = gpus.run("fginfo")
    assert done.err == ""
    assert [line.split() for line in done.lines] == [
        ["PARTITION", "AVAIL", "TIMELIMIT", "GPUS(A/I/O/T)", "JOBS(R/PD)", "STATE"],
        ["main*", "up", "infinite", "0.25/2.75/1/4", "1/1", "mix"],
    ]


def test_each_gpu_has_its_line(gpus):
    heading, first, second, third, _ = [line.split() for line in gpus.run("fginfo", "-g").lines]
    assert heading == ["GPU", "TYPE", "STATE", "FRAC(A/T)", "MEM(A/U/T)", "UTIL", "TEMP", "JOBS", "EXTERNAL"]
    assert first[:4] == ["0", "H100", "mix", "0.25/1"]
    assert first[4].split("/")[::2] == ["4096M", "16384M"]
    assert first[7:] == ["1", "-"]
    assert second[:4] == ["1", "H100", "idle", "0/1"]
    assert third[:4] == ["2", "H100", "drain", "0/1"]


def test_the_reasons_tell_who_drained_a_gpu_and_why(gpus):
    heading, row = gpus.run("fginfo", "-R").lines
    assert heading.split() == ["GPU", "STATE", "USER", "TIMESTAMP", "REASON"]
    words = row.split(maxsplit=4)
    assert (words[:3], words[4]) == (["2", "drain", ME], "fan is loud")


def test_without_a_drained_gpu_the_reasons_are_a_heading(home):
    (heading,) = home.run("fginfo", "-R").lines
    assert heading.split() == ["GPU", "STATE", "USER", "TIMESTAMP", "REASON"]
    assert home.run("fginfo", "-R", "-h").out == ""


def test_hardware_models_summary_and_host_have_tables_of_their_own(gpus):
    hardware = gpus.run("fginfo", "-l").lines
    headings = "GPU TYPE UUID PCI TOTAL RESERVED HEADROOM USABLE LINKS CPUS ENFORCE PRELOAD PROFILE CARD"
    assert (hardware[0].split(), hardware[1].split()[-4]) == (headings.split(), "shim")
    assert len(hardware) == 5
    assert gpus.run("fginfo", "--types", "-n").out.split() == ["H100", "0.25/2.75/1/4", "16384M"]
    assert gpus.run("fginfo", "-s", "-h").out.split()[:4] == ["main*", "up", "infinite", "0.25/2.75/1/4"]
    node = gpus.run("fginfo", "-N", "-h").out.split()
    assert node[1:5] == ["main*", "mix", "0.25/2.75/1/4", "1/63/0/64"]


def test_hardware_tells_which_cards_are_near_to_each_other(tmp_path):
    with living(tmp_path / "home", devices="sim:2x16G:A:nvlink,1x16G:B,3x16G:C:socket") as home:
        links = [line.split()[8] for line in home.run("fginfo", "-l", "-h").lines]
        assert links == ["nvlink:1", "nvlink:0", "-", "socket:4-5", "socket:3,5", "socket:3-4"]
        (link,) = home.run("fginfo", "--json").json["gpus"][0]["links"]
        assert link == {"gpu": 1, "near": "nvlink"}


def test_json_has_partitions_and_gpus(gpus):
    answer = gpus.run("fginfo", "--json").json
    (partition,) = answer["partitions"]
    assert partition["gpus"] == {"allocated": 0.25, "idle": 2.75, "other": 1.0, "total": 4}
    assert partition["job_counts"] == {"PENDING": 1, "RUNNING": 1}
    assert [gpu["state"] for gpu in answer["gpus"]] == ["mix", "idle", "drain", "idle"]
    assert answer["gpus"][0]["jobs"] == [1]
    assert answer["gpus"][1]["note"] is None
    assert answer["gpus"][2]["noted_time_iso"].startswith("20")


def test_two_tables_at_once_are_refused(gpus):
    done = gpus.run("fginfo", "-g", "-l")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("fginfo: error: -g, -l, ")


def test_a_host_without_gpus_is_shown_as_such(tmp_path):
    with living(tmp_path / "home", devices="none") as home:
        assert home.run("fginfo", "-h").out.split() == ["main*", "up", "infinite", "0/0/0/0", "0/0", "idle"]
        (heading,) = home.run("fginfo", "-g").lines
        assert heading.split() == [
            "GPU",
            "TYPE",
            "STATE",
            "FRAC(A/T)",
            "MEM(A/U/T)",
            "UTIL",
            "TEMP",
            "JOBS",
            "EXTERNAL",
        ]


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (gpu(), "idle"),
        (gpu(7500, jobs=[1]), "mix"),
        (gpu(0, jobs=[1]), "alloc"),
        (gpu(state="drained"), "drain"),
        (gpu(5000, "drained", [1]), "drng"),
        (gpu(state="suspect"), "suspect"),
        (gpu(state="down"), "down"),
    ],
)
def test_a_gpu_is_in_one_of_sinfo_s_states(one, expected):
    assert gpu_state(one) == expected


@pytest.mark.parametrize(
    ("all_of_them", "expected"),
    [
        ([], "idle"),
        ([gpu(), gpu(0)], "mix"),
        ([gpu(0), gpu(0)], "alloc"),
        ([gpu(state="drained"), gpu()], "idle"),
        ([gpu(state="drained"), gpu(state="down")], "drain"),
        ([gpu(5000, "drained", [1]), gpu(state="drained")], "drng"),
        ([gpu(state="down")], "down"),
    ],
)
def test_the_host_is_in_the_state_of_its_gpus(all_of_them, expected):
    assert gpus_state(all_of_them) == expected


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        ("fan [left] is loud [ann]", ("fan [left] is loud", "ann")),
        ("no answer", ("no answer", "-")),
        ("", ("-", "-")),
    ],
)
def test_a_note_tells_who_wrote_it(note, expected):
    assert _who(note) == expected
