"""The operator table: memory by op, as ``torch.profiler`` shows it.

The sums are the core's (``csrc/op_table.c``); here they get torch's names, a text
table, and the shapes in which programs take rows: objects, dicts, NumPy, pandas.
"""

from __future__ import annotations

import importlib
import operator
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from memprof import _core
from memprof.devices import device_name
from memprof.errors import MemprofError
from memprof.reports.units import counted, one_line, size_text
from memprof.rows import CPU, NO_INDEX, OP_BYTES_DTYPE, OP_DTYPE, Rows, as_rows

if TYPE_CHECKING:
    from memprof.recording import Recording

__all__ = ["OUTSIDE", "OperatorAverage", "OperatorAverages"]

OUTSIDE = "(outside of ops)"
"""The row of memory that was touched in no op, backward node or region."""

# What may be sorted by, in order: torch's names first.
_TORCH = tuple(
    f"{own}{kind}_memory_usage"
    for kind in ("cpu", "device", "cuda")
    for own in ("", "self_")
)
_OURS = tuple(
    f"{own}{what}_bytes"
    for what in ("alloc", "freed", "net", "peak_above_entry")
    for own in ("", "self_")
)
SORT_NAMES = ("count", *_TORCH, *_OURS)

# torch reads these in a name as "device".
_ACCELERATORS = re.compile("cuda|xpu|privateuse1")
_ENGINE = "autograd::engine::evaluate_function: "  # older recordings keep it


