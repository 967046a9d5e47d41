"""What one recording says of a test: its figures, and what they are made of.

The peak is counted above the level at the start (the end of the warm-up). Scratch
that a library keeps (category workspace: cuBLAS's) is left out, since whichever test
is first to use the library would have it.
"""

from __future__ import annotations

import os
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memprof import _core
from memprof.devices import device_name, parse_device
from memprof.differences import split_shape
from memprof.integrations.baselines import KEYS, Account
from memprof.moment import Moment, places
from memprof.reports.diff import when
from memprof.rows import CPU, Ints

if TYPE_CHECKING:
    from memprof.recording import Recording

_STEP, _WINDOW_BEGIN = 32, 34  # csrc/event.h
_WORKSPACE = _core.CATEGORIES.index("workspace")


def step_ends(recording: Recording) -> list[int]:
    """Return the event at which each step of the profile itself ended.

    A profile that the test runs inside of ours has steps of its own.
    """
    events = recording.events()
    begun = np.flatnonzero(events["kind"] == _WINDOW_BEGIN)
    if not begun.size:
        return []
    ours = events["address"][begun[0]]
    marks = (events["kind"] == _STEP) & (events["address"] == ours)
    marks[: begun[0]] = False
    return [int(event) for event in np.flatnonzero(marks)]


