"""The rules of the sentences of reports: what each of them claims, compared with the truth.

A sentence that matches no rule is a problem: whoever adds one adds its rule here.
"""

import re
import time
from fractions import Fraction as F

import report_tables
from known_history import GIB
from report_tables import DASH, HOUR, agrees, cell_problems
from report_truth import CLASSES, rank

N = r"([+-]?[\d,]+(?:\.\d+)?)"  # a number
D = r"(< 1 min|\d+ min|\d+ h \d\d min|\d+ d \d+ h|–)"  # a duration
GPUS = r"GPUs? ([\d, and]+?)"
TITLES = {
    *("Where the time went", "GPUs", "Hours of the week", "Users", "Waits", "Failures", "Largest wastes"),
    *(
        "Health and external use",
        "Accounts",
        "Partitions",
        "Models",
        "Tags",
        "Jobs",
        "By size",
        "By partition",
    ),
    *(
        "Histogram",
        "Slowdown",
        "Longest waits",
        "By kind",
        "By user",
        "Repeated failures",
        "GPU memory limits",
    ),
    *("Latest failed jobs", "Output of these jobs", "Hours of each card", "Last 24 hours", "Proposed lines"),
    *("Idle reservations", "Memory asked and not used", "Time limits", "Larger card than needed"),
    *("Jobs without a GPU process", "Processes", "Events", "Driver", "What jobs waited for", "One more card"),
    *("Accounts, users and models", "Weights", "", "By GPU-hours charged", "By idle GPU-hours", "By wait"),
    *("Jobs that met their GPU memory limit", "Jobs that met their host memory limit", "Host memory"),
    "Processes outside fgsched",
}
TERMS = {
    *("GPU-hours charged", "GPU-hours used", "GPU efficiency", "Time classes", "Hours measured"),
    *(
        "Idle GPU-hours",
        "Wait",
        "Failed",
        "Would be returned",
        "Memory not used",
        "Longest",
        "Packing factor",
    ),
    *("Size", "Slowdown", "Waited for", "One more card", "GPU-hours weighted", "Process outside fgsched"),
    *("Hours of jobs",),
}


def near(text: str, value) -> bool:
    return agrees(text, value)


def hours(seconds):
    return F(seconds) / HOUR


def percent(part, whole):
    return None if whole <= 0 else 100 * F(part) / F(whole)


# -- what the rules ask --------------------------------------------------------------------------------


def charged(case):
    """Return the sum of the first three classes in per cent, as the bar shows them."""
    return percent(case.truth.whole.charged, case.truth.whole.sampled)


def active(case):
    return percent(case.truth.whole.classes["active"], case.truth.whole.sampled)


def is_part(case, words: str) -> bool:
    """Tell whether the words say whether the whole period was measured."""
    return words == (" measured" if case.truth.lost >= HOUR / 20 else "")


def more_or_less(case, amount, word) -> bool:
    now, before = active(case), percent(case.before.whole.classes["active"], case.before.whole.sampled)
    difference = now - before
    return abs(abs(difference) - F(amount)) <= F(21, 100) and (difference > 0) == (word == "more")


def ran(case) -> set:
    """Return the users of whom a job ran."""
    users = {user for user, use in case.truth.users.items() if use.charged}
    return users | {job.user for job in case.truth.started}


def three(case):
    ordered = sorted((use.charged for use in case.truth.users.values()), reverse=True)
    return percent(sum(ordered[:3]), sum(ordered))


def by_charge(case):
    return {gpu: percent(one.charged, one.sampled) for gpu, one in case.truth.by_gpu.items() if one.sampled}


def named(text: str) -> set[int]:
    return {int(one) for one in re.findall(r"\d+", text)}


def extreme(case, gpus, shown, choose) -> bool:
    """Tell whether just these GPUs have the largest or the smallest charge, as shown."""
    found = by_charge(case)
    value = choose(found.values())
    same = {gpu for gpu, one in found.items() if round(one) == round(value)}
    return named(gpus) == same and near(shown, value)


