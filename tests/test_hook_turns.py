"""The hook and the arbiter: processes on a shared GPU take turns, and a bad one costs the others little."""

import os
import random
import resource
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, chdir, contextmanager

import pytest

from arbiter import POLICIES, WELCOME, Arbiter, Page
from awaiting import PATIENCE, rest
from fakecuda import Card
from fakecuda.job import make_job
from fgshim import region

pytestmark = pytest.mark.compiler
GIB = 1 << 30
HELD, NONE, PARKED = region.TURN_HELD, region.TURN_NONE, region.TURN_PARKED
FOREVER = 100_000_000
MANY, FEW = 54321, 54322  # users: of many jobs and processes, and of few


def until(is_so, what):
    """Look again and again: a page of shared memory tells nothing by itself."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, what
        rest()


@pytest.fixture
def arbiter(tmp_path):
    with Arbiter(tmp_path / "lock") as running:
        yield running


@pytest.fixture
def sharing(driver, tmp_path, arbiter):
    """sharing(policy, share, …) -> jobs of one GPU that the arbiter knows, and a look at the page of each."""
    [gpu] = driver.gpus(Card(memory=8 * GIB))
    pages, started = [], []

    def make(*shares):
        jobs = []
        for number, (policy, share) in enumerate(shares):
            jobs.append(
                make_job(
                    driver, tmp_path / f"job{number}", [(gpu, GIB)], job=number, pacing=[(policy, share)]
                )
            )
            path = arbiter.add(number, jobs[-1].folder, policy, share)
            until(lambda at=path: connected(pages, at), "the arbiter listens")
        return jobs, pages

    def start(job, *words, **extra):
        command = [job.driver.launcher, *map(str, words)]
        started.append(
            subprocess.Popen(command, env=job.environment(**extra), stdout=subprocess.PIPE, text=True)
        )
        return started[-1]

    make.start = start
    yield make
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
    for page in pages:
        page.close()


def told(process):
    """(status, launches) of a launcher that ends."""
    words = process.communicate(timeout=PATIENCE)[0].split()
    return int(words[0]), int(words[1])


def test_one_job_at_a_time_launches_and_all_launches_come(sharing):
    jobs, pages = sharing(("hard", 2500), ("hard", 7500))
    running = [sharing.start(job, "kernel", 200_000, 1500) for job in jobs]
    looks = []
    while any(process.poll() is None for process in running):
        looks.append(tuple(page.word for page in pages))
    assert [told(process) for process in running] == [(0, 1500)] * 2
    assert {(HELD, NONE), (NONE, HELD)} <= set(looks)
    both = sum(NONE not in words for words in looks)
    assert both <= len(looks) / 50, "a turn may pass on between the looks at two pages"


def test_a_job_that_pauses_gives_its_turn_to_the_other(sharing):
    jobs, pages = sharing(("fair", 5000), ("fair", 5000))
    first = sharing.start(jobs[0], "kernel", 100_000, FOREVER, 4)
    until(lambda: pages[0].word == HELD, "the first one has the turn")
    assert told(sharing.start(jobs[1], "kernel", 100_000, 200, 4)) == (0, 200)
    assert first.poll() is None


def test_a_gpu_that_no_other_job_wants_is_left_parked_and_resumed_without_a_wait(sharing):
    [job], [page] = sharing(("fair", 5000))
    assert told(sharing.start(job, "kernel", 10_000, 10)) == (0, 10)
    until(lambda: page.word == PARKED, "its turn is parked")
    assert told(sharing.start(job, "kernel", 10_000, 10)) == (0, 10)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_killed_or_stopped_in_its_turn_costs_the_others_a_bounded_time(sharing, end):
    jobs, pages = sharing(("hard", 5000), ("hard", 5000))
    first = sharing.start(jobs[0], "kernel", 500_000, FOREVER)
    second = sharing.start(jobs[1], "kernel", 500_000, FOREVER)
    until(lambda: pages[1].word == HELD, "the second one had a turn")
    for _ in range(3):
        until(lambda: pages[0].word == HELD, "the first one has the turn")
        began = time.monotonic()
        first.send_signal(end)
        until(lambda: pages[1].word == HELD, "the turn passes on")
        assert time.monotonic() - began <= 2.1, "the watchdog's bound; usually some milliseconds"
        if end == signal.SIGKILL:
            break
        first.send_signal(signal.SIGCONT)
    assert second.poll() is None


def test_rubbish_in_the_page_of_one_job_does_not_stop_the_other(sharing):
    jobs, pages = sharing(("fair", 5000), ("hard", 5000))
    noise = random.Random(1)
    second = sharing.start(jobs[1], "kernel", 200_000, 1000)
    while second.poll() is None:
        at = noise.randrange(0, 4096 - 64)
        pages[0].memory[at : at + 64] = noise.randbytes(64)
        pages[0].poke()
    assert told(second) == (0, 1000)


@pytest.mark.root
def test_the_page_of_a_job_is_given_to_no_process_of_another_user(arbiter, tmp_path):
    """Root is another user than the job's, too."""
    words = f"+ 1 1 {os.geteuid() + 1} 1 0 0 {POLICIES['hard']} 5000 {tmp_path}"
    arbiter.control.send(words.encode())
    until((tmp_path / "turns").exists, "the arbiter listens")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.settimeout(PATIENCE)
        stranger.connect(str(tmp_path / "turns"))
        assert stranger.recv(WELCOME.size) == b"", "the end of the connection, without a page"


