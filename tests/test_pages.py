"""Pages of reports in HTML: the expected pages, what they may hold, and how a browser shows them."""

import json
import re
from html.parser import HTMLParser
from zlib import crc32

import pytest

import history
from browser import CHROMIUM, browser
from fgsched.domain.times import HOUR
from fgsched.reports import drawing
from fgsched.reports.export import as_json
from fgsched.reports.html import as_html, cell
from fgsched.reports.model import Mark, Number, Step
from fgsched.reports.registry import NAMES, Wish, kind
from fgsched.reports.text import as_text
from reporting import HOSTS, NOW, facts_of, hostile_plan, is_expected

PLANS = {
    "fortnight": history.FORTNIGHT,
    "one-card": history.ONE_CARD,
    "empty": history.EMPTY,
    "sixteen": history.SIXTEEN,
    "hostile": hostile_plan(),
}
CASES = [name for name in PLANS if name != "hostile"]
WISH = Wish(now=NOW, weights={"A100": 2.5}, quotas={"vision": 600.0 * HOUR})
VOID = {"meta", "br", "wbr", "path", "link", "img", "hr", "input"}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("histories")
    for name, plan in PLANS.items():
        history.write(plan, folder / f"{name}.db")
    return folder


@pytest.fixture(scope="module")
def reports(paths):
    """The overview of each made history."""
    return {plan: made(paths, "overview", plan) for plan in CASES}


def made(paths, name, plan="fortnight"):
    """Make a report."""
    user = "jonas" if name == "me" else ""
    with facts_of(paths / f"{plan}.db", host=HOSTS.get(plan, "hopper"), user=user) as facts:
        return kind(name).make(facts, WISH)


@pytest.fixture(params=CASES)
def report(request, reports):
    return request.param, reports[request.param]


every_report = pytest.mark.parametrize("name", NAMES)


class Page(HTMLParser):
    """A page as a person reads it, and what a browser would have to guess."""

    def __init__(self, html):
        super().__init__()
        self.open, self.wrong, self.ids, self.texts, self.tags = [], [], [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        if len(found) != len(attrs):
            self.wrong.append(f"{tag} has an attribute twice")
        self.ids += [found["id"]] if "id" in found else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "title"):
            self.texts.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", "".join(self.texts).replace("\u202f", " "))


def brief(html):
    """Return a page without its style, and with the checksum of each drawing."""
    html = re.sub(r"(?s)<style>.*?</style>", "<style></style>", html)
    return re.sub(r' d="([^"]{24,})"', lambda found: f' d="{crc32(found[1].encode()):08x}"', html)


def test_the_page_is_the_expected_one(report):
    name, made = report
    assert is_expected(f"overview-{name}.html", brief(as_html(made)))


