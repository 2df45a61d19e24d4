"""The tables and drawings of reports as they must be, from the truth. A part without a rule is a problem."""

import re
import time
from collections import Counter, defaultdict
from fractions import Fraction as F
from math import ceil
from statistics import median

from known_history import GIB, HOST_MEMORY, LARGEST, STEP, WATTS, WHOLE
from report_truth import CLASSES, KINDS, Sum, Truth, rank, sum_of

DASH = "–"
HOUR = 3600
SIZES = ("≤ 0.25 GPU", "≤ 0.5 GPU", "< 1 GPU", "1 GPU", "> 1 GPU")
LADDER = (1000, 2000, 2500, 3500, 5000, 7500, WHOLE)
_SCALES = {"GiB": GIB, "TiB-h": 1024}


# -- one number ----------------------------------------------------------------------------------------


def agrees(text: str, value, slack: int = 1) -> bool:
    """Tell whether a printed number is a value, within half of its last digit (times `slack`)."""
    text = text.strip().removeprefix("GPU ").removeprefix("+")
    if value is None or text == DASH:
        return value is None and text in (DASH, "")
    if text == "< 1 min":
        return 0 <= value < 60
    if match := re.fullmatch(r"(?:(\d+) d )?(?:(\d+) h)?(?: ?(\d+) min)?", text):
        days, hours, minutes = (int(one or 0) for one in match.groups())
        least = 1800 if match[1] else 30
        return abs(days * 86_400 + hours * 3600 + minutes * 60 - value) <= least
    match = re.match(r"(-?[\d,]+(?:\.\d+)?)(?: (%|[\w°-]+))?(?: / ([\d,]+) GiB)?", text)
    if not match:
        return False
    number, scale = F(match[1].replace(",", "")), _SCALES.get("GiB" if match[3] else match[2], 1)
    digits = len(match[1].partition(".")[2])
    return abs(number * scale - F(value)) <= slack * scale * F(1, 2) / 10**digits + F(1, 10**6)


def text_of(cell) -> str:
    if cell["type"] == "phrase":
        return "".join(part["text"] for part in cell["parts"])
    if cell["type"] == "line":
        return " ".join(cell["tokens"])
    return cell.get("text", "")


def cell_problems(where: str, cell, expected, slack: int = 1) -> list[str]:
    """Return what is wrong with a cell: a number by value and text, anything else by text."""
    if cell["type"] == "bar":
        return bar_problems(where, cell["pieces"], expected)
    if expected is None or isinstance(expected, str):
        known = DASH if expected is None else expected
        return [] if text_of(cell) == known else [f"{where}: {text_of(cell)!r}, not {expected!r}"]
    value, text = cell.get("value"), text_of(cell)
    if cell["type"] == "time":
        return [] if abs(cell["at"] - expected) < 1 else [f"{where}: {text}, not {expected}"]
    if value is None or abs(F(value) - F(expected)) > _tolerance(expected, slack):
        return [f"{where}: {value} ({text}), not {float(expected)}"]
    return [] if agrees(text, expected, slack) else [f"{where}: shows {text!r}, is {float(expected)}"]


def _tolerance(expected, slack):
    return F(slack - 1, 10) + max(F(1, 10**6), abs(F(expected)) / 10**9)


def bar_problems(where, pieces, expected) -> list[str]:
    found = {one["kind"]: one["part"] for one in pieces}
    known = {kind: part for kind, part in expected.items() if part > 0}
    same = found.keys() == known.keys() and all(abs(found[one] - known[one]) < 1e-6 for one in known)
    return [] if same else [f"{where}: a bar of {found}, not { ({k: float(v) for k, v in known.items()}) }"]


def hours(seconds):
    return F(seconds) / HOUR


def percent(part, whole):
    return None if whole <= 0 else 100 * F(part) / F(whole)


# -- users ---------------------------------------------------------------------------------------------


def model(case, gpu: int) -> str:
    return case.world.models[gpu][0].removeprefix("NVIDIA ")


def namer(case):
    return {
        "user": lambda job, gpu: job.user,
        "account": lambda job, gpu: job.account,
        "partition": lambda job, gpu: job.partition,
        "tag": lambda job, gpu: job.tag,
        "type": lambda job, gpu: model(case, gpu) if gpu is not None else "",
    }[case.by]


class Group:
    """What a user, or all of several, had."""

    def __init__(self, use=None) -> None:
        self.use, self.jobs = use or Sum(), []

    def row(self, case, name, largest, whole):
        truth, use = case.truth, self.use
        used = min(use.used, use.classes["active"])
        started = [truth.wait(job) for job in self.jobs if job.start is not None]
        bar = {
            "used": used / largest,
            "unused": (use.classes["active"] - used) / largest,
            "held-idle": use.classes["held-idle"] / largest,
            "reserved-empty": use.classes["reserved-empty"] / largest,
        }
        return {
            "name": name or "(none)",
            "charged": hours(use.charged),
            "classes": bar if largest > 1e-9 and name != "total" else {},
            "share": percent(use.charged, whole),
            "efficiency": percent(use.used, use.charged),
            "idle": hours(use.idle),
            "unused": hours(sum(map(truth.lacking_memory, sampled(case, self.jobs)))) / GIB,
            "jobs": len(self.jobs),
            "failed": sum(job in truth.failed for job in self.jobs),
            "median_wait": rank(started, 50),
        }


def sampled(case, jobs=None):
    """Return the jobs that ran and were measured."""
    return [
        job
        for job in (case.truth.ended if jobs is None else jobs)
        if job.gpus and job.start is not None and (case.truth.seen(job) or case.truth.peak(job))
    ]


