"""What fgacct and fgshare print of a known history, compared with the history."""

import pytest
from msgspec.structs import asdict

import history
from builders import World, a_demand, a_gpu, a_result
from fgsched import protocol
from fgsched.cli import fgshare
from fgsched.domain.job import WHOLE
from fgsched.domain.policy import Policy
from fgsched.views.listing import Delimited
from known_history import GIB, HISTORY, STEP, Job, write
from known_records import whole_account
from live_host import living
from report_truth import HOUR, Truth

COLUMNS = "JobIDRaw,User,State,ElapsedRaw,GPUHours,GPUHoursIdle,GPUHoursUsed,MaxGPUMem,AveGPUUtil,Restarts"


Rows = dict[int, dict[str, str]]  # job -> column -> text


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """A host whose accounts have the history."""
    with living(tmp_path_factory.mktemp("totals") / "home", devices="none") as home:
        with history.zone():
            write(HISTORY, home.paths.accounts, whole_account)
        yield home


def rows_of(host, *words) -> Rows:
    done = host.run("fgacct", "-P", "-o", COLUMNS, *words)
    assert (done.status, done.err) == (0, "")
    heads, *rows = [line.split("|") for line in done.lines]
    return {int(row[0]): dict(zip(heads, row, strict=True)) for row in rows}


def close(text, value, digits=2):
    """Tell whether a printed number is a value, within its last digit."""
    return abs(float(text or 0) - float(value)) <= 0.51 * 10**-digits + 1e-6


def wrong_cells(job: Job, row: dict[str, str]) -> list[str]:
    """Return the columns of a row of fgacct that are not what happened."""
    truth = Truth(HISTORY, 0, HISTORY.steps)
    use, seen = truth.use(job), len(truth.seen(job)) * STEP
    is_sampled = bool(job.gpus) and job.start is not None
    known = {
        "User": row["User"] == job.user,
        "State": row["State"].split()[0] == job.state,
        "ElapsedRaw": int(row["ElapsedRaw"]) == (truth.runs(job) if job.start is not None else 0),
        "GPUHours": close(row["GPUHours"], truth.charged(job) / HOUR),
        "GPUHoursIdle": close(row["GPUHoursIdle"], use.idle / HOUR),
        "GPUHoursUsed": close(row["GPUHoursUsed"], use.used / HOUR),
        "Restarts": int(row["Restarts"]) == len(job.earlier),
    }
    if is_sampled:
        mean = min(100, 100 * use.used / seen / len(job.gpus))
        known["MaxGPUMem"] = row["MaxGPUMem"] == (f"{use.peak // GIB * 1024}M" if use.peak else "0")
        known["AveGPUUtil"] = close(row["AveGPUUtil"].rstrip("%"), mean, 1)
    return [f"job {job.id}: {name} {row[name]!r}" for name, is_true in known.items() if not is_true]


@pytest.mark.parametrize("words", [("-a", "-S", "2026-11-01"), ("-j", "1-90")], ids=["window", "names"])
def test_fgacct_prints_of_each_job_what_happened(host, words):
    """Of all jobs of a window, arrays among them, and of jobs that are named: other paths read them."""
    ended = [job for job in Truth(HISTORY, 0, HISTORY.steps).ended]
    if words[0] == "-j":
        ended = [job for job in ended if not job.array]
        words = ("-j", ",".join(str(job.id) for job in ended))
    rows = rows_of(host, *words)
    assert rows.keys() == {job.id for job in ended}
    assert [problem for job in ended for problem in wrong_cells(job, rows[job.id])] == []


def test_a_job_and_a_task_that_are_shown_have_the_same_use_as_in_the_list(host):
    for name, job in (("24", 24), ("10_3", 13)):
        (known,) = [one for one in HISTORY.jobs if one.id == job]
        assert wrong_cells(known, rows_of(host, "-j", name)[job]) == []
        (shown,) = host.run("fgctl", "show", "job", name, "--json").json["jobs"]
        assert shown["max_gpu_mem"] == max(process.memory for process in known.processes) * GIB


def test_the_sums_of_what_fgacct_prints_are_those_of_the_history(host):
    truth, rows = Truth(HISTORY, 0, HISTORY.steps), rows_of(host, "-a", "-S", "2026-11-01").values()
    hours = {"GPUHours": sum(map(truth.charged, truth.ended)) / HOUR}
    hours["GPUHoursIdle"] = sum(truth.use(job).idle for job in truth.ended) / HOUR
    hours["GPUHoursUsed"] = sum(truth.use(job).used for job in truth.ended) / HOUR
    for name, value in hours.items():
        shown = sum(float(row[name] or 0) for row in rows)
        assert shown == pytest.approx(float(value), abs=0.005 * len(rows))


def test_fgshare_prints_the_decayed_charges_of_what_ran():
    """Jobs of two users: one with more share, one with more memory, one that still runs, one requeued."""
    world = World([a_gpu(0), a_gpu(1)])
    usable, half_life = a_gpu(0).usable, Policy().weights.half_life
    demands = [a_demand(WHOLE), a_demand(1000, usable // 2), a_demand(2500)]
    for user, demand in zip(("ann", "ben", "ann"), demands, strict=True):
        world.submit([demand], user=user)
    world.settle()
    begin = world.job(1).started_at
    world.now = begin + 5000
    for job, seconds in ((1, 3000), (2, 5000)):
        world.host.finish(job, 1, a_result(started_at=begin, ended_at=begin + seconds))
    world.turn()
    world.now = begin + 2 * half_life
    runs = (("ann", 1.0, 0, 3000), ("ben", 0.5, 0, 5000), ("ann", 0.25, 0, 2 * half_life))
    known = {"ann": 0.0, "ben": 0.0}
    for user, gpus, since, until in runs:  # in steps of ten minutes, the decay counted from their middle
        for at in range(since, int(until), 600):
            length = min(600, until - at)
            known[user] += gpus * length * 0.5 ** ((2 * half_life - at - length / 2) / half_life)
    standings = world.engine.charges.standings(world.engine.jobtable, Policy(), world.now)
    rows = [protocol.ShareInfo(**asdict(standing)) for standing in standings if standing.user]
    lines = Delimited("|", False).lines(rows, fgshare.COLUMNS, header=False)
    shown = {cells[1]: cells for cells in (line.split("|") for line in lines)}
    total = sum(known.values())
    assert shown.keys() == known.keys()
    for user, cells in shown.items():
        assert int(cells[4]) == pytest.approx(known[user], rel=0.001)
        assert float(cells[5]) == pytest.approx(known[user] / total, abs=1e-3)