def test_a_page_is_well_formed_and_its_references_exist(report):
    page = Page(as_html(report[1]))
    assert (page.wrong, page.open) == ([], [])
    assert len(page.ids) == len(set(page.ids))
    wanted = {attrs["aria-labelledby"] for _, attrs in page.tags if "aria-labelledby" in attrs}
    assert wanted == set(page.ids)
    heads = [tag for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert heads.count("h1") == 1
    assert heads[:2] == ["h1", "h2"]


def test_a_page_needs_no_other_file_no_script_and_no_network(report):
    html = as_html(report[1])
    assert not re.search(r"https?:|src=|<script|<link|@import|url\(|javascript:", html)
    assert len(html.encode()) < 150_000


def test_a_page_of_a_closed_period_has_the_same_bytes_when_it_is_made_again(report):
    assert as_html(report[1]) == as_html(report[1])


def test_every_number_is_the_same_string_in_json_in_text_and_on_the_page(report):
    """The text leaves out some columns, so that only the page is asked for every number."""
    content, page = json.loads(as_json(report[1])), Page(as_html(report[1])).text
    known = {one["text"] for one in numbers(content)}
    assert {text for text in known if text not in page} == set()
    plain = as_text(report[1])
    for item in content["figures"]["items"]:
        assert item["number"]["text"] in plain


def numbers(value):
    """Yield every number of a report in JSON."""
    if isinstance(value, dict):
        if value.get("type") == "number":
            yield value
        for one in value.values():
            yield from numbers(one)
    elif isinstance(value, list):
        for one in value:
            yield from numbers(one)


def test_the_classes_on_a_page_add_up_to_100(report):
    html = as_html(report[1])
    label = re.search(r'aria-label="Time classes: ([^"]*)"', html)[1]
    shown = [float(value) for value in re.findall(r"([\d.]+) %", label)]
    assert len(shown) == 6
    assert round(sum(shown), 6) == 100.0
    widths = re.search(r'(?s)<div class="bar big".*?</div>', html)[0]
    assert round(sum(map(float, re.findall(r"width:([\d.]+)%", widths))), 6) == 100.0


def test_tables_have_heads_with_a_scope_and_stacked_ones_have_roles(report):
    page = Page(as_html(report[1]))
    assert [attrs for tag, attrs in page.tags if tag == "th" and "scope" not in attrs] == []
    roles = {"thead": "rowgroup", "tbody": "rowgroup", "tfoot": "rowgroup", "tr": "row", "td": "cell"}
    stacked = False
    for tag, attrs in page.tags:
        if tag == "table":
            stacked = "stack" in attrs.get("class", "")
            assert attrs.get("role") == ("table" if stacked else None)
        elif stacked and tag in roles and "aria-hidden" not in attrs:
            assert attrs.get("role", "cell") == roles[tag]
    drawings = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert all(attrs.get("role") == "img" and attrs.get("aria-label") for attrs in drawings)


@every_report
@pytest.mark.parametrize("plan", ["fortnight", "empty", "hostile"])
def test_every_report_of_every_history_is_a_page(paths, name, plan):
    html = as_html(made(paths, name, plan))
    page = Page(html)
    assert (page.wrong, page.open) == ([], [])
    assert not re.search(r"<script|<link|\ssrc=", html)
    assert len(html.encode()) < (150_000 if plan != "hostile" else 1_000_000)


@every_report
def test_every_number_of_every_report_is_on_its_page(paths, name):
    report = made(paths, name)
    page = Page(as_html(report)).text
    assert {one["text"] for one in numbers(json.loads(as_json(report))) if one["text"] not in page} == set()


# -- hostile names -------------------------------------------------------------------------------------


@every_report
def test_names_with_markup_escapes_and_emoji_do_no_harm(paths, name):
    html = as_html(made(paths, name, "hostile"))
    page = Page(html)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", html)
    styles = {attrs["style"] for _, attrs in page.tags if "style" in attrs}
    assert [one for one in styles if not re.fullmatch(r"(?:width|left):[\d.]+%?", one)] == []
    outside = re.sub(r"(?s)<bdi>.*?</bdi>|<[^>]*>", "", html)
    assert "alert(1)" not in outside
    assert "😀" not in outside
    html.encode()


def test_a_long_name_is_never_cut(paths):
    page = Page(as_html(made(paths, "users", "hostile")))
    assert "😀" * 1000 in page.text
    assert "x" * 4096 in page.text
    assert "<script>alert(1)</script>" in page.text


# -- drawings ------------------------------------------------------------------------------------------


def test_the_path_of_a_class_follows_its_steps_from_the_base():
    half, whole = Step(0.5, 0, 0, 0, 0), Step(0.5, 0.5, 0, 0, 0)
    assert dict(drawing.classes([half, whole, None, half])) == {
        "active": "M0 36V18H500V36H250H0zM750 36V18H1000V36H750z".replace("H250H0z", "H0z"),
        "held-idle": "M250 18V0H500V18H250z",
    }
    assert drawing.gaps([half, None, None, half]) == "M250 36V0H750V36"
    assert drawing.lines([Mark(0.0, "Mon"), Mark(0.5, "Tue"), Mark(1.0, "")]) == "M500 0V36"


def test_a_path_holds_only_coordinates():
    steps = [Step(at / 7, (7 - at) / 14, 0, 0, 0) for at in range(8)] + [None]
    for _, path in drawing.classes(steps):
        assert re.fullmatch(r"(?:[MHVz]|[\d.]+ ?)+", path)


def test_the_axis_of_waits_begins_with_less_than_a_minute_and_holds_the_longest():
    axis = drawing.WaitAxis((Mark(0, "at once"), Mark(600, "10 min")), longest=10 * 86_400)
    assert axis.place(5) == drawing.AT_ONCE / 2
    assert axis.place(60) == drawing.AT_ONCE
    assert axis.place(10 * 86_400) < drawing.WIDTH
    places = [axis.place(seconds) for seconds in (0, 60, 600, 3600, 86_400)]
    assert places == sorted(places)


def test_dots_of_one_bin_pile_up_and_make_the_drawing_higher():
    axis = drawing.WaitAxis((), longest=0)
    strip = axis.strip((0.0, 1.0, 2.0, 7200.0), 30.0)
    assert [strip.dots.count(f" {strip.height - 5 - 8 * pile}h0") for pile in range(4)] == [2, 1, 1, 0]
    assert strip.height == 30
    assert axis.strip((), None).median == ""


def test_a_number_that_is_nothing_is_grey_and_one_in_two_parts_is_divided():
    from fgsched.reports.html import figure

    assert cell(Number(0, "jobs", "0")) == '<span class="zero">0</span>'
    assert cell(Number(1, "bytes", "72 / 80 GiB")) == '72 <span class="soft">/ 80\u202fGiB</span>'
    assert figure("4 h 47 min") == "4<small>\u202fh</small>\u202f47<small>\u202fmin</small>"


def test_the_first_gpu_has_a_name_that_is_not_grey():
    assert cell(Number(0.0, "", "GPU 0")) == "GPU 0"
    assert cell(Number(0.0, "jobs", "0")) == '<span class="zero">0</span>'


def test_on_a_phone_a_rank_stands_beside_its_name_and_one_job_is_no_jobs(paths):
    top, failures = as_html(made(paths, "top")), as_html(made(paths, "failures"))
    first = '<th scope="row" class="whole lead" role="rowheader">1</th> <td class="led" role="cell"><bdi>'
    assert first in top
    assert '1<span class="phone"> job</span>' in failures
    assert '10<span class="phone"> jobs</span>' in failures


def test_the_text_of_a_page_keeps_cells_and_labels_apart(paths):
    text = Page(as_html(made(paths, "overview"))).text
    for kept_apart in (
        "Day 00 01 02",
        "Mon 20 17 17",
        "below 10 10–30 30–50",
        "0 25 50 75 100 %",
        "at once 10 min 1 h 6 h",
    ):
        assert kept_apart in text


def test_a_report_about_a_user_names_the_user(paths):
    assert made(paths, "me").lede == ("76.7 GPU-hours were charged to jonas; 1.8 of them were idle.",)


def test_waits_by_partition_are_headed_by_the_partition(paths):
    section = as_html(made(paths, "waits")).partition('id="partitions"')[2].partition("</section>")[0]
    assert 'class="size">Partition</th>' in section
    assert "in twenty of its partition" in section


# -- in a browser --------------------------------------------------------------------------------------

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
# Elements that are wider than the window or than the cell that holds them.
TOO_WIDE = """[...document.querySelectorAll('td,th,pre,dd,p,h1,h2,svg,.bar')].filter(one =>
  one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.hidden')).map(one =>
  one.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.mark.chromium
@needs_chromium
def test_an_overview_never_overflows_its_window(chromium, report):
    for width in (1280, 768, 390):
        chromium.show(as_html(report[1]), width=width)
        assert chromium.value("document.documentElement.scrollWidth") == width
        assert chromium.value(TOO_WIDE) == []


@pytest.mark.chromium
@needs_chromium
@every_report
@pytest.mark.parametrize("plan", ["fortnight", "hostile"])
def test_no_report_overflows_its_window_or_runs_a_script(chromium, paths, name, plan):
    html = as_html(made(paths, name, plan))
    for width in (1280, 390):
        chromium.show(html, width=width)
        assert chromium.value("document.documentElement.scrollWidth") == width
        assert chromium.value(TOO_WIDE) == []
    assert chromium.value("document.scripts.length") == 0


@pytest.mark.chromium
@needs_chromium
def test_a_page_is_dark_on_a_dark_screen_and_light_on_paper(chromium, reports):
    ground = "getComputedStyle(document.body).backgroundColor"
    html = as_html(reports["fortnight"])
    found = []
    for dark, media in ((False, ""), (True, ""), (True, "print")):
        chromium.show(html, width=1280, dark=dark, media=media)
        found.append(chromium.value(ground))
    assert found == ["rgb(255, 255, 255)", "rgb(20, 23, 27)", "rgb(255, 255, 255)"]


@pytest.mark.chromium
@needs_chromium
def test_a_printed_overview_takes_at_most_five_pages(chromium, reports):
    chromium.show(as_html(reports["fortnight"]), width=1280)
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", chromium.pdf())) <= 5
