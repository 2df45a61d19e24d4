"""A job's fence is proved in its own environment before its script, by the real linker."""

import pytest

import fakecuda
import fgshim
from fgshim import region
from fixtures_spawner import NEEDS_SPAWNER
from spawner_driver import CANCEL, PROVE_FENCE, Gate

pytestmark = NEEDS_SPAWNER
UUID = f"GPU-{'0' * 8}-0000-0000-0000-{'0' * 12}"
NOT_HELD = "its enforcement does not work: "
PAST = "in the job's environment the driver is found past the hook"


def head(job=1, attempt=1, limit=1 << 30):
    return region.pack(job, attempt, [(0, UUID, limit)])


@pytest.fixture
def started(spawner, driver):
    """started(…) -> a job that is to be proved, under the fake driver; `env`: beside what it needs."""
    if not fgshim.library().exists():
        pytest.skip("the hook is not built: run setup.py build_ext --inplace")
    driver.gpus(fakecuda.Card())

    def start(*, env=None, first="", behind="", flags=PROVE_FENCE, hook=None, made=None):
        link = spawner.run / "job/1.1/libfgshim.so"
        preload = ":".join(filter(None, (first, str(link), behind)))
        return spawner.launch(
            "#!/bin/sh\necho ran\n",
            flags=flags,
            hook=str(hook or fgshim.library()),
            env={"LD_PRELOAD": preload, **driver.env, **(env or {})},
            region=head() if made is None else made,
            region_size=region.SIZE,
            grace=100,
        )

    return start


@pytest.fixture
def odd(tmp_path):
    """odd(what, name) -> a library of odd.c."""

    def make(what, path, *flags):
        path.parent.mkdir(exist_ok=True)
        define = [f"-D{what}"] if what else []
        return fakecuda.compile_c([fakecuda.HERE / "odd.c"], path, *define, "-shared", "-fPIC", *flags)

    return make


def refused(job):
    """Why a job was not started; nothing of it ran, and its output says the same."""
    result = job.result()
    assert (result.cause, result.exit_code) == ("launch", 127)
    assert result.detail.startswith(NOT_HELD)
    assert job.output() == f"fgsched: job 1: could not be started: {result.detail}\n"
    return result.detail.removeprefix(NOT_HELD)


def test_a_job_whose_fence_holds_runs_and_nothing_of_the_proof_is_seen(started):
    job = started()
    result = job.result()
    assert (result.cause, result.exit_code, result.detail) == ("exit", 0, "")
    assert job.output() == "ran\n"


def test_a_job_that_is_not_to_be_proved_runs_without_its_hook(started):
    assert started(flags=0, env={"LD_PRELOAD": ""}).result().exit_code == 0


def test_a_job_without_the_hook_is_not_started(started):
    assert refused(started(env={"LD_PRELOAD": ""})) == "the hook is not loaded in the job's environment"


def test_where_there_is_no_driver_nothing_can_be_taken(started):
    job = started(env={"LD_LIBRARY_PATH": ""})
    assert (job.result().exit_code, job.output()) == (0, "ran\n")


def test_a_library_that_answers_in_the_place_of_the_hook_is_seen(started, odd, tmp_path):
    library = odd("TRACES=2", tmp_path / "libfirst.so")
    assert refused(started(first=str(library))) == PAST


@pytest.mark.parametrize("place", ["first", "behind"])
def test_a_library_that_only_looks_on_does_no_harm(started, odd, tmp_path, place):
    library = odd("TRACES=1", tmp_path / "libtraces.so")
    assert started(**{place: str(library)}).result().exit_code == 0


def test_a_driver_that_hides_behind_another_library_is_seen(started, tmp_path):
    front = fakecuda.build_front(tmp_path / "front")
    assert refused(started(env={"LD_LIBRARY_PATH": str(front)})) == PAST


def test_a_driver_whose_look_up_cannot_be_followed_is_seen(started, odd, tmp_path):
    library = odd("LOOKUPS", tmp_path / "odd/libcuda.so.1", "-Wl,-soname,libcuda.so.1")
    said = refused(started(env={"LD_LIBRARY_PATH": str(library.parent)}))
    assert said == "in the job's environment cuGetProcAddress finds the driver past the hook"


@pytest.mark.parametrize("made", [head(job=2), head(attempt=2)], ids=["job", "attempt"])
def test_a_region_of_another_job_is_seen(started, made):
    assert refused(started(made=made)) == "the region that the hook finds is not the job's"


@pytest.mark.parametrize("made", [bytes(len(head())), head()[:40]], ids=["empty", "torn"])
def test_a_region_that_is_not_whole_is_seen(started, made):
    assert refused(started(made=made)) == "the job's user cannot use its region"


def test_a_proof_that_says_nothing_is_none(started):
    """The linker lists the libraries and starts nothing, with status 0."""
    said = refused(started(env={"LD_TRACE_LOADED_OBJECTS": "1"}))
    assert said == "the check in the job's environment gave no answer"


def test_a_hook_without_the_program_beside_it_proves_nothing(started, tmp_path):
    alone = tmp_path / "libfgshim.so"
    alone.write_bytes(fgshim.library().read_bytes())
    assert refused(started(hook=alone)) == "fgprove, beside the hook, could not be executed"


def test_a_job_that_is_cancelled_while_it_is_proved_is_cancelled(started, odd, tmp_path):
    here = Gate(tmp_path / "here")
    library = odd("WAITS", tmp_path / "libwaits.so")
    job = started(behind=str(library), env={"ODD_FILE": str(here.path)})
    assert here.line() == "here"
    job.order(CANCEL)
    assert job.result().cause == "cancel"
    assert "ran" not in job.output()


def test_a_proof_without_a_hook_or_a_region_is_no_message(spawner):
    spawner.expected = b"fgspawn: job 1: launch refused: Invalid argument\n" * 2
    for about in ({"hook": "/h", "region_size": 0}, {"hook": "", "region_size": region.SIZE}):
        job = spawner.launch("#!/bin/sh\n", flags=PROVE_FENCE, **about)
        assert (job.answer.pid, job.answer.errno) == (0, 22)
