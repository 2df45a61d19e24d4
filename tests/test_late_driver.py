"""A GPU driver that does not answer before the controller has started: it is asked again until it does."""

import os

import pytest

import fgshim
from awaiting import until, until_written
from builders import GIB, a_demand
from driver_host import PATIENT, Host, config_of
from fakecuda import Card
from fgsched.config.load import Config
from fgsched.controller.gpumonitor import InventoryRetry, is_needed, pause
from fgsched.domain.errors import FgschedError
from fgsched.domain.job import WHOLE, HostLimits, Request
from fgsched.domain.states import Reason
from fgsched.gpus import INVENTORY, GpuAnswer, Inventory, discover
from fgsched.scheduling.admission import AdmissionContext, Submitter, admit

LATE = Inventory(gpus=(), source="none", note="late", failed=True, is_late=True)
SILENT = GpuAnswer(want=INVENTORY, error="the driver did not answer within 5 s", is_late=True)


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 1), (1, 2), (2, 4), (3, 8), (4, 16), (5, 32), (6, 60), (7, 60), (10**6, 60)]
)
def test_the_pause_doubles_from_a_second_to_a_minute(failures, seconds):
    assert pause(failures) == seconds


@pytest.mark.parametrize(
    ("inventory", "needed"),
    [
        (LATE, True),
        (Inventory(gpus=(), source="none", note="no library", failed=True), False),
        (Inventory(gpus=(), source="none", note="switched off"), False),
        (Inventory(gpus=(), source="nvml", note="the driver shows no GPU"), False),
        (Inventory(gpus=(), source="sim"), False),
        # The queue file lists GPUs; an inventory tells whether the driver limits them.
        (Inventory(gpus=(), source="nvml", note="late", failed=True, is_late=True), True),
        (Inventory(gpus=(), source="nvml", note="it is being upgraded", failed=True), True),
    ],
    ids=range(7),
)
def test_a_driver_is_asked_again_if_it_may_have_more_to_tell(inventory, needed):
    assert is_needed(inventory) is needed


class Asked:
    """A retry at its edges: the times of its questions, and whether it was answered."""

    def __init__(self, needed=True):
        self.now, self.questions, self.answers = 100.0, [], 0
        self.retry = InventoryRetry(needed=needed, ask=self.ask, answered=self.answered, now=self.now)

    def ask(self):
        self.questions.append(self.now - 100)

    def answered(self):
        self.answers += 1

    def wait(self):
        self.now += self.retry.due(self.now)
        self.retry.look(self.now)


def test_each_question_follows_the_answer_to_the_last_and_none_follows_the_inventory():
    asked = Asked()
    asked.retry.look(asked.now)
    assert asked.questions == []
    for _ in range(3):
        asked.wait()
        asked.retry.look(asked.now)
        asked.now += 5
        asked.retry.hear(SILENT, asked.now)
    assert asked.questions == [1, 8, 17]
    asked.wait()
    asked.retry.hear(GpuAnswer(want=INVENTORY), asked.now)
    asked.retry.hear(GpuAnswer(want=INVENTORY), asked.now)
    assert (asked.answers, asked.retry.due(asked.now)) == (1, None)


def test_a_question_that_was_lost_with_its_supervisor_is_repeated():
    asked = Asked()
    asked.wait()
    asked.wait()
    assert asked.questions == [1, 601]


def test_a_driver_that_answered_at_the_start_is_not_asked_again():
    asked = Asked(needed=False)
    asked.retry.look(asked.now + 10**6)
    asked.retry.hear(GpuAnswer(want=INVENTORY), asked.now)
    assert (asked.questions, asked.answers, asked.retry.due(asked.now)) == ([], 0, None)


UNKNOWN = AdmissionContext(
    gpus=(), limits=HostLimits(cpus=4, host_memory=GIB, share_step=1250), are_gpus_unknown=True
)


@pytest.mark.parametrize(
    "demand",
    [a_demand(2500), a_demand(WHOLE, gpus=8), a_demand(memory=40 * GIB), a_demand(WHOLE, gpu_type="h100")],
    ids=range(4),
)
def test_every_request_for_gpus_is_taken_while_the_gpus_are_unknown(demand):
    assert admit(Request(name="x", demand=demand), Submitter(user="bob"), UNKNOWN).demand == demand