def groups(case) -> list[tuple[str, Group]]:
    name, found = namer(case), {}
    for key, use in case.truth.by(name).items():
        found[key] = Group(use)
    for job in case.truth.ended:
        key = name(job, job.gpus[0] if job.gpus else None)
        found.setdefault(key, Group()).jobs.append(job)
    return sorted(found.items(), key=lambda one: (-one[1].use.charged, -len(one[1].jobs), one[0]))


def users(case, kind):
    found = groups(case)
    most = 8 if kind == "overview" else len(found)
    whole = Group(sum_of(one.use for _, one in found))
    whole.jobs = case.truth.ended
    lines = found if len(found) <= most + 1 else found[:most]
    if len(found) > most + 1:
        rest = Group(sum_of(one.use for _, one in found[most:]))
        rest.jobs = [job for _, one in found[most:] for job in one.jobs]
        lines = [*lines, (f"{len(found) - most} others", rest)]
    largest = max((one.use.charged for _, one in lines), default=F(0)) or F(1, 10**9)
    rows = [one.row(case, name, largest, whole.use.charged) for name, one in lines]
    return [*rows, whole.row(case, "total", largest, whole.use.charged)] if rows else []


def top_users(by):
    def rows(case, kind):
        found = [
            (name, one)
            for name, one in groups(case)
            if (one.use.charged if by == "charged" else one.use.idle) >= 1
        ]
        found.sort(key=lambda one: (-(one[1].use.charged if by == "charged" else one[1].use.idle), one[0]))
        return [
            {
                "rank": rank_,
                "user": name,
                "charged": hours(one.use.charged),
                "idle": hours(one.use.idle),
                "efficiency": percent(one.use.used, one.use.charged),
                "jobs": len(one.jobs),
            }
            for rank_, (name, one) in enumerate(found[: case.number], 1)
        ]

    return rows


def idle_of(case, job):
    """Return the idle GPU seconds of a job; None: it was not sampled."""
    return case.truth.use(job).idle if job.gpus and case.truth.seen(job) else None


def top_jobs(by):
    def rows(case, kind):
        truth = case.truth
        keys = {
            "charge": truth.charged,
            "idle": lambda job: idle_of(case, job) or 0,
            "wait": lambda job: -1 if job.start is None else truth.wait(job) + 1,
        }
        found = [job for job in truth.ended if keys[by](job) > 0]
        found.sort(key=lambda job: (-keys[by](job), job.id))
        return [
            {
                "job": job.label,
                "user": job.user,
                "name": job.name,
                "state": job.state,
                "charged": hours(truth.charged(job)),
                "idle": None if idle_of(case, job) is None else hours(idle_of(case, job)),
                "wait": None if job.start is None else truth.wait(job),
                "started": case.world.at(job.end),
            }
            for job in found[: case.number]
        ]

    return rows


def names(case, kind):
    rows = []
    for (_, name, *_), jobs in case.truth.groups().items():
        truth = case.truth
        seen = [job for job in jobs if truth.seen(job)]
        measured = sum(truth.use(job).charged for job in jobs)
        rows.append(
            {
                "name": name,
                "jobs": len(jobs),
                "charged": hours(sum(map(truth.charged, jobs))),
                "efficiency": percent(sum(truth.use(job).used for job in jobs), measured) if seen else None,
                "idle": hours(sum(truth.use(job).idle for job in jobs)) if seen else None,
                "peak": max(map(truth.peak, jobs)) or (0 if seen else None),
                "asked": max(map(case.world.memory, jobs)),
                "longest": max(map(truth.runs, jobs)),
            }
        )
    return sorted(rows, key=lambda row: (-row["charged"], row["name"]))


# -- waits and failures --------------------------------------------------------------------------------


def size(job) -> str:
    if not job.gpus:
        return "no GPU"
    if len(job.gpus) > 1:
        return SIZES[4]
    return SIZES[(job.share > 2500) + (job.share > 5000) + (job.share >= WHOLE)]


def waits(classes):
    """Return the rows of a distribution; `classes` returns [(name, jobs)]."""

    def rows(case, kind):
        return [
            {
                "name": name,
                "jobs": len(jobs),
                "dots": dots([case.truth.wait(job) for job in jobs]),
                **{
                    key: rank([case.truth.wait(job) for job in jobs], part)
                    for key, part in (("median", 50), ("ninety", 90), ("longest", 100))
                },
            }
            for name, jobs in classes(case)
        ]

    return rows


def dots(found):
    if len(found) <= 20:
        return sorted(found)
    return [rank(found, F(2 * at + 1) * 5 / 2) for at in range(20)]


def by_size(case):
    found = {name: [job for job in case.truth.started if size(job) == name] for name in (*SIZES, "no GPU")}
    return [(name, jobs) for name, jobs in found.items() if jobs or name in SIZES]


def by_partition(case):
    found = defaultdict(list)
    for job in case.truth.started:
        found[job.partition].append(job)
    return sorted(found.items(), key=lambda one: (-len(one[1]), one[0]))


def histogram(case, kind):
    ends = (60, 600, 3600, 21_600, 86_400, 1 << 60)
    heads = ("< 1 min", "1–10 min", "10–60 min", "1–6 h", "6–24 h", "24 h and more")
    counts = [
        sum((ends[at - 1] if at else 0) <= wait < end for wait in case.truth.waits)
        for at, end in enumerate(ends)
    ]
    if not any(counts):
        return []
    return [
        {
            "wait": head,
            "jobs": count,
            "bar": {"count": F(count, max(counts))},
            "share": percent(count, sum(counts)),
        }
        for head, count in zip(heads, counts, strict=True)
    ]


