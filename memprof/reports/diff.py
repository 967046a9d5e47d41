"""The table of a comparison: what grew, what shrank, and that it sums up.

``table`` is also what a failed test shows (``integrations/verdict.py``), so it
takes plain rows, whoever made them.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memprof.reports.grid import grid
from memprof.reports.units import count_text, counted, size_text, text_of

if TYPE_CHECKING:
    from memprof.comparison import Comparison
    from memprof.moment import Moment

_NUMBERS = ("delta", "before", "after", "n")


def signed(amount: int, *, exact: bool = False) -> str:
    """Write a difference with its sign: ``+288 MiB``."""
    text = str(abs(amount)) if exact else size_text(abs(amount))
    return f"{'-' if amount < 0 else '+'}{text}" if amount else text


def rise(before: int, after: int) -> str:
    """Write by how much AFTER is more, in bytes and percent of BEFORE."""
    text = signed(after - before)
    if before and after != before:
        text += f" ({100 * (after - before) / abs(before):+.1f} %)"
    return text


def when(step: int | None, phase: str, event: int = 0) -> str:
    """Write when a moment was: ``step 2 forward``."""
    if event < 0:
        return "before the recording"
    words = [] if step is None else [f"step {step}"]
    if phase != "other" or not words:
        words.append(phase if phase != "other" else "outside of steps")
    return " ".join(words)


def cells(row: dict[str, Any], keys: Sequence[str], exact: bool) -> list[str]:
    """Return the texts of a row, ``delta`` first and ``change`` last."""
    before, after = row["before"], row["after"]
    sizes = [str(n) if exact else size_text(n) for n in (before, after)]
    counts = f"{count_text(row['before_count'])}>{count_text(row['after_count'])}"
    if "rest" in row:
        words = [counted(row["rows"], "more row"), *[""] * (len(keys) - 1)]
    else:
        words = [str(row[key]) or "-" for key in keys]
    return [signed(row["delta"], exact=exact), *sizes, counts, *words, row["change"]]


def table(
    rows: Sequence[dict[str, Any]], keys: Sequence[str], *, exact: bool = False
) -> list[str]:
    """Return the lines of the table: numbers to the right, words to the left.

    Args:
        rows: of ``differences``.
        keys: which of their keys are columns.
        exact: bytes instead of units.
    """
    titles = [*_NUMBERS, *("where" if key == "line" else key for key in keys), ""]
    lines = [titles, *(cells(row, keys, exact) for row in rows)]
    return grid(lines, len(_NUMBERS))


def shown_keys(keys: Sequence[str]) -> list[str]:
    """Return the keys that have a column: shapes are told by ``change``."""
    return [key for key in keys if key not in ("shape", "dtype")] or list(keys)


def moved(a: Moment, b: Moment, what: str) -> str:
    """Say where the two moments are: ``peak moved: step 2 forward > ...``."""
    before = when(a.step, a.phase, a.event)
    after = when(b.step, b.phase, b.event)
    if before == after:
        return f"in both: {after}"
    return f"{what} moved: {before} > {after}"


def text(comparison: Comparison, *, exact: bool = False) -> str:
    """Write a comparison as a block of lines."""
    lines = _head(comparison)
    if comparison.rows:
        lines += ["", *table(comparison.rows, shown_keys(comparison.keys), exact=exact)]
    lines += _foot(comparison, exact)
    return text_of(line.rstrip() for line in lines)


def title(comparison: Comparison) -> str:
    """Return what was compared: ``before.memprof > after.memprof``."""
    a, b = comparison.names
    return f"{a or 'a'} > {b or 'b'}"


def _head(comparison: Comparison) -> list[str]:
    a, b = comparison.a, comparison.b
    what = comparison.at.replace(":", " ")
    devices = a.device if a.device == b.device else f"{a.device} > {b.device}"
    sizes = f"{size_text(a.requested, 4)} > {size_text(b.requested, 4)}"
    return [
        f"memprof diff  {title(comparison)}  {devices}",
        f"  {what:<9} {sizes}   {rise(a.requested, b.requested)}",
        f"  {'':<9} {a.requested} > {b.requested} bytes requested",
        *_reserved(comparison),
        f"  {'':<9} {moved(a, b, what)}",
    ]


def _foot(comparison: Comparison, exact: bool) -> list[str]:
    explained = sum(row["delta"] for row in comparison.rows)
    total, part = (
        signed(amount, exact=exact) for amount in (comparison.delta, explained)
    )
    same = comparison.unchanged
    out = [
        f"  = {part} of {total} explained; "
        f"{same if exact else size_text(same)} the same in both"
    ]
    if not comparison.shapes:
        out.append("  without shapes and types: record_shapes=True was not set in both")
    for moment, name in ((comparison.a, "a"), (comparison.b, "b")):
        info = moment._recording.info
        if info["dropped"]:
            out.append(f"  ! {name} has lost {counted(info['dropped'], 'event')}")
        if not info["finished"]:
            out.append(f"  ! {name} is cut: this is what is whole")
    return out


def _reserved(comparison: Comparison) -> list[str]:
    a, b = comparison.a, comparison.b
    if a.device == "cpu":
        return []
    sizes = f"{size_text(a.reserved, 4)} > {size_text(b.reserved, 4)}"
    return [f"  {'reserved':<9} {sizes}   {rise(a.reserved, b.reserved)}"]


def html_fragment(comparison: Comparison) -> str:
    """Write a comparison as static HTML: no script, no style sheet, all escaped."""
    a, b = comparison.a, comparison.b
    keys = shown_keys(comparison.keys)
    right, left = ' style="text-align:right"', ' style="text-align:left"'
    titles = [*_NUMBERS, *("where" if key == "line" else key for key in keys), "change"]
    head = "".join(
        f"<th{right if name in _NUMBERS else left}>{name}</th>" for name in titles
    )
    body = []
    for row in comparison.rows:
        texts = cells(row, keys, False)
        body.append(
            f'<tr title="{row["delta"]:+d} bytes">'
            + "".join(
                f"<td{right if index < len(_NUMBERS) else left}>{html.escape(cell)}"
                "</td>"
                for index, cell in enumerate(texts)
            )
            + "</tr>"
        )
    above = "\n".join([*_head(comparison), *_foot(comparison, False)])
    return (
        f"<div><pre>{html.escape(above)}</pre>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
        f"<tfoot><tr><td{right}>{html.escape(signed(comparison.delta))}</td>"
        f'<td colspan="{len(titles) - 1}"{left}>'
        f"= {a.requested} &gt; {b.requested} bytes</td></tr></tfoot></table></div>"
    )


def html_page(comparison: Comparison) -> str:
    """Write a comparison as a page of its own, which loads nothing."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>memprof diff {html.escape(title(comparison))}</title></head>"
        f"<body>{html_fragment(comparison)}</body></html>\n"
    )
