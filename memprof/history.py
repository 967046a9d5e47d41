"""The fallback: record from torch's own memory history, without a shim.

torch keeps a history of its CUDA allocator with Python stacks. It tells
nothing of the CPU, of ops, modules and categories, and costs far more than the
shim (about 2 us an event). It is read at the end of each window and put into
the core's log as if hooks had written it.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, TypeAlias

from memprof import _core, cuda
from memprof.errors import MemprofError
from memprof.follow import source
from memprof.kernels import NOT_HISTORY, SOURCE
from memprof.options import Options
from memprof.warn import warn

FEED_ROWS = 4096
"""Rows a call: the core's log takes a call's rows as a whole or not at all."""

Identity: TypeAlias = "tuple[Any, ...]"
Mark: TypeAlias = "tuple[int, Identity | None]"
"""Length of a trace, and its last entry."""

_alone = threading.Lock()
_busy_in: int | None = None


class History:
    """Follows CUDA memory by torch's history; one at a time in a process."""

    def __init__(self, torch: Any, options: Options, reason: str) -> None:
        """Prepare; nothing is switched on.

        Args:
            torch: The module ``torch``.
            options: What the profile asks for.
            reason: Why there is no shim.
        """
        self._torch = torch
        self._options = options
        self._reason = reason
        self._session: _core.Session | None = None
        self._ours = False  # the history is on because of us
        self._waiting = False  # for CUDA to come up
        self._marks: list[Mark] = []  # where each device's trace ended
        self._steps: list[tuple[int, int]] = []  # number, time_ns
        self._step = 0
        self._lost = 0
        self._seeded: dict[str, dict[str, int]] = {}
        self._own: dict[str, int] = {"own_bytes": 0, "events": 0, "dropped": 0}

    # -- on and off ------------------------------------------------------------

    def start(self, step: int) -> None:
        """See ``Follower``."""
        self._step = step
        global _busy_in
        with _alone:
            if _busy_in == os.getpid():
                raise MemprofError(
                    "another profile is running, and without its shim memprof can "
                    f"only run one at a time: {self._reason}"
                )
            _busy_in = os.getpid()
        try:
            if cuda.is_up(self._torch):
                self._switch_on()
            else:
                self._waiting = True
                cuda.when_up(self._torch, self._came_up)
        except BaseException:
            self._leave()
            raise
        warn(
            f"memprof records from torch's memory history: {self._reason}. Lost: the "
            "CPU's memory, ops, modules, categories and what happens between "
            "recorded steps; each allocation costs more"
        )

    def stop(self) -> None:
        """See ``Follower``."""
        self._waiting = False
        try:
            if self._ours:
                self._ours = False
                self._torch.cuda.memory._record_memory_history(enabled=None)
        finally:
            self._leave()

    def _leave(self) -> None:
        global _busy_in
        with _alone:
            _busy_in = None

    def _came_up(self) -> None:
        if self._waiting:
            self._waiting = False
            self._switch_on()

    def _switch_on(self) -> None:
        """Turn the history on, unless the user has."""
        torch = self._torch
        enabled = getattr(torch._C, "_cuda_isHistoryEnabled", lambda: False)
        if enabled():
            return
        record = torch.cuda.memory._record_memory_history
        most = max(self._options.event_budget // cuda.EVENT.size, 1)
        wanted: dict[str, Any] = {
            "enabled": "all",
            "context": "all" if self._options.stacks else None,
            "stacks": "python",
            "max_entries": most,
        }
        record(**cuda.accepted(record, wanted))
        self._ours = True

    # -- recording -------------------------------------------------------------

    def step(self, number: int) -> None:
        """See ``Follower``."""
        self._step = number
        if self._session is not None:
            self._steps.append((number, _core.now_ns()))

    def window_begin(self, path: str | None) -> None:
        """See ``Follower``."""
        options = self._options
        session = _core.Session(
            ops=0,
            stacks=False,
            modules=False,
            shapes=False,
            cpu=False,
            cuda=False,
            event_budget_bytes=options.event_budget,
            allocation_budget_bytes=options.allocation_budget,
        )
        session.start(False)
        try:
            state = self._read()
            seed = cuda.seed(state["segments"], _core.now_ns())
            feed(session, seed.rows)
            session.step(self._step)
            session.window_begin(path)
        except BaseException:
            session.stop()
            raise
        self._marks = [mark(trace) for trace in state["device_traces"]]
        self._steps, self._lost, self._seeded = [], 0, seed.held
        self._session = session

    def window_describe(self, info: str) -> None:
        """See ``Follower``."""
        if self._session is not None:
            self._session.window_describe(info)

    def window_end(self) -> _core.Recording:
        """See ``Follower``."""
        session = self._session
        assert session is not None
        self._session = None
        try:
            self._drain(session)
        finally:
            recording = session.window_end()
            status = session.status()
            self._own = {name: status[name] for name in self._own}
            self._own["dropped"] += self._lost
            session.stop()
        return recording

    def flush(self) -> None:
        """See ``Follower``: torch's history is read at the end only."""

    def snapshot(self) -> _core.Recording:
        """See ``Follower``."""
        session = self._session
        assert session is not None
        self._drain(session)
        return session.snapshot()

    def _drain(self, session: _core.Session) -> None:
        """Feed what the history has gained, and the steps between."""
        state = self._read()
        marks, self._marks = self._marks, []
        shift = _core.now_ns() - time.time_ns()
        lists: list[list[tuple[int, bytes]]] = []
        for device, trace in enumerate(state["device_traces"]):
            past = marks[device] if device < len(marks) else (0, None)
            start = after(trace, past)
            if start is None:
                self._lost += 1  # at least
                start = 0
            self._marks.append(mark(trace))
            lists.append([row(entry, device, shift) for entry in trace[start:]])
        steps, self._steps = self._steps, []
        lists.append([step_row(session.id, number, at) for number, at in steps])
        feed(session, b"".join(cuda.merged_by_time(lists)))

    def _read(self) -> dict[str, Any]:
        """Return torch's snapshot; empty while CUDA is not up."""
        if not cuda.is_up(self._torch):
            return {"segments": [], "device_traces": []}
        state: dict[str, Any] = self._torch.cuda.memory._snapshot()
        return state

    def counters(self, device: int) -> dict[str, dict[str, int]]:
        """See ``Follower``."""
        raise MemprofError(
            "counters(): torch's memory history is read at the end of the recording"
        )

    def facts(self) -> dict[str, Any]:
        """See ``Follower``."""
        gone = f"recorded from torch's memory history: {self._reason}"
        names = ("cpu allocator", "ops", "modules", "roles", "process totals")
        sources = {name: source(gone) for name in names}
        sources["cuda allocator"] = source()
        sources["driver"] = {**source(gone), "level": "C"}
        if self._options.kernels:
            sources[SOURCE] = source(NOT_HISTORY)
        sources["stacks"] = source(
            None if self._options.stacks else "switched off by the caller"
        )
        return {
            "sources": sources,
            "shim": None,
            "history": {"ours": self._ours, "reason": self._reason},
            "seeded": self._seeded,
            "own": dict(self._own),
            "followed_steps": [],
        }


def mark(trace: list[dict[str, Any]]) -> Mark:
    """Return where TRACE ends, so that ``after`` finds the place again."""
    return len(trace), _identity(trace[-1]) if trace else None


def after(trace: list[dict[str, Any]], past: Mark) -> int | None:
    """Return the index of the first entry behind PAST.

    torch keeps a ring: once it is full, old entries go and indices shift.

    Returns:
        None: entries behind PAST are gone, all that is there came later.
    """
    length, last = past
    if last is None:
        return 0
    if len(trace) >= length and _identity(trace[length - 1]) == last:
        return length
    for index in range(len(trace) - 1, -1, -1):
        if _identity(trace[index]) == last:
            return index + 1
    return None


def _identity(entry: dict[str, Any]) -> Identity:
    keys = ("action", "addr", "size", "stream", "time_us")
    return tuple(entry.get(key) for key in keys)


def row(entry: dict[str, Any], device: int, shift: int) -> tuple[int, bytes]:
    """Turn one entry of a device trace into (time_ns, event).

    Args:
        entry: As ``torch.cuda.memory._snapshot`` gives it.
        device: CUDA index.
        shift: ns to add to Unix time for the monotonic clock.
    """
    action = str(entry["action"])
    kind = action if action in cuda.KINDS else "other"
    time_ns = int(entry.get("time_us", 0)) * 1000 + shift
    stack = cuda.NO_INDEX
    if kind == "alloc":
        stack = cuda.python_stack(entry.get("frames") or ())
    address = entry.get("device_free", 0) if kind == "oom" else entry.get("addr", 0)
    return time_ns, cuda.event(
        kind,
        int(address),
        int(entry.get("size", 0)),
        time_ns=time_ns,
        device=0 if kind == "snapshot" else device,
        stream=int(entry.get("stream", 0)),
        stack=stack,
    )


def step_row(session: int, number: int, time_ns: int) -> tuple[int, bytes]:
    """Return the fact that step NUMBER began, for the session with that id."""
    made = cuda.event("step", session, number, time_ns=time_ns, device=0)
    return time_ns, made


def feed(session: _core.Session, rows: bytes) -> None:
    """Append ROWS to the core's log, waiting for room."""
    size = cuda.EVENT.size
    for start in range(0, len(rows), FEED_ROWS * size):
        part = rows[start : start + FEED_ROWS * size]
        if _core.feed(part) < len(part) // size:
            session.flush()
            _core.feed(part)
        session.flush()
