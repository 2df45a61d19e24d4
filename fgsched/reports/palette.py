"""Define the colours of reports and mails, for a light and a dark ground."""

from msgspec import Struct

from fgsched.reports.model import CLASSES, TimeClass


class Palette(Struct, frozen=True, kw_only=True):
    """The colours on one ground, as #rrggbb."""

    page: str
    code: str  # ground of code
    ink: str
    soft: str  # secondary text
    rule: str  # between rows; decoration
    classes: dict[TimeClass, str]
    unused: str  # a process computes, and the charged share is not used
    outline: str  # of free
    good: str
    bad: str
    on_active: str  # a label on the class active
    heat: tuple[str, ...]  # six levels, from little to much
    heat_text: tuple[str, ...]  # the number on each level


LIGHT = Palette(
    page="#ffffff",
    code="#f5f6f8",
    ink="#16191d",
    soft="#565d66",
    rule="#d9dde2",
    classes=dict(
        zip(CLASSES, ("#1f66b5", "#c98200", "#9c3306", "#e4e8ec", "#c06fb0", "#41474f"), strict=True)
    ),
    unused="#5f97d2",
    outline="#858e98",
    good="#17608f",
    bad="#a33608",
    on_active="#ffffff",
    heat=("#eef3f8", "#cfe0f0", "#9dc2e3", "#5f9ccf", "#2f74b5", "#123f73"),
    heat_text=("#16191d",) * 4 + ("#ffffff",) * 2,
)
DARK = Palette(
    page="#14171b",
    code="#1c2026",
    ink="#eceff2",
    soft="#a5adb7",
    rule="#343a42",
    classes=dict(
        zip(CLASSES, ("#4f97dd", "#ecb953", "#d65a22", "#2a3037", "#e3afd9", "#7d8590"), strict=True)
    ),
    unused="#34689f",
    outline="#6d7782",
    good="#7dbcf0",
    bad="#f2935c",
    on_active="#0d1013",
    heat=("#1b222a", "#1c3450", "#1f4a78", "#2a68a6", "#5a9fe0", "#b6daf7"),
    heat_text=("#eceff2",) * 4 + ("#0d1013",) * 2,
)
WALL = "#0d1013"  # ground of the wall page and of terminals
DARK_TEXT = {
    "active": "#9cc8f2",
    "held-idle": "#f3cf86",
    "reserved-empty": "#f2935c",
}  # text in a class colour


def variables(ground: Palette) -> str:
    """Return the colours of a ground as declarations of CSS variables."""
    named = {
        "bg": ground.page,
        "alt": ground.code,
        "ink": ground.ink,
        "soft": ground.soft,
        "line": ground.rule,
        **ground.classes,
        "unused": ground.unused,
        "outline": ground.outline,
        "good": ground.good,
        "bad": ground.bad,
        "on": ground.on_active,
        **{f"h{level}": colour for level, colour in enumerate(ground.heat)},
        **{f"t{level}": colour for level, colour in enumerate(ground.heat_text)},
    }
    return "".join(f"--{name}:{colour};" for name, colour in named.items())
