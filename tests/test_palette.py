"""The colours of reports: their contrast after WCAG, and how far apart they are for every kind of sight."""

from itertools import combinations
from math import atan2, cos, degrees, exp, hypot, radians, sin

import pytest

from fgsched.reports.drawing import DARK, DARK_TEXT, LIGHT, WALL, variables

# Machado, Oliveira and Fernandes, 2009: severity 1.0, in linear RGB
SIGHTS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
LEAST = {  # CIEDE2000 between any two classes; those below 15 differ by texture too
    "light": {"normal": 20.3, "protan": 10.8, "deutan": 21.3, "tritan": 9.8},
    "dark": {"normal": 17.0, "protan": 13.0, "deutan": 17.3, "tritan": 9.6},
}
GROUNDS = {"light": LIGHT, "dark": DARK}


def linear(colour):
    """Return the three parts of #rrggbb in linear light, from 0 to 1."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def luminance(colour):
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def contrast(one, other):
    """Return the contrast ratio of WCAG 2."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def lab(colour, sight):
    """Return a colour as L*, a*, b* under D65, as a person of this sight sees it."""
    seen = [
        min(1.0, max(0.0, sum(weight * part for weight, part in zip(row, linear(colour), strict=True))))
        for row in SIGHTS[sight]
    ]
    to_xyz = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750))
    to_xyz += ((0.0193339, 0.1191920, 0.9503041),)
    white = (0.95047, 1.0, 1.08883)
    xyz = [
        sum(weight * part for weight, part in zip(row, seen, strict=True)) / whole
        for row, whole in zip(to_xyz, white, strict=True)
    ]
    x, y, z = (part ** (1 / 3) if part > 216 / 24389 else (24389 / 27 * part + 16) / 116 for part in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def ciede2000(one, other):
    """Return the difference of two colours after Sharma, Wu and Dalal, 2005."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean = (hypot(a1, b1) + hypot(a2, b2)) / 2
    g = 0.5 * (1 - (mean**7 / (mean**7 + 25**7)) ** 0.5)
    a1, a2 = a1 * (1 + g), a2 * (1 + g)
    c1, c2 = hypot(a1, b1), hypot(a2, b2)
    h1, h2 = degrees(atan2(b1, a1)) % 360, degrees(atan2(b2, a2)) % 360
    turn = 0.0 if not c1 * c2 else (h2 - h1 + 180) % 360 - 180
    high = 2 * (c1 * c2) ** 0.5 * sin(radians(turn / 2))
    mean_l, mean_c = (l1 + l2) / 2, (c1 + c2) / 2
    mean_h = h1 + h2 if not c1 * c2 else (h1 + turn / 2) % 360
    t = 1 - 0.17 * cos(radians(mean_h - 30)) + 0.24 * cos(radians(2 * mean_h))
    t += 0.32 * cos(radians(3 * mean_h + 6)) - 0.2 * cos(radians(4 * mean_h - 63))
    s_l = 1 + 0.015 * (mean_l - 50) ** 2 / (20 + (mean_l - 50) ** 2) ** 0.5
    s_c, s_h = 1 + 0.045 * mean_c, 1 + 0.015 * mean_c * t
    theta = 30 * exp(-(((mean_h - 275) / 25) ** 2))
    r_t = -2 * (mean_c**7 / (mean_c**7 + 25**7)) ** 0.5 * sin(radians(2 * theta))
    d_l, d_c, d_h = (l2 - l1) / s_l, (c2 - c1) / s_c, high / s_h
    return (d_l**2 + d_c**2 + d_h**2 + r_t * d_c * d_h) ** 0.5


def test_the_formula_of_the_difference_gives_the_published_values():
    """Three pairs of the data that accompany the formula."""
    assert ciede2000((50, 2.6772, -79.7751), (50, 0, -82.7485)) == pytest.approx(2.0425, abs=1e-4)
    assert ciede2000((50, 2.5, 0), (73, 25, -18)) == pytest.approx(27.1492, abs=1e-4)
    assert ciede2000((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514)) == pytest.approx(0.9082, abs=1e-4)


@pytest.mark.parametrize("name", GROUNDS)
def test_every_text_can_be_read_on_its_ground(name):
    ground = GROUNDS[name]
    texts = [(ground.ink, ground.page), (ground.soft, ground.page), (ground.ink, ground.code)]
    texts += [(ground.good, ground.page), (ground.bad, ground.page)]
    texts += [(ground.on_active, ground.classes["active"]), (ground.ink, ground.classes["free"])]
    texts += [("#0d1013", ground.classes["held-idle"])]
    texts += zip(ground.heat_text, ground.heat, strict=True)
    assert {pair: round(contrast(*pair), 1) for pair in texts if contrast(*pair) < 4.5} == {}


@pytest.mark.parametrize("name", GROUNDS)
def test_every_mark_stands_out_from_the_page(name):
    ground = GROUNDS[name]
    marks = {**ground.classes, "free": ground.outline}  # free is told by its outline
    assert {one: colour for one, colour in marks.items() if contrast(colour, ground.page) < 3} == {}


def test_texts_of_a_class_can_be_read_on_the_wall_page():
    assert min(contrast(colour, WALL) for colour in (*DARK_TEXT.values(), DARK.ink, DARK.soft)) >= 4.5


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("name", GROUNDS)
def test_any_two_time_classes_differ_for_every_sight(name, sight):
    seen = {one: lab(colour, sight) for one, colour in GROUNDS[name].classes.items()}
    assert min(ciede2000(seen[a], seen[b]) for a, b in combinations(seen, 2)) >= LEAST[name][sight]


@pytest.mark.parametrize("name", GROUNDS)
def test_the_levels_of_the_heat_map_go_in_one_direction(name):
    levels = [luminance(colour) for colour in GROUNDS[name].heat]
    assert levels == sorted(levels, reverse=name == "light")


def test_the_variables_name_every_class_and_level():
    text = variables(LIGHT)
    for name in (*LIGHT.classes, "bg", "ink", "soft", "outline", "h0", "t5"):
        assert f"--{name}:#" in text


@pytest.mark.parametrize("name", GROUNDS)
def test_time_that_was_not_used_is_a_lighter_mark_that_stands_out_and_is_told_from_used_time(name):
    ground = GROUNDS[name]
    used = ground.classes["active"]
    assert contrast(ground.page, used) > contrast(ground.page, ground.unused) >= 3
    for sight in SIGHTS:
        assert ciede2000(lab(ground.unused, sight), lab(used, sight)) >= 15
