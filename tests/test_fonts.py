"""Pages in a browser that has only some fonts: no layout depends on the widths of a font."""

from pathlib import Path

import pytest
from msgspec.structs import replace

import history
from browser import browser
from fgsched.reports.html import as_html
from test_pages import PLANS, TOO_WIDE, made, needs_chromium
from test_status import GPUS, STATUS, page

FOLDER = Path("/usr/share/fonts/truetype")
SETS = {  # name: files
    "DejaVu": "dejavu/*.ttf",
    "Liberation": "liberation*/*.ttf",
    "Noto": "noto/NotoSans*.ttf",
    "one font": "dejavu/DejaVuSans.ttf",
}
MANY = replace(STATUS, gpus=tuple(replace(GPUS[at % 4], gpu=at) for at in range(16)))
CONFIGURATION = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{0}/fonts</dir><cachedir>{0}/cache</cachedir></fontconfig>
"""


@pytest.fixture(scope="module", params=SETS)
def chromium(request, tmp_path_factory):
    """A browser that has one set of fonts, if the host has them."""
    files = sorted(FOLDER.glob(SETS[request.param]))
    if not files:
        pytest.skip(f"the host has no fonts {request.param}")
    folder = tmp_path_factory.mktemp("fonts")
    (folder / "fonts").mkdir()
    for file in files:
        (folder / "fonts" / file.name).symlink_to(file)
    (folder / "fonts.conf").write_text(CONFIGURATION.format(folder))
    with browser(tmp_path_factory.mktemp("profile"), folder / "fonts.conf") as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("histories")
    for name in ("fortnight", "sixteen", "hostile"):
        history.write(PLANS[name], folder / f"{name}.db")
    reports = [("overview", "fortnight"), ("overview", "sixteen"), ("overview", "hostile")]
    reports += [(name, "fortnight") for name in ("users", "strangers", "waste", "capacity")]
    return {(name, plan): as_html(made(folder, name, plan)) for name, plan in reports}


@pytest.mark.chromium
@needs_chromium
def test_no_report_is_wider_than_its_window_with_any_fonts(chromium, pages):
    for name, html in pages.items():
        for width in (1280, 1000, 900, 768, 710, 390):
            chromium.show(html, width=width)
            wide = chromium.value("document.documentElement.scrollWidth"), chromium.value(TOO_WIDE)
            assert (name, *wide) == (name, width, [])


@pytest.mark.chromium
@needs_chromium
@pytest.mark.parametrize("status", [STATUS, MANY])
def test_the_wall_page_fills_its_screen_with_any_fonts(chromium, status):
    html = page(status)
    for width, height in ((1920, 1080), (1280, 720), (390, 844)):
        chromium.show(html, width=width, height=height)
        size = "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
        found = chromium.value(size)
        assert found[0] == width
        assert width < 600 or found[1] == height
    legend = "document.querySelector('footer').getBoundingClientRect()"
    chromium.show(html, width=1920, height=1080)
    assert chromium.value(f"{legend}.right") <= 1920
    assert chromium.value(f"{legend}.bottom") <= 1080
