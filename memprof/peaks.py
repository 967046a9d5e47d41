"""The search for a peak: where a value of a device was highest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memprof import _core
from memprof.options import choices
from memprof.rows import Ints
from memprof.timeline import OF_CATEGORIES, OF_TOTALS, TOTALS, Samples, label_timeline

if TYPE_CHECKING:
    from memprof.recording import Recording


def level(
    recording: Recording, device: int, of: str, category: str | None, label: str | None
) -> tuple[Samples, Ints]:
    """Return the value that ``Recording.peak`` looks for, over time.

    Args:
        recording: what to ask.
        device: number of the device.
        of: one of ``TOTALS``.
        category: the bytes of that category instead.
        label: the bytes of that label instead.

    Returns:
        The samples, and of each the value in bytes, int64 [n].

    Raises:
        ValueError: there is no such value, category or label.
    """
    if of not in TOTALS:
        raise ValueError(f"no peak of {of!r}; choose {choices(TOTALS)}")
    if label is not None:
        column = _label_column(recording, device, label, of, category)
        samples = recording._sampled(device, OF_CATEGORIES)
    elif category is not None:
        if category not in _core.CATEGORIES:
            raise ValueError(
                f"no category {category!r}; choose {choices(_core.CATEGORIES)}"
            )
        if of != "requested":
            raise ValueError(
                f"categories divide the requested bytes, not {of!r}: "
                "leave out one of `of` and `category`"
            )
        samples = recording._sampled(device, OF_CATEGORIES)
        column = samples.bytes[:, _core.CATEGORIES.index(category)]
    else:
        samples = recording._sampled(device, OF_TOTALS)
        column = samples.bytes[:, TOTALS.index(of)]
    return samples, column


def _label_column(
    recording: Recording, device: int, label: str, of: str, category: str | None
) -> Ints:
    names = recording._labels().names
    if label not in names:
        raise ValueError(f"no label {label!r}; choose {choices(names)}")
    if of != "requested" or category is not None:
        raise ValueError(
            "labels divide the requested bytes: leave out `of` and `category`"
        )
    column: Ints = label_timeline(recording, device).bytes[:, names.index(label)]
    return column


def highest(events: Ints, column: Ints, begin: Ints, end: Ints) -> int:
    """Return the first event of some stretches after which a value was highest.

    Args:
        events: those at which the value changed, rising; int64 [n].
        column: what it was from then on, int64 [n].
        begin: first event of each stretch.
        end: last event of each.
    """
    best, at = -1, -1
    low = np.maximum(np.searchsorted(events, begin, "right") - 1, 0)
    high = np.searchsorted(events, end, "right")
    for first, last, start in zip(
        low.tolist(), high.tolist(), begin.tolist(), strict=True
    ):
        if last <= first:
            continue
        top = first + int(np.argmax(column[first:last]))
        if int(column[top]) > best:
            # A level carried in from before holds at the stretch's start.
            best, at = int(column[top]), max(int(events[top]), start)
    return at
