"""The icon of the pages: a bar of the host's use, so that a tab in the background shows it."""

from fgsched.reports.drawing import LIGHT, number
from fgsched.reports.status import PresentClass
from fgsched.web.pages.gpubars import status_of
from fgsched.web.reading import HostLook

_SIZE = 32
_SHOWN: tuple[PresentClass, ...] = ("active", "held-idle", "reserved-empty")


def drawn(look: HostLook) -> str:
    """Return the icon as SVG: a column whose filled height is the charged part of all GPUs."""
    state = status_of(look)
    classes, whole = state.classes(), len(state.gpus) or 1
    top, parts = float(_SIZE), []
    for name in _SHOWN:
        height = _SIZE * classes.get(name, 0.0) / whole
        top -= height
        colour = LIGHT.classes[name]  # type: ignore[index]
        parts.append(f'<rect y="{number(top)}" width="{_SIZE}" height="{number(height)}" fill="{colour}"/>')
    ground = f'<rect width="{_SIZE}" height="{_SIZE}" fill="{LIGHT.classes["free"]}"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE} {_SIZE}">'
    return f"{head}{ground}{''.join(parts)}</svg>"
