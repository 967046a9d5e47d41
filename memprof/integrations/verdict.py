"""Is a test within what it asks for, and if not, what is said of it.

Every table sums to the figure above it, to the byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from memprof.differences import cut, differences
from memprof.integrations.baselines import KEYS, Account, cut_alike
from memprof.integrations.measure import Measure
from memprof.limits import Limit
from memprof.reports.diff import cells, rise, shown_keys, signed, table
from memprof.reports.grid import grid
from memprof.reports.units import count_text, size_text

COLUMNS = tuple(key for key in shown_keys(KEYS) if key != "function")

GRANULE = 512
"""Bytes to which torch's CUDA allocator rounds: less is no difference of a share."""
SEGMENT = 20 << 20
"""What torch takes from the driver at a time, for blocks of middle size."""

DEFAULT_PEAK = 2 << 20
"""Bytes that a peak may rise above its baseline where the marker says nothing; or
1 %, if that is more."""
DEFAULT_GROWTH = 64 << 10


class Finding(NamedTuple):
    """One thing that is not as it should be."""

    metric: str
    headline: str
    title: str
    lines: list[str]


class Before(NamedTuple):
    """What a test is compared with."""

    what: str
    """``baseline``, ``stored run``."""
    key: str
    commit: str
    figures: Mapping[str, int]
    account: Account | None
    instant: str


def amount(metric: str, value: int) -> str:
    """Write a value of a metric."""
    if metric == "count":
        return f"{count_text(value)} allocations"
    return size_text(value) + "/step" * (metric == "growth")


