"""A trace of torch.profiler (Kineto's JSON) as a recording.

Its ``[memory]`` events tell of every allocation and free of a device, with the
bytes that torch gave (rounded up); its slices say which op, module and step each
fell into. What was alive before the first is known only as a sum.
"""

from __future__ import annotations

import os
import re
from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memprof import _core
from memprof.errors import MemprofError
from memprof.follow import source
from memprof.json_stream import Cut, Text, items
from memprof.rows import CPU, EVENT_DTYPE, NO_INDEX

MEMORY, OUT_OF_MEMORY = "[memory]", "[OutOfMemory]"
_STEP = re.compile(r"ProfilerStep#(\d{1,9})$")
_OPS = ("cpu_op", "user_annotation")
_MODULE = "nn.Module: "

_ODD = (AttributeError, KeyError, TypeError, ValueError, OverflowError)
"""What a value of the wrong kind raises."""

SESSION = 1
UNTOLD = 0x100
"""MP_FLAG_UNTOLD: the file does not say what was running."""
REST = 1
"""Where what is known as a sum lies: no block has that address."""
SHELF = 1 << 52
"""Where what was reserved lies, since the file does not say where."""
MOST_NS = 1 << 61
"""No time of a file is further away, in either direction: sums of two are int64."""
MOST_BYTES = 1 << 52
"""No size is larger: a double holds it."""
MOST_NO_EVENTS = 10_000
"""A trace has none."""
_KINDS = {text: number for number, text in _core.EVENT_KINDS.items()}


class Slices:
    """What the threads were inside of: begin, end and a name each."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._of: dict[tuple[Any, Any], tuple[array[int], array[int], array[int]]] = {}

    @property
    def names(self) -> list[str]:
        """The texts behind the numbers that ``innermost`` gives."""
        return list(self._names)

    def number(self, name: str) -> int:
        """Return the number of a name."""
        return self._names.setdefault(name, len(self._names))

    def add(self, thread: tuple[Any, Any], begin: int, length: int, name: str) -> None:
        """Note one slice."""
        values = array("q", (begin, begin + length, self.number(name)))
        lists = self._of.setdefault(thread, (array("q"), array("q"), array("q")))
        for of, value in zip(lists, values, strict=True):
            of.append(value)

    def innermost(
        self, thread: tuple[Any, Any], times: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return which name is innermost at each of TIMES, which rise; -1: none."""
        found = np.full(len(times), -1, np.int64)
        if thread not in self._of:
            return found
        begin, end, name = (np.frombuffer(of, np.int64) for of in self._of[thread])
        # Outer ones first where two begin at once.
        order = np.lexsort((-end, begin))
        starts, stops, numbers = begin[order].tolist(), end[order].tolist(), name[order]
        stack: list[int] = []
        at = 0
        for index, time in enumerate(times.tolist()):
            while at < len(starts) and starts[at] <= time:
                while stack and stops[stack[-1]] <= starts[at]:
                    stack.pop()
                stack.append(at)
                at += 1
            while stack and stops[stack[-1]] <= time:
                stack.pop()
            if stack:
                found[index] = numbers[stack[-1]]
        return found


class Trace:
    """What is taken from a trace while it is read."""

    def __init__(self) -> None:
        self.memory: array[int] = array("q")  # _FIELDS numbers an event
        self.threads: list[tuple[Any, Any]] = []
        self._thread: dict[tuple[Any, Any], int] = {}
        self.ops, self.modules = Slices(), Slices()
        self.steps: list[tuple[int, int]] = []  # time, number
        self._none = 0  # items that are no events
        self.odd = 0  # memory events that cannot be understood

    def take(self, event: Any) -> None:
        """Look at one trace event."""
        if not isinstance(event, dict):
            self._none += 1
            if self._none > MOST_NO_EVENTS:
                raise Cut(f"{self._none} items that are no events")
            return
        kind, name = event.get("ph"), event.get("name")
        if kind == "i" and name in (MEMORY, OUT_OF_MEMORY):
            try:
                self._take_memory(event, name == OUT_OF_MEMORY)
            except _ODD:
                self.odd += 1
        elif kind == "X" and isinstance(name, str):
            try:
                self._take_slice(event, name)
            except _ODD:
                pass  # nothing that memory is about

    def _take_memory(self, event: dict[str, Any], failed: bool) -> None:
        args = event["args"]
        device = int(args.get("Device Id", -1))
        if int(args.get("Device Type", 1)) == 0:
            device = CPU
        if not -1 <= device < 4096:
            raise ValueError(device)
        thread = (event.get("pid"), event.get("tid"))
        number = self._thread.setdefault(thread, len(self.threads))
        if number == len(self.threads):
            self.threads.append(thread)
        fields = (
            _ns(event["ts"]),
            0 if failed else int(args["Addr"]),
            _bytes(args["Bytes"]),
            _bytes(args.get("Total Allocated", -1)),
            _bytes(args.get("Total Reserved", -1)),
            device,
            number,
            failed,
        )
        self.memory.extend(array("q", fields))  # all of them or none

    def _take_slice(self, event: dict[str, Any], name: str) -> None:
        category = event.get("cat")
        begin, length = _ns(event["ts"]), _ns(event.get("dur", 0))
        step = _STEP.match(name)
        if step is not None:
            if category != "gpu_user_annotation":
                self.steps.append((begin, int(step[1])))
            return
        thread = (event.get("pid"), event.get("tid"))
        if category in _OPS:
            self.ops.add(thread, begin, length, name)
        elif category == "python_function" and name.startswith(_MODULE):
            self.modules.add(thread, begin, length, name[len(_MODULE) :])


