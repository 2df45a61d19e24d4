"""Sentences of refusals whose parts come from several places."""

import pytest

from builders import GIB, PretendHost, a_demand, a_gpu
from fgsched.controller.mpsdaemons import MpsControl
from fgsched.controller.turn import MpsDaemonAnswered
from fgsched.hooks.programs import Ran
from fgsched.launch.fence import Refused, choose


@pytest.mark.parametrize(
    ("ran", "why"),
    [
        (Ran(number=1, problem="exited with status 1", output="An error\n", said="no server"), "no server"),
        (Ran(number=1, problem="exited with status 1", output="An error\nmore\n"), "An error"),
        (Ran(number=1, problem="exited with status 1"), "exited with status 1"),
        (Ran(number=1, status=0), "it starts no server"),
        (Ran(number=1, status=0, output="42\n", said="a warning"), ""),
    ],
)
def test_a_daemon_without_a_server_has_the_best_reason_that_there_is(tmp_path, ran, why):
    events = []
    desk = MpsControl(tmp_path / "lock", lambda *_: None, events.append, PretendHost())
    desk._answered(3, 1, ran)
    desk.close([], [])
    pids = (42,) if ran.output == "42\n" else ()
    assert events == [MpsDaemonAnswered(3, 1, pids, not ran.problem, why)]


def test_a_fence_that_does_not_fit_names_the_other_fences_of_each_gpu():
    gpus = (a_gpu(0, memory=16 * GIB), a_gpu(1, memory=8 * GIB))
    with pytest.raises(Refused) as refused:
        choose(a_demand(memory=12 * GIB), gpus, {}, {gpus[0].uuid: 6 * GIB})
    assert "GPU 0: 12288M of 16384M, and your other fences have 6144M; GPU 1: 12288M of 8192M" in str(
        refused.value
    )


def test_a_fence_of_more_gpus_than_there_are_names_both_numbers():
    with pytest.raises(Refused) as refused:
        choose(a_demand(memory=GIB, gpus=2), (a_gpu(0, memory=16 * GIB),), {}, {})
    assert refused.value.cause == "there are 1 GPUs to choose from, and 2 are needed"