def allowed(metric: str, before: int, given: Limit | None) -> tuple[int, str]:
    """Return the highest value that a baseline tolerates, and that in words.

    A share of little is never less than the granules in which allocators give.
    """
    if given is None:
        if metric == "growth":
            return before + DEFAULT_GROWTH, "64.0 KiB/step"
        return before + max(before // 100, DEFAULT_PEAK), "1 % or 2.00 MiB"
    highest = given.allowed(before)
    if given.share is not None and metric != "count":
        least = SEGMENT if metric in ("reserved", "device", "outside") else GRANULE
        highest = max(highest, before + least)
    return highest, given.words()


def over_limit(
    metric: str, value: int, limit: int, measure: Measure, top: int
) -> Finding:
    """Say that a value is above a fixed limit, and what it is made of."""
    headline = (
        f"{metric} {amount(metric, value)}, limit {amount(metric, limit)}: "
        f"{_rise(metric, limit, value)}"
    )
    if metric == "growth":
        return Finding(metric, headline, *_left_over(measure, top))
    if metric != "peak":
        return Finding(metric, headline, "", [])
    title = "what the peak is made of"
    return Finding(metric, headline, title, made_of(measure, top))


def _rise(metric: str, before: int, after: int) -> str:
    if metric == "count":
        return f"{after - before:+d} ({100 * (after - before) / max(before, 1):+.1f} %)"
    return rise(before, after)


def made_of(measure: Measure, top: int) -> list[str]:
    """Return the table of what a peak is made of, above the start."""
    rows, _ = differences(KEYS, {}, measure.account())
    total = sum(row["delta"] for row in rows)
    lines = [["bytes", "n", *_titles()]]
    for row in cut(rows, top, KEYS):
        row["change"] = "freed since the start" if row["delta"] < 0 else ""
        words = cells(row, COLUMNS, False)
        lines.append(
            [size_text(row["delta"]), count_text(row["after_count"]), *words[4:]]
        )
    place = f"at {measure.instant}, " if measure.instant else ""
    return [
        *grid(lines, 2),
        f"  = {size_text(total)} of {size_text(measure.peak)} explained;  "
        f"{place}on {measure.device}",
    ]


def _titles() -> list[str]:
    return [*("where" if key == "line" else key for key in COLUMNS), ""]


def over_tolerance(
    metric: str, given: Limit | None, before: Before, measure: Measure, top: int
) -> Finding | None:
    """Say that a value rose by more than tolerated; None: it did not."""
    figures = measure.figures()
    if metric not in figures or metric not in before.figures:
        return None
    old, new = before.figures[metric], figures[metric]
    highest, words = allowed(metric, old, given)
    if new <= highest:
        return None
    headline = (
        f"{metric} {amount(metric, new)}, {before.what} {amount(metric, old)}, "
        f"tolerance {words}: {_rise(metric, old, new)}"
    )
    if metric == "growth":
        return Finding(metric, headline, *_left_over(measure, top))
    if metric != "peak":
        return Finding(metric, headline, "", [_compared(before)])
    title = "what made the peak grow"
    return Finding(metric, headline, title, grown(before, measure, top))


def grown(before: Before, measure: Measure, top: int) -> list[str]:
    """Return the table of what grew since, whose rows sum to the growth."""
    if before.account is None:
        return [
            "  what the peak was made of then is not stored; what it is made of now:",
            *made_of(measure, top),
            _compared(before),
        ]
    now = cut_alike(measure.account(), before.account)
    rows, _ = differences(KEYS, before.account, now)
    delta = measure.peak - before.figures["peak"]
    explained = sum(row["delta"] for row in rows)
    then, instant = before.instant, measure.instant
    place = f"peak in both: {instant or 'outside of phases'}"
    if then and instant and then != instant:
        place = f"peak moved: {then} > {instant}"
    return [
        *table(cut(rows, top, KEYS), COLUMNS),
        f"  = {signed(explained)} of {signed(delta)} explained;  {place}",
        _compared(before),
    ]


def _compared(before: Before) -> str:
    at = f" @ {before.commit}" if before.commit else ""
    return f"  compared with: {before.key}{at}"


def leaks(measure: Measure, allow: int, top: int) -> Finding | None:
    """Say what a test leaves over; None: not more than ALLOW bytes."""
    steps = len(measure.steps)
    rows = measure.left_over()
    always = sum(row["bytes"] for row in rows if steps > 1 and row["rises"] == steps)
    left = max(measure.leftover, always)
    if left <= allow:
        return None
    headline = (
        f"{size_text(left)} left over after {steps} steps, {size_text(allow)} allowed: "
        f"{signed(left // steps)}/step"
    )
    return Finding("leaks", headline, *_left_over(measure, top))


def _left_over(measure: Measure, top: int) -> tuple[str, list[str]]:
    """Return title and table of what grew from step to step, by call site."""
    steps = max(len(measure.steps), 1)
    rows = measure.left_over()
    shown, rest = rows[:top], rows[top:]
    titles = [
        "per step",
        "left over",
        "n",
        "steps",
        "category",
        "module",
        "op",
        "where",
    ]
    lines = [titles]
    for row in shown:
        lines.append(
            [
                signed(row["bytes"] // steps),
                size_text(row["bytes"]),
                count_text(row["count"]),
                f"{row['rises']}/{steps}",
                row["category"],
                row["module"] or "-",
                row["op"] or "-",
                row["line"] or "-",
            ]
        )
    if rest:
        size = sum(row["bytes"] for row in rest)
        count = count_text(sum(row["count"] for row in rest))
        more = [signed(size // steps), size_text(size), count, "", f"{len(rest)} more"]
        lines.append([*more, "", "", ""])
    text = grid(lines, 4)
    total = sum(row["bytes"] for row in rows)
    freed = total - measure.leftover
    less = f", {size_text(freed)} less of others" if freed else ""
    text.append(
        f"  = {size_text(measure.leftover)} in {steps} steps{less};  "
        f"{measure.device}, after gc.collect(), library scratch not counted"
    )
    return "what is left over from step to step", text


def lower(metric: str, given: Limit | None, before: int, now: int) -> bool:
    """Whether a value fell by more than a rise is tolerated."""
    highest, _ = allowed(metric, before, given)
    return before - now > highest - before


def facts(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain data."""
    return finding._asdict()