_FIELDS = 8


def _ns(us: Any) -> int:
    """Return microseconds as nanoseconds."""
    ns = round(float(us) * 1000) if not isinstance(us, int) else us * 1000
    if abs(ns) > MOST_NS:
        raise OverflowError(us)
    return ns


def _bytes(count: Any) -> int:
    """Return a number of bytes."""
    if abs(count) > MOST_BYTES:
        raise OverflowError(count)
    return int(count)


def read(path: str | os.PathLike[str]) -> tuple[_core.Recording, dict[str, Any]]:
    """Read a trace; see ``memprof.snapshots.read``.

    Raises:
        OSError: the file cannot be read.
        MemprofError: it is no trace, or one without ``[memory]`` events.
    """
    text = Text(path)
    trace, damage = Trace(), None
    rest: dict[str, Any] = {}
    try:
        for event in items(text, "traceEvents", rest):
            trace.take(event)
    except Cut as cut:
        damage = str(cut)
    finally:
        text.close()
    if not trace.memory:
        name = os.fspath(path)
        if damage is None:
            damage = "torch.profiler writes them with profile_memory=True"
        raise MemprofError(f"{name!r}: a trace without [memory] events: {damage}")
    base = rest.get("baseTimeNanoseconds")
    if not isinstance(base, int) or not 0 <= base <= MOST_NS:
        base = 0
    return _recording(trace, base, damage)


def _recording(
    trace: Trace, base: int, damage: str | None
) -> tuple[_core.Recording, dict[str, Any]]:
    rows = np.frombuffer(trace.memory, np.int64).reshape(-1, _FIELDS)
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    steps = sorted(set(trace.steps))
    offset = min([int(rows[0, 0]), *(time for time, _ in steps[:1])])
    ops, modules = _places(trace, rows)
    names = trace.ops.names
    known = {name: index for index, name in enumerate(names)}
    renumbered = np.array(
        [known.setdefault(name, len(known)) for name in trace.modules.names], np.int64
    )
    if len(renumbered):
        modules = np.where(modules >= 0, renumbered[modules], -1)
    out = Events(offset)
    counts: dict[str, int] = {}
    for device in np.unique(rows[:, 5]).tolist():
        _seed(out, rows[rows[:, 5] == device], device, counts)
    reserved: dict[int, int] = {}
    stepped = False
    for row, op, module in zip(
        rows.tolist(), ops.tolist(), modules.tolist(), strict=True
    ):
        time, address, size, _, total, device, thread, failed = row
        while steps and steps[0][0] <= time:
            out.step(*steps.pop(0), first=not stepped)
            stepped = True
        if failed:
            out.add("oom", time, 0, abs(size), device)
            continue
        if total >= 0 and device >= 0:
            out.reserve(time, device, reserved.get(device, 0), total)
            reserved[device] = total
        where = {"thread": thread + 1, "op": op, "module": module}
        if size > 0:
            out.add("alloc", time, address, size, device, flags=UNTOLD, **where)
        elif size < 0:
            out.add("free_completed", time, address, -size, device, **where)
    if stepped:
        out.add("window_end", int(rows[-1, 0]), SESSION, 0, 0)
    core = _core.from_events(out.rows(), names=list(known), start_wall_ns=base + offset)
    return core, _facts(trace, counts, damage, core)


