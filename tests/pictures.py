"""Draw the pictures of docs/reports.md in Chromium: each report of a made fortnight, the wall page, a mail.

The pictures are cut at HEIGHT: what follows is a longer table of the same kind.
"""

import base64
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import history
from browser import CHROMIUM, Browser, browser
from fgsched.config.load import Config
from fgsched.domain.times import HOUR
from fgsched.reports.html import as_html
from fgsched.reports.mail import notice_html
from fgsched.reports.registry import NAMES, Wish, kind
from fgsched.simulate.replay import one_more_gpu
from reporting import NOW, facts_of
from test_report_mails import COMPLETED
from test_status import STATUS, page

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
WIDTH, HEIGHT = 1000, 900  # CSS pixels
SCALE = 0.7


def pages() -> Iterator[tuple[str, str, int, int]]:
    """Yield name, HTML, width and height of each picture."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "accounts.db"
        history.write(history.FORTNIGHT, path)
        for name in NAMES:
            yield name, _report(path, name), WIDTH, 1450 if name == "overview" else HEIGHT
    yield "status", page(STATUS), 1920, 1080
    yield "mail", notice_html(COMPLETED), 680, HEIGHT


def _report(path: Path, name: str) -> str:
    with facts_of(path, user="jonas" if name == "me" else "") as facts:
        replays = one_more_gpu(facts, Config().limits) if name == "capacity" else ()
        wish = Wish(now=NOW, weights={"A100": 2.5}, quotas={"vision": 600.0 * HOUR}, replays=replays)
        return as_html(kind(name).make(facts, wish))


def draw(chromium: Browser, html: str, width: int, height: int) -> bytes:
    """Return a picture of the top of a page, in PNG."""
    chromium.show(html, width=width, height=height)
    whole = chromium.value("document.body.getBoundingClientRect().bottom")
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, round(whole))}
    scale = SCALE * WIDTH / max(width, WIDTH)
    found = chromium.call("Page.captureScreenshot", format="png", clip=clip | {"scale": scale})
    return base64.b64decode(found["data"])


def main() -> int:
    if CHROMIUM is None:
        print("scripts/pictures needs Chromium (Debian: chromium)", file=sys.stderr)
        return 1
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as chromium:
        for name, html, width, height in pages():
            data = draw(chromium, html, width, height)
            (PICTURES / f"{name}.png").write_bytes(data)
            print(f"{name}.png {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
