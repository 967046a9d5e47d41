"""Tables of a recording for other tools: allocations, events, steps, stacks.

A table is columns of equal length: numbers as the recording holds them, and texts
as numbers into a list of different texts.  Times are in ns, sizes in bytes; ``-1``
is "not" (still alive, older than the recording) as in the recording's own rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memprof import _core, output
from memprof.devices import device_name
from memprof.files import Path
from memprof.groups import dense_codes
from memprof.moment import _Columns, places
from memprof.options import choices
from memprof.rows import NO_INDEX, Ints, Rows, as_rows
from memprof.spans import step_rows

if TYPE_CHECKING:
    from memprof.recording import Recording

BYTES, NS = "bytes", "ns"

_UNITS = {
    "size": BYTES,
    "born_ns": NS,
    "died_ns": NS,
    "time_ns": NS,
    "begin_ns": NS,
    "end_ns": NS,
    "allocated_total": BYTES,
}


class Column(NamedTuple):
    """One column."""

    name: str
    values: NDArray[Any]
    """Integers; of a column of texts: which, and any number outside: none."""
    texts: list[str] | None = None
    wide: bool = False
    """Texts so long that only formats which write each once can have them."""

    @property
    def unit(self) -> str:
        """``bytes``, ``ns`` or ``""``."""
        return _UNITS.get(self.name, BYTES if "_bytes_" in self.name else "")


def table(recording: Recording, name: str) -> list[Column]:
    """Return the columns of a table.

    Raises:
        ValueError: there is no such table.
    """
    if name not in TABLES:
        raise ValueError(f"no table {name!r}; choose {choices(TABLES)}")
    return TABLES[name](recording)


def _known(
    name: str, ids: NDArray[Any], text: Callable[[int], str], wide: bool = False
) -> Column:
    """Make a column of texts from ids, asking once for each; NO_INDEX: none."""
    codes = ids.astype(np.int64)
    codes[codes == NO_INDEX] = -1
    codes += 1
    dense, values = dense_codes(codes)
    del codes
    found: dict[str, int] = {}
    number = [
        found.setdefault(output.clean(text(value - 1)), len(found)) if value else -1
        for value in values.tolist()
    ]
    # An empty text is none, too.
    empty = found.get("", -1)
    place = np.array([-1 if n == empty else n for n in number], np.int32)
    shown = place[dense] if len(dense) else np.empty(0, np.int32)
    return Column(name, shown, list(found), wide)


def _words(name: str, values: NDArray[Any], texts: Sequence[str]) -> Column:
    return Column(name, values, list(texts))


def _devices(rows: Rows) -> Column:
    """Make the column of devices: the CPU is the first text."""
    numbers = rows["device"].astype(np.int32)
    numbers += 1
    top = int(numbers.max(initial=0))
    return Column("device", numbers, [device_name(n - 1) for n in range(top + 1)])


def _stack_text(recording: Recording) -> Callable[[int], str]:
    """Return what writes a stack: ``function (file:line);...``, outermost first."""
    shown = places(recording).shown
    files: dict[str, str] = {}

    def text(index: int) -> str:
        frames = []
        for function, file, line in recording._core.stack(index):
            if file not in files:
                files[file] = shown(file)
            frames.append(f"{function} ({files[file]}:{line})")
        return ";".join(reversed(frames))

    return text


def _line_text(recording: Recording) -> Callable[[int], str]:
    """Return what writes the user's line of a stack, ``file:line``."""
    found = places(recording)
    return lambda index: found.of(index)[0]


def _stack_ids(codes: Ints) -> NDArray[np.int64]:
    """Return stack ids, -1: none, from codes with 0 for none."""
    return codes - 1


def _allocations(recording: Recording) -> list[Column]:
    rows = recording.allocations("all")
    text = recording.op
    columns = _Columns(recording, np.arange(len(rows)))
    modules, module_name = columns._modules()
    stacks = columns.stacks()
    del columns
    ids = _stack_ids(stacks)
    stack = np.where(ids < 0, NO_INDEX, ids).astype(np.uint32)
    del stacks
    return [
        Column("id", rows["id"]),
        _devices(rows),
        Column("address", rows["address"]),
        Column("size", rows["size"]),
        _words("category", rows["category"], _core.CATEGORIES),
        _words("reason", rows["reason"], _core.REASONS),
        _words("role", rows["role"], _core.ROLES),
        _known("owner", rows["owner"], text),
        _known("module", modules, lambda code: module_name(code) if code else ""),
        _known("op", rows["op"], text),
        _words("phase", rows["phase"], _core.PHASES),
        _known("region", rows["region"], text),
        _known("shape", rows["shape"], text),
        _known("forward_module", rows["forward_module"], text),
        _known("forward_op", rows["forward_op"], text),
        _known("line", stack, _line_text(recording)),
        _known("stack", stack, _stack_text(recording), wide=True),
        Column("stack_id", ids),
        Column("born_event", rows["born_event"]),
        Column("died_event", rows["died_event"]),
        Column("completed_event", rows["completed_event"]),
        Column("born_ns", rows["born_ns"]),
        Column("died_ns", rows["died_ns"]),
        Column("born_step", rows["born_step"]),
        Column("died_step", rows["died_step"]),
        Column("thread", rows["thread"]),
        Column("stream", rows["stream"]),
        Column("pool", rows["pool"]),
    ]


