"""A GPU is given out by one controller of the host."""

import os
import socket
import subprocess
import sys
import uuid
from contextlib import contextmanager

import pytest

from builders import a_gpu
from driver_host import Host, config_of
from fakecuda import Card
from fgsched.domain.errors import Refused
from fgsched.gpus.ownership import Holder, Ownership, own

GIB = 2**30
HOLD = """
import sys
from fgsched.domain.job import Gpu
from fgsched.gpus.ownership import Ownership
owned = Ownership()
owned.take([Gpu(index=0, uuid=sys.argv[1], model="A100", total=1)])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def gpu():
    return a_gpu(0).__class__(index=0, uuid=f"GPU-{uuid.uuid4()}", model="A100", total=GIB)


@pytest.fixture
def other(gpu):
    """Another process that allocates the GPU."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLD, gpu.uuid], stdin=pipe, stdout=pipe) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def test_a_gpu_that_no_controller_has_can_be_taken_and_released(gpu):
    for _ in range(2):
        owned = Ownership()
        assert owned.take([gpu]) == {}
        assert owned.take([gpu]) == {}
        owned.close()


def test_the_holder_of_a_gpu_is_named_by_process_and_user(gpu, other):
    assert Ownership().take([gpu]) == {0: Holder(pid=other.pid, uid=os.geteuid())}


def test_the_case_of_a_uuid_makes_no_difference(gpu, other):
    shouted = type(gpu)(index=3, uuid=gpu.uuid.upper(), model="A100", total=GIB)
    assert list(Ownership().take([shouted])) == [3]


def test_a_killed_holder_has_released_its_gpu(gpu, other):
    other.kill()
    other.wait()
    owned = Ownership()
    assert owned.take([gpu]) == {}
    owned.close()


def test_a_second_controller_is_refused_and_keeps_none_of_its_gpus(gpu, other):
    free = type(gpu)(index=1, uuid=f"GPU-{uuid.uuid4()}", model="A100", total=GIB)
    with pytest.raises(Refused, match=f"allocates GPU 0.*pid {other.pid}"):
        own([free, gpu], exclusive=True, is_root=False)
    owned = own([free], exclusive=True, is_root=False)
    owned.close()


def test_a_controller_that_is_told_to_share_has_the_other_gpus_for_itself(gpu, other):
    free = type(gpu)(index=1, uuid=f"GPU-{uuid.uuid4()}", model="A100", total=GIB)
    owned = own([free, gpu], exclusive=False, is_root=False)
    assert list(Ownership().take([free])) == [1]
    owned.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_a_name_that_the_kernel_refuses_is_told_and_stops_only_a_controller_that_does_not_share(gpu, caplog):
    strange = type(gpu)(index=0, uuid="x" * 200, model="A100", total=GIB)
    with pytest.raises(Refused, match="cannot be taken for this controller"):
        own([strange], exclusive=True, is_root=True)
    own([strange], exclusive=False, is_root=True).close()
    assert "cannot be taken for this controller" in caplog.text


def test_a_user_cannot_keep_the_controller_of_the_host_from_its_gpus(gpu, caplog):
    with as_user(65534, lambda: own([gpu], exclusive=True, is_root=False)) as pid:
        own([gpu], exclusive=True, is_root=True).close()
        with pytest.raises(Refused):
            own([gpu], exclusive=True, is_root=False)
    assert f"uid 65534 (pid {pid})" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_a_name_without_a_listener_does_not_keep_root_from_starting_either(gpu, caplog):
    def squat():
        mine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mine.bind(f"\0fgsched/gpu/{gpu.uuid.lower()}")
        return mine

    with as_user(65534, squat):
        own([gpu], exclusive=True, is_root=True).close()
        with pytest.raises(Refused, match="an unknown process"):
            own([gpu], exclusive=True, is_root=False)


@contextmanager
def as_user(uid, act):
    """Run a child that does something as another user and then waits."""
    (said, say), (ended, end) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(end)
        os.setuid(uid)
        kept = act()  # until the child exits
        os.write(say, b"ready")
        os.read(ended, 1)
        os._exit(0 if kept else 1)
    os.close(ended)
    os.read(said, 5)
    try:
        yield pid
    finally:
        os.close(end)
        assert os.waitpid(pid, 0)[1] == 0


def test_a_second_home_is_refused_the_cards_of_the_first_until_that_stops(driver, tmp_path):
    driver.gpus(Card("A100", 8 * GIB))
    one, two = (Host(tmp_path / name, "auto", config_of(), driver=driver) for name in ("one", "two"))
    try:
        assert one.run("fgsched", "start").status == 0
        refused = two.run("fgsub", "--gpus=0.5", "--wrap", "true")
        pid = one.run("fgsched", "status", "--json").json["pid"]
        assert (refused.status, refused.out) == (1, ""), refused.err
        assert f"allocates GPU 0: that of uid {os.geteuid()} (pid {pid})" in refused.err
        assert "exclusive = false" in refused.err
        assert one.run("fgsched", "stop").status == 0
        assert two.run("fgsub", "--gpus=0.5", "--wrap", "true").status == 0
    finally:
        for host in (one, two):
            host.open.close()
            host.leave()