class OperatorAverage:
    """One row: all recorded calls of one name.

    Bytes are requested ones.  ``self_`` is what happened in the op and in
    nothing inside it; without it, in the whole of each call.  An op that runs
    inside itself counts once in the whole.  A free counts where it was asked
    for, wherever the block was born, so ``net`` may be negative.
    """

    __slots__ = (
        "alloc_bytes",
        "calls",
        "count",
        "cpu_memory_usage",
        "device",
        "device_memory_usage",
        "freed_bytes",
        "key",
        "kind",
        "peak_above_entry_bytes",
        "self_alloc_bytes",
        "self_cpu_memory_usage",
        "self_device_memory_usage",
        "self_freed_bytes",
        "self_peak_above_entry_bytes",
        "stack",
        "top_level",
    )

    key: str
    """The op's name."""
    kind: str
    """``op``, ``backward`` (a node of autograd), ``region`` (of
    ``record_function``) or ``outside``."""
    count: int
    """Calls in which memory was touched, on any device; others are not known."""
    calls: int
    """Those in which memory of ``device`` was touched."""
    top_level: bool
    """Some call was inside no other op, node or region."""
    stack: list[str]
    """The Python frames that divide the name, innermost first."""
    device: str
    """Whose bytes the attributes ``*_bytes`` are."""
    alloc_bytes: int
    self_alloc_bytes: int
    freed_bytes: int
    self_freed_bytes: int
    peak_above_entry_bytes: int
    """The highest that a call's own allocations less its own frees rose above
    its beginning; of all calls the highest."""
    self_peak_above_entry_bytes: int
    cpu_memory_usage: int
    """torch's name for the net bytes on the CPU."""
    self_cpu_memory_usage: int
    device_memory_usage: int
    """torch's name for the net bytes on all GPUs together."""
    self_device_memory_usage: int

    @property
    def net_bytes(self) -> int:
        """Allocated less freed."""
        return self.alloc_bytes - self.freed_bytes

    @property
    def self_net_bytes(self) -> int:
        """Allocated less freed, in nothing inside it."""
        return self.self_alloc_bytes - self.self_freed_bytes

    @property
    def cuda_memory_usage(self) -> int:
        """torch's older name for ``device_memory_usage``."""
        return self.device_memory_usage

    @property
    def self_cuda_memory_usage(self) -> int:
        """torch's older name for ``self_device_memory_usage``."""
        return self.self_device_memory_usage

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a dict: plain values under the names above."""
        return {name: getattr(self, name) for name in _FIELDS}

    def __getattr__(self, name: str) -> Any:
        """Say of torch's times why they are not here.

        Raises:
            AttributeError: Always.
        """
        why = "memprof measures memory, not time; " if "time" in name else ""
        raise AttributeError(
            f"{name!r}: {why}a row has {', '.join(map(repr, _FIELDS))}"
        )

    def __repr__(self) -> str:
        """Say which row it is, short."""
        return (
            f"<{type(self).__name__} {self.key!r} ({self.kind}), "
            f"{counted(self.count, 'call')}, {self.device}: "
            f"alloc {self.alloc_bytes}, freed {self.freed_bytes}, "
            f"peak above entry {self.peak_above_entry_bytes}>"
        )


_FIELDS = (
    "key",
    "kind",
    "count",
    "calls",
    "top_level",
    "stack",
    "device",
    *_OURS,
    *(name for name in _TORCH if "cuda" not in name),
)
_NUMBERS = {"count", "calls", *_OURS, *_TORCH}


def check_grouping(shapes: bool, overloads: bool, functions: bool) -> None:
    """Check what ``Recording.key_averages`` is asked for.

    Raises:
        MemprofError: one of the groupings that are not possible; says why.
    """
    if shapes:
        raise MemprofError(
            "group_by_input_shape=True: this recording holds no shapes of "
            "inputs. memprof.profile(record_shapes=True) writes those of "
            "results; group_by_stack_n= tells calls apart by their line"
        )
    if overloads:
        raise MemprofError(
            "group_by_overload_name=True: memprof records names of ops "
            "without their overloads"
        )
    if functions:
        raise MemprofError(
            "include_python_functions=True: Python functions are not recorded "
            "as calls; group_by_stack_n= tells which lines called an op"
        )


class OperatorAverages(Sequence[OperatorAverage]):
    """The rows of ``key_averages()``; ``print`` it, or ask for ``table(...)``.

    A sequence of ``OperatorAverage`` in order of their first call; what was
    touched outside of ops is the last row.  The ``self_`` columns of all rows
    sum, for each device, to what was allocated and freed while the recording
    ran.
    """

    def __init__(
        self, recording: Recording, device: int, frames: int, core: Any = None
    ) -> None:
        """Take the sums from the core.

        Args:
            recording: What to sum.
            device: The number of the device that ``*_bytes`` are about.
            frames: How many Python frames divide a name.
            core: What ``op_table`` gave before, for the same frames.
        """
        self._recording = recording
        self._frames = frames
        self._core = core or recording._core.op_table(frames)
        self._device = device
        self._numbers = recording._core.devices()
        self._rows = self._read()

    def _read(self) -> list[OperatorAverage]:
        rows, sums = self._arrays()
        zero = (0,) * len(OP_BYTES_DTYPE.names or ())
        gpus = [i for i, number in enumerate(self._numbers) if number != CPU]
        cpu = self._numbers.index(CPU) if CPU in self._numbers else None
        place = (
            self._numbers.index(self._device) if self._device in self._numbers else None
        )
        device = device_name(self._device)
        made: list[OperatorAverage] = []
        outside: list[OperatorAverage] = []
        for (name, stack, kind, top, count), cells in zip(
            rows.tolist(), sums.tolist(), strict=True
        ):
            row = OperatorAverage()
            row.kind = _core.OP_KINDS[kind]
            row.key = OUTSIDE if row.kind == "outside" else self._recording.op(name)
            if row.key.startswith(_ENGINE):
                row.kind = "backward"
            row.count, row.top_level, row.device = count, bool(top), device
            row.stack = self._stack(stack)
            (
                row.self_alloc_bytes,
                row.self_freed_bytes,
                row.self_peak_above_entry_bytes,
                row.alloc_bytes,
                row.freed_bytes,
                row.peak_above_entry_bytes,
                row.calls,
            ) = zero if place is None else cells[place]
            on_cpu = zero if cpu is None else cells[cpu]
            row.self_cpu_memory_usage = on_cpu[0] - on_cpu[1]
            row.cpu_memory_usage = on_cpu[3] - on_cpu[4]
            row.self_device_memory_usage = sum(cells[i][0] - cells[i][1] for i in gpus)
            row.device_memory_usage = sum(cells[i][3] - cells[i][4] for i in gpus)
            (outside if row.kind == "outside" else made).append(row)
        return made + outside

    def _arrays(self) -> tuple[Rows, Rows]:
        rows = as_rows(self._core[0], OP_DTYPE)
        sums = as_rows(self._core[1], OP_BYTES_DTYPE)
        return rows, sums.reshape(len(rows), len(self._numbers))

    def _stack(self, stack: int) -> list[str]:
        if stack == NO_INDEX:
            return []
        frames = self._recording.stack(stack)[: self._frames]
        return [f"{frame.file}({frame.line}): {frame.function}" for frame in frames]

    # -- as torch's list -------------------------------------------------------

    @overload
    def __getitem__(self, index: int) -> OperatorAverage: ...
    @overload
    def __getitem__(self, index: slice) -> list[OperatorAverage]: ...
    def __getitem__(
        self, index: int | slice
    ) -> OperatorAverage | list[OperatorAverage]:
        """Return a row, or for a slice a list of rows."""
        return self._rows[index]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def __str__(self) -> str:
        """Return ``table()``."""
        return self.table()

    def __repr__(self) -> str:
        """Say what it is, short."""
        return f"<{type(self).__name__}: {len(self)} rows, {self.device}>"

    # -- other shapes ----------------------------------------------------------

    @property
    def device(self) -> str:
        """The device that the attributes ``*_bytes`` of the rows are about."""
        return device_name(self._device)

    def on(self, device: object) -> OperatorAverages:
        """Return the same rows with the bytes of another device.

        Raises:
            ValueError: It was not recorded.
        """
        number = self._recording._device(device)
        return OperatorAverages(self._recording, number, self._frames, self._core)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a dict for each row; see ``OperatorAverage``."""
        return [row.to_dict() for row in self._rows]

    def to_numpy(self) -> Rows:
        """Return a structured array with a field for each key of the dicts.

        Texts are of the width of the longest; the frames of a stack are one
        text, a line each.
        """
        columns: dict[str, list[Any]] = {
            name: [getattr(row, name) for row in self._rows] for name in _FIELDS
        }
        columns["stack"] = ["\n".join(stack) for stack in columns["stack"]]
        fields: list[tuple[str, str]] = []
        for name, values in columns.items():
            if name in _NUMBERS:
                fields.append((name, "<i8"))
            elif name == "top_level":
                fields.append((name, "?"))
            else:
                fields.append((name, f"<U{max([1, *map(len, values)])}"))
        array: Rows = np.empty(len(self), np.dtype(fields))
        for name, values in columns.items():
            array[name] = values
        return array

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a column for each key of the dicts.

        Raises:
            MemprofError: pandas cannot be imported.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as problem:
            raise MemprofError(
                f"to_pandas() needs pandas, which cannot be imported ({problem}); "
                "to_dicts() and to_numpy() give the same rows without it"
            ) from problem
        return pandas.DataFrame(self.to_dicts(), columns=list(_FIELDS))

    # -- the table -------------------------------------------------------------

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_src_column_width: int = 75,
        max_name_column_width: int = 55,
        max_shapes_column_width: int = 80,
        header: str | None = None,
        top_level_events_only: bool = False,
        time_unit: str | None = None,
    ) -> str:
        """Return the rows as text; ``""`` if there are none.

        ``Mem`` is net: allocated less freed.  ``Alloc``, ``Freed`` and ``Peak``
        (the highest above a call's beginning) are of ``device``.  ``# of Calls``
        counts the calls in which memory was touched: an op is recorded when it
        first allocates, and one that never does is not.

        Args:
            sort_by: Largest first, by one of torch's names for memory
                (``self_cuda_memory_usage``, ``cpu_memory_usage``, ...),
                ``count``, or a name of ours such as ``peak_above_entry_bytes``.
                None: in order of the first call.
            row_limit: Rows at most; -1: all.
            max_src_column_width: Of the column of Python frames.
            max_name_column_width: Longer names end in ``...``.
            max_shapes_column_width: Accepted as torch's; shapes are not shown.
            header: A line of text above the table.
            top_level_events_only: Only rows with a call inside no other op, node
                or region.
            time_unit: Accepted as torch's; there are no times.

        Raises:
            TypeError: A number is none.
            ValueError: There is no such SORT_BY, or a number is out of range.
        """
        limit = operator.index(row_limit)
        if limit < -1:
            raise ValueError(f"row_limit={limit}: a number of rows, or -1 for all")
        name_width = _width("max_name_column_width", max_name_column_width)
        src_width = _width("max_src_column_width", max_src_column_width)
        _width("max_shapes_column_width", max_shapes_column_width)
        rows = self._sorted(sort_by)
        if top_level_events_only:
            rows = [row for row in rows if row.top_level]
        if not rows:
            return ""
        shown = rows if limit == -1 else rows[:limit]
        cells = [self._titles(), *(self._cells(row, name_width) for row in shown)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(
                text.ljust(width) if i < 2 else text.rjust(width)
                for i, (text, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in cells
        ]
        total = len(lines[0])
        if any(row.stack for row in shown):
            indent = " " * (total + 2)
            lines[0] += "  Source Location"
            for i, row in enumerate(shown, 1):
                frames = [_short_path(text, src_width) for text in row.stack]
                if frames:
                    lines[i] += "  " + f"\n{indent}".join(frames)
            total = max(len(part) for line in lines for part in line.split("\n"))
        rule = "-" * total
        text = [rule, lines[0], rule, *(line.rstrip() for line in lines[1:]), rule]
        if header is not None:
            text[:0] = ["=" * total, str(header)]
        return "\n".join(text + self._notes(len(shown), len(rows))) + "\n"

    def _repr_html_(self) -> str:
        """Show the 30 largest in a notebook: a static table, all escaped."""
        from memprof.reports.static import html_table

        rows = self._sorted("self_alloc_bytes")
        cells = [self._cells(row, 120) for row in rows[:30]]
        notes = self._notes(len(cells), len(rows))
        return html_table(self._titles(), cells, notes, words=2)

    def _sorted(self, sort_by: str | None) -> list[OperatorAverage]:
        if sort_by is None:
            return list(self._rows)
        name = sort_by
        if isinstance(sort_by, str):
            name = _ACCELERATORS.sub("device", sort_by)
        if name not in SORT_NAMES:
            accepted = ", ".join(map(repr, SORT_NAMES))
            why = "there is no such column"
            if "time" in str(sort_by):
                why = "memprof measures memory, not time"
            raise ValueError(f"sort_by={sort_by!r}: {why}; sort by one of {accepted}")
        return sorted(self._rows, key=operator.attrgetter(name), reverse=True)

    def _titles(self) -> list[str]:
        titles = ["Name", "Kind", "CPU Mem", "Self CPU Mem"]
        if any(number != CPU for number in self._numbers):
            titles += ["CUDA Mem", "Self CUDA Mem"]
        for what in ("Alloc", "Freed", "Peak"):
            titles += [what, f"Self {what}"]
        return [*titles, "# of Calls"]

    def _cells(self, row: OperatorAverage, name_width: int) -> list[str]:
        name = one_line(row.key)
        if len(name) > name_width:
            name = name[: name_width - 3] + "..."
        numbers = [row.cpu_memory_usage, row.self_cpu_memory_usage]
        if any(number != CPU for number in self._numbers):
            numbers += [row.device_memory_usage, row.self_device_memory_usage]
        numbers += [
            row.alloc_bytes,
            row.self_alloc_bytes,
            row.freed_bytes,
            row.self_freed_bytes,
            row.peak_above_entry_bytes,
            row.self_peak_above_entry_bytes,
        ]
        is_op = row.kind != "outside"
        return [
            name,
            row.kind if is_op else "",
            *map(size_text, numbers),
            str(row.count) if is_op else "-",
        ]

    def _notes(self, shown: int, rows: int) -> list[str]:
        """Return the lines under the table: totals, and how to read it."""
        notes = []
        if shown < rows:
            notes.append(f"{shown} of {counted(rows, 'row')}.")
        _, sums = self._arrays()
        for number, column in zip(self._numbers, sums.T, strict=True):
            made = int(column["self_allocated"].sum())
            gone = int(column["self_freed"].sum())
            notes.append(
                f"{device_name(number)}: allocated {size_text(made, 4)}, freed "
                f"{size_text(gone, 4)}, net {size_text(made - gone, 4)} "
                f"({made - gone} bytes): the sums of all rows' Self columns."
            )
        notes.append(
            f"Mem: allocated less freed. Alloc, Freed, Peak (above the call's "
            f"beginning, of all calls the highest): {self.device}."
        )
        notes.append(
            "# of Calls: those in which memory was touched; calls that allocate "
            "nothing are not recorded."
        )
        if self._frames and not any(row.stack for row in self._rows):
            notes.append("Not grouped by stack: no Python stacks were recorded.")
        if self._recording._core.dropped:
            notes.append(
                f"{counted(self._recording._core.dropped, 'event')} lost: the log "
                "was full, and what was in them is missing here."
            )
        return notes


def _width(name: str, width: int) -> int:
    """Return a column's width.

    Raises:
        TypeError: It is no number.
        ValueError: Nothing would be readable in it.
    """
    number = operator.index(width)
    if number < 4:
        raise ValueError(f"{name}={number}: a column needs 4 signs at least")
    return number


def _short_path(text: str, width: int) -> str:
    """Keep the end of a long frame: the line and the function."""
    text = one_line(text)
    return text if len(text) <= width else "..." + text[3 - width :]
