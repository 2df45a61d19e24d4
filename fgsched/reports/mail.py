"""Write mails: a report for its readers, and a notice of one job for its owner. Nothing is sent here.

The HTML of a mail is made of tables with inline styles, because many mail programs drop style sheets and SVG.
"""

from markupsafe import Markup
from msgspec import Struct

from fgsched.domain.text import clean
from fgsched.reports.drawing import DARK, LIGHT
from fgsched.reports.html import as_html, environment, shown, with_names
from fgsched.reports.model import ClassBar, Report
from fgsched.reports.text import as_text
from fgsched.views.display import WIDTH, ascii_only, cut, eighths, paragraph

LARGEST = 100_000  # bytes of the HTML of a mail; Gmail cuts longer ones
_ROWS = (30, 10, 3, 0)  # of each table: the first number with which the mail is small enough
_ATTACHED = ("gpus", "hours", "users", "waits", "failures", "health")  # sections of the overview
_BAR = 20  # columns of a bar in text
_LONGEST = 1000  # characters of a text of a user in a mail
_BREAK = 12  # characters of a name after which a line may break
_RULE = "─" * WIDTH


class MailContent(Struct, frozen=True, kw_only=True):
    """A mail without its addresses."""

    subject: str
    text: str
    html: str
    page: str = ""  # the whole report as a page, to be attached
    page_name: str = ""


def report_mail(report: Report, *, ascii: bool = False) -> MailContent:
    """Return a mail with a report: its text, a short form in HTML, and the whole page to be attached."""
    return MailContent(
        subject=clean(f"{report.title} {report.period.name}, {report.host}"),
        text=as_text(report, ascii=ascii),
        html=report_html(report),
        page=as_html(report),
        page_name=f"{report.kind}.html",
    )


def report_html(report: Report) -> str:
    """Return the short form of a report: at most LARGEST bytes, without drawings."""
    sections = [
        section for section in report.sections if report.kind != "overview" or section.key not in _ATTACHED
    ]
    for rows in _ROWS:
        html = _rendered(
            "mail-report.html.j2", report=report, sections=sections, rows=rows, preheader=_preheader(report)
        )
        if len(html.encode()) <= LARGEST:
            return html
    return _rendered("mail-report.html.j2", report=report, sections=[], rows=0, preheader="")


def _preheader(report: Report) -> str:
    """Return the text that mail programs show beside the subject in a list: the figures."""
    figures = [
        f"{item.label} {item.number.text}" for item in report.figures.items if item.number.value is not None
    ]
    return ", ".join(figures[:4])


def _rendered(template: str, **values: object) -> str:
    page = environment().get_template(template)
    return page.render(light=LIGHT, dark=DARK, name=name, widths=widths, with_names=with_names, **values)


def name(text: str) -> Markup:
    """Return a text of a user: shortened, and with places where a line may break."""
    text = shown(text)
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    parts = [text[at : at + _BREAK] for at in range(0, len(text), _BREAK)]
    return Markup("<bdi>{}</bdi>").format(Markup("<wbr>").join(parts))


def widths(part: ClassBar) -> list[int]:
    """Return the widths of the time classes in whole per cent, which add up to 100."""
    exact = [kind.share.value or 0.0 for kind in part.classes]
    whole = [int(value) for value in exact]
    order = sorted(range(len(exact)), key=lambda at: (whole[at] - exact[at], at))
    for at in order[: 100 - sum(whole)]:
        whole[at] += 1
    return whole


# -- notices -------------------------------------------------------------------------------------------


class ResourceUse(Struct, frozen=True, kw_only=True):
    """The use of one resource by a job."""

    label: str  # such as "GPU memory"
    text: str  # such as "6.1 of 80.0 GiB"
    part: float | None = None  # of the request, from 0 to 1; None: not requested, or not measured