def test_a_page_cannot_be_cut_short_under_the_arbiter(sharing):
    _, [page] = sharing(("fair", 5000))
    with pytest.raises(PermissionError):
        os.ftruncate(page.file, 0)


def test_jobs_go_on_without_the_arbiter_and_take_turns_under_the_next_one(sharing, arbiter, tmp_path):
    jobs, _ = sharing(("hard", 5000), ("hard", 5000))
    running = [sharing.start(job, "kernel", 200_000, FOREVER) for job in jobs]
    until(lambda: all(process.poll() is None for process in running), "they run")
    arbiter.process.kill()
    arbiter.process.wait()
    with Arbiter(tmp_path / "lock") as following:
        pages = []
        for number, job in enumerate(jobs):
            path = following.add(number, job.folder, "hard", 5000)
            until(lambda at=path: connected(pages, at), "it listens again")
        for page in pages:
            until(lambda at=page: at.word == HELD, "its process takes turns again")
            page.close()
    assert all(process.poll() is None for process in running)


def connected(pages, path):
    try:
        pages.append(Page(path))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_second_arbiter_ends_the_first_one(arbiter, tmp_path, is_stopped):
    until(arbiter.add(1, tmp_path, "hard", 5000).exists, "the first one has the lock")
    if is_stopped:
        arbiter.process.send_signal(signal.SIGSTOP)
    with Arbiter(tmp_path / "lock"):
        assert arbiter.process.wait(timeout=PATIENCE) == -signal.SIGTERM


def test_an_arbiter_without_a_controller_and_without_jobs_ends(arbiter):
    arbiter.control.close()
    assert arbiter.process.wait(timeout=PATIENCE) == 0


def test_an_arbiter_without_a_controller_serves_the_jobs_that_run(sharing, arbiter):
    jobs, _ = sharing(("hard", 5000), ("hard", 5000))
    arbiter.control.close()
    running = [sharing.start(job, "kernel", 200_000, 300) for job in jobs]
    assert [told(process) for process in running] == [(0, 300)] * 2
    assert arbiter.process.poll() is None


def test_jobs_of_an_arbiter_that_hangs_go_on(sharing, arbiter):
    """A launch that waits for it goes after two seconds, and is paced by the budget of its job then."""
    jobs, pages = sharing(("hard", 5000), ("hard", 5000))
    first = sharing.start(jobs[0], "kernel", 200_000, FOREVER)
    second = sharing.start(jobs[1], "kernel", 200_000, 5000)
    until(lambda: pages[0].word == HELD, "the first one has the turn")
    arbiter.process.send_signal(signal.SIGSTOP)
    assert told(second) == (0, 5000)
    assert first.poll() is None
    arbiter.process.send_signal(signal.SIGCONT)


def test_a_job_that_got_no_place_takes_turns_when_one_is_free(tmp_path):
    with Arbiter(tmp_path / "lock") as arbiter:
        for number in range(region.TURN_JOBS + 1):
            (folder := tmp_path / str(number)).mkdir()
            last = arbiter.add(number, folder, "fair", 100)
        until((tmp_path / str(region.TURN_JOBS - 1) / "turns").exists, "all others have a place")
        assert not last.exists()
        arbiter.remove(0)
        until(last.exists, "the last one has the place of the first one")


def test_a_job_without_a_place_is_named_with_the_reason(tmp_path):
    log = tmp_path / "log"
    with log.open("w") as file, Arbiter(tmp_path / "lock", file) as arbiter:
        for number in range(region.TURN_JOBS + 1):
            (folder := tmp_path / str(number)).mkdir()
            arbiter.add(number, folder, "fair", 100)
        (tmp_path / "file").touch()
        arbiter.add(region.TURN_JOBS + 1, tmp_path / "file", "fair", 100, gpu=1)
        until(lambda: log.read_text().count("\n") == 2, "both are reported")
    assert log.read_text() == (
        f"fgspawn: job {region.TURN_JOBS} takes no turns: too many jobs take turns on its GPU\n"
        f"fgspawn: job {region.TURN_JOBS + 1} takes no turns: Not a directory\n"
    )


