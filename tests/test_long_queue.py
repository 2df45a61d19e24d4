"""A queue with thousands of jobs, after its controller was killed."""

import os
import secrets
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from crashing import kill_controller
from live_host import Home, living

CONFIG = '[mail]\nsend = "off"\n[partitions.main]\n[partitions.night]\nstate = "down"\n'
COUNT = 4296  # jobs
EVERY = 8  # one job of so many is held in partition main; the others wait in partition night
CANCELLED, NICED = 5, 4199  # jobs that are changed before the controller is killed
FIELDS = ("id", "name", "user", "partition", "state", "reason", "held", "nice", "command", "submitted_at")


class Killed(NamedTuple):
    """A home whose controller was killed."""

    home: Home
    array: int  # the id of a held array, the last of the jobs
    before: list[object]  # the open jobs, as the controller had them


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    path = tmp_path_factory.mktemp("long")
    with living(path / "home", config=CONFIG) as home:
        submit(home)
        array = int(home.run("fgsub", "--hold", "--parsable", "--array=0-9999", "--wrap", "true").out)
        assert home.run("fgcancel", str(CANCELLED)).status == 0
        assert home.run("fgctl", "update", f"job={NICED}", "nice=7").status == 0
        before = list(home.queue(*FIELDS))
        kill_controller(home)
        yield Killed(home, array, before)


def is_held(job: int) -> bool:
    return job % EVERY == 0


def submit(home: Home) -> None:
    """Submit jobs in one request, which differ in their names and command lines."""
    asked = [
        {
            "name": f"job{number}",
            "chdir": str(home.path),
            "demand": {"gpus": 1, "share": 2500},
            "partition": "main" if is_held(number) else "night",
            "args": [str(number)],
            "submit_line": f"fgsub job.sh {number} {'x' * 900}",
        }
        for number in range(1, COUNT + 1)
    ]
    home.client.ask(
        "submit",
        key=secrets.token_hex(16),
        scripts=["#!/bin/sh\necho $FG_JOB_ID $1 >>witness\n"],
        environments=[{"PATH": os.environ["PATH"]}],
        requests=asked,
        jobs=[[number - 1, 0, 0, is_held(number)] for number in range(1, COUNT + 1)],
    )


def test_after_a_kill_all_jobs_are_there_once_and_some_run_and_some_are_cancelled(killed):
    home, listed = killed.home, ("-h", "--sort=i", "-o", "%i %j %T")
    rows = {job: f"{job} job{job} PENDING" for job in range(1, COUNT + 1) if job != CANCELLED}
    array = f"{killed.array}_[0-9999] wrap PENDING"
    assert home.run("fgq", *listed).lines == [*rows.values(), array]
    assert list(home.queue(*FIELDS)) == killed.before
    moved, released, cancelled = ["1", "4097", str(NICED)], ["8", "4096"], ["2", "4098", str(killed.array)]
    run = [*moved, *released]
    assert home.run("fgctl", "update", f"job={','.join(moved)}", "partition=main").status == 0
    assert home.run("fgctl", "release", *released).status == 0
    assert home.run("fgcancel", *cancelled).status == 0
    assert home.run("fgwait", *run).status == 0
    assert sorted((home.path / "witness").read_text().splitlines()) == sorted(f"{job} {job}" for job in run)
    left = [row for job, row in rows.items() if str(job) not in (*run, *cancelled)]
    assert home.run("fgq", *listed).lines == left
    ended = {job: "COMPLETED" for job in run} | {job: "CANCELLED" for job in cancelled[:2]}
    rows = [f"{job} job{job} {ended[job]}" for job in sorted(ended, key=int)]
    assert home.run("fgq", *listed, "-t", "all", "-j", ",".join(ended)).lines == rows
