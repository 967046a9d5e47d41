"""When each module was at work, as far as allocations tell.

A module's span runs from its first to its last allocation (a model's from the
beginning to the end of its forward), in forward and, for what its backward
allocates, in backward.  Spans of one thread nest by name: ``layers.0`` holds
``layers.0.fc1``.  Works on whole columns; Python loops go over modules and depths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memprof import _core
from memprof.rows import NO_INDEX, Ints

if TYPE_CHECKING:
    from memprof.recording import Recording

_MODULE_BEGIN, _MODULE_END = 18, 19  # csrc/event.h
_BACKWARD = _core.PHASES.index("backward")


class Spans(NamedTuple):
    """Begins and ends of the modules' spans on one thread, in order."""

    event: Ints
    """int64 [n], the number of the event at which a span begins or ends."""
    begins: NDArray[np.bool_]
    name: Ints
    """int64 [n], index into ``names``."""
    names: list[str]


class _Marks(NamedTuple):
    """What tells of modules, in order of events."""

    event: Ints
    thread: Ints
    module: Ints  # string id, -1: none
    part: Ints  # differs where no span goes on: phase and step
    opens: NDArray[np.bool_]  # a module's forward begins

    def of(self, chosen: Any) -> _Marks:
        """Return the chosen ones."""
        return _Marks(*(column[chosen] for column in self))


def module_spans(recording: Recording, device: int) -> dict[int, Spans]:
    """Return the spans of each thread that allocated in a module on a device."""
    marks = _marks(recording, device)
    around, names = _ancestors(recording, marks.module)
    found = {}
    for thread in np.unique(marks.thread).tolist():
        mine = np.flatnonzero(marks.thread == thread)
        spans = _nested(marks.of(mine), around, names)
        if len(spans.event):
            found[int(thread)] = spans
    return found


def _marks(recording: Recording, device: int) -> _Marks:
    lives, events = recording.allocations("all"), recording.events()
    born = lives["born_event"]
    mine = np.flatnonzero((lives["device"] == device) & (born >= 0))
    kind = events["kind"]
    said = np.flatnonzero((kind == _MODULE_BEGIN) | (kind == _MODULE_END))
    module = lives["module"][mine]
    phase = lives["phase"][mine].astype(np.int64)
    caused = (module == NO_INDEX) & (phase == _BACKWARD)
    module = np.where(caused, lives["forward_module"][mine], module)
    event = np.concatenate((born[mine], said))
    order = np.argsort(event, kind="stable")
    ids = np.concatenate((module, events["module"][said])).astype(np.int64)
    ids[ids == NO_INDEX] = -1
    # A forward that is run again in backward is told of as such.
    phases = np.concatenate((phase, events["phase"][said].astype(np.int64)))
    steps = np.concatenate((lives["born_step"][mine], events["step"][said]))
    part = 2 * steps.astype(np.int64) + (phases == _BACKWARD)
    threads = np.concatenate((lives["thread"][mine], events["thread"][said]))
    opens = np.concatenate((np.zeros(len(mine), np.bool_), kind[said] == _MODULE_BEGIN))
    return _Marks(event, threads.astype(np.int64), ids, part, opens).of(order)


def _ancestors(recording: Recording, ids: Ints) -> tuple[Ints, list[str]]:
    """Return what is around each module id, by depth, as indices into names.

    Returns:
        int64 [top id + 2, depths], -1: nothing; the last row is of id -1.
    """
    models = recording._known_models()
    known: dict[str, int] = {}
    paths: dict[int, list[int]] = {}
    for index in np.unique(ids).tolist():
        if index < 0:
            continue
        model, path = models.place(recording.op(index))
        parts = path.split(".") if path else []
        words = [model] if model else []
        words += [
            models.name(model, ".".join(parts[: count + 1]))
            for count in range(len(parts))
        ]
        paths[index] = [known.setdefault(word, len(known)) for word in words]
    depths = max(map(len, paths.values()), default=0)
    table = np.full((max(paths, default=-1) + 2, depths), -1, np.int64)
    for index, path_of in paths.items():
        table[index, : len(path_of)] = path_of
    return table, list(known)


def _nested(marks: _Marks, around: Ints, names: list[str]) -> Spans:
    """Turn the marks of one thread into spans."""
    inside = around[marks.module]  # id -1: the last row, which has nothing
    depth = (inside >= 0).sum(axis=1)
    broken = np.ones(len(marks.event), np.bool_)
    broken[1:] = marks.part[1:] != marks.part[:-1]
    keys: list[Ints] = []
    columns: list[Ints] = []
    for level in range(inside.shape[1]):
        code = inside[:, level]
        broken = broken.copy()
        broken[1:] |= code[1:] != code[:-1]
        broken |= marks.opens & (depth == level + 1)
        first = np.flatnonzero(broken)
        last = np.append(first[1:], len(broken)) - 1
        real = code[first] >= 0
        first, last = first[real], last[real]
        # In order: a mark's begins, outer ones first, then its ends, inner first.
        for place, side, rank in ((first, 0, level), (last, 1, -level)):
            keys.append(np.stack((2 * place + side, np.full(len(place), rank))))
            columns.append(
                np.stack(
                    (marks.event[place], np.full(len(place), 1 - side), code[first])
                )
            )
    if not columns:
        none = np.empty(0, np.int64)
        return Spans(none, none.astype(np.bool_), none, names)
    when, rank = np.concatenate(keys, axis=1)
    event, begins, code = np.concatenate(columns, axis=1)[:, np.lexsort((rank, when))]
    return Spans(event, begins.astype(np.bool_), code, names)