def all_the_same(case, which, shown) -> bool:
    found = by_charge(case)
    known = which == ("" if len(found) == len(case.world.models) else " with samples")
    return known and all(near(shown, one) for one in found.values())


def spans(case):
    return [one for one in case.truth.spans(12) if one.sampled > 0]


def week(case) -> dict:
    """Return (weekday, hour) -> (charged, sampled)."""
    found: dict = {}
    for at, one in enumerate(case.truth.spans(12)):
        local = time.localtime(case.world.at(case.truth.since + 12 * at))
        cell = found.setdefault((local.tm_wday, local.tm_hour), [F(0), F(0)])
        cell[0] += one.charged
        cell[1] += one.sampled
    return found


DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def hour_is(case, name, shown, more, choose) -> bool:
    """Tell whether an hour of the week has the extreme value, and how many others have it too."""
    cells = {key: percent(*cell) for key, cell in week(case).items() if cell[1] > 0}
    day, hour = DAYS.index(name[:3]), int(name[4:6])
    value = choose(cells.values())
    same = [key for key, one in cells.items() if round(one) == round(value)]
    others = int(more or 0)
    return (day, hour) in same and near(shown, value) and len(same) == 1 + others


def day_is(case, days, shown) -> bool:
    sums: dict = {}
    for (day, _), (part, whole) in week(case).items():
        sums.setdefault(day, [F(0), F(0)])
        sums[day][0] += part
        sums[day][1] += whole
    values = {day: percent(*one) for day, one in sums.items() if one[1] > 0}
    least = min(values.values())
    same = {WEEKDAYS[day] for day, one in values.items() if round(one) == round(least)}
    return set(re.split(", | and ", days)) == same and near(shown, least)


def hours_word(case, count, words) -> bool:
    """Tell whether a number of hours is that of the hours with samples, and says so if some have none."""
    known = len(spans(case))
    return near(count, known) and words == ("" if known == case.truth.hours else " measured")


def is_full(one) -> bool:
    return one.charged >= F(995, 1000) * one.sampled


def waiting(case):
    """Return the longest time with a wait for one resource, in hours."""
    return hours(max((one[0] for one in case.truth.demand.values()), default=0))


def foreign_users(case) -> set:
    return {run.user for run in case.truth.foreign}


def gaps_are(case, text, total) -> bool:
    """Tell whether just the times without samples are named, and the sum of their hours."""
    truth, world = case.truth, case.world
    gaps = [
        (one.since, one.until, "the controller did not run" if one.stopped else "no samples were taken")
        for one in world.lost
    ]
    gaps = [(-(1 << 40), 0, "no GPU was known"), *gaps, (world.steps, 1 << 40, "no samples yet")]
    clipped = [
        (max(since, truth.since), min(until, truth.until), reason)
        for since, until, reason in gaps
        if since < truth.until and until > truth.since
    ]
    shown = [f"{report_tables.stretch(case, since, until)} ({reason})" for since, until, reason in clipped]
    more = f", and {len(shown) - 5} more times" if len(shown) > 5 else ""
    return text == ", ".join(shown[:5]) + more and near(total, hours(truth.lost))


def clock(case, step) -> str:
    return time.strftime("%a %H:%M", time.localtime(case.world.at(step)))


def downs(case) -> set[int]:
    return {one[0] for one in case.truth.downs}


# -- the rules -----------------------------------------------------------------------------------------

