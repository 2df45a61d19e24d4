"""Say in a sentence that a report is about nothing, and how to see another period."""

from fgsched.domain.text import clean
from fgsched.domain.times import format_time
from fgsched.reports.layout import paragraph
from fgsched.reports.model import Report
from fgsched.reports.request import Records

_OTHERS = "--since, --week and --month choose another period; fgacct shows jobs at once."
_DATE = "%Y-%m-%d"


def blank(made: Report, records: Records, user: str, now: float) -> str:
    """Return the text that replaces a report about nothing, in lines of 78 columns; else "".

    Args:
        user: of whom `me` reports.
        now: epoch seconds.
    """
    said = _sentences(made, records, user, now)
    return "".join(f"{line}\n" for line in paragraph(said))


def _sentences(made: Report, records: Records, user: str, now: float) -> str:
    label = made.period.label
    if records.begin is None:
        return (
            "Nothing is accounted yet: the accounts begin about ten minutes after the first job has ended "
            "(move_after in fgsched.toml), and fgacct shows jobs at once."
        )
    nothing = f"Nothing was accounted in the period {label}; the accounts begin on"
    first = format_time(records.begin, _DATE)
    if records.begin >= made.period.until and first == format_time(now, _DATE):
        return f"{nothing} {first}. --since today reports this day up to the last full hour."
    if records.begin >= made.period.until:
        return f"{nothing} {first}. --since {first} reports the time since then."
    if made.kind == "me" and made.quiet:
        return f"No job of {clean(user)} ran in the period {label}. {_OTHERS}"
    return f"{nothing} {first}. {_OTHERS}" if records.is_empty else ""
