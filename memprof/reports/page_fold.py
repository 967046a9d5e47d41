"""More blocks than a page can hold: which of them are folded, and into what.

Folded are blocks that are both small and short-lived.  What is left of them are the
bytes by category that they add at each of the page's events, so every total stays
exact, and their sums by call site.  At the peak, at each step's peak and at each
step's end none is folded: what is alive there is known block by block.

The page's events are then those of the blocks that are kept, and of each 256 events
of the device the highest and the lowest: no peak is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memprof import _core
from memprof.groups import dense_codes, exact_sums
from memprof.moment import _Columns
from memprof.reports.columns import Column, column
from memprof.reports.shown_paths import shown_place
from memprof.rows import Ints, Rows

if TYPE_CHECKING:
    from memprof.recording import Recording

KEEP = 1_000_000
"""Blocks that a page keeps, about, if it cannot keep all."""

FOREVER = np.iinfo(np.int64).max
SITES = 200  # rows of the table of folded blocks
_KEYS = ("category", "module", "op", "line")
_BLOCK = 256


class Chosen(NamedTuple):
    """What is kept of a device's lives."""

    kept: NDArray[np.bool_]
    size: int
    """Folded blocks have at most so many bytes,"""
    events: int
    """and are gone after at most so many events."""
    marked: Ints
    """Events that the page must have: peaks, lows, ends of steps."""
    whole: bool
    """Nothing is folded at the peaks and ends of steps."""


def choose(
    recording: Recording, lives: Rows, samples: Any, peak: int, keep: int
) -> Chosen:
    """Choose the lives that are kept.

    Args:
        recording: whose steps count.
        lives: of one device, in the order of birth.
        samples: the totals of the device after each of its events.
        peak: the event of its peak.
        keep: how many lives to keep, about.
    """
    born = lives["born_event"].astype(np.int64)
    died = lives["died_event"].astype(np.int64)
    lasts = np.where((died < 0) | (born < 0), FOREVER, died - born)
    kept, size, events = _largest(lives["size"], lasts, keep)
    event, total = samples.event, samples.bytes[:, 0]
    steps = recording.steps
    begins, ends = steps["begin_event"], steps["end_event"]
    ends = np.where(ends < 0, len(recording.events()) - 1, ends)
    at_end = np.searchsorted(event, ends, "right") - 1
    tops = []
    for first, last in zip(np.searchsorted(event, begins), at_end, strict=True):
        if first <= last:
            tops.append(int(first + total[first : last + 1].argmax()))
    step_ends = event[at_end[at_end >= 0]]
    step_tops = event[np.array(tops, np.int64)]
    # Enough is enough: rather the sums alone of some step than a page of all.
    room, whole = int(kept.sum()) + keep, True
    for instant in [peak, *step_ends.tolist(), *step_tops.tolist()]:
        if instant < 0:
            continue
        low = int(np.searchsorted(born, instant - events))
        high = int(np.searchsorted(born, instant, "right"))
        kept[low:high] |= died[low:high] > instant
        room -= high - low
        if room < 0 and int(kept.sum()) > 2 * keep:
            whole = False
            break
    marked = np.concatenate(([peak], step_ends, step_tops, event[_extremes(total)]))
    return Chosen(kept, size, events, np.unique(marked[marked >= 0]), whole)


def _largest(size: Any, lasts: Ints, keep: int) -> tuple[Any, int, int]:
    """Keep what is larger than one limit or lasts longer than another."""
    sizes, spans = np.sort(size), np.sort(lasts)
    low, high = 0, len(sizes) - 1
    while low < high:
        middle = (low + high) // 2
        many = (size > sizes[middle]) | (lasts > spans[middle])
        if int(many.sum()) > keep:
            low = middle + 1
        else:
            high = middle
    kept = (size > sizes[low]) | (lasts > spans[low]) | (lasts == FOREVER)
    folded = ~kept
    if not folded.any():
        return kept, 0, 0
    return kept, int(size[folded].max()), int(lasts[folded].max())


def _extremes(total: Ints) -> Ints:
    """Return of each block of samples where the highest and the lowest are."""
    count = len(total) // _BLOCK * _BLOCK
    blocks = total[:count].reshape(-1, _BLOCK)
    base = np.arange(0, count, _BLOCK)
    found = [base + blocks.argmax(axis=1), base + blocks.argmin(axis=1)]
    rest = total[count:]
    if len(rest):
        found.append(np.array([count + rest.argmax(), count + rest.argmin()]))
    return np.concatenate(found)


def deltas(lives: Rows, first: Ints, last: Ints, events: int) -> list[Column]:
    """Return what folded lives add at the page's events.

    Args:
        lives: those that are folded.
        first: of each, the first event of the page at which it is alive.
        last: of each, the first at which it is no more; EVENTS: there is none.
        events: how many events the page has.
    """
    kinds = len(_core.CATEGORIES)
    seen = first < last
    category = lives["category"][seen].astype(np.int64)
    size = lives["size"][seen].astype(np.int64)
    gone = last[seen] < events
    key = np.concatenate(
        (first[seen] * kinds + category, (last[seen] * kinds + category)[gone])
    )
    amount = np.concatenate((size, -size[gone]))
    number = np.concatenate((np.ones(len(size), np.int64), np.full(gone.sum(), -1)))
    order = np.argsort(key, kind="stable")
    key = key[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    if len(starts):
        amount = np.add.reduceat(amount[order], starts)
        number = np.add.reduceat(number[order], starts)
    changed = (amount != 0) | (number != 0)
    key, amount, number = key[starts][changed], amount[changed], number[changed]
    return [
        column("fold_event", key // kinds, enc="dp"),
        column("fold_cat", key % kinds, "u8"),
        column("fold_bytes", amount, "f64"),
        column("fold_count", number, "f64"),
    ]


def by_site(recording: Recording, lives: Rows, paths: str) -> list[list[Any]]:
    """Return bytes, blocks and keys of folded lives, most bytes first.

    What is beyond ``SITES`` is one last row, so the rows sum up.
    """
    columns = _Columns(recording, lives["id"].astype(np.int64))
    group = np.zeros(len(lives), np.int64)
    parts = {key: columns.part(key) for key in _KEYS}
    for codes, values in parts.values():
        group, _ = dense_codes(group * max(len(values), 1) + codes)
    count = int(group.max()) + 1 if len(group) else 0
    member = np.zeros(count, np.int64)
    member[group] = np.arange(len(group))
    sums = np.array(exact_sums(group, lives["size"], count), np.int64)
    blocks = np.bincount(group, minlength=count)
    order = np.lexsort((np.arange(count), -blocks, -sums))
    rows: list[list[Any]] = []
    for one in order[:SITES].tolist():
        words = [str(parts[key][1][parts[key][0][member[one]]]) for key in _KEYS]
        words[-1] = shown_place(words[-1], paths)
        rows.append([int(sums[one]), int(blocks[one]), *words])
    rest = order[SITES:]
    if len(rest):
        words = [f"{len(rest)} more call sites", "", "", ""]
        rows.append([int(sums[rest].sum()), int(blocks[rest].sum()), *words])
    return rows