def _events(recording: Recording) -> list[Column]:
    rows = recording.events()
    stack = rows["stack"].astype(np.int64)
    stack[stack == NO_INDEX] = -1
    return [
        Column("event", np.arange(len(rows), dtype=np.int64)),
        Column("time_ns", rows["time_ns"]),
        _known("kind", rows["kind"], lambda kind: _core.EVENT_KINDS.get(kind, "")),
        _devices(rows),
        Column("address", rows["address"]),
        Column("size", rows["size"]),
        _known("op", rows["op"], recording.op),
        _known("module", rows["module"], recording.op),
        _words("phase", rows["phase"], _core.PHASES),
        Column("step", rows["step"]),
        _known("line", rows["stack"], _line_text(recording)),
        Column("stack_id", stack),
        Column("thread", rows["thread"]),
        Column("stream", rows["stream"]),
        Column("pool", rows["pool"]),
        Column("flags", rows["flags"]),
        Column("op_instance", rows["op_instance"]),
    ]


def _steps(recording: Recording) -> list[Column]:
    rows = step_rows(recording)
    rows = rows[np.isin(rows["number"], recording.steps["number"])]
    names = [name for name in rows.dtype.names or () if name != "recorded"]
    return [
        _devices(rows) if name == "device" else Column(name, rows[name])
        for name in names
    ]


def _stacks(recording: Recording) -> list[Column]:
    """All stacks that a life or an event has."""
    lives, events = recording.allocations("all"), recording.events()
    seen = [lives["stack"], lives["forward_stack"], events["stack"]]
    ids = np.unique(np.concatenate([np.unique(column) for column in seen]))
    ids = ids[ids != NO_INDEX].astype(np.uint32)
    ids = ids[ids < recording._core.stacks()]  # some events mean something else by it
    offsets = as_rows(recording._core.stack_paths(ids.data)[0], np.int64)
    return [
        Column("stack_id", ids),
        Column("depth", np.diff(offsets)),
        _known("line", ids, _line_text(recording)),
        _known("stack", ids, _stack_text(recording)),
    ]


TABLES: dict[str, Callable[[Recording], list[Column]]] = {
    "allocations": _allocations,
    "events": _events,
    "steps": _steps,
    "stacks": _stacks,
}


# -- CSV -------------------------------------------------------------------------


def _quoted(text: str) -> bytes:
    """Return a field as RFC 4180 has it; NUL, which readers refuse, as U+FFFD."""
    text = text.replace("\0", "�")
    if (
        not text.isprintable()
        or any(sign in text for sign in '",\n\r')
        or (text != text.strip())
    ):
        text = '"' + text.replace('"', '""') + '"'
    return text.encode("utf-8")


def _write_table(recording: Recording, path: Path, name: str) -> None:
    columns = [column for column in table(recording, name) if not column.wide]
    header = ",".join(column.name for column in columns) + "\n"
    fields = [
        (column.values, None if column.texts is None else [*map(_quoted, column.texts)])
        for column in columns
    ]
    with output.replacing(path) as temporary:
        _core.write_csv(temporary, header.encode("ascii"), fields)


def write_csv(recording: Recording, path: Path, name: str | None) -> None:
    """Write ``Recording.export_csv``.

    Raises:
        ValueError: there is no such table.
        OSError: a file cannot be written.
    """
    if name is not None and name not in TABLES:
        raise ValueError(f"no table {name!r}; choose {choices(TABLES)}")
    where = os.fsdecode(path)
    if where.endswith(".csv"):
        _write_table(recording, path, name or "allocations")
        return
    if os.path.exists(where) and not os.path.isdir(where):
        raise FileExistsError(
            f"{where!r} is no folder: tables go into one, a single table to *.csv"
        )
    os.makedirs(where, exist_ok=True)
    for each in TABLES if name is None else (name,):
        _write_table(recording, os.path.join(where, f"{each}.csv"), each)