def test_a_job_that_ended_before_the_arbiter_heard_of_it_is_not_reported(tmp_path):
    """Its directory is gone by then; the message about its end follows."""
    log = tmp_path / "log"
    with log.open("w") as file, Arbiter(tmp_path / "lock", file) as arbiter:
        arbiter.add(1, tmp_path / "gone", "fair", 100)
        arbiter.remove(1)
        until(arbiter.add(2, tmp_path, "fair", 100).exists, "the next job takes turns")
    assert log.read_text() == ""


def welcomed(path):
    """A connection to the arbiter, or None if it refuses it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(PATIENCE)
    connection.connect(str(path))
    data, files, _, _ = socket.recv_fds(connection, WELCOME.size, 16)
    for file in files:
        os.close(file)
    if data:
        return connection
    connection.close()
    return None


def test_an_arbiter_without_free_descriptors_refuses_processes_at_once(tmp_path):
    with Arbiter(tmp_path / "lock") as arbiter:
        path = arbiter.add(1, tmp_path, "hard", 2500)
        until(path.exists, "it listens")
        open_now = [int(name) for name in os.listdir(f"/proc/{arbiter.process.pid}/fd")]
        resource.prlimit(arbiter.process.pid, resource.RLIMIT_NOFILE, (max(open_now) + 2,) * 2)
        connections = []
        while connection := welcomed(path):
            connections.append(connection)
        assert connections, "there was room for one"
        assert welcomed(path) is None
        for connection in connections:
            connection.close()
        until(lambda: connections.append(welcomed(path)) or connections[-1], "there is room again")
        connections[-1].close()


@contextmanager
def acting_in(folder, uid):
    """Be another user in a directory below those that only root can enter."""
    with chdir(folder):
        os.seteuid(uid)
        try:
            yield
        finally:
            os.seteuid(0)


@pytest.mark.root
def test_a_user_whose_processes_fill_the_arbiters_table_leaves_as_many_places_to_others(tmp_path):
    """2,048 of the 4,096 on the host, and then half of the rest for each further user."""
    connections = []
    with Arbiter(tmp_path / "lock") as arbiter, ExitStack() as open_now:
        for number in range(22):
            (folder := tmp_path / str(number)).mkdir(mode=0o755)
            last = arbiter.add(number, folder, "fair", 100, uid=MANY if number < 21 else FEW)
        until(last.exists, "all jobs have a place")
        for number in range(21):
            with acting_in(tmp_path / str(number), MANY):
                while connection := welcomed("turns"):
                    connections.append(open_now.enter_context(connection))
        assert len(connections) == 2048
        with acting_in(last.parent, FEW):
            for _ in range(50):
                connection = welcomed("turns")
                assert connection, "the other user takes turns"
                open_now.enter_context(connection)


@pytest.mark.root
def test_a_user_whose_jobs_fill_the_places_of_a_gpu_leaves_as_many_to_others(tmp_path):
    log = tmp_path / "log"
    with log.open("w") as file, Arbiter(tmp_path / "lock", file) as arbiter:
        for number in range(40):
            (folder := tmp_path / str(number)).mkdir()
            arbiter.add(number, folder, "fair", 100, uid=MANY if number < 39 else FEW)
        until((tmp_path / "39" / "turns").exists, "the job of the other user takes turns")
    assert sum((tmp_path / str(number) / "turns").exists() for number in range(39)) == 32
    assert log.read_text().splitlines() == [
        f"fgspawn: job {number} takes no turns: too many jobs of its user take turns on its GPU"
        for number in range(32, 39)
    ]


@pytest.mark.root
def test_a_user_whose_jobs_fill_the_arbiter_leaves_as_many_places_to_others_and_is_tried_again(tmp_path):
    """256 of the 512 on the host; of those that wait, too."""
    with Arbiter(tmp_path / "lock") as arbiter:
        for number in range(600):
            (folder := tmp_path / str(number)).mkdir()
            arbiter.add(number, folder, "fair", 100, gpu=number % 20, uid=MANY if number < 599 else FEW)
        until((tmp_path / "599" / "turns").exists, "the job of the other user takes turns")
        assert sum((tmp_path / str(number) / "turns").exists() for number in range(599)) == 256
        arbiter.remove(0)
        until((tmp_path / "256" / "turns").exists, "the next one has the place of the first one")


def test_a_program_may_change_its_user_in_another_thread(sharing):
    """The C library reaches each thread of the process by a signal, and waits for all of them."""
    [job], _ = sharing(("hard", 5000))
    assert told(sharing.start(job, "kernel", 100_000, 100, LAUNCHER_SETUID="1")) == (0, 100)


@pytest.mark.parametrize("way", ["kernel", "graph"])
def test_a_launch_that_waits_for_its_turn_leaves_errno_alone(sharing, way):
    jobs, _ = sharing(("hard", 5000), ("hard", 5000))
    running = [sharing.start(job, way, 200_000, 200, LAUNCHER_ERRNO="1") for job in jobs]
    assert [told(process) for process in running] == [(0, 200)] * 2


def test_a_green_context_that_has_ended_is_not_entered_any_more(sharing):
    """The program waits for its last kernels after it has destroyed the context in which it launched them."""
    [job], _ = sharing(("hard", 5000))
    assert told(sharing.start(job, "kernel", 20_000_000, 5, LAUNCHER_GREEN="1")) == (0, 5)


@pytest.mark.parametrize(
    ("streams", "most"), [(1, 0.01), (4, 0.01), (8, 0.01), (9, 0.05), (16, 0.05), (32, 0.05)]
)
def test_few_launches_record_an_event_however_many_streams_there_are(sharing, streams, most):
    [job], _ = sharing(("hard", 9999))
    process = sharing.start(job, "kernel", 2000, 50_000, LAUNCHER_STREAMS=str(streams))
    status, launches, events = map(int, process.communicate(timeout=PATIENCE)[0].split())
    assert (status, launches) == (0, 50_000)
    assert events / launches <= most


@pytest.mark.parametrize("way", ["kernel", "ex", "cooperative", "graph", "many", "grid", "gridasync", "one"])
def test_every_way_to_launch_takes_turns(sharing, way):
    jobs, _ = sharing(("hard", 5000), ("hard", 5000))
    running = [sharing.start(job, way, 500_000, 50) for job in jobs]
    assert [told(process) for process in running] == [(0, 50)] * 2


def test_processes_of_one_job_share_its_turn(sharing):
    jobs, _ = sharing(("hard", 5000), ("hard", 5000))
    running = [sharing.start(job, "kernel", 200_000, 200) for job in (jobs[0], jobs[0], jobs[0], jobs[1])]
    assert [told(process) for process in running] == [(0, 200)] * 4


def test_a_kernel_that_runs_until_a_later_launch_does_not_stop_that_launch(sharing):
    [job], _ = sharing(("hard", 5000))
    assert told(sharing.start(job, "kernel", 1000, 6, LAUNCHER_UNTIL="5")) == (0, 6)


def used_by(job):
    """Nanoseconds of GPU time that the processes of a job have counted."""
    fd = region.open_region(job.region_file)
    account = region.Account(fd, 0)
    account.read()
    os.close(fd)
    return account.used


@pytest.mark.parametrize("contexts", [1, 2, 3])
def test_the_work_of_each_context_of_a_process_is_counted(sharing, contexts):
    """The fake driver runs the kernels of all contexts one after another, in one stream."""
    [job], _ = sharing(("hard", 9000))
    assert told(sharing.start(job, "kernel", 2_000_000, 60, LAUNCHER_CONTEXTS=str(contexts))) == (0, 60)
    assert 110_000_000 <= used_by(job) <= 125_000_000


def counted_calls(process):
    """(launches, system calls in them, the last one) of a launcher that counts the calls of its launches."""
    status, launches, calls, last, waits = map(int, process.communicate(timeout=PATIENCE)[0].split())
    assert status == 0
    assert waits <= launches / 100, "the hook holds its lock for a microsecond"
    return launches, calls, last


def test_a_launch_in_the_turn_makes_no_system_call(sharing):
    """The turn is parked, or its lock held for long, only when the host interrupts: such are not counted."""
    [job], _ = sharing(("hard", 9999))
    launches, calls, last = counted_calls(sharing.start(job, "kernel", 100, 40_000, LAUNCHER_CALLS="1"))
    assert launches >= 10_000, "of 20,000 that the launcher counts"
    assert calls == 0, f"the last one was {last}"


def test_a_launch_that_is_paced_by_a_budget_makes_no_system_call(driver, tmp_path):
    """The hook's thread looks for an arbiter, four times a second, and no launch."""
    [gpu] = driver.gpus(Card(memory=8 * GIB))
    job = make_job(driver, tmp_path / "job", [(gpu, GIB)], pacing=[("hard", 9999)])
    command = [job.driver.launcher, "kernel", "100", "3000000"]
    env = job.environment(LAUNCHER_CALLS="1")
    launches, calls, last = counted_calls(
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    )
    assert launches >= 1_000_000
    assert calls == 0, f"the last one was {last}"