@pytest.mark.parametrize(
    "demand", [a_demand(2500, cpus=5), a_demand(1), a_demand(15_000, gpus=2)], ids=range(3)
)
def test_what_no_gpu_could_satisfy_is_refused_while_the_gpus_are_unknown(demand):
    with pytest.raises(FgschedError):
        admit(Request(name="x", demand=demand), Submitter(user="bob"), UNKNOWN)


# Real controllers


@pytest.fixture
def host(driver, tmp_path):
    """A host whose driver answers once `answering(host)` exists."""
    if not fgshim.library().exists():
        pytest.skip("the hook is not built: run setup.py build_ext --inplace")
    driver.gpus(Card("H100", 8 * GIB))
    extra = {"FAKE_NVML_AWAITS": str(tmp_path / "answers")}
    one = Host(tmp_path / "home", "auto", config_of(deadline=1), driver=driver, extra=extra)
    yield one
    one.open.close()
    one.leave()


def answer(host):
    """Let the driver answer. The controller that then executes itself again has patience with a busy host."""
    (host.path / "fgsched.toml").write_text(config_of(deadline=PATIENT))
    (host.path.parent / "answers").touch()


def status(host):
    return host.run("fgsched", "status", "--json").json


def starts(host):
    return host.paths.log.read_text().count("event=controller-start ")


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("devices", "shown"),
    [
        ("auto", "the driver shows no such GPU, or has not answered yet (see fgsched status)"),
        ("0,", "0 of 1 accept jobs (see fginfo -R)"),
    ],
    ids=["all GPUs", "a list of GPUs"],
)
def test_a_job_that_needs_a_gpu_waits_for_a_late_driver_and_runs_once_it_answers(host, devices, shown):
    host.devices = devices
    out = host.path / "out"
    assert host.run("fgsched", "start").status == 0
    before = status(host)
    assert before["note"] == "the driver did not answer within 5 s; asked again until it answers"
    other = host.running(share=0)
    done = host.run("fgsub", "--parsable", "--gpus=1", f"--output={out}", "--wrap", "echo ran")
    assert (done.status, done.err) == (0, "")
    assert host.job(int(done.out))["reason"] == Reason.GPU_DRAINED.value
    why = host.run("fgq", "--why", done.out.strip()).out
    assert "GpuDrained" in why
    assert shown in why
    answer(host)
    assert until_written(out, "ran\n") == "ran\n"
    after = status(host)
    assert (after["gpus"], after["source"], after["note"]) == (1, "nvml", "")
    assert after["pid"] == before["pid"]
    assert host.job(other)["state"] == "RUNNING"


@pytest.mark.compiler
@pytest.mark.parametrize(("devices", "state"), [("auto", "suspect"), ("0,", "suspect"), ("0,", "drain")])
def test_a_late_driver_of_known_gpus_is_asked_for_its_limits_once_it_answers(host, devices, state):
    host.devices = devices
    answer(host)
    host.run("fgsched", "start")
    assert status(host)["gpus"] == 1
    if state == "drain":
        assert host.run("fgctl", "drain", "gpu=0", "reason=fan").status == 0
    host.run("fgsched", "stop")
    (host.path.parent / "answers").unlink()
    (host.path / "fgsched.toml").write_text(config_of(deadline=1))
    host.run("fgsched", "start")
    pid, earlier = status(host)["pid"], starts(host)
    assert host.gpu()["state"] == state
    answer(host)
    until(host.path, lambda: starts(host) == earlier + 1)
    assert (status(host)["pid"], status(host)["note"]) == (pid, "")
    assert (host.gpu()["state"] == "drain") is (state == "drain")


@pytest.mark.compiler
def test_a_host_without_driver_still_refuses_gpus_at_submission(host, tmp_path):
    host.extra["LD_LIBRARY_PATH"] = str(tmp_path)
    if discover(Config(), os.environ).gpus:
        pytest.skip("this host has a driver")
    done = host.run("fgsub", "--gpus=1", "--wrap", "true")
    assert done.status == 1
    assert "the host has no GPUs" in done.err
