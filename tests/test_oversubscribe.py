"""Oversubscribed GPUs: jobs hold a multiple of a card, each with the limit of its part of the real one."""

import re
import sqlite3

import pytest

from builders import GIB, LIMITS, World, a_demand, a_gpu
from fgsched import protocol
from fgsched.cli import doctor, show
from fgsched.domain.job import WHOLE, Hold
from fgsched.domain.states import JobState, Reason
from fgsched.scheduling.placement import place, rooms
from fgsched.system.paths import Paths
from fgsched.views import documents
from fgsched.views.host import oversubscribed
from fgsched.views.wording import why
from live_host import living

DOUBLE = a_gpu(0, capacity=2 * WHOLE)


def test_a_gpu_with_factor_2_takes_four_halves_with_the_limit_of_a_real_half():
    held = []
    for _ in range(4):
        [hold] = place(a_demand(5000), rooms([DOUBLE], held, {}), LIMITS)
        assert hold == Hold(gpu=0, share=5000, memory=8 * GIB)
        held.append((hold, False))
    short = place(a_demand(5000), rooms([DOUBLE], held, {}), LIMITS)
    assert (short.reason, short.remaining, short.capacity) == (Reason.RESOURCES, 0, 2 * WHOLE)
    assert why(short) == ("needs 0.5 of one GPU; GPU 0 has 0 left (oversubscribed: jobs may hold 2 of it)")


def test_a_gpu_without_a_factor_is_full_with_two_halves():
    half = Hold(gpu=0, share=5000, memory=8 * GIB)
    short = place(a_demand(5000), rooms([a_gpu(0)], [(half, False)] * 2, {}), LIMITS)
    assert (short.reason, short.remaining, short.capacity) == (Reason.RESOURCES, 0, 0)
    assert "oversubscribed" not in why(short)


def test_memory_alone_is_oversubscribed_by_the_same_factor():
    held = [(Hold(gpu=0, share=100, memory=12 * GIB), False)] * 2
    short = place(a_demand(100, 12 * GIB), rooms([DOUBLE], held, {}), LIMITS)
    assert (short.reason, short.remaining) == (Reason.GPU_MEMORY, 8 * GIB)
    assert place(a_demand(100, 8 * GIB), rooms([DOUBLE], held, {}), LIMITS)[0].memory == 8 * GIB


def test_no_job_gets_more_than_the_real_gpu():
    world = World([DOUBLE])
    world.submit([a_demand(memory=17 * GIB)])
    world.settle()
    assert (world.job(1).state, world.holds()) == (JobState.PENDING, [])


def test_the_queue_refuses_holds_beyond_the_factor():
    world = World([DOUBLE])
    world.submit([a_demand(WHOLE), a_demand(WHOLE)])
    world.settle()
    assert [hold.share for hold in world.holds()] == [WHOLE, WHOLE]
    with world.store.write():
        world.store.put_gpus([a_gpu(0, capacity=15_000)])
    with pytest.raises(sqlite3.IntegrityError, match="held beyond what it has"):
        world.store._db.execute("UPDATE hold SET share = 9000 WHERE job = 1")


def test_sinfo_says_force_with_the_factor_rounded_up():
    factors = [[], [WHOLE], [WHOLE, 15_000]]
    assert [oversubscribed(a_gpu(0, capacity=one) for one in some) for some in factors] == [
        "NO",
        "NO",
        "FORCE:2",
    ]


def test_commands_mark_an_oversubscribed_gpu_and_its_jobs(tmp_path):
    config = '[host]\ncpus = 64\n[mail]\nsend = "off"\n[per_gpu.0]\noversubscribe = 2.0\n'
    with living(tmp_path / "home", config=config, devices="sim:1x16G") as home:
        first = home.submit("exec sleep 1000000", share=5000, count=2)
        assert re.search(r" 1\.0/2\.0 +16384M/", home.run("fginfo", "-g").out)
        home.submit("exec sleep 1000000", share=5000, count=3)
        [waiting] = [job for job in home.queue("id", "state", "cause") if job.state is JobState.PENDING]
        assert "oversubscribed: jobs may hold 2 of it" in why(waiting.cause)
        job = home.client.call(protocol.ShowJob(id=first))
        [gpu] = home.client.call(protocol.ListGpus()).gpus
        assert (job.oversubscribed, job.allocated[0].memory) == (2 * WHOLE, 8 * GIB)
        lines = documents.text([show.GROUPS["job"](job)], oneliner=False)
        assert "Oversubscribe=2 (GPU memory up to its limit is not guaranteed)" in lines
        lines = documents.text([show.GROUPS["gpu"](gpu)], oneliner=False)
        assert "Fraction=2  FreeFraction=0\n   Oversubscribe=2\n" in lines


def test_the_doctor_warns_of_each_oversubscribed_gpu(tmp_path):
    (tmp_path / "fgsched.toml").write_text("[gpus]\noversubscribe = 1.5\n[per_gpu.1]\noversubscribe = 2\n")
    paths = Paths.find({"FG_HOME": str(tmp_path)}, 0)
    found = doctor._oversubscribed(paths, doctor._Seen(None, "", frozenset()))
    text = "every GPU by 1.5, GPU 1 by 2: the GPU memory of jobs is not guaranteed"
    assert (found.verdict, found.text) == (doctor.WARN, text)