RULES = [
    # ledes
    (
        rf"The cards? computed {N} % of the time( measured|)",
        lambda c, a, w: agrees(a, active(c), 2) and is_part(c, w),
    ),
    (
        rf", {N} points (more|less) than in ([\w -]+)\.",
        lambda c, a, w, n: more_or_less(c, a, w) and n == c.earlier,
    ),
    (r", as in ([\w -]+)\.", lambda c, n: n == c.earlier),
    (r"\.", lambda c: not c.before.whole.sampled),
    (rf"{N} GPU-hours were charged and idle\.", lambda c, a: near(a, hours(c.truth.whole.idle))),
    (
        rf"{N} GPU-hours were charged and idle, {N} % of all hours charged\.",
        lambda c, a, p: (
            near(a, hours(c.truth.whole.idle)) and near(p, percent(c.truth.whole.idle, c.truth.whole.charged))
        ),
    ),
    (
        r"The (\w+) changes? to (?:a job header|job headers) at the end of this report would have returned ([\d.,]+) GPU-hours\.",
        lambda c, n, h: c.findings(n, h),
    ),
    (r"Each proposal is the header line that would have prevented the waste\.", lambda c: True),
    (
        rf"{N} GPU-hours were charged, {N} % of the hours measured; {N} of them were idle\.",
        lambda c, a, p, i: (
            near(a, hours(c.truth.whole.charged))
            and agrees(p, charged(c), 4)
            and near(i, hours(c.truth.whole.idle))
        ),
    ),
    (
        rf"{N} GPU-hours were charged to (\w+); {N} of them were idle\.",
        lambda c, a, u, i: (
            near(a, hours(c.truth.of_jobs.charged)) and u == c.user and near(i, hours(c.truth.of_jobs.idle))
        ),
    ),
    (
        rf"The cards? w(?:ere|as) charged {N} % of the time( measured|) and computed {N} %\.",
        lambda c, a, w, b: agrees(a, charged(c), 4) and is_part(c, w) and agrees(b, active(c), 2),
    ),
    (
        r"No job of (\w+) ran in this (\w+)\.",
        lambda c, u, n: u == c.user and n == c.noun and not c.truth.started and not c.truth.of_jobs.charged,
    ),
    (
        r"No job ran in this (\w+)\.",
        lambda c, n: n == c.noun and not c.truth.ended and not c.truth.whole.charged,
    ),
    (
        rf"{N} jobs? ended; the GPUs were not sampled in this (\w+)\.",
        lambda c, a, n: near(a, len(c.truth.ended)) and n == c.noun and not c.truth.whole.sampled,
    ),
    (
        r"There are no records of an earlier (\w+)\.",
        lambda c, n: n == c.noun and not c.before.whole.sampled and not c.before.ended,
    ),
    (r"There are no samples of this (\w+)\.", lambda c, n: n == c.noun and not c.truth.whole.sampled),
    # time
    (
        rf"{N} cards? × {N} h = {N} GPU-hours, all measured\.",
        lambda c, a, h, x: (
            near(a, len(c.truth.gpus))
            and near(h, c.truth.hours)
            and near(x, len(c.truth.gpus) * c.truth.hours)
            and c.truth.lost < HOUR / 20
        ),
    ),
    (
        rf"{N} cards? × {N} h = {N} GPU-hours, less {N} h without samples = {N} measured\.",
        lambda c, a, h, x, n, m: (
            near(a, len(c.truth.gpus))
            and near(h, c.truth.hours)
            and near(x, len(c.truth.gpus) * c.truth.hours)
            and near(n, hours(c.truth.lost))
            and near(m, hours(c.truth.whole.sampled))
            and plus(x, n, m)
        ),
    ),
    (r"No GPU was seen\.", lambda c: not c.truth.gpus),
    (r"No GPU was sampled\.", lambda c: not c.truth.whole.sampled),
    (
        rf"{GPUS} w(?:as|ere) charged most, {N} % of (?:its|their) hours; {GPUS} least, {N} %\.",
        lambda c, g, p, h, q: extreme(c, g, p, max) and extreme(c, h, q, min),
    ),
    (rf"All GPUs( with samples|) were charged {N} % of their hours\.", all_the_same),
    (
        r"Height: 0–100 % of the card, ([\w ]+) a step, a line at each (midnight|mark)\.",
        lambda c, s, m: m == ("midnight" if c.truth.hours <= 216 else "mark"),
    ),
    (r"Height: 0–100 % of the card, five minutes a step\.", lambda c: True),
    (r"Up to (\w+ \d\d:\d\d)\.", lambda c, at: at == clock(c, c.truth.until)),
    (
        r"The samples of minutes of this period are no longer kept\.",
        lambda c: not c.truth.measured or c.truth.until < 0,
    ),
    # hours of the week
    (
        rf"Share of the cards charged to jobs, by hour of the week, in per cent; each cell is the mean of {N} cards?\.",
        lambda c, a: near(a, len(c.truth.gpus)),
    ),
    (r"No hour had a job on a card\.", lambda c: bool(spans(c)) and not any(one.charged for one in spans(c))),
    (r"No hour was measured\.", lambda c: not spans(c)),
    (
        rf"{N} of {N}( measured|) hours had no job on a card\.",
        lambda c, a, b, w: near(a, sum(one.charged == 0 for one in spans(c))) and hours_word(c, b, w),
    ),
    (
        rf"All cards were full in {N} of {N}( measured|) hours\.",
        lambda c, a, b, w: near(a, sum(map(is_full, spans(c)))) and hours_word(c, b, w),
    ),
    (
        rf"Fullest hour: (\w\w\w \d\d:00)(?: and (\d+) others?)?, {N} %\.",
        lambda c, n, o, p: hour_is(c, n, p, o, max),
    ),
    (
        rf"Emptiest hour: (\w\w\w \d\d:00)(?: and (\d+) others?)?, {N} %\.",
        lambda c, n, o, p: hour_is(c, n, p, o, min),
    ),
    (rf"Emptiest days?: ([\w, ]+), {N} %\.", day_is),
    # users
    (rf"{N} (?:person|people) ran jobs\.", lambda c, a: near(a, len(ran(c)))),
    (
        rf"{N} people ran jobs; three of them were charged {N} % of the hours\.",
        lambda c, a, p: near(a, len(ran(c))) and near(p, three(c)),
    ),
    (
        r"Bars: used \(SM share × time\), lighter where a process computes and the share is not used; held-idle;"
        r" reserved-empty\.",
        lambda c: True,
    ),  # the pieces are compared with the truth
    # empty tables
    (r"No user ran a job\.", lambda c: not c.truth.users and not c.truth.ended),
    (r"No user was charged\.", lambda c: all(use.charged < 1 for use in c.truth.users.values())),
    (r"No user had idle hours\.", lambda c: all(use.idle < 1 for use in c.truth.users.values())),
    (r"No job that ended was charged\.", lambda c: not any(c.truth.charged(job) for job in c.truth.ended)),
    (r"No job that ended was idle\.", lambda c: not any(c.truth.use(job).idle for job in c.truth.ended)),
    (r"No job that ended had started\.", lambda c: not c.truth.started),
    (r"No job with a GPU ended\.", lambda c: not any(job.gpus for job in c.truth.started)),
    (r"No job ended\.", lambda c: not c.truth.ended),
    (r"No job ended in this (\w+)\.", lambda c, n: not c.truth.ended and n == c.noun),
    (r"No job started\.", lambda c: not c.truth.started),
    (r"No job that ended in this (\w+) had started\.", lambda c, n: not c.truth.started and n == c.noun),
    (r"No job failed\.", lambda c: not c.truth.failed),
    (r"No name of jobs failed three times\.", lambda c: not report_tables.repeated(c)),
    (
        r"The kernel killed no process of a job for host memory\.",
        lambda c: not report_tables.host_memory_kills(c, ""),
    ),
    (r"No job met its GPU memory limit\.", lambda c: not [job for job in c.truth.ended if job.oom == "gpu"]),
    (r"Nothing was charged\.", lambda c: not c.truth.whole.charged),
    (r"Nothing was charged in this (\w+)\.", lambda c, n: not c.truth.whole.charged and n == c.noun),
    (r"No job waited for resources\.", lambda c: not c.truth.demand),
    (r"No job waited for resources in this (\w+)\.", lambda c, n: not c.truth.demand and n == c.noun),
    (r"No job ran that could be replayed\.", lambda c: True),  # test_reports replays
    (r"No process outside fgsched used a GPU\.", lambda c: not c.truth.foreign),
    (
        r"No Xid event, no uncorrectable ECC error, no drained card\.",
        lambda c: not report_tables.events(c, "overview"),
    ),
    # waits
    (
        rf"Half of {N} jobs waited {D} or less, nine of ten {D} or less\.",
        lambda c, a, m, n: (
            near(a, len(c.truth.waits))
            and near(m, rank(c.truth.waits, 50))
            and near(n, rank(c.truth.waits, 90))
        ),
    ),
    (rf"1 job started; it waited {D}\.", lambda c, m: len(c.truth.waits) == 1 and near(m, c.truth.waits[0])),
    (
        r"Each dot is one job in twenty of its (?:size class|partition); in a (?:class|partition) of fewer than 20"
        r" jobs, one job\. The line marks the median\. Logarithmic scale\.",
        lambda c: True,
    ),
    # failures
    (
        rf"None of {N} jobs? ended in failure\.",
        lambda c, a: near(a, len(c.truth.ended)) and not c.truth.failed,
    ),
    (
        rf"{N} of {N} jobs? ended in failure\.",
        lambda c, a, b: near(a, len(c.truth.failed)) and near(b, len(c.truth.ended)),
    ),
    (
        rf"{N} of {N} jobs? ended in failure; {N} of them: ([\w ]+)\.",
        lambda c, a, b, n, k: (
            near(a, len(c.truth.failed))
            and near(b, len(c.truth.ended))
            and near(n, c.truth.kinds()[k])
            and c.truth.kinds()[k] == max(c.truth.kinds()[c.truth.kind(job)] for job in c.truth.failed)
        ),
    ),
    # wastes
    (
        rf"Each waste has a header line for the job script, and the GPU-hours that the line would have returned\."
        rf" Together {N} GPU-hours, {N} % of those charged to the jobs that ended\.",
        lambda c, a, p: c.together(a, p),
    ),
    (r"No header line would have returned 1 GPU-hour or more\.", lambda c: not c.items),
    (r"GPU-hours that each line would have returned, and charged GPU-hours\.", lambda c: bool(c.items)),
    (
        r"Jobs with a fifth or more of their charged hours idle: hours in which no process had an SM share above"
        r" 1 %\.",
        lambda c: True,
    ),
    (
        r"No jobs of one name were idle for 0\.1 GPU-hours and a fifth of their charge\.",
        lambda c: not report_tables.idle(c, "waste"),
    ),
    (
        r"Outline: asked\. Bar: highest peak of all its jobs\. The proposal is that peak and 15 %\.",
        lambda c: True,
    ),
    (r"No smaller request of GPU memory is proposed\.", lambda c: not report_tables.memory(c)),
    (
        r"A shorter limit lets a job start in a gap before a reservation\. Bar: median run of the latest completed"
        r" jobs; outline: the limit\. The proposal is the longest of their runs and 20 %\.",
        lambda c: True,
    ),
    (r"No shorter time limit is proposed\.", lambda c: not report_tables.limits_of_time(c)),
    (r"All cards have the same memory\.", lambda c: len({size for _, size in c.world.models}) == 1),
    (
        rf"Jobs on larger cards whose peak would fit the ([\w ]+) \({N} GiB\)\.",
        lambda c, m, s: (f"NVIDIA {m}", int(s)) == min(c.world.models, key=lambda one: one[1]),
    ),
    (r"No job is proposed for a smaller card\.", lambda c: not report_tables.models(c, "waste")),
    (
        r"No sampled job of 10 GPU-minutes or more was without a GPU process\.",
        lambda c: not report_tables.without_process(c, "waste"),
    ),
    # health and strangers
    (
        r"No GPU had an event in this (\w+)\.",
        lambda c, n: n == c.noun and not report_tables.events(c, "health"),
    ),
    (
        rf"{GPUS} w(?:as|ere) drained, suspect or failed; {N} GPU-hours were down\.",
        lambda c, g, a: named(g) == downs(c) and near(a, hours(c.truth.whole.classes["down"])),
    ),
    (
        rf"{N} events?; no GPU was down\.",
        lambda c, a: near(a, len(report_tables.events(c, "health"))) and not downs(c),
    ),
    (r"The version changed in this period\.", lambda c: False),
    (
        rf"{N} users? ran processes outside fgsched on {N} cards?\.",
        lambda c, a, b: near(a, len(foreign_users(c))) and near(b, len({run.gpu for run in c.truth.foreign})),
    ),
    (
        rf"The longest {N} of {N}; fgreport strangers lists all\.",
        lambda c, a, b: near(a, 10) and near(b, len(c.truth.foreign)),
    ),
    # capacity and charge
    (
        rf"In at least {N} of {N} hours, jobs waited for a resource\.",
        lambda c, a, h: (
            near(h, c.truth.hours) and F(a.replace(",", "")) <= waiting(c) < F(a.replace(",", "")) + 1
        ),
    ),
    (
        rf"{N} GPU-hours were charged, {N} with the weights of the models\.",
        lambda c, a, w: near(a, hours(c.truth.whole.charged)) and near(w, hours(report_tables.weighted(c))),
    ),
    # notes
    (
        r"Made by fgreport [\w.+]+ from the records of hopper, times in CE(?:S?)T(?: and CES?T)?\.",
        lambda c: c.closed,
    ),
    (r"The period is closed: the report comes out the same when it is made again\.", lambda c: c.closed),
    (r"Made 2026-11-18 12:20 CET by fgreport [\w.+]+ from the records of hopper\.", lambda c: not c.closed),
    (r"The period has not ended: it is reported up to 2026-11-18 12:00\.", lambda c: not c.closed),
    (rf"Without samples: {N} GPU-hours\.", lambda c, a: near(a, hours(c.truth.lost))),
    (rf"Without samples: (.+?); {N} GPU-hours in all\.", gaps_are),
]


