"""The memory timeline as a page: a picture of the categories, and the account.

One file that needs nothing else: no script, no font, no network.
"""

from __future__ import annotations

import html
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from memprof import _core
from memprof._version import __version__
from memprof.devices import device_name
from memprof.reports.units import size_text
from memprof.rows import Ints
from memprof.timeline import OF_CATEGORIES

if TYPE_CHECKING:
    from memprof.recording import Recording

Floats = NDArray[np.float64]

COLORS = {
    "parameter": "#2d6a4f",
    "optimizer_state": "#c9a227",
    "input": "#1d1d1d",
    "temporary": "#7b3fa0",
    "activation": "#c1442e",
    "gradient": "#3f6fb5",
    "autograd_detail": "#5fa8d3",
    "unknown": "#9a9a9a",
    "workspace": "#d98cb3",
}

COLUMNS = 1000  # of the picture: bunches of samples, the highest of each
WIDTH, HEIGHT, LEFT, BOTTOM = 1000, 360, 80, 28

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1120px;
  padding: 0 1em; color: #1b1b1b; background: #fff; }
h1 { font-size: 1.35em; } svg { width: 100%; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: #444; }
table { border-collapse: collapse; } td, th { padding: .2em .9em .2em 0; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
i { display: inline-block; width: .9em; height: .9em; margin-right: .5em; }
pre { overflow-x: auto; font-size: 13px; }
"""


def page(recording: Recording, number: int) -> str:
    """Return the page about device NUMBER; says so if nothing is known of it."""
    known = number in recording._core.devices()
    name = device_name(number) if known else "no device"
    title = html.escape(f"Memory of {name}")
    body = "<p>Nothing was recorded of this device.</p>"
    if known:
        body = _picture(recording, number) + _account(recording, name)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{title}</h1>\n{body}\n<p><small>memprof {html.escape(__version__)}"
        "</small></p>\n</body>\n</html>\n"
    )


def _account(recording: Recording, name: str) -> str:
    text = recording.summary(name).text()
    return f"<h2>The peak</h2>\n<pre>{html.escape(_printable(text))}</pre>"


def _printable(text: str) -> str:
    """Leave out what HTML may not hold: control characters, lone surrogates."""
    return "".join(
        c if (c.isprintable() or c == "\n") and not 0xD800 <= ord(c) < 0xE000 else "�"
        for c in text
    )


def columns(total: Ints) -> Ints:
    """Return the samples to draw: of each bunch the highest; int64 [<= COLUMNS]."""
    if len(total) <= COLUMNS:
        return np.arange(len(total))
    edges = np.linspace(0, len(total), COLUMNS + 1).astype(np.int64)
    return np.array(
        [low + int(np.argmax(total[low:high])) for low, high in pairwise(edges)],
        np.int64,
    )


def _picture(recording: Recording, number: int) -> str:
    samples = recording._sampled(number, OF_CATEGORIES)
    total = samples.bytes.sum(axis=1)
    shown = columns(total)
    levels = samples.bytes[shown]
    times = np.maximum.accumulate(samples.time_ns)[shown]
    top = max(int(total.max()), 1)
    span = max(int(times[-1] - times[0]), 1)
    # A sample holds until the next: steps, not slopes.
    x = LEFT + (times - times[0]) / span * WIDTH
    x = np.repeat(np.append(x, LEFT + WIDTH), 2)[1:-1]
    under = np.zeros(len(shown))
    areas, rows = [], []
    peak = int(np.argmax(total))
    for index, category in enumerate(_core.CATEGORIES):
        amount = levels[:, index]
        highest = int(samples.bytes[:, index].max())
        if not highest:
            continue
        over = under + amount
        color = COLORS.get(category, "#9a9a9a")
        points = [
            *zip(x, _height(over, top)),
            *zip(x[::-1], _height(under, top)[::-1]),
        ]
        drawn = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        areas.append(f'<polygon fill="{color}" points="{drawn}"/>')
        at_peak = size_text(int(samples.bytes[peak, index]))
        rows.append(
            f'<tr><td><i style="background:{color}"></i>{html.escape(category)}</td>'
            f'<td class="n">{at_peak}</td>'
            f'<td class="n">{size_text(highest)}</td></tr>'
        )
        under = over
    labels = "".join(
        f'<text x="{LEFT - 8}" y="{HEIGHT - HEIGHT * part / 4 + 4:.0f}" '
        f'text-anchor="end">{size_text(top * part // 4)}</text>'
        for part in range(5)
    )
    return (
        f'<svg viewBox="0 -8 {LEFT + WIDTH + 10} {HEIGHT + BOTTOM + 8}" role="img" '
        f'aria-label="bytes of each category over time">{"".join(areas)}{labels}'
        f'<text x="{LEFT}" y="{HEIGHT + 20}">0 ms</text>'
        f'<text x="{LEFT + WIDTH}" y="{HEIGHT + 20}" text-anchor="end">'
        f"{span / 1e6:.1f} ms</text></svg>\n"
        '<table><tr><th>category</th><th class="n">at the peak</th>'
        f'<th class="n">at most</th></tr>{"".join(rows)}</table>'
    )


def _height(amount: Floats, top: int) -> Floats:
    """Return the picture's y of bytes, twice each: where a step begins and ends."""
    return np.repeat(HEIGHT - amount / top * HEIGHT, 2)
