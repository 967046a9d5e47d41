"""A Perfetto trace in the making: tracks, samples, events; the core writes it.

Knows the layout (``csrc/pftrace.h``), not what a recording is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from memprof import _core, output
from memprof.files import Path
from memprof.rows import NO_INDEX, Ints, Rows

GROUP, SLICES, BYTES = 0, 1, 2  # kinds of tracks
BEGIN, END, INSTANT = 1, 2, 3  # kinds of events

TRACK_DTYPE = np.dtype(
    [
        ("uuid", "<u8"),
        ("parent", "<u8"),
        ("name", "<u4"),
        ("description", "<u4"),
        ("rank", "<i4"),
        ("kind", "<u4"),
    ]
)
EVENT_DTYPE = np.dtype(
    [
        ("time_ns", "<i8"),
        ("flow", "<u8"),
        ("weight", "<i8"),
        ("track", "<u4"),
        ("name", "<u4"),
        ("category", "<u4"),
        ("stack", "<u4"),
        ("args", "<u4"),
        ("args_count", "<u2"),
        ("kind", "u1"),
        ("flow_ends", "u1"),
    ]
)
ARG_DTYPE = np.dtype([("number", "<i8"), ("name", "<u4"), ("text", "<u4")])


class Document:
    """What a trace will hold; ``write`` it once."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._texts: dict[str, int] = {}
        self._tracks: list[tuple[int, int, int, int, int, int]] = []
        self._samples: list[tuple[int, Ints, Ints]] = []
        self._events: list[Rows] = []
        self._args: list[Rows] = []
        self._args_count = 0
        self._frames: list[tuple[int, int, int]] = []
        self._stacks: list[Sequence[int]] = []

    def text(self, words: str) -> int:
        """Return the number of a text."""
        return self._texts.setdefault(output.clean(words), len(self._texts))

    def track(
        self,
        path: str,
        parent: int | None,
        name: str,
        kind: int,
        rank: int = 0,
        description: str = "",
    ) -> int:
        """Add a track and return its row.

        Args:
            path: what its uuid is made from: the same in every file.
            parent: row of the one it lies in.
            name: as shown.
            kind: ``GROUP``, ``SLICES`` or ``BYTES`` (a counter).
            rank: among its siblings.
            description: shown on demand.
        """
        digest = hashlib.blake2b(path.encode("utf-8"), digest_size=8).digest()
        uuid = int.from_bytes(digest, "little") or 1
        above = 0 if parent is None else self._tracks[parent][0]
        about = self.text(description) if description else NO_INDEX
        self._tracks.append((uuid, above, self.text(name), about, rank, kind))
        return len(self._tracks) - 1

    def samples(self, track: int, times: Ints, values: Ints) -> None:
        """Add the samples of a counter, times rising."""
        when = np.ascontiguousarray(times, np.int64)
        level = np.ascontiguousarray(values, np.int64)
        self._samples.append((self._tracks[track][0], when, level))

    def frame(self, function: str, file: str, line: int) -> int:
        """Add a frame of stacks and return its row; FILE may be ``""``."""
        where = self.text(file) if file else NO_INDEX
        self._frames.append((self.text(function), where, line))
        return len(self._frames) - 1

    def stack(self, frames: Sequence[int]) -> int:
        """Add a stack, outermost first, and return its row."""
        self._stacks.append(frames)
        return len(self._stacks) - 1

    def args(self, columns: Mapping[str, Any], count: int) -> tuple[Ints, int]:
        """Add the same arguments for COUNT events.

        Args:
            columns: by name: numbers, or texts, one an event.
            count: how many events.

        Returns:
            The first argument's row of each event, and how many each has.
        """
        width = len(columns)
        rows = np.zeros((count, width), ARG_DTYPE)
        for place, (name, values) in enumerate(columns.items()):
            rows["name"][:, place] = self.text(name)
            if len(values) and isinstance(values[0], str):
                rows["text"][:, place] = [self.text(value) for value in values]
            else:
                rows["text"][:, place] = NO_INDEX
                rows["number"][:, place] = values
        first = self._args_count + width * np.arange(count)
        self._args.append(rows.reshape(-1))
        self._args_count += rows.size
        return first, width

    @staticmethod
    def new_events(count: int) -> Rows:
        """Return COUNT events to be filled in, without names, stacks, arguments."""
        rows: Rows = np.zeros(count, EVENT_DTYPE)
        for name in ("name", "category", "stack"):
            rows[name] = NO_INDEX
        return rows

    def add(self, events: Rows) -> None:
        """Add events; those of one track come in the order of time."""
        self._events.append(events)

    def slices(
        self,
        track: int | Ints,
        begin: Ints,
        end: Ints,
        names: int | Sequence[int] | Ints,
        category: str,
        columns: Mapping[str, Any] | None = None,
    ) -> None:
        """Add slices that do not overlap, in order.

        Args:
            track: row of the track.
            begin: times.
            end: times.
            names: texts.
            category: of all of them.
            columns: arguments; see ``args``.
        """
        rows = self.new_events(2 * len(begin))
        first, last = rows[::2], rows[1::2]
        rows["track"] = np.repeat(track, 2) if isinstance(track, np.ndarray) else track
        first["kind"], last["kind"] = BEGIN, END
        first["time_ns"], last["time_ns"] = begin, end
        first["name"] = names
        first["category"] = self.text(category)
        if columns:
            first["args"], first["args_count"] = self.args(columns, len(begin))
        self.add(rows)

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        offsets = np.cumsum([0, *map(len, self._stacks)], dtype=np.int64)
        inside = [frame for stack in self._stacks for frame in stack]
        frames = np.array(self._frames, np.uint32).reshape(-1, 3)
        with output.replacing(path) as temporary:
            _core.write_pftrace(
                temporary,
                [text.encode("utf-8") for text in self._texts],
                self._samples,
                np.array(self._tracks, TRACK_DTYPE),
                _joined(self._events, EVENT_DTYPE),
                _joined(self._args, ARG_DTYPE),
                np.ascontiguousarray(frames),
                offsets,
                np.array(inside, np.uint32),
            )


def _joined(parts: list[Rows], dtype: np.dtype[Any]) -> Rows:
    rows: Rows = np.concatenate(parts) if parts else np.empty(0, dtype)
    return rows