def plus(whole: str, part: str, rest: str) -> bool:
    """Tell whether printed numbers add up."""
    whole_, part_, rest_ = (F(one.replace(",", "")) for one in (whole, part, rest))
    return whole_ - part_ == rest_


def sentence_problems(case, where: str, text: str) -> list[str]:
    """Return what is wrong with a text of a report: a part that no rule knows, or that is not true."""
    left = text.strip()
    while left:
        found = [(match.end(), rule, match) for pattern, rule in RULES if (match := re.match(pattern, left))]
        if not found:
            return [f"{where}: no rule for {left!r}"]
        true = [end for end, rule, match in found if rule(case, *match.groups())]
        if not true:
            return [f"{where}: not true: {left!r}"]
        left = left[max(true) :].strip()
    return []


# -- figures -------------------------------------------------------------------------------------------


def _fraction(part, whole, rest=""):
    return lambda note: bool(
        (match := re.fullmatch(rf"{N} of {N} GPU-hours{rest}", note))
        and near(match[1], hours(part))
        and near(match[2], hours(whole))
    )


def figures(case, kind):
    """Return the truth of each figure: value, whether its note is true, value of the earlier period."""
    now, before = case.truth, case.before
    whole, earlier = now.whole, before.whole
    jobs_before = len(before.ended) if earlier.sampled or before.ended else None
    found = {
        "charged": (
            percent(whole.charged, whole.sampled),
            _fraction(whole.charged, whole.sampled),
            percent(earlier.charged, earlier.sampled),
        ),
        "efficiency": (
            percent(now.of_jobs.used, whole.charged),
            _fraction(now.of_jobs.used, whole.charged, " used"),
            percent(before.of_jobs.used, earlier.charged),
        ),
        "idle": (
            percent(whole.idle, whole.charged),
            _fraction(whole.idle, whole.charged),
            percent(earlier.idle, earlier.charged),
        ),
        "median_wait": (
            rank(now.waits, 50),
            lambda note: note.startswith("90 %: ") and near(note[6:], rank(now.waits, 90)),
            rank(before.waits, 50),
        ),
        "jobs": (
            len(now.ended),
            lambda note: bool(
                (match := re.fullmatch(rf"{N} failed, ({DASH}|[\d.]+ %)", note))
                and near(match[1], len(now.failed))
                and near(match[2], percent(len(now.failed), len(now.ended)))
            ),
            jobs_before,
        ),
        "failed": (
            len(now.failed),
            lambda note: bool(
                (match := re.fullmatch(rf"({DASH}|[\d.]+ %) of {N} jobs?", note))
                and near(match[1], percent(len(now.failed), len(now.ended)))
                and near(match[2], len(now.ended))
            ),
            None if jobs_before is None else len(before.failed),
        ),
        "down": (
            hours(whole.classes["down"]),
            lambda note: bool(
                (match := re.fullmatch(rf"({DASH}|[\d.]+ %) of the hours", note))
                and agrees(match[1], percent(whole.classes["down"], whole.sampled), 2)
            ),
            hours(earlier.classes["down"]) if earlier.sampled else None,
        ),
        "packing": (
            percent(whole.charged, whole.packed),
            _fraction(whole.charged, whole.packed),
            percent(earlier.charged, earlier.packed),
        ),
        "ninety_nine": (
            rank(now.waits, 99),
            lambda note: note.startswith("longest: ") and near(note[9:], max(now.waits, default=None)),
            None,
        ),
        "at_once": (
            percent(sum(wait < 60 for wait in now.waits), len(now.waits)),
            lambda note: bool(
                (match := re.fullmatch(rf"{N} of {N} jobs?", note))
                and near(match[1], sum(wait < 60 for wait in now.waits))
                and near(match[2], len(now.waits))
            ),
            None,
        ),
        "xid": (sum(_is_in(case, at) for _, at, _ in case.world.xids), "of the driver".__eq__, None),
        "ecc": (0, "uncorrectable".__eq__, None),
        "users": (len(foreign_users(case)), "with such processes".__eq__, None),
        "hours": (
            hours(sum(run.seconds for run in now.foreign)),
            "summed over processes and cards".__eq__,
            None,
        ),
        "memory": (
            hours(sum(run.byte_seconds for run in now.foreign)) / GIB,
            "memory × time".__eq__,
            None,
        ),
        "waited": (
            waiting(case),
            lambda note: note == f"or more of {int(now.hours):,} hours",
            None,
        ),
        "weighted": (hours(report_tables.weighted(case)), "with the weights of the models".__eq__, None),
        "unused": (
            hours(sum(map(now.lacking_memory, report_tables.sampled(case)))) / GIB,
            "asked, and above the peak".__eq__,
            None,
        ),
        "warnings": (0, "to 0 users".__eq__, None),
        "returned": (
            case.returned,
            lambda note: note == f"by {len(case.items)} line{'s' * (len(case.items) != 1)}",
            None,
        ),
    }
    if kind == "waste":
        held, empty = (hours(whole.classes[name]) for name in CLASSES[1:3])
        found["idle"] = (
            hours(whole.idle),
            lambda note: bool(
                (match := re.fullmatch(rf"{N} held-idle, {N} reserved-empty", note))
                and near(match[1], held)
                and near(match[2], empty)
            ),
            None,
        )
    if kind == "me":
        use = now.of_jobs
        found["charged"] = (
            hours(use.charged),
            lambda note: bool(
                (match := re.fullmatch(rf"of {N} GPU-hours", note)) and near(match[1], hours(whole.sampled))
            ),
            None,
        )
        found["efficiency"] = (
            percent(use.used, use.charged),
            _fraction(use.used, use.charged, " used"),
            None,
        )
        found["idle"] = (percent(use.idle, use.charged), _fraction(use.idle, use.charged), None)
    return found


