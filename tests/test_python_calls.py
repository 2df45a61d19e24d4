"""Functions as jobs: results, every ending, what is refused, and what outlives the process that submitted."""

import asyncio
import concurrent.futures
import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fgsched
import fgshim
import pycalls
from awaiting import PATIENCE, until_written
from driver_host import hosting
from fakecuda import Card
from fgsched import protocol
from fgsched.domain.errors import BadUsage
from fgsched.python import task
from fgsched.python.job import _handle
from fgsched.python.pickling import CallParts, dumps

GIB = 1 << 30


def use(host, monkeypatch):
    """Have this process address the controller of a host; the commands and jobs of it find the tests."""
    for name, value in host.environ.items():
        monkeypatch.setenv(name, value)
    host.run("fgq")  # a command starts the controller
    return host


@pytest.fixture
def here(home, monkeypatch):
    return use(home, monkeypatch)


def test_a_call_returns_what_the_function_returns(here):
    job = fgsched.submit(pycalls.add, 3, second=4, gpus=0.5, job_name="sum")
    assert job.result(PATIENCE) == 7
    assert (job.done(), job.cancelled(), job.exception()) == (True, False, None)
    assert (job.state, job.reason, job.exit_code, job.gpus) == ("COMPLETED", "None", 0, (0,))
    described = here.job(job.id)
    assert described["name"] == "sum"
    assert job.usage().attempts == 1


def test_functions_of_this_process_go_by_value(here):
    factor = 6
    assert fgsched.submit(lambda number: number * factor, 7).result(PATIENCE) == 42


def test_an_exception_is_raised_again_with_the_traceback_of_the_job(here):
    job = fgsched.submit(pycalls.fail, "no such row")
    with pytest.raises(LookupError, match="no such row") as caught:
        job.result(PATIENCE)
    assert isinstance(caught.value.__cause__, fgsched.RemoteTraceback)
    assert "in fail" in str(caught.value.__cause__)
    assert job.exception() is caught.value
    assert (job.state, job.exit_code) == ("FAILED", 1)


ENDS = {
    "an exception that cannot be read again": (pycalls.fail_oddly, (), fgsched.CallFailed, "OddError"),
    "an exit code": (pycalls.leave, (3,), fgsched.CallFailed, r"ended its process: SystemExit\(3\)"),
    "a signal": (pycalls.die, (9,), fgsched.JobDied, "by signal 9, .*\n  the last words"),
    "an exit without a result": (pycalls.drop, (5,), fgsched.JobDied, "with exit code 5"),
    "a result that cannot be sent": (pycalls.generator, (), fgsched.ResultNotPicklable, "generator"),
}


@pytest.mark.parametrize("end", ENDS)
def test_each_end_without_a_result_has_its_own_error(here, end):
    function, arguments, kind, text = ENDS[end]
    with pytest.raises(kind, match=text) as caught:
        fgsched.submit(function, *arguments).result(PATIENCE)
    error = caught.value
    assert (error.state, error.job) == ("FAILED", "1")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.job) == (kind, str(error), "1")


def test_a_job_that_exceeds_its_time_limit_has_an_error_with_the_limit(here):
    job = fgsched.submit(pycalls.wait_for_ever, time="1s")
    with pytest.raises(fgsched.TimeLimitReached, match="limit of 1 s") as caught:
        job.result(PATIENCE)
    assert caught.value.limit == 1
    assert caught.value.used >= 1


def test_a_running_job_can_be_cancelled(here, tmp_path):
    gate = tmp_path / "gate"
    job = fgsched.submit(pycalls.wait_for_ever, str(gate))
    until_written(gate)
    assert job.cancel()
    assert job.cancelled()
    with pytest.raises(concurrent.futures.CancelledError, match=f"by uid {os.geteuid()}") as caught:
        job.result(PATIENCE)
    assert caught.value.by == os.geteuid()


def test_a_job_that_is_cancelled_by_a_command_is_cancelled_here(here):
    job = fgsched.submit(pycalls.add, 1, hold=True)
    here.run("fgcancel", str(job.id))
    with pytest.raises(fgsched.JobCancelled):
        job.result(PATIENCE)
    assert job.cancel()


def test_a_job_that_has_ended_cannot_be_cancelled(here):
    job = fgsched.submit(pycalls.add, 1)
    job.result(PATIENCE)
    assert not job.cancel()