def slowdown(case, kind):
    rows = []
    for name, jobs in by_size(case):
        factors = [
            F(case.truth.wait(job) + case.truth.runs(job), max(600, case.truth.runs(job))) for job in jobs
        ]
        if jobs:
            rows.append(
                {"size": name, "jobs": len(jobs), "median": rank(factors, 50), "ninety": rank(factors, 90)}
            )
    return rows


def counted(pairs) -> str:
    ordered = sorted(pairs.items(), key=lambda one: (-one[1], one[0]))
    more = [f"{len(ordered) - 3} more"] if len(ordered) > 3 else []
    return ", ".join([*(f"{name} {number}" for name, number in ordered[:3]), *more]) or DASH


def kinds(case, kind):
    truth = case.truth
    now, before = truth.kinds(), case.before.kinds()
    is_compared = bool(case.before.whole.sampled or case.before.ended)
    if not truth.ended:
        return []
    return [
        {
            "kind": name,
            "jobs": now[name],
            "bar": {"count": F(now[name], max(1, *(now[one] for one in KINDS)))},
            "change": (now[name], before[name] if is_compared else None),
            "users": counted(Counter(job.user for job in truth.ended if truth.kind(job) == name)),
        }
        for at, name in enumerate(KINDS)
        if at < 6 or now[name] or before[name]
    ]


def failed_users(case, kind):
    truth, found = case.truth, defaultdict(list)
    for job in truth.ended:
        found[job.user].append(job)
    rows = []
    for user, jobs in found.items():
        failed = [job for job in jobs if job in truth.failed]
        counts = Counter(map(truth.kind, jobs))
        if failed:
            rows.append(
                {
                    "user": user,
                    "failed": len(failed),
                    "rate": percent(len(failed), len(jobs)),
                    **{name: counts[name] for name in KINDS[:5]},
                }
            )
    return sorted(rows, key=lambda row: (-row["failed"], row["user"]))


def repeated(case, kind=""):
    found = defaultdict(list)
    for job in case.truth.ended:
        found[job.user, job.name].append(job)
    rows = []
    for (user, name), jobs in found.items():
        failed = [job for job in jobs if job in case.truth.failed]
        if len(failed) >= 3:
            rows.append(
                {
                    "user": user,
                    "name": name,
                    "failed": len(failed),
                    "jobs": len(jobs),
                    "charged": hours(sum(map(case.truth.charged, failed))),
                }
            )
    return sorted(rows, key=lambda row: (-row["failed"], row["user"], row["name"]))[: case.number]


def gpu_limits(case, kind):
    found = [job for job in case.truth.ended if job.oom == "gpu"]
    found.sort(key=lambda job: (-job.end, -job.id))
    most = {"overview": 5, "me": 10}.get(kind, case.number)
    return [
        {
            "job": job.label,
            "user": job.user,
            "name": job.name,
            "limit": case.world.memory(job),
            "refused": job.refused * GIB or None,
            "line": f"--gpu-mem={ceil(_needed(case, job) * F(105, 100) / GIB)}G",
        }
        for job in found[:most]
    ]


