"""Stacks with bytes: what is alive at a moment, by the lines that allocated it.

Rows are grouped by stack before any text is made, so that a million lives cost
what their different stacks cost.  Every division sums to the bytes of the
moment.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memprof.groups import dense_codes, exact_sums
from memprof.moment import KEYS, _Columns
from memprof.options import choices
from memprof.output import clean
from memprof.rows import Ints, as_rows

if TYPE_CHECKING:
    from memprof.recording import Recording

NO_STACK = "(no Python stack)"
"""The frame of blocks that have none: older than the recording, or recorded
without stacks.  Inside of it is the owner, if one is known."""

OUTER = tuple(key for key in KEYS if key != "stack")
"""What may be frames around the stacks."""


class Shown(NamedTuple):
    """A frame as exports show it."""

    name: str
    file: str  # "": it is none of Python's
    line: int


def checked_by(by: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the keys that BY means, outermost first.

    Raises:
        ValueError: there is no such key.
    """
    keys = () if by is None else (by,) if isinstance(by, str) else tuple(by)
    for key in keys:
        if key not in OUTER:
            raise ValueError(f"by={key!r}: choose {choices(OUTER)}")
    return keys


def short_name(function: str, file: str, line: int) -> str:
    """Return a frame as flame graphs show it.

    >>> short_name("step", "/run/train.py", 7)
    'step (train.py:7)'
    """
    return f"{function} ({os.path.basename(file) or '?'}:{line})"


class Frames:
    """The frames that exports of one recording refer to, numbered from 0."""

    def __init__(
        self,
        recording: Recording,
        naming: Callable[[str, str, int], str] = short_name,
    ) -> None:
        """Number nothing yet.

        Args:
            recording: whose frames.
            naming: what names a function, file and line.
        """
        self._recording = recording
        self._naming = naming
        self.shown: list[Shown] = []
        self._rows = as_rows(recording._core.frames(), np.uint32).reshape(-1, 3)
        self._number = np.full(len(self._rows), -1, np.int64)  # by frame id
        self._made: dict[str, int] = {}
        self._texts: dict[int, str] = {}

    def made_up(self, name: str) -> int:
        """Return the number of a frame that is no line of Python."""
        if name not in self._made:
            self._made[name] = len(self.shown)
            self.shown.append(Shown(clean(name), "", 0))
        return self._made[name]

    def _text(self, index: int) -> str:
        if index not in self._texts:
            self._texts[index] = clean(self._recording.op(index))
        return self._texts[index]

    def _add(self, frame: int) -> None:
        function, file, line = self._rows[frame].tolist()
        path = self._text(file)
        self._number[frame] = len(self.shown)
        name = self._naming(self._text(function), path, line)
        self.shown.append(Shown(name, path, line))

    def paths(self, stacks: Sequence[int]) -> list[list[int]]:
        """Return the numbers of the frames of stack ids, outermost first."""
        ids = np.array(stacks, np.uint32)
        buffers = self._recording._core.stack_paths(ids.data)
        offsets = as_rows(buffers[0], np.int64).tolist()
        frames = as_rows(buffers[1], np.uint32)
        seen = np.zeros(len(self._rows), np.bool_)
        seen[frames] = True
        for frame in np.flatnonzero(seen & (self._number < 0)).tolist():
            self._add(frame)
        # Reversed as a whole, so that each stack is outermost first.
        numbers = self._number[frames[::-1]].tolist()
        total = len(numbers)
        return [
            numbers[total - end : total - begin]
            for begin, end in itertools.pairwise(offsets)
        ]


class Stacks:
    """Different stacks of some lives, and which life has which."""

    def __init__(
        self, recording: Recording, index: Ints, keys: Sequence[str], frames: Frames
    ) -> None:
        """Group lives.

        Args:
            recording: whose lives.
            index: their rows in ``allocations("all")``.
            keys: what is put around the stacks, outermost first.
            frames: where the frames are numbered.
        """
        columns = _Columns(recording, index)
        stack, owner = columns.stacks(), columns._ids("owner")
        base = recording._core.stacks()
        # What has no stack is told apart by its owner.
        codes = np.where((stack == 0) & (owner > 0), owner + base, stack)
        group, values = dense_codes(codes)
        parts = [columns.part(key) for key in keys]
        known = [(group, len(values)), *((part, len(words)) for part, words in parts)]
        group = np.zeros(len(index), np.int64)
        for part, count in known:
            group, _ = dense_codes(group * max(count, 1) + part)
        self.group: Ints = group
        self.count = int(group.max()) + 1 if len(group) else 0
        self.size: NDArray[np.uint64] = columns.field("size")
        member = np.zeros(self.count, np.int64)
        member[group] = np.arange(len(group))
        inner = self._inner(recording, codes[member], base, frames)
        around = [
            [frames.made_up(_word(key, words[code])) for code in part[member].tolist()]
            for key, (part, words) in zip(keys, parts, strict=True)
        ]
        self.paths: list[list[int]] = [
            [*outer, *path] for *outer, path in zip(*around, inner, strict=True)
        ]
        """Of each group the numbers of its frames, outermost first."""

    @staticmethod
    def _inner(
        recording: Recording, codes: Ints, base: int, frames: Frames
    ) -> list[list[int]]:
        dense, values = dense_codes(codes)
        paths = frames.paths(
            [value - 1 if 0 < value <= base else 2**32 - 1 for value in values.tolist()]
        )
        for number, value in enumerate(values.tolist()):
            if not paths[number]:
                paths[number] = [frames.made_up(NO_STACK)]
                if value > base:
                    owner = recording.op(value - base - 1)
                    paths[number].append(frames.made_up(owner))
        return [paths[code] for code in dense.tolist()]

    def bytes(self, chosen: NDArray[np.bool_] | None = None) -> list[int]:
        """Return the bytes of each group, of the chosen lives."""
        if chosen is None:
            return exact_sums(self.group, self.size, self.count)
        return exact_sums(self.group[chosen], self.size[chosen], self.count)

    def blocks(self, chosen: NDArray[np.bool_] | None = None) -> list[int]:
        """Return the number of lives of each group, of the chosen ones."""
        group = self.group if chosen is None else self.group[chosen]
        counted: list[int] = np.bincount(group, minlength=self.count).tolist()
        return counted


def _word(key: str, value: Any) -> str:
    """Return the frame for a value of a key of ``Moment.rows``."""
    if value == "" or value is None:
        return f"(no {key.replace('_', ' ')})"
    return str(value) if isinstance(value, str) else f"{key} {value}"
