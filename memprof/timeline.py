"""The timeline: bytes after every event that changed them.

The totals and categories are the core's (``csrc/timeline.c``), labels are added up
here at the same events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memprof import _core
from memprof.options import choices
from memprof.reports.units import one_line
from memprof.rows import Ints, as_rows

if TYPE_CHECKING:
    from memprof.recording import Recording

# Columns of the core's timeline of totals.
TOTALS = ("requested", "active", "reserved")

# Which of the core's timelines.
OF_TOTALS, OF_CATEGORIES = 0, 1


class Timeline(NamedTuple):
    """Bytes over time.

    ``bytes[i]`` holds after event ``events[i]`` and until the next sample; the
    first sample is the state when the recording began (event -1).
    """

    times_ns: Ints
    """int64 [n], nanoseconds."""
    bytes: Ints
    """int64 [n, k], bytes."""
    labels: tuple[str, ...]
    """k texts."""
    events: Ints
    """int64 [n], event numbers."""

    def __repr__(self) -> str:
        spent = int(self.times_ns[-1]) - int(self.times_ns[0]) if len(self.bytes) else 0
        columns = len(self.labels)
        what = ", ".join(self.labels) if columns <= 3 else f"{columns} columns"
        return (
            f"<memprof.Timeline: {len(self.bytes)} samples over {spent / 1e9:.3f} s, "
            f"{one_line(what)}>"
        )


class Samples(NamedTuple):
    """What the core's timeline gives: event [n], time_ns [n], bytes [n, k]."""

    event: Ints
    time_ns: Ints
    bytes: Ints


def sampled(core: _core.Recording, device: int, kind: int) -> Samples:
    """Return the core's timeline; one sample of zeros if it has none.

    Args:
        core: what to ask.
        device: number of the device.
        kind: ``OF_TOTALS`` or ``OF_CATEGORIES``.
    """
    columns = len(TOTALS) if kind == OF_TOTALS else len(_core.CATEGORIES)
    if device in core.devices():
        event, time_ns, amount = core.timeline(device, kind)
        return Samples(
            as_rows(event, np.int64),
            as_rows(time_ns, np.int64),
            as_rows(amount, np.int64).reshape(-1, columns),
        )
    return Samples(
        np.array([-1], np.int64),
        np.array([core.start_ns], np.int64),
        np.zeros((1, columns), np.int64),
    )


def timeline(recording: Recording, device: object, by: str) -> Timeline:
    """Return the answer of ``Recording.timeline``."""
    kinds = {
        "total": (OF_TOTALS, TOTALS),
        "category": (OF_CATEGORIES, tuple(_core.CATEGORIES)),
    }
    if not isinstance(by, str):
        raise TypeError(f"by={by!r}: a text, one of {choices(kinds)}")
    if by == "label":
        return label_timeline(recording, recording._device(device))
    if by not in kinds:
        raise ValueError(f"no timeline by {by!r}; choose {choices([*kinds, 'label'])}")
    kind, labels = kinds[by]
    samples = recording._sampled(recording._device(device), kind)
    return Timeline(samples.time_ns, samples.bytes, labels, samples.event)


def label_timeline(recording: Recording, device: int) -> Timeline:
    """Return the bytes of each label; the first column is of what has none."""
    samples, found = recording._sampled(device, OF_CATEGORIES), recording._labels()
    levels = found.levels(recording.allocations("all"), device, samples.event)
    levels.flags.writeable = False
    return Timeline(samples.time_ns, levels, found.names, samples.event)
