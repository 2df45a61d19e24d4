"""What one reading of a GPU has: figures of the card and loads of its processes; None where unsupported."""

import os
import select
import subprocess

import pytest

from fakecuda import Card
from fgsched.config.load import Config
from fgsched.domain.errors import BadUsage
from fgsched.domain.job import GpuProcess
from fgsched.gpus import READING, Person, attach
from fgsched.gpus.simulated import FOREIGN_PID, JobLoad, SimulatedGpus, parse, parse_load, uuid

GIB = 1 << 30


@pytest.fixture
def fakejob(driver):
    """The pid of a process that holds memory of the fake driver's card."""
    driver.gpus(Card("A100", 40 * GIB))
    pipe, env = subprocess.PIPE, os.environ | driver.env
    with subprocess.Popen([driver.program, "-"], env=env, stdin=pipe, stdout=pipe, text=True) as one:
        one.stdin.write("alloc 1G\n")
        one.stdin.flush()
        assert one.stdout.readline().split()[:2] == ["alloc", "0"]
        yield one.pid
        one.kill()


@pytest.fixture
def looking(driver, fakejob, monkeypatch):
    """looking() -> the answer to one question about the fake driver's cards."""
    for name, value in driver.env.items():
        monkeypatch.setenv(name, value)
    _, sampler = attach(Config(deadline=10), os.environ)

    def look():
        sampler.ask(READING)
        assert select.select([sampler], [], [], 60)[0], "no answer"
        (answer,) = sampler.read()
        return answer

    yield look
    sampler.close()


@pytest.mark.compiler
def test_a_look_has_the_figures_of_the_card_and_the_load_and_name_of_its_processes(driver, fakejob, looking):
    driver.set(0, power=250_000, energy=123_456, clock=1410, throttle=0x44, utilization=55, sm=80)
    answer = looking()
    reading = answer.readings[0]
    assert (reading.power, reading.energy, reading.clock, reading.memory_clock) == (
        250_000,
        123_456,
        1410,
        1410,
    )
    assert (reading.throttled, reading.utilisation, reading.traffic) == (("power", "heat"), 55, 2)
    assert [one.pid for one in reading.processes] == [fakejob]
    assert 0 < reading.processes[0].busy <= 8000
    assert 0 < reading.processes[0].traffic <= 2000
    assert answer.people == {fakejob: Person(os.getuid(), "fakejob")}
    assert answer.driver == "580.0.0"


@pytest.mark.compiler
def test_figures_that_a_card_does_not_measure_are_none(driver, fakejob, looking):
    driver.set(0, mute=1, power=250_000, energy=123_456, sm=80)
    reading = looking().readings[0]
    assert (reading.power, reading.energy, reading.clock, reading.throttled) == (None, None, None, None)
    assert [(one.busy, one.traffic) for one in reading.processes] == [(None, None)]


def test_simulated_cards_show_the_load_of_their_script(tmp_path):
    script = tmp_path / "script"
    about = '{"pid": 7, "memory": "1G", "sm": 30.5, "uid": 1000, "command": "pmemd"}'
    gpu = '"used": "2G", "power": 100, "clock": 900, "throttled": ["heat"]'
    script.write_text(f'{{"0": {{"processes": [{about}], {gpu}}}}}')
    now = [50.0]
    gpus = SimulatedGpus(gpus=parse("sim:2x16G"), script=script, clock=lambda: now[0])
    first = gpus.answer(READING)
    now[0] = 53.0
    reading, other = (gpus.answer(READING).readings[uuid(index)] for index in (0, 1))
    assert reading.processes == (
        GpuProcess(pid=7, memory=GIB, busy=3050),
        GpuProcess(pid=FOREIGN_PID, memory=2 * GIB),
    )
    assert (reading.power, reading.energy, reading.clock, reading.throttled) == (
        100_000,
        300_000,
        900,
        ("heat",),
    )
    assert (other.power, other.energy, other.throttled) == (None, None, None)
    assert first.people == {7: Person(1000, "pmemd"), FOREIGN_PID: Person(0, "foreign")}
    assert first.readings[uuid(0)].energy == 0


def test_simulated_cards_show_the_load_that_jobs_say():
    load = parse_load("sm=80 mem=12G", gpus=(1,), pid=7)
    assert load == JobLoad(gpus=(1,), pid=7, memory=12 * GIB, busy=8000)
    gpus = SimulatedGpus(gpus=parse("sim:2x16G"), loads=(load,))
    readings = gpus.answer(READING).readings
    assert readings[uuid(0)].processes == ()
    assert (readings[uuid(1)].processes, readings[uuid(1)].used) == (
        (GpuProcess(pid=7, memory=12 * GIB, busy=8000),),
        12 * GIB,
    )


@pytest.mark.parametrize("text", ["sm", "sm=x", "mem=12Q", "gpu=1"])
def test_a_load_that_makes_no_sense_is_refused(text):
    with pytest.raises((BadUsage, ValueError)):
        parse_load(text, gpus=(0,), pid=7)