class Measure:
    """A window of a recording: from the end of the warm-up to the last step's end.

    Attributes:
        recording: it.
        device: whose memory; of ``None`` the GPU on which most was born, else the CPU.
        start: the event after which it begins; -1: with the recording.
        end: the last event.
        steps: ends of the steps in it, event numbers.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        warmup: int = 0,
        device: str | None = None,
        root: Path | None = None,
    ) -> None:
        """Set the window.

        Args:
            recording: what to look at.
            warmup: how many steps come before the window.
            device: ``"cpu"``, ``"cuda:0"``, ``"cuda"`` or None.
            root: lines are told relative to that folder.
        """
        self.recording = recording
        ends = step_ends(recording)
        self.start = ends[warmup - 1] if warmup and len(ends) >= warmup else -1
        self.steps = list(ends[warmup:])
        self.end = int(recording._core.events_count) - 1
        if self.steps:
            self.end = self.steps[-1]
        self.number = self._find_device(device)
        self.device = device_name(self.number)
        if root is not None:
            places(recording)._roots.insert(0, os.path.join(root, ""))

    def _find_device(self, device: str | None) -> int:
        lives = self.recording.allocations("all")
        if device not in (None, "cuda"):
            number = parse_device(device)
            assert number is not None
            return number
        born = (lives["born_event"] > self.start) & (lives["born_event"] <= self.end)
        born &= lives["device"] != CPU
        if not born.any():
            return CPU if device is None else 0
        sizes = np.bincount(lives["device"][born], weights=lives["size"][born])
        return int(np.argmax(sizes))

    @property
    def was_seen(self) -> bool:
        """Whether there was any event of the device."""
        return self.number in self.recording._core.devices()

    @cached_property
    def _levels(self) -> tuple[Ints, Ints]:
        """Events, and the bytes from each on, library scratch left out."""
        samples = self.recording._sampled(self.number, 1)
        held = samples.bytes.sum(axis=1) - samples.bytes[:, _WORKSPACE]
        return samples.event, held

    def _level(self, event: int) -> int:
        events, held = self._levels
        at = int(np.searchsorted(events, event, "right")) - 1
        return int(held[at]) if at >= 0 else 0

    @property
    def base(self) -> int:
        """The level at the start, bytes."""
        return self._level(self.start)

    @cached_property
    def peak_event(self) -> int:
        """The first event of the window after which the level was highest."""
        events, held = self._levels
        low = int(np.searchsorted(events, self.start, "right"))
        high = int(np.searchsorted(events, self.end, "right"))
        if high <= low:
            return self.start
        top = low + int(np.argmax(held[low:high]))
        return int(events[top]) if int(held[top]) > self.base else self.start

    @property
    def peak(self) -> int:
        """Bytes by which the level rose above the start."""
        return self._level(self.peak_event) - self.base

    @property
    def growth(self) -> int | None:
        """Bytes a step by which the level at the ends of steps rose; None: no steps."""
        if len(self.steps) < 2:
            return None
        return (self._level(self.end) - self.base) // len(self.steps)

    @property
    def leftover(self) -> int:
        """Bytes by which the level is higher at the end than at the start."""
        return self._level(self.end) - self.base

    @property
    def count(self) -> int:
        """Blocks that were born in the last step."""
        lives = self.recording.allocations("all")
        first = self.steps[-2] if len(self.steps) > 1 else self.start
        born = lives["born_event"]
        born = (born > first) & (born <= self.end) & (lives["device"] == self.number)
        return int(born.sum())

    @property
    def reserved(self) -> int | None:
        """The most that torch had taken from the driver; None: of the CPU."""
        if self.number == CPU or not self.was_seen:
            return None
        samples = self.recording._sampled(self.number, 0)
        low = max(int(np.searchsorted(samples.event, self.start, "right")) - 1, 0)
        high = int(np.searchsorted(samples.event, self.end, "right"))
        return int(samples.bytes[low : max(high, low + 1), 2].max())

    @property
    def outside(self) -> int | None:
        """The most that the process held beside torch; None: not measured."""
        from memprof.metrics import _driver

        return _driver(self.recording, self.number, "outside")

    @property
    def driver(self) -> int | None:
        """The most that the process held on the device; None: not measured."""
        from memprof.metrics import _driver

        return _driver(self.recording, self.number, "device")

    def figures(self) -> dict[str, int]:
        """Return what was measured, by metric."""
        found = {
            "peak": self.peak,
            "growth": self.growth,
            "reserved": self.reserved,
            "outside": self.outside,
            "device": self.driver,
            "count": self.count,
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def instant(self) -> str:
        """When the peak was: ``step 2 forward``; ``""``: nothing more is known."""
        if self.peak_event <= self.start:
            return "at the start"
        moment = Moment(self.recording, self.number, self.peak_event)
        if len(self.steps) > 1:
            return when(moment.step, moment.phase)
        return "" if moment.phase == "other" else moment.phase

    def account(self) -> Account:
        """Return what the peak is made of, less what was there at the start.

        What was there and was freed before the peak has bytes below 0, so that all
        sums to ``peak``.
        """
        return self._change(self.start, self.peak_event)

    def left_over(self) -> list[dict[str, Any]]:
        """Return who left something over, by call site.

        Rows with ``bytes`` and ``count``, ``rises`` (the steps at whose end it had
        more than before) and the keys; only what grew, largest first.
        """
        total = self._change(self.start, self.end)
        marks = [self.start, *self.steps]
        rises: dict[tuple[str, ...], int] = {}
        for before, after in pairwise(marks):
            for key, (size, _) in self._change(before, after).items():
                rises[key] = rises.get(key, 0) + (size > 0)
        rows = [
            {
                **dict(zip(KEYS, key, strict=True)),
                "bytes": size,
                "count": count,
                "rises": rises.get(key, 0),
            }
            for key, (size, count) in total.items()
            if size > 0
        ]
        return sorted(rows, key=lambda row: (-row["bytes"], row["line"], row["op"]))

    def _change(self, before: int, after: int) -> Account:
        """Return what is alive after one event and not after another, and reverse."""
        found: dict[tuple[str, ...], tuple[int, int]] = {}
        lives = self.recording.allocations("all")
        then = Moment(self.recording, self.number, before)
        now = Moment(self.recording, self.number, after)
        for moment, other, sign in ((now, then, 1), (then, now, -1)):
            index = np.setdiff1d(moment._index(), other._index(), assume_unique=True)
            index = index[lives["category"][index] != _WORKSPACE]
            keys = (*KEYS[:5], "shape")
            for row in moment._divided(index, keys):
                row["shape"], row["dtype"] = split_shape(row["shape"])
                key = tuple(str(row[name]) for name in KEYS)
                size, count = found.get(key, (0, 0))
                found[key] = size + sign * row["bytes"], count + sign * row["count"]
        return {key: held for key, held in found.items() if held != (0, 0)}
