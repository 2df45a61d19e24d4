"""The forms of a report compared with its JSON: none says what JSON does not, and each has its sentences."""

import csv
import html
import io
import re

from fgsched.reports.export import as_csv, as_markdown, find, names
from fgsched.reports.html import as_html
from fgsched.reports.mail import report_mail
from fgsched.reports.text import as_text

FRAME = {  # words and numbers of the frame of a form that are in no sentence of JSON
    "text": "25 50 75 100 a column no samples down of or mean all jobs total h without hours hour minutes"
    " minute definitions 30 176 last row and the are means median longest 90",
    "page": "25 50 75 100 card day class meaning share change points total no samples dashed mean jobs 90"
    " median longest user job proposed line of charged definitions gpu peak memory active over time the"
    " distribution waits up down what was asked job this size started at once classes wait limit h without"
    " not counted size most used requested percent used unused held-idle reserved-empty free external",
    "markdown": "day definitions of change figure value card uuid model peak memory notes active charged jobs"
    " median 90 longest size user job proposed line cost used most asked class meaning hours share total",
    "mail": "the whole report with drawings and definitions is attached as more rows are in page drawing h"
    " of",
}
HOURS = {f"{hour:02d}" for hour in range(24)} | {str(hour) for hour in range(24)}  # heads of the heat map
_SIGNS = re.compile(r"[█▇▒▓░▄▂▚▞╳╱▏▎▍▌▋▊▉▁▃▅▆═─·▲▼=#|+?…\\*`_()<>\[\]{}]")


def strings(value) -> list[str]:
    """Return all texts of a report in JSON."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [one for key, part in value.items() for one in strings(part)]
    return [one for part in value for one in strings(part)] if isinstance(value, list) else []


def words(text: str) -> set[str]:
    text = _SIGNS.sub(" ", html.unescape(text).replace("\u202f", " ").replace("\xa0", " "))
    return {word.strip(".,:;–-!'\"").lower() for word in text.split()} - {""}


def plain(text: str) -> str:
    """Return a text without line breaks, markup and narrow spaces."""
    if text.lstrip().startswith("<!"):
        text = re.sub(r"<style>.*?</style>|<wbr>", "", text, flags=re.DOTALL)
        text = html.unescape(re.sub(r"<[^>]*>", " ", text))
    text = re.sub(r"\\([^\w\s])", r"\1", text).replace("\u202f", " ").replace("`", "")
    return re.sub(r"\s+", " ", text)


def numbers_of_labels(page: str) -> set[str]:
    """Return the words of descriptions of bars, whose parts are compared with the truth in JSON."""
    labels = re.findall(r'class="bar" role="img" aria-label="([^"]*)"', page)
    return {word for label in labels for word in words(label)}


def forms(report):
    mail = report_mail(report)
    page = as_html(report)
    labels = " ".join(re.findall(r'aria-label="([^"]*)"', page))
    return {
        "text": as_text(report),
        "page": f"{page} {labels}",
        "markdown": as_markdown(report),
        "mail": mail.html,
    }, mail


def problems(report, content) -> list[str]:
    """Return what a form of a report says beyond its JSON, or leaves out of its sentences."""
    shown, mail = forms(report)
    known = words(" ".join(strings(content)))
    known |= {part for word in known for part in re.split(r"[-/]", word)}
    found = []
    if mail.text != shown["text"] or not shown["page"].startswith(mail.page):
        found.append("the mail has another text or page")
    for form, text in shown.items():
        extra = words(plain(text)) - known - words(FRAME[form]) - HOURS - {f"{content['kind']}.html"}
        extra -= numbers_of_labels(shown["page"]) if form == "page" else set()
        extra = {word for word in extra if not set(re.split(r"[-/]", word)) <= known}
        found += [f"{form}: not in JSON: {sorted(extra)}"] if extra else []
        for sentence in sentences(content, form):
            if plain(sentence).strip() not in plain(text):
                found.append(f"{form}: left out: {sentence!r}")
    return found + csv_problems(report)


def sentences(content, form):
    """Yield the sentences that a form must have; the mail has some sections in its attached page only."""
    yield from content["notes"]
    yield " ".join(content["lede"])
    for section in content["sections"] if form != "mail" else ():
        yield section["say"]
        for part in section["parts"]:
            for text in part.get("texts", ()):
                yield "".join(word["text"] for word in text["parts"])
            rows = part.get("rows", part.get("items", part.get("classes")))
            if not rows:
                yield part.get("empty", "")
            elif form != "markdown" and part["kind"] in ("table", "used"):
                yield part["caption"]
            for item in part.get("items", ()) if part["kind"] == "wastes" else ():
                yield item["evidence"]


def csv_problems(report) -> list[str]:
    """Return the cells of CSV whose value is not that of JSON."""
    found = []
    for name in names(report):
        table, rows = find(report, name), list(csv.reader(io.StringIO(as_csv(report, name))))
        columns = [at for at, one in enumerate(table.columns) if one.key not in ("bar", "classes")]
        for row, shown in zip(table.rows, rows[1:], strict=True):
            for at, text in zip(columns, shown, strict=True):
                value = getattr(row[at], "value", None)
                if value is not None and abs(float(text) - value) > 1e-6:
                    found.append(f"csv {name}: {text}, not {value}")
                if value is None and hasattr(row[at], "value") and text:
                    found.append(f"csv {name}: {text} of something unknown")
    return found