def _needed(case, job):
    """Return the bytes with which the allocation would have fitted."""
    limit = case.world.memory(job)
    return max(limit, case.truth.peak(job) + (job.refused * GIB or limit // 4))


def host_memory_kills(case, kind):
    found = [job for job in case.truth.ended if job.oom == "host"]
    found.sort(key=lambda job: (-job.end, -job.id))
    most = {"overview": 5, "me": 10}.get(kind, case.number)
    return [
        {"job": job.label, "user": job.user, "name": job.name, "asked": HOST_MEMORY, "largest": LARGEST}
        for job in found[:most]
    ]


def latest_failed(case, kind):
    found = sorted(case.truth.failed, key=lambda job: (-job.end, -job.id))
    words = {"gpu": "GPU out of memory", "host": "host out of memory", "": ""}
    return [
        {
            "job": job.label,
            "user": job.user,
            "name": job.name,
            "state": words[job.oom] or job.state,
            "code": f"{job.exit}:{job.signal}",
            "ended": case.world.at(job.end),
            "output": f"/home/{job.user}/{job.name}-{job.id}.out",
        }
        for job in found[: case.number]
    ]


# -- GPUs ----------------------------------------------------------------------------------------------


def classes(case, kind):
    now, before = case.truth.whole, case.before.whole
    return [
        {
            "name": name,
            "hours": hours(now.classes[name]),
            "share": percent(now.classes[name], now.sampled),
            "change": (
                percent(now.classes[name], now.sampled),
                percent(before.classes[name], before.sampled),
            ),
        }
        for name in CLASSES
    ]


def stretch(case, since, until) -> str:
    """Return two times as the notes of a GPU show them."""
    local = [time.localtime(case.world.at(one)) for one in (since, until)]
    form = "%a %H:%M" if case.truth.hours <= 192 else "%a %-d %b %H:%M"
    first, last = (time.strftime(form, one) for one in local)
    if local[0].tm_yday == local[1].tm_yday:
        last = time.strftime("%H:%M", local[1])
    return f"{first} – {last}"


def why(text: str) -> str:
    return f"{text}, the GPU has fallen off the bus" if text == "Xid 79" else text


def notes(case, gpu):
    truth, found = case.truth, []
    for one, since, until, reason, _ in truth.downs:
        if one == gpu:
            whole = since <= truth.since and until >= truth.until
            span = f"all {case.noun}" if whole else stretch(case, since, until)
            found.append(f"down {span}: {why(reason)}")
    mine = [run for run in truth.foreign if run.gpu == gpu and run.seconds >= 1800]
    shown = sorted(mine[:3], key=lambda run: (run.since, run.user))
    found += [
        f"external {stretch(case, run.since, run.until)}: {run.user}, {run.memory} GiB" for run in shown
    ]
    if more := mine[3:]:
        times = "once more" if len(more) == 1 else f"{len(more)} more times"
        found.append((rf"external {times}, ([\d.,]+) h in all", hours(sum(run.seconds for run in more))))
    return found


def gpu_rows(case, part, *, is_day=False):
    """Return what is wrong with the rows of GPUs: figures, notes and the drawing."""
    truth, found = case.truth, []
    if is_day:
        truth = Truth(case.world, max(truth.since, truth.until - 288), truth.until)
    for row in part["rows"]:
        gpu, where = row["gpu"], f"GPU {row['gpu']} of {part['key']}"
        use = truth.by_gpu[gpu]
        found += cell_problems(where, row["charged"], percent(use.charged, use.sampled))
        found += cell_problems(where, row["active"], percent(use.classes["active"], use.sampled))
        if not is_day:
            peak = max((cell.peak for (_, one), cell in truth.cells.items() if one == gpu), default=0)
            expected = None if not use.sampled else peak
            found += cell_problems(where, row["peak"], expected)
            found += note_problems(
                where, [text_of({"type": "phrase", **one}) for one in row["notes"]], notes(case, gpu)
            )
        found += step_problems(truth, where, gpu, row["steps"], int(part["step"]) // STEP)
    return found


def note_problems(where, shown, expected):
    for at, one in enumerate(expected):
        if isinstance(one, tuple) and at < len(shown) and (match := re.fullmatch(one[0], shown[at])):
            expected[at] = shown[at] if agrees(match[1], one[1]) else one
    return [] if shown == expected else [f"{where}: notes {shown}, not {expected}"]


def step_problems(truth, where, gpu, steps, length):
    """A step is drawn as what was measured, and as a gap where less than half of it was."""
    found = []
    for at, shown in enumerate(steps):
        begin = truth.since + at * length
        cells = [
            cell
            for step in range(begin, min(begin + length, truth.until))
            if (cell := truth.cells.get((step, gpu)))
        ]
        use = sum_of(cells)
        if 2 * use.sampled < min(length, truth.until - begin) * STEP:
            found += [f"{where}: step {at} is drawn over a gap"] if shown is not None else []
            continue
        names_ = (*CLASSES[:3], "external", "down")
        expected = [float(use.classes[name] / use.sampled) for name in names_]
        if shown is None or max(abs(a - b) for a, b in zip(shown, expected, strict=True)) > 1e-3:
            found.append(f"{where}: step {at} is {shown}, not {expected}")
    expected = -(-(truth.until - truth.since) // length)
    return found + ([] if len(steps) == expected else [f"{where}: {len(steps)} steps, not {expected}"])


def gpus(case, kind):
    of_jobs = case.truth.by(lambda job, gpu: gpu)
    rows = [
        {
            "gpu": gpu,
            "model": model(case, gpu),
            **{
                key: hours(use.classes[name])
                for key, name in zip(
                    ("active", "held", "empty", "free", "external", "down"), CLASSES, strict=True
                )
            },
            "used": hours(of_jobs[gpu].used) if gpu in of_jobs else 0,
            "packing": percent(use.charged, use.packed),
        }
        for gpu, use in case.truth.by_gpu.items()
        if use.sampled
    ]
    if not rows:
        return []
    whole = case.truth.whole
    total = {key: sum(row[key] for row in rows) for key in rows[0] if key not in ("gpu", "model", "packing")}
    return [*rows, {"gpu": "total", "model": "", **total, "packing": percent(whole.charged, whole.packed)}]


def heat(case, part):
    cells, days, hours_, found = {}, {}, {}, []
    for at, one in enumerate(case.truth.spans(12)):
        local = time.localtime(case.world.at(case.truth.since + 12 * at))
        keys = ((cells, (local.tm_wday, local.tm_hour)), (days, local.tm_wday), (hours_, local.tm_hour))
        for into, key in keys:
            sums = into.setdefault(key, [F(0), F(0)])
            sums[0] += one.charged
            sums[1] += one.sampled
    labels = [time.strftime("%a", (2026, 11, 9 + day, 0, 0, 0, day, 0, 0)) for day in sorted(days)]
    found += [] if [row["label"] for row in part["rows"]] == labels else [f"heat: other days than {labels}"]
    for day, row in zip(sorted(days), part["rows"], strict=False):
        for hour, cell in enumerate(row["cells"]):
            if (day, hour) not in cells:
                absent = cell["text"] == "" and row["levels"][hour] == -1
                found += [] if absent else [f"heat {day} {hour}: a cell of an hour that is not in the period"]
                continue
            value = percent(*cells[day, hour])
            found += cell_problems(f"heat {day} {hour}", cell, value)
            level = None if value is None else sum(int(cell["text"]) >= one for one in (10, 30, 50, 70, 90))
            found += [] if row["levels"][hour] == level else [f"heat {day} {hour}: the colour of {value}"]
        found += cell_problems(f"heat {day}", row["mean"], percent(*days.get(day, (0, 0))))
    for hour, cell in enumerate(part["means"]["cells"]):
        if hour in hours_ or cell["text"]:
            found += cell_problems(f"heat mean {hour}", cell, percent(*hours_.get(hour, (0, 0))))
    whole = [sum(one[at] for one in days.values()) for at in (0, 1)]
    return found + cell_problems("heat mean", part["means"]["mean"], percent(*whole))


# -- health and strangers ------------------------------------------------------------------------------


def long_time(case, step) -> str:
    return time.strftime("%a %-d %b %H:%M", time.localtime(case.world.at(step)))


def events(case, kind):
    truth, world, rows = case.truth, case.world, []
    for gpu, since, until, reason, is_back in truth.downs:
        end = f"back {long_time(case, until)}" if is_back else ""
        end = end or ("not back" if until >= truth.until else f"seen until {long_time(case, until)}")
        rows.append((since, gpu, f"down: {why(reason)}; {end}"))
    for gpu, since, _ in world.hot:
        rows.append((truth._looked(since), gpu, "clocks lowered by heat"))
    told = {
        (gpu, at)
        for gpu, at, _ in world.xids
        if any(one.gpu == gpu and one.since == at for one in world.downs)
    }
    for gpu, at, number in world.xids:
        if (gpu, at) not in told:
            rows.append((truth._looked(at), gpu, f"Xid {number}"))
    rows = sorted(row for row in rows if truth.since <= row[0] < truth.until)
    return [{"card": gpu, "time": case.world.at(at), "event": text} for at, gpu, text in rows]


def health(case, kind):
    truth, world = case.truth, case.world
    changes = Counter()
    for one in world.downs:
        if one.since and truth._looked(one.since) == truth._looked(one.until):
            continue  # nothing was seen of it
        for step in (0 if one.since == 0 else truth._looked(one.since), truth._looked(one.until)):
            changes[one.gpu] += truth.since <= step < truth.until
    for gpu, at, _ in (*world.xids, *world.hot):
        changes[gpu] += truth.since <= truth._looked(at) < truth.until
    rows = []
    for gpu, use in truth.by_gpu.items():
        hot = sum(
            STEP
            for one, since, until in world.hot
            for step in range(since, until)
            if one == gpu and (step, gpu) in truth.cells
        )
        steps = sum(one == gpu for _, one in truth.cells)
        rows.append(
            {
                "gpu": gpu,
                "model": model(case, gpu),
                "down": hours(use.classes["down"]) if steps else None,
                "throttled": hours(hot) if steps else None,
                "temperature": 50 + gpu if steps else None,
                "energy": F(steps * STEP * WATTS, 3_600_000) if steps else None,
                "events": changes[gpu],
            }
        )
    return rows


def drivers(case, kind):
    return [{"version": "550.1", "since": case.world.begin}] if case.truth.until > 0 else []


def processes(case, kind):
    found = case.truth.foreign[: 10 if kind == "overview" else None]
    return [
        {
            "user": run.user,
            "pid": run.pid or "several",
            "command": run.command,
            "card": run.gpu,
            "memory": run.memory * GIB,
            "since": case.world.at(run.since),
            "until": case.world.at(run.until),
            "time": hours(run.seconds),
        }
        for run in found
    ]


# -- capacity and charge -------------------------------------------------------------------------------

_LACKS = {"share": "a share of a card", "gpus": "whole cards", "cpus": "CPUs"}


def demand(case, kind):
    found = sorted(case.truth.demand.items(), key=lambda one: (-one[1][1], one[0]))
    return [
        {
            "lacking": _LACKS[lacking],
            "reason": "Resources",
            "hours": hours(seconds),
            "job_hours": hours(jobs),
            "gpu_hours": hours(gpus),
            "most": most,
        }
        for lacking, (seconds, jobs, gpus, most) in found
    ]


def weight(case, gpu):
    return F(5, 2) if "A100" in case.world.models[gpu][0] else F(1)


def lines_of(case):
    return case.truth.by(lambda job, gpu: (job.account, job.user, gpu))


def weighted(case):
    return sum((use.charged * weight(case, gpu) for (_, _, gpu), use in lines_of(case).items()), F(0))


def accounts(case, kind):
    found = defaultdict(lambda: [F(0), F(0)])
    for (account, _, gpu), use in lines_of(case).items():
        found[account][0] += use.charged
        found[account][1] += use.charged * weight(case, gpu)
    quota = {name: hours(F(seconds)) for name, seconds in case.quotas.items()}
    rows = [
        {
            "account": name,
            "charged": hours(charged),
            "weighted": hours(sums),
            "share": percent(sums, weighted(case)),
            "quota": quota.get(name),
            "balance": quota[name] - hours(charged) if name in quota else None,
        }
        for name, (charged, sums) in sorted(found.items(), key=lambda one: (-one[1][1], one[0]))
    ]
    if not rows:
        return []
    total = {key: sum(row[key] for row in rows) for key in ("charged", "weighted", "share")}
    return [*rows, {"account": "total", **total, "quota": None, "balance": None}]


def charges(case, kind):
    found = defaultdict(F)
    for (account, user, gpu), use in lines_of(case).items():
        found[account, user, model(case, gpu), weight(case, gpu)] += use.charged
    return [
        {
            "account": account,
            "user": user,
            "model": name,
            "charged": hours(charged),
            "weight": factor,
            "weighted": hours(charged * factor),
        }
        for (account, user, name, factor), charged in sorted(found.items())
    ]


def weights(case, kind):
    found = {(model(case, gpu), weight(case, gpu)) for gpu in case.truth.gpus}
    return [{"model": name, "weight": factor} for name, factor in sorted(found)]


# -- waste ---------------------------------------------------------------------------------------------


def charge_of(case, job):
    return max(F(case.world.charge(job, gpu), WHOLE) for gpu in job.gpus)


def proposals(case):
    """Return (user, name, jobs, evidence, tokens, returned seconds) of each group that a line would help."""
    found = []
    for (user, name, gpus, share), jobs in case.truth.groups().items():
        if any(map(case.truth.seen, jobs)):
            one = _unused(case, jobs, gpus) or _late(case, jobs, share) or _large(case, jobs, gpus, share)
            if one and one[2] >= HOUR:
                found.append((user, name, jobs, *one))
    return sorted(found, key=lambda one: (-one[5], one[0], one[1]))


def _time(case, jobs):
    done = [case.truth.runs(job) for job in jobs if job.state == "COMPLETED"]
    limit = max(job.limit for job in jobs)
    if not done:
        return ()
    proposed = max(1, ceil(F(max(done)) * F(12, 10) / HOUR))
    return (f"--time={proposed}h",) if proposed < F(3, 4) * limit else ()


def _unused(case, jobs, gpus):
    unused = min(map(case.truth.gpus_without_process, jobs))
    if gpus < 2 or not unused or unused == gpus:
        return None
    words = {1: "one", 2: "two", 3: "three"}
    evidence = f"Asks for {gpus} GPUs and starts no process on {words[unused]} of them."
    charged = sum(map(case.truth.charged, jobs))
    return evidence, (f"--gpus={gpus - unused}", *_time(case, jobs)), charged * F(unused, gpus)


def _late(case, jobs, share):
    firsts = [one for job in jobs if (one := case.truth.first_process(job)) is not None]
    mean = F(sum(map(case.truth.runs, jobs)), len(jobs))
    first = median(firsts) if firsts else 0
    if first < HOUR or first < mean / 4:
        return None
    evidence = (
        "Holds its share for (.+) before its first GPU process(?:, a median of the latest jobs)?:"
        " the preparation needs no GPU.",
        first,
    )
    charged = sum(map(case.truth.charged, jobs))
    returned = min(F(first) / mean * charged, charged - sum(case.truth.use(job).used for job in jobs))
    return evidence, None, returned


def _large(case, jobs, gpus, share):
    peak = max(map(case.truth.peak, jobs))
    if gpus > 1 or not peak:
        return None
    uses = [case.truth.use(job) for job in jobs]
    seconds = sum(len(case.truth.seen(job)) * STEP for job in jobs)
    sm = sum(use.used for use in uses) / seconds
    total = case.world.models[jobs[-1].gpus[0]][1] * GIB
    needed = ceil(peak * F(115, 100) / GIB)
    proposed = next((one for one in LADDER if F(one, WHOLE) >= min(F(1), sm * F(12, 10))), WHOLE)
    before = max(F(share, WHOLE), F(max(map(case.world.memory, jobs)), total))
    after = max(F(proposed, WHOLE), F(needed * GIB, total))
    if after >= F(3, 4) * min(F(1), before):
        return None
    charged = sum(map(case.truth.charged, jobs))
    tokens = (f"--gpus={format_share(proposed)}", f"--gpu-mem={needed}G", *_time(case, jobs))
    return None, tokens, charged * (1 - after / min(F(1), before))


def format_share(share: int) -> str:
    return f"{share / WHOLE:g}"


def wastes(case, part):
    """Return what is wrong with the list of proposed lines."""
    found = []
    if len(part["items"]) != len(case.items):
        shown = [(one["user"]["text"], one["job"]["text"]) for one in part["items"]]
        return [f"wastes: {shown}, not {[one[:2] for one in case.items]}"]
    for item, (user, name, jobs, evidence, tokens, returned) in zip(part["items"], case.items, strict=True):
        where = f"waste of {user} {name}"
        if (item["user"]["text"], item["job"]["text"]) != (user, name):
            found.append(f"{where}: {item['user']['text']} {item['job']['text']} is in its place")
        found += cell_problems(where, item["returned"], hours(returned))
        found += cell_problems(where, item["charged"], hours(sum(map(case.truth.charged, jobs))))
        found += cell_problems(where, item["jobs"], len(jobs))
        shown = tuple(item["line"]["tokens"])
        if tokens is not None and shown != ("#FG", *tokens):
            found.append(f"{where}: {shown}, not {tokens}")
        found += evidence_problems(case, where, item["evidence"], jobs, evidence)
        whole = len(jobs[0].gpus) * F(jobs[0].share, WHOLE)
        asked = f"asked {float(whole):g} GPU{'s' * (whole > 1)}"
        found += [] if item["asked"] == asked else [f"{where}: {item['asked']}, not {asked}"]
    return found


def evidence_problems(case, where, text, jobs, expected):
    """Return what is wrong with the sentence of a waste."""
    if isinstance(expected, str):
        return [] if text == expected else [f"{where}: {text!r}, not {expected!r}"]
    if isinstance(expected, tuple):
        match = re.fullmatch(expected[0], text)
        return [] if match and agrees(match[1], expected[1]) else [f"{where}: {text!r}, not {expected}"]
    truth = case.truth
    peak, asked = max(map(truth.peak, jobs)), max(map(case.world.memory, jobs))
    used = sum(truth.use(job).used for job in jobs)
    mean = percent(used, sum(len(truth.seen(job)) * STEP * len(job.gpus) for job in jobs))
    rules = (
        (
            r"peak memory ([\d.,]+) GiB of ([\d.,]+)",
            lambda a, b: agrees(a, F(peak, GIB)) and agrees(b, F(asked, GIB)),
        ),
        (r"mean SM share ([\d.,]+) %", lambda a: agrees(a, mean)),
        (r"Takes a whole card", lambda: all(job.share == WHOLE for job in jobs)),
        (r"Computes ([\d.,]+) % of the time with a process", lambda a: agrees(a, busy(case, jobs))),
    )
    found = []
    for clause in re.split("[;,] ", text.removesuffix(".")):
        clause = clause[0].lower() + clause[1:] if clause.startswith(("Peak", "Mean")) else clause
        true = [rule(*match.groups()) for pattern, rule in rules if (match := re.fullmatch(pattern, clause))]
        if not any(true):
            found.append(f"{where}: {'not true' if true else 'no rule'}: {clause!r}")
    return found


def busy(case, jobs):
    parts = []
    for job in jobs:
        seen = [
            parts for _, parts in case.truth.seen(job) if any(one[1] != "reserved-empty" for one in parts)
        ]
        active = [one for one in seen if any(part[1] == "active" for part in one)]
        if seen:
            parts.append(F(len(active), len(seen)))
    return 100 * median(parts)


def line_for(case, user, name):
    return next((one for one in proposals(case)[:20] if one[:2] == (user, name)), None)


def idle(case, kind):
    truth, rows = case.truth, []
    for (user, name, *_), jobs in truth.groups().items():
        if not any(map(truth.seen, jobs)):
            continue
        amount, charged = sum(truth.use(job).idle for job in jobs), sum(map(truth.charged, jobs))
        if amount >= F(charged, 5) and amount >= 360:
            rows.append((amount, user, name, jobs, charged))
    rows.sort(key=lambda row: (-row[0], row[1], row[2]))
    return [
        {
            "user": user,
            "job": name,
            "jobs": len(jobs),
            "idle": hours(amount),
            "bar": {"count": amount / rows[0][0]},
            "part": percent(amount, charged),
            "longest": max(map(truth.longest_idle, jobs)),
            "line": line_for(case, user, name),
            "warned": "not warned",
        }
        for amount, user, name, jobs, charged in rows[: case.number]
    ]


def memory(case):
    """Return (cost, user, name, jobs) of the names whose memory could be smaller."""
    rows = []
    for (user, name, gpus, _), jobs in case.truth.groups().items():
        peak, asked = max(map(case.truth.peak, jobs)), max(map(case.world.memory, jobs))
        cost = (asked - peak) * sum(map(case.truth.runs, jobs)) * gpus
        if peak and ceil(peak * F(115, 100) / GIB) * GIB < F(3, 4) * asked and cost >= 10 * GIB * HOUR:
            rows.append((cost, user, name, jobs, peak, asked))
    return sorted(rows, key=lambda row: (-row[0], row[1], row[2]))[: case.number]


def limits_of_time(case):
    rows = []
    for (user, name, *_), jobs in case.truth.groups().items():
        done = [case.truth.runs(job) for job in jobs if job.state == "COMPLETED"]
        limit = max(job.limit for job in jobs) * HOUR
        if done and ceil(max(done) * F(12, 10) / HOUR) * HOUR < F(3, 4) * limit:
            rows.append(((limit - max(done)) * len(jobs), user, name, jobs, done, limit))
    return sorted(rows, key=lambda row: (-row[0], row[1], row[2]))[: case.number]


def use_bars(case, part):
    found = memory(case) if part["key"] == "memory" else limits_of_time(case)
    shown = [(row["user"]["text"], row["job"]["text"]) for row in part["rows"]]
    if shown != [row[1:3] for row in found]:
        return [f"{part['key']}: {shown}, not {[row[1:3] for row in found]}"]
    problems_ = []
    for row, (cost, _, name, jobs, first, last) in zip(part["rows"], found, strict=True):
        where = f"{part['key']} of {name}"
        problems_ += cell_problems(where, row["jobs"], len(jobs))
        if part["key"] == "memory":
            problems_ += cell_problems(where, row["cost"], hours(cost) / GIB)
            problems_ += cell_problems(where, row["used"], first)
            line = f"#FG --gpu-mem={ceil(first * F(115, 100) / GIB)}G"
            ratio = F(first, last)
        else:
            problems_ += cell_problems(where, row["used"], rank(first, 50))
            problems_ += cell_problems(where, row["most"], max(first))
            line = f"#FG --time={max(1, ceil(max(first) * F(12, 10) / HOUR))}h"
            ratio = F(rank(first, 50), last)
        problems_ += cell_problems(where, row["asked"], last)
        problems_ += [] if text_of(row["line"]) == line else [f"{where}: {text_of(row['line'])}, not {line}"]
        if abs(row["full"] / row["outline"] - ratio) > 1e-6:
            problems_.append(f"{where}: a bar of {row['full'] / row['outline']}, not {float(ratio)}")
    return problems_


def models(case, kind):
    smallest = min(case.world.models, key=lambda one: one[1])
    rows = []
    for (user, name, gpus, share), jobs in case.truth.groups().items():
        large = [job for job in jobs if case.world.models[job.gpus[0]][1] > smallest[1]]
        peak, charged = max(map(case.truth.peak, large), default=0), sum(map(case.truth.charged, large))
        if peak and peak * F(115, 100) <= F(smallest[1] * GIB * share, WHOLE) and charged >= HOUR:
            rows.append((charged, user, name, large, share * gpus, peak))
    return [
        {
            "user": user,
            "job": name,
            "jobs": len(jobs),
            "share": format_share(share),
            "charged": hours(charged),
            "peak": peak,
            "line": f"#FG --gpu-type={smallest[0].split()[-1]}",
        }
        for charged, user, name, jobs, share, peak in sorted(rows, key=lambda row: (-row[0], row[1], row[2]))
    ][: case.number]


def without_process(case, kind):
    found = defaultdict(list)
    for job in case.truth.started:
        seen = case.truth.seen(job)
        is_empty = seen and all(one[1] == "reserved-empty" for _, parts in seen for one in parts)
        idle_enough = case.truth.use(job).idle >= F(99, 100) * case.truth.charged(job)
        if job.gpus and is_empty and idle_enough and case.truth.charged(job) >= 600:
            found[job.user, job.name].append(job)
    rows = [
        {
            "user": user,
            "job": name,
            "jobs": len(jobs),
            "charged": hours(sum(map(case.truth.charged, jobs))),
            "line": "#FG --gpus=0",
        }
        for (user, name), jobs in found.items()
    ]
    return sorted(rows, key=lambda row: (-row["charged"], row["user"], row["job"]))[: case.number]


# -- which part has which rule -------------------------------------------------------------------------

TABLES = {
    **dict.fromkeys(("users", "accounts_", "partitions_", "types", "tags"), users),
    "users_by_charged": top_users("charged"),
    "users_by_idle": top_users("idle"),
    "jobs_by_charge": top_jobs("charge"),
    "jobs_by_idle": top_jobs("idle"),
    "jobs_by_wait": top_jobs("wait"),
    "names": names,
    "histogram": histogram,
    "slowdown": slowdown,
    "longest": top_jobs("wait"),
    "kinds": kinds,
    "failures.users": failed_users,
    "repeated": repeated,
    "limits": gpu_limits,
    "host_limits": host_memory_kills,
    "jobs": latest_failed,
    "cards": gpus,
    "events": events,
    "gpus": health,
    "driver": drivers,
    "processes": processes,
    "demand": demand,
    "accounts": accounts,
    "charges": charges,
    "weights": weights,
    "idle": idle,
    "models": models,
    "empty": without_process,
    "sizes": waits(by_size),
    "partitions": waits(by_partition),
}


def problems(case, kind, where, part) -> list[str]:
    """Return what is wrong with a part of a section that is no paragraph."""
    key = part["key"]
    if part["kind"] == "classes":
        return table_problems(where, part["classes"], classes(case, kind), str)
    if part["kind"] == "gpus":
        return gpu_rows(case, part, is_day=key == "day")
    if part["kind"] == "heat":
        return heat(case, part)
    if part["kind"] == "used":
        return use_bars(case, part)
    if part["kind"] == "wastes":
        return wastes(case, part)
    rule = TABLES.get(f"{kind}.{key}") or TABLES.get("users" if kind == "users" else key)
    if rule is None:
        return [f"{where}: no rule for the table {key}"]
    if part["kind"] == "waits":
        return table_problems(where, part["rows"], rule(case, kind), str)
    columns = [column["key"] for column in part["columns"]]
    rows = [
        dict(zip(columns, row, strict=True))
        for row in (*part["rows"], *([part["total"]] if part["total"] else []))
    ]
    return table_problems(where, rows, rule(case, kind), str) + hundred(where, rows)


def hundred(where, rows) -> list[str]:
    """The parts of a whole add up to 100.0 %."""
    texts = [row["share"]["text"] for row in rows if row.get("share", {}).get("unit") == "%"]
    parts = [F(text.removesuffix(" %")) for text in texts if text.endswith("%")]
    if rows and any(text_of(cell) == "total" for cell in rows[-1].values()):
        parts = parts[:-1]
    return [] if not parts or sum(parts) == 100 else [f"{where}: parts of {float(sum(parts))} %"]


def table_problems(where, rows, expected, _) -> list[str]:
    found = []
    if len(rows) != len(expected):
        return [f"{where}: {len(rows)} rows, not {len(expected)}: {rows} {expected}"[:1000]]
    for at, (row, truth) in enumerate(zip(rows, expected, strict=True)):
        for key, cell in row.items():
            found += field_problems(f"{where}[{at}].{key}", key, cell, truth)
    return found


def field_problems(where, key, cell, truth) -> list[str]:
    if key in ("is_given", "meaning"):
        return []
    if key not in truth:
        return [f"{where}: no rule for the column"]
    value = truth[key]
    if isinstance(cell, str) or cell is None:
        return (
            [] if cell == value or (cell is None and value[1] is None) else [f"{where}: {cell}, not {value}"]
        )
    if isinstance(cell, list):
        return [] if cell == value else [f"{where}: {cell}, not {value}"]
    if cell["type"] == "change":
        return change(where, cell, *value)
    if key == "line" and isinstance(value, tuple):
        return (
            []
            if value[4] is None or text_of(cell) == " ".join(("#FG", *value[4]))
            else [f"{where}: {text_of(cell)}, not {value[4]}"]
        )
    if key == "change":
        return [] if text_of(cell) == "" and value[1] is None else [f"{where}: no change"]
    return cell_problems(where, cell, value, 3 if key == "share" else 1)


def change(where, cell, now, before):
    from report_rules import change_problems

    return change_problems(where, cell, now, before)