def _is_in(case, step) -> bool:
    return case.truth.since <= case.truth._looked(step) < case.truth.until


def figure_problems(case, report) -> list[str]:
    known, found = figures(case, report["kind"]), []
    for item in report["figures"]["items"]:
        key = item["key"]
        if key not in known:
            found.append(f"figures: no rule for {key}")
            continue
        value, is_note, before = known[key]
        slack = 4 if key == "charged" else 1
        found += cell_problems(f"figures.{key}", item["number"], value, slack)
        if not is_note(item["note"]):
            found.append(f"figures.{key}: not true: {item['note']!r}")
        if item.get("change"):
            found += change_problems(f"figures.{key}", item["change"], value, before)
    return found


def change_problems(where, change, now, before) -> list[str]:
    """A change is the difference of what is printed: of two rounded numbers."""
    if now is None or before is None:
        return [f"{where}: a change of something unknown"]
    difference = now - before
    slack = F(61, 100) if change["unit"] == "points" else F(1, 10**4)
    if abs(F(change["value"]) - difference) > slack:
        return [f"{where}: changed by {float(difference)}, not {change['value']}"]
    if change["direction"] == "same":
        return [] if change["text"] == "unchanged" and abs(difference) <= 30 else [f"{where}: {change}"]
    is_up = (difference > 0) == (change["direction"] == "up")
    is_shown = abs(F(change["value"])) < F(1, 20) or agrees(change["text"], abs(F(change["value"])))
    return [] if is_up and is_shown else [f"{where}: {change} of {float(difference)}"]