@pytest.mark.compiler
def test_a_refused_allocation_is_an_error_with_its_figures(driver, tmp_path, monkeypatch):
    if not fgshim.library().exists():
        pytest.skip("the hook is not built: run setup.py build_ext --inplace")
    with hosting(tmp_path / "home", driver, Card("A100", 40 * GIB, context=256 << 20)) as host:
        use(host, monkeypatch)
        job = fgsched.submit(pycalls.exceed, str(driver.program), "2G", gpu_mem="1G")
        with pytest.raises(fgsched.GpuOutOfMemory, match='for the next run: gpu_mem="3G"') as caught:
            job.result(PATIENCE)
        assert isinstance(caught.value.__cause__, MemoryError)
        assert (caught.value.asked, caught.value.limit) == (2 * GIB, GIB)
        assert (
            fgsched.submit(pycalls.exceed, str(driver.program), "256M", gpu_mem="1G").result(PATIENCE) is None
        )


def test_a_result_that_does_not_come_in_time_is_a_timeout(here):
    job = fgsched.submit(pycalls.add, 1, hold=True)
    with pytest.raises(TimeoutError, match=f"job {job.id} has not ended after 0 s"):
        job.result(0)
    assert not job.done()
    assert "held" in str(job.why())
    job.update(time="3h", job_name="other")
    described = here.job(job.id)
    assert (described["time_limit"], described["name"]) == (3 * 3600, "other")
    job.release()
    assert job.result(PATIENCE) == 1


def test_a_requeued_job_runs_again_and_its_result_is_that_of_the_last_run(here, tmp_path):
    gate = tmp_path / "gate"
    job = fgsched.submit(pycalls.wait_for_ever, str(gate))
    until_written(gate)
    gate.unlink()
    job.requeue()
    until_written(gate)
    assert not job.done()
    job.cancel()


def test_a_command_is_a_job_that_returns_nothing(here):
    job = fgsched.submit(["sh", "-c", "echo out; echo err >&2"])
    assert job.result(PATIENCE) is None
    assert (job.stdout(), job.stderr(), job.stdout(tail=3)) == ("out\n", "err\n", "ut\n")
    with pytest.raises(fgsched.JobDied, match="with exit code 3"):
        fgsched.submit(["sh", "-c", "exit 3"]).result(PATIENCE)


def test_a_result_outlives_the_process_that_submitted_the_call(here):
    program = "import fgsched, pycalls; print(fgsched.submit(pycalls.add, 20, 22).id)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    job = fgsched.job(int(done.stdout))
    assert job.result(PATIENCE) == 42
    assert [other.id for other in fgsched.jobs(state="COMPLETED")] == [job.id]
    assert pickle.loads(pickle.dumps(job)).result(PATIENCE) == 42


def test_a_call_and_its_results_are_closed_to_others(here):
    job = fgsched.submit(pycalls.speak, "word")
    job.result(PATIENCE)
    [folder] = folders(here)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert (job.stdout(), job.stderr()) == ("word\n", "WORD\n")


def test_what_the_job_of_another_user_has_pickled_is_not_read(here):
    job = fgsched.submit(pycalls.add, 1)
    job.result(PATIENCE)
    info = here.client.call(protocol.ShowJobs(id=job.id)).jobs[0]
    assert _handle(info, here.paths).result() == job.result()
    assert _handle(msgspec.structs.replace(info, uid=info.uid + 1), here.paths).result() is None


def folders(home):
    return list((home.paths.state / "calls").glob("call-*"))


def test_a_forgotten_result_is_gone(here):
    job = fgsched.submit(pycalls.add, 1)
    with pytest.raises(BadUsage, match="has not ended"):
        fgsched.forget(fgsched.submit(pycalls.add, 1, hold=True))
    job.result(PATIENCE)
    assert fgsched.calls.usage().calls == 2
    fgsched.forget(job)
    with pytest.raises(fgsched.ResultGone, match="was removed"):
        fgsched.job(job.id).result(PATIENCE)
    assert fgsched.calls.usage().calls == 1


def test_a_call_beyond_the_limit_of_all_calls_is_refused_with_the_figures(here):
    fgsched.submit(pycalls.add, bytes(3 << 20), hold=True)
    with pytest.raises(fgsched.FgschedError, match=r"GiB of calls and results; the limit is 0\.0"):
        fgsched.submit(pycalls.add, 1, calls_limit="2M")
    assert len(folders(here)) == 1


def test_a_refused_submission_leaves_no_call(here):
    with pytest.raises(fgsched.FgschedError, match="invalid partition"):
        fgsched.submit(pycalls.add, 1, partition="no such")
    with pytest.raises(fgsched.FgschedError, match="nowhere"):
        fgsched.submit(pycalls.add, 1, partition="nowhere")
    assert folders(here) == []


class Holder:
    def __init__(self):
        self.lock = threading.Lock()


