"""The colours of the report: told apart with any colour vision, legible in both themes.

Machado, Oliveira and Fernandes (2009) at full severity, in linear RGB; CIEDE2000;
contrast as WCAG 2 has it.  Computed here from the style sheet itself.
"""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest

from memprof import _core
from memprof.reports.html import APP

# The order in which bands lie on each other, then what is not a category of torch's.
STACK = [
    *("parameter", "optimizer_state", "gradient", "workspace", "temporary"),
    *("activation", "input", "autograd_detail", "unknown", "overhead"),
]
VISION = {
    "normal": np.eye(3),
    "protan": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deutan": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritan": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def themes() -> dict[str, dict[str, str]]:
    """Read the colours; dark stands there twice and must say the same."""
    text = (APP / "app.css").read_text()
    found = [
        dict(re.findall(r"--([\w-]+):\s*(#[0-9A-Fa-f]{6})", part))
        for part in re.findall(r"\{([^{}]*--page:[^{}]*)\}", text)
    ]
    assert len(found) == 3
    assert found[1] == found[2]
    return {"light": found[0], "dark": found[1]}


THEMES = themes()


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.0721750],
            [0.0193339, 0.1191920, 0.9503041],
        ]
    )
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.95047, 1.0, 1.08883]
    root = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    x, y, z = root
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def ciede2000(one: np.ndarray, other: np.ndarray) -> float:
    l1, a1, b1 = one
    l2, a2, b2 = other
    mean = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    g = 0.5 * (1 - math.sqrt(mean**7 / (mean**7 + 25**7)))
    a1, a2 = (1 + g) * a1, (1 + g) * a2
    c1, c2 = math.hypot(a1, b1), math.hypot(a2, b2)
    h1 = math.degrees(math.atan2(b1, a1)) % 360 if c1 else 0.0
    h2 = math.degrees(math.atan2(b2, a2)) % 360 if c2 else 0.0
    turn = 0.0
    if c1 * c2:
        turn = (h2 - h1 + 180) % 360 - 180
    hue = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2))
    middle_l, middle_c = (l1 + l2) / 2, (c1 + c2) / 2
    if not c1 * c2:
        middle_h = h1 + h2
    elif abs(h1 - h2) <= 180:
        middle_h = (h1 + h2) / 2
    else:
        middle_h = (h1 + h2 + 360) / 2 % 360
    rad = math.radians
    t = (
        1
        - 0.17 * math.cos(rad(middle_h - 30))
        + 0.24 * math.cos(rad(2 * middle_h))
        + 0.32 * math.cos(rad(3 * middle_h + 6))
        - 0.20 * math.cos(rad(4 * middle_h - 63))
    )
    s_l = 1 + 0.015 * (middle_l - 50) ** 2 / math.sqrt(20 + (middle_l - 50) ** 2)
    s_c, s_h = 1 + 0.045 * middle_c, 1 + 0.015 * middle_c * t
    r_c = 2 * math.sqrt(middle_c**7 / (middle_c**7 + 25**7))
    turned = 60 * math.exp(-(((middle_h - 275) / 25) ** 2))
    r_t = -math.sin(rad(turned)) * r_c
    parts = (l2 - l1) / s_l, (c2 - c1) / s_c, hue / s_h
    return math.sqrt(sum(part**2 for part in parts) + r_t * parts[1] * parts[2])


def difference(one: str, other: str, vision: str) -> float:
    seen = VISION[vision]
    return ciede2000(lab(seen @ linear(one)), lab(seen @ linear(other)))


def test_ciede2000_agrees_with_its_authors_data():
    # Pairs of Sharma, Wu and Dalal (2005).
    for one, other, known in (
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((50, 2.5, 0), (50, 3.1736, 0.5854), 1.0),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
        ((22.7233, 20.0904, -46.694), (23.0331, 14.973, -42.5619), 2.0373),
    ):
        assert ciede2000(np.array(one), np.array(other)) == pytest.approx(
            known, abs=1e-4
        )


def test_every_category_has_a_colour_and_a_place():
    assert set(_core.CATEGORIES) == set(STACK) - {"overhead"}
    script = (APP / "base.js").read_text()
    listed = re.search(r"const STACKING = \[(.*?)\]", script, re.S)
    assert re.findall(r'"(\w+)"', listed[1]) == STACK[:-1]
    for theme in THEMES.values():
        assert set(STACK) <= set(theme)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("vision", VISION)
def test_any_two_categories_are_told_apart(theme, vision):
    for one, other in itertools.combinations(STACK, 2):
        colours = THEMES[theme]
        assert difference(colours[one], colours[other], vision) >= 13.5, (one, other)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("vision", VISION)
def test_neighbours_differ_more(theme, vision):
    for one, other in itertools.pairwise(STACK):
        colours = THEMES[theme]
        assert difference(colours[one], colours[other], vision) >= 23, (one, other)


@pytest.mark.parametrize("theme", THEMES)
def test_contrast(theme):
    colours = THEMES[theme]
    for name in STACK:
        if (theme, name) != ("light", "unknown"):  # that one has its separator
            assert contrast(colours[name], colours["page"]) >= 3.0, name
        assert contrast(colours[f"on-{name}"], colours[name]) >= 4.5, name
    for name in ("text", "muted", "focus", "limit", "warning", "good"):
        for ground in ("page", "panel"):
            floor = 4.5 if ground == "panel" else 5.9
            assert contrast(colours[name], colours[ground]) >= floor, (name, ground)
    assert contrast(colours["axis"], colours["page"]) >= 3.0