# -- the whole report ----------------------------------------------------------------------------------


def problems(case, report) -> list[str]:
    """Return all that is wrong with a report that was read from JSON."""
    case.read(report)
    found = period_problems(case, report) + figure_problems(case, report)
    for at, text in enumerate([" ".join(report["lede"]), *report["notes"]]):
        found += sentence_problems(case, "note" if at else "lede", text)
    found += [
        f"no rule for the term {one['term']!r}" for one in report["definitions"] if one["term"] not in TERMS
    ]
    for section in report["sections"]:
        where = f"{report['kind']}.{section['key']}"
        if section["title"] not in TITLES:
            found.append(f"{where}: no rule for the title {section['title']!r}")
        found += sentence_problems(case, where, section["say"])
        for part in section["parts"]:
            found += part_problems(case, report["kind"], section["key"], part)
    return found


def period_problems(case, report) -> list[str]:
    period = report["period"]
    expected = {
        "since": case.world.at(case.truth.since),
        "until": case.world.at(case.truth.until),
        "name": case.name,
        "label": case.label,
        "noun": case.noun,
        "closed": case.closed,
    }
    found = {name: period[name] for name in expected}
    return [] if found == expected else [f"period: {found}, not {expected}"]


def part_problems(case, kind, section, part) -> list[str]:
    where = f"{kind}.{section}.{part['key']}"
    if part["kind"] == "paragraphs":
        return [
            one
            for text in part["texts"]
            for one in sentence_problems(case, where, "".join(word["text"] for word in text["parts"]))
        ]
    found = [] if part["title"] in TITLES else [f"{where}: no rule for the title {part['title']!r}"]
    for key in ("caption", "note"):
        found += sentence_problems(case, where, part.get(key, ""))
    if not part.get("rows", part.get("items", part.get("classes"))):
        found += sentence_problems(case, where, part.get("empty", ""))
    return found + report_tables.problems(case, kind, where, part)