REFUSED = {
    "a lock in an attribute": (pycalls.add, (1, Holder()), r"argument 2, attribute \.lock .*_thread\.lock"),
    "a lock in a list": (pycalls.add, ([{"a": threading.Lock()}],), "argument 1, item 0, key 'a' cannot"),
    "a generator": (pycalls.add, (pycalls.generator(),), "argument 1 cannot be sent to a job: generator"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_pickled_is_refused_with_the_path_to_it(what):
    function, arguments, text = REFUSED[what]
    with pytest.raises(fgsched.NotPicklable, match=text):
        fgsched.submit(function, *arguments)


def test_a_tensor_on_a_gpu_of_this_process_is_refused(monkeypatch):
    tensor = type("Tensor", (), {"is_cuda": True, "__module__": "torch"})
    with pytest.raises(fgsched.NotPicklable, match=r"argument 1, item 0 .*send x\.cpu\(\)"):
        fgsched.submit(pycalls.add, [tensor()])


def test_a_closure_is_searched_for_what_cannot_be_pickled():
    lock = threading.Lock()
    with pytest.raises(fgsched.NotPicklable, match="the function <lambda>, variable lock cannot be sent"):
        fgsched.submit(lambda: lock)


MISTAKES = {
    "an argument too much": ((1, 2, 3), {}, "add: too many positional arguments"),
    "an option that others have": ((1,), {"num_gpus": 1}, "--gpus=0.5"),
    "a slip in an option": ((1,), {"gpu": 1}, "did you mean the option gpus=?"),
    "an option of arrays": ((1,), {"array": "1-3"}, "use fgsched.map"),
    "an option without its value": ((1,), {"gpus": True}, "it needs a value"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_call_is_a_type_error(here, mistake):
    arguments, keywords, text = MISTAKES[mistake]
    with pytest.raises(TypeError) as caught:
        fgsched.submit(pycalls.add, *arguments, **keywords)
    assert text in str(caught.value)


def timed(time):
    return time


def test_a_parameter_with_the_name_of_an_option_is_told_apart_by_fg_or_options(here):
    with pytest.raises(TypeError, match=r"fg=dict\(time=…\)"):
        fgsched.submit(timed, time=3)
    jobs = [
        fgsched.submit(pycalls.add, 3, fg={"time": "2h"}),
        fgsched.submit(fgsched.options(time="2h")(lambda time: time), time=3),
    ]
    assert [job.result(PATIENCE) for job in jobs] == [3, 3]
    assert [here.job(job.id)["time_limit"] for job in jobs] == [7200, 7200]


def test_each_option_of_fgsub_is_one_of_a_call_or_is_refused_with_a_reason():
    from fgsched.python.submission import NOT_HERE, option_of, settings_of
    from fgsched.submission.table import OPTIONS

    for option in OPTIONS:
        name = option.name.replace("-", "_")
        assert option_of(name) is option
        if option.is_flag:
            if option.name in NOT_HERE:
                with pytest.raises(TypeError, match="has no meaning here"):
                    settings_of({name: True})
            else:
                [setting] = settings_of({name: True})
                assert setting.option.name == option.name


def test_the_end_of_a_job_is_told_to_callbacks_and_to_concurrent_futures(here):
    jobs = [fgsched.submit(pycalls.add, number) for number in range(3)]
    told = concurrent.futures.Future()
    jobs[0].add_done_callback(told.set_result)
    assert told.result(PATIENCE) is jobs[0]
    done, rest = concurrent.futures.wait(jobs, PATIENCE)
    assert (len(done), len(rest)) == (3, 0)
    assert {job.result() for job in concurrent.futures.as_completed(jobs, PATIENCE)} == {0, 1, 2}


def test_an_event_loop_waits_for_jobs_and_leaves_them_when_it_stops_waiting(here):
    async def gathered():
        held = fgsched.submit(pycalls.add, 9, hold=True)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(held, 0.01)
        assert not held.done()
        held.release()
        return await asyncio.gather(held, *(fgsched.submit(pycalls.add, number) for number in (1, 2)))

    assert asyncio.run(gathered()) == [9, 1, 2]


def test_a_handle_waits_through_a_restart_of_the_controller(here):
    job = fgsched.submit(pycalls.add, 1, hold=True)
    assert here.run("fgsched", "stop").status == 0
    assert "does not answer" in str(job.why()) or job.why().text
    here.run("fgctl", "release", str(job.id))  # it starts a controller
    assert job.result(PATIENCE) == 1


def test_a_map_is_one_array_and_its_results_have_the_order_of_the_arguments(here):
    array = fgsched.map(pycalls.add, [1, 2, 3], (10, 20, 30), gpus=0.25)
    assert array.results(timeout=PATIENCE) == [11, 22, 33]
    assert [job.label for job in array] == [f"{array.id}_{task}" for task in range(3)]
    assert array.summary() == {"COMPLETED": 3}
    assert fgsched.job(f"{array.id}_1").result(PATIENCE) == 22
    assert len(folders(here)) == 1
    with pytest.raises(BadUsage, match=r'fgsched\.job\("1_0"\)'):
        fgsched.job(array.id)


def test_a_map_of_nothing_is_empty_and_queues_nothing(here):
    assert fgsched.map(pycalls.add, []).results() == []
    assert here.queue("id") == []


def test_errors_of_a_map_can_stand_in_the_place_of_results(here):
    array = fgsched.map(lambda number: 6 // number, [2, 0, 3], at_once=1)
    first, second, third = array.results(return_exceptions=True, timeout=PATIENCE)
    assert (first, type(second), third) == (3, ZeroDivisionError, 2)
    with pytest.raises(ZeroDivisionError):
        array.results()


def test_jobs_of_a_map_come_as_they_end(here):
    array = fgsched.map(pycalls.add, range(4))
    assert sorted(job.result() for job in array.as_completed(PATIENCE)) == [0, 1, 2, 3]

    async def collected():
        return [await job async for job in fgsched.as_completed(array)]

    assert sorted(asyncio.run(collected())) == [0, 1, 2, 3]


def test_a_map_is_cancelled_as_a_whole_and_by_commands(here):
    array = fgsched.map(pycalls.add, range(5), hold=True)
    here.run("fgcancel", f"{array.id}_[1-2]")
    for job in array[1:3]:
        with pytest.raises(fgsched.JobCancelled):
            job.result(PATIENCE)
    assert not array[0].done()
    assert array.cancel()
    assert all(job.cancelled() for job in array)
    assert array.summary() == {"CANCELLED": 5}


def test_a_common_argument_is_stored_once_and_mapped(here):
    large = bytearray(1 << 20)
    large[:3] = b"abc"
    array = fgsched.map(lambda data, place: data[place], [pickle.PickleBuffer(large)] * 3, range(3))
    assert bytes(array.results(timeout=PATIENCE)) == b"abc"
    [folder] = folders(here)
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    assert sizes["buffer.0"] == 1 << 20
    assert sizes["call"] + sizes["args"] < 4096


class TestTheFilesOfACall:
    @given(st.lists(st.binary(max_size=50), min_size=1, max_size=20))
    def test_each_task_reads_its_own_arguments(self, tmp_path_factory, parts):
        path = tmp_path_factory.mktemp("call") / "args"
        path.write_bytes(task.joined(parts))
        assert [task._part(path, index) for index in range(len(parts))] == parts

    @given(st.recursive(st.none() | st.integers() | st.text() | st.binary(), st.lists, max_leaves=8))
    def test_arguments_are_read_as_they_were(self, tmp_path_factory, value):
        folder = tmp_path_factory.mktemp("call")
        (folder / task.CALL).write_bytes(dumps(CallParts((pycalls.add, (value,), {"second": value})), "", []))
        assert task.read_call(folder, 0) == (pycalls.add, (value,), {"second": value})

    def test_a_result_that_was_not_written_to_its_end_is_not_there(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "fsync", lambda descriptor: os.kill(os.getpid(), signal.SIGKILL))
        if (pid := os.fork()) == 0:
            task.write_result(tmp_path / "0.out", b"half")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        assert not (tmp_path / "0.out").exists()

    def test_a_task_with_a_result_is_not_run_again(self, tmp_path):
        (tmp_path / "0.out").write_bytes(b"")
        done = subprocess.run(
            [sys.executable, "-P", task.__file__, str(tmp_path)], check=False, timeout=PATIENCE
        )
        assert done.returncode == 0


def test_a_changed_module_is_named_on_standard_error(here, tmp_path, monkeypatch):
    module = tmp_path / "changing.py"
    module.write_text("def answer():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import changing

    job = fgsched.submit(changing.answer, hold=True)
    module.write_text("def answer():\n    return 23\n")
    job.release()
    assert job.result(PATIENCE) == 23
    assert f"{module} has changed since the call was submitted" in job.stderr()


def test_the_lines_of_the_readme_run_as_they_stand(here, capsys):
    """With a small function in place of a training."""
    for page in ("README.md", "docs/python.md"):
        text = (Path(__file__).parent.parent / page).read_text()
        block = text.partition("```python\n")[2].partition("```")[0]
        names = {"train": len}
        exec(compile(block, page, "exec"), names)
        assert (names["loss"], names["losses"]) == (len("cfg.yaml"), [len("a.yaml"), len("b.yaml")])


def test_importing_fgsched_imports_nothing_of_the_interface():
    program = "import fgsched, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not [name for name in done.stdout.split() if name.startswith(("fgsched.", "asyncio", "msgspec"))]


def test_all_names_of_the_stub_can_be_imported():
    stub = Path(fgsched.__file__).with_suffix(".pyi").read_text()
    names = stub.partition("__all__ = [")[2].partition("]")[0].replace('"', "").replace(",", "").split()
    assert len(names) > 20
    assert {name for name in names if not hasattr(fgsched, name)} == set()