class Notice(Struct, frozen=True, kw_only=True):
    """The contents of a mail about a job. Names, paths and lines of output may contain any character."""

    subject: str
    host: str
    job: str  # "40840", "12_3" or "12_*"
    name: str
    user: str
    state: str
    sentence: str  # such as "Ran 06:39:41, exit code 0."
    has_failed: bool = False
    used: tuple[ResourceUse, ...] = ()
    happened: tuple[str, ...] = ()  # sentences
    advice: tuple[str, ...] = ()  # sentences about the next run
    line: tuple[str, ...] = ()  # header line for it: "#FG", "--gpus=0.25"
    where: tuple[tuple[str, str], ...] = ()  # label and text
    tail: tuple[str, ...] = ()  # last lines of the output
    missing: str = ""  # why they are not shown, as a sentence; "": no reason
    why: str = ""  # such as "Sent because the job has --mail-type=END. fgsched on hopper."


def notice_mail(notice: Notice, *, ascii: bool = False) -> MailContent:
    """Return a mail about a job."""
    return MailContent(
        subject=clean(notice.subject), text=notice_text(notice, ascii=ascii), html=notice_html(notice)
    )


def notice_html(notice: Notice) -> str:
    """Return a notice in HTML. If it is larger than LARGEST, lines of output are left out."""
    for lines in (len(notice.tail), 20, 5, 0):
        tail = [cut(line, _LONGEST) for line in notice.tail[max(0, len(notice.tail) - lines) :]]
        html = _rendered("mail-job.html.j2", notice=notice, tail=tail)
        if len(html.encode()) <= LARGEST:
            break
    return html


def notice_text(notice: Notice, *, ascii: bool = False) -> str:
    """Return a notice as text of 78 columns; `ascii` replaces other characters."""
    parts = [
        _head(notice),
        _used(notice, ascii),
        _sentences("What happened", notice.happened),
        _advice(notice),
    ]
    parts += [_where(notice), _tail(notice)]
    lines = [line for part in parts if part for line in (*part, "")]
    lines = lines[:-1] if notice.tail and not notice.missing else [*lines, _RULE]
    text = "\n".join(line.rstrip() for line in [*lines, *paragraph(clean(notice.why))]) + "\n"
    return ascii_only(text) if ascii else text


def _head(notice: Notice) -> list[str]:
    names = [
        notice.state,
        f"job {notice.job}",
        cut(clean(notice.name), 30),
        cut(clean(notice.user), 20),
        notice.host,
    ]
    return [cut("   ".join(names), WIDTH), *paragraph(clean(notice.sentence))]


def _used(notice: Notice, ascii: bool) -> list[str]:
    if not notice.used:
        return []
    rows = []
    for resource_use in notice.used:
        drawn = "" if resource_use.part is None else _drawn(resource_use.part, ascii)
        share = "" if resource_use.part is None else f"{100 * resource_use.part:.0f} %"
        rows.append(f"  {resource_use.label:<14}{drawn:<{_BAR}}{resource_use.text:>30}{share:>12}")
    return ["Used, of the request", _RULE, *rows, _RULE]


def _drawn(part: float, ascii: bool) -> str:
    if ascii:
        return f"{'#' * round(min(1.0, max(0.0, part)) * _BAR):.<{_BAR}}"
    return f"{eighths(part, _BAR):·<{_BAR}}"


def _sentences(title: str, sentences: tuple[str, ...]) -> list[str]:
    lines = [line for sentence in sentences for line in paragraph(clean(sentence), "  ")]
    return [title, *lines] if lines else []


def _advice(notice: Notice) -> list[str]:
    lines = _sentences("For the next run", notice.advice)
    if not notice.line:
        return lines
    return [*(lines or ["For the next run"]), "", f"      {clean(' '.join(notice.line))}"]


def _where(notice: Notice) -> list[str]:
    rows = [(label, text) for label, text in notice.where if text]
    if not rows:
        return []
    lines = [line for label, text in rows for line in paragraph(clean(text), " " * 13, f"  {label:<11}")]
    return ["Where and when", *lines]


def _tail(notice: Notice) -> list[str]:
    if notice.missing:
        return _sentences("Last lines of the output", (notice.missing,))
    if not notice.tail:
        return []
    lines = [cut(f"  {clean(line.expandtabs())}", WIDTH) for line in notice.tail]
    return ["Last lines of the output", _RULE, *lines, _RULE]