def _places(
    trace: Trace, rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the innermost op and module of each memory event."""
    ops = np.full(len(rows), -1, np.int64)
    modules = ops.copy()
    for number, thread in enumerate(trace.threads):
        mine = np.flatnonzero(rows[:, 6] == number)
        ops[mine] = trace.ops.innermost(thread, rows[mine, 0])
        modules[mine] = trace.modules.innermost(thread, rows[mine, 0])
    return ops, modules


def _seed(
    out: Events, rows: NDArray[np.int64], device: int, counts: dict[str, int]
) -> None:
    """Write what was alive before the first event: blocks that are freed, and the
    rest of the sum that the file tells."""
    live: dict[int, int] = {}
    older: dict[int, int] = {}
    total, short = None, 0
    for _, address, size, allocated, *_, failed in rows.tolist():
        if failed:
            continue
        if size > 0:
            live[address] = size
        elif size < 0 and live.pop(address, None) is None:
            if address in older:
                counts["unmatched"] = counts.get("unmatched", 0) + 1
            older.setdefault(address, -size)
        if allocated >= 0:
            if total is None:
                total = allocated - size
                expected = total
            expected += size
            short += expected != allocated
            expected = allocated
    time = out.offset
    for address, size in older.items():
        out.add("seed_block", time, address, size, device)
    rest = (total or 0) - sum(older.values())
    if rest > 0:
        out.add("seed_block", time, REST, rest, device)
    counts["older"] = counts.get("older", 0) + len(older)
    counts["rest"] = counts.get("rest", 0) + max(rest, 0)
    counts["short"] = counts.get("short", 0) + short


class Events:
    """Event rows in the making; ids of -1 are none.

    Attributes:
        offset: The time that becomes 0.
    """

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._rows: array[int] = array("q")
        self._count = 0

    def add(
        self,
        kind: str,
        time: int,
        address: int,
        size: int,
        device: int,
        *,
        thread: int = 0,
        op: int = -1,
        module: int = -1,
        flags: int = 0,
    ) -> None:
        """Append one."""
        number = _KINDS[kind]
        at = time - self.offset
        self._rows.extend(
            (number, at, address, size, device, thread, op, module, flags)
        )

    def step(self, time: int, number: int, *, first: bool) -> None:
        """Append the beginning of a step."""
        self.add("step", time, SESSION, number, 0)
        if first:
            self.add("window_begin", time, SESSION, 0, 0)

    def reserve(self, time: int, device: int, before: int, now: int) -> None:
        """Append what makes BEFORE bytes reserved NOW bytes."""
        if now > before:
            self.add("segment_map", time, SHELF + before, now - before, device)
        elif now < before:
            self.add("segment_unmap", time, SHELF + now, before - now, device)

    def rows(self) -> memoryview:
        """Return them all, laid out as ``EVENT_DTYPE``."""
        table = np.frombuffer(self._rows, np.int64).reshape(-1, 9)
        made = np.zeros(len(table), EVENT_DTYPE)
        names = "kind time_ns address size device thread op module flags"
        for column, name in enumerate(names.split()):
            made[name] = table[:, column].astype(made.dtype[name])
        for name, column in (("op", 6), ("module", 7)):
            made[name][table[:, column] < 0] = NO_INDEX
        made["stack"] = NO_INDEX
        return made.data


def _facts(
    trace: Trace, counts: dict[str, int], damage: str | None, core: _core.Recording
) -> dict[str, Any]:
    kind = "a trace of torch.profiler"
    lacks = [
        "stacks, categories and phases",
        "the bytes that were asked for: sizes are torch's, rounded up",
        "when a free was asked for: blocks are alive until it is done",
    ]
    if counts.get("rest"):
        lacks.append(
            f"what {counts['rest']} bytes were that were alive before the first event"
        )
    if counts.get("short"):
        lacks.append(
            f"{counts['short']} times the trace's sum is another than ours: "
            "events are missing in it"
        )
    if trace.odd:
        lacks.append(f"{trace.odd} memory events that could not be understood")
    gone = f"read from {kind}, which does not tell of them"
    return {
        "imported": {
            "from": kind,
            "lacks": lacks,
            "damage": damage,
            "older_blocks": counts.get("older", 0),
        },
        "sources": {
            "cuda allocator": source(
                None if any(d >= 0 for d in core.devices()) else "not in the trace"
            ),
            "cpu allocator": source(
                None if CPU in core.devices() else "not in the trace"
            ),
            "ops": source(None if trace.ops.names else "not in the trace"),
            "modules": source(
                None
                if trace.modules.names
                else "not in the trace (with_modules=True, with_stack=True)"
            ),
            "stacks": source(gone),
        },
    }
