"""``memprof selftest``: made-up data on the whole way from core to exports.

Each step says what it found, or raises; the ones behind it go on where they can.
"""

from __future__ import annotations

import json
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from memprof.made_up import MadeUp, recording

OK, FAILED, LEFT_OUT = "ok", "failed", "left out"

TENSORS, TENSOR_BYTES = 5, 4004


class Step(NamedTuple):
    """What came of one step."""

    name: str
    state: str
    """``OK``, ``FAILED`` or ``LEFT_OUT``."""
    text: str


class Wrong(Exception):
    """A number is not what it must be."""


def expect(what: str, found: object, wanted: object) -> None:
    """Compare.

    Raises:
        Wrong: They differ; says what both are.
    """
    if found != wanted:
        raise Wrong(f"{what}: {found}, and it must be {wanted}")


def run(
    allocations: int,
    html: Path | None,
    told: Callable[[Step], None],
    *,
    traces: bool = False,
) -> bool:
    """Run all steps.

    Args:
        allocations: Of the made-up data.
        html: Where its report goes; None: to nowhere for good.
        told: Called with each step when it is done.
        traces: Show on standard error where a failure comes from.

    Returns:
        Whether none failed.
    """
    results: list[Step] = []
    made: list[MadeUp] = []

    def step(name: str, call: Callable[[], str]) -> None:
        try:
            result = Step(name, OK, call())
        except Exception as problem:
            if traces:
                traceback.print_exc()
            known = isinstance(problem, (Wrong, OSError))
            kind = "" if known else f"{type(problem).__name__}: "
            result = Step(name, FAILED, f"{kind}{problem}")
        results.append(result)
        told(result)

    def core() -> str:
        made.append(recording(allocations))
        return _core(made[0])

    step("core", core)
    if made:
        with tempfile.TemporaryDirectory(prefix="memprof-selftest-") as folder:
            place = Path(folder)
            step("file", lambda: _file(made[0], place))
            step("summary", lambda: _summary(made[0]))
            for name, call in EXPORTS:
                step(name, lambda call=call: call(made[0], place))  # type: ignore[misc]
            report = html or place / "report.html"
            step("report", lambda: _report(made[0], report, report == html))
            if _has_torch():
                step("recording", lambda: _real(place))
            else:
                left = Step("recording", LEFT_OUT, "no torch here: nothing to record")
                results.append(left)
                told(left)
    return all(result.state != FAILED for result in results)


def _core(made: MadeUp) -> str:
    found = made.recording
    expect("events", found.info["events"], made.events)
    expect("allocations", found.info["allocations"], made.allocations)
    peak = found.peak("cuda:0")
    expect("bytes at the peak", peak.requested, made.peak)
    expect("reserved bytes at the peak", peak.reserved, made.reserved)
    expect("the sum of categories", sum(peak.categories.values()), made.peak)
    return f"{made.events} events, peak {made.peak} bytes"


def _file(made: MadeUp, folder: Path) -> str:
    from memprof.recording import load

    path = folder / "made-up.memprof"
    made.recording.save(path)
    again = load(path)
    same = bool((again.events() == made.recording.events()).all())
    expect("events read are those written", same, True)
    expect("whole", again.info["finished"], True)
    return f"{path.stat().st_size} bytes"


def _summary(made: MadeUp) -> str:
    summary = made.recording.summary("cuda:0")
    rows = summary.to_dict()["rows"]
    expect("the sum of its rows", sum(row["bytes"] for row in rows), made.peak)
    text = summary.text()
    expect("names the device", "cuda:0" in text, True)
    return f"{len(rows)} rows, sum {made.peak} bytes"


def _chrome(made: MadeUp, folder: Path) -> str:
    path = folder / "made-up.trace.json"
    made.recording.export_chrome_trace(path)
    trace = json.loads(path.read_bytes())
    memory = [e for e in trace["traceEvents"] if e.get("name") == "[memory]"]
    expect("memory events", len(memory) > 0, True)
    return f"{len(trace['traceEvents'])} events, {path.stat().st_size} bytes"


def _timeline(made: MadeUp, folder: Path) -> str:
    path = folder / "made-up.timeline.json"
    made.recording.export_memory_timeline(path, "cuda:0")
    times, sizes = json.loads(path.read_bytes())
    expect("its highest point", max(map(sum, sizes)), made.peak)
    return f"{len(times)} moments, highest {made.peak} bytes"


def _snapshot(made: MadeUp, folder: Path) -> str:
    from memprof.recording import load

    path = folder / "made-up.pickle"
    made.recording.export_snapshot(path)
    again = load(path)
    expect("its peak", again.peak("cuda:0").requested, made.peak)
    return f"{path.stat().st_size} bytes"


def _csv(made: MadeUp, folder: Path) -> str:
    path = folder / "made-up.csv"
    made.recording.export_csv(path)
    lines = path.read_text().splitlines()
    expect("its lines", len(lines), made.allocations + 1)
    return f"{len(lines) - 1} rows"


def _collapsed(made: MadeUp, folder: Path) -> str:
    path = folder / "made-up.collapsedstack.txt"
    made.recording.export_collapsed(path, device="cuda:0")
    values = [int(line.rpartition(" ")[2]) for line in path.read_text().splitlines()]
    expect("the sum of its lines", sum(values), made.peak)
    return f"{len(values)} lines, sum {made.peak} bytes"


def _report(made: MadeUp, path: Path, kept: bool) -> str:
    made.recording.report(path)
    content = path.read_bytes()
    expect("a page", content[:9].lower(), b"<!doctype")
    return f"{len(content)} bytes" + (f": {path}" if kept else "")


EXPORTS: tuple[tuple[str, Callable[[MadeUp, Path], str]], ...] = (
    ("chrome trace", _chrome),
    ("memory timeline", _timeline),
    ("snapshot", _snapshot),
    ("csv", _csv),
    ("collapsed stacks", _collapsed),
)


# -- with torch --------------------------------------------------------------------


def _has_torch() -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec("torch") is not None
    except ValueError:  # somebody barred it from being imported
        return False


def _real(folder: Path) -> str:
    """Record a few tensors on the CPU, and find them."""
    from memprof.profiler import import_torch, profile
    from memprof.recording import load

    torch: Any = import_torch()
    path = folder / "real.memprof"
    with profile(path=path, activities=_cpu()):
        kept = [torch.ones(TENSOR_BYTES // 4) for _ in range(TENSORS)]
    expect("tensors made", len(kept), TENSORS)
    found = load(path)
    lives = found.allocations("cpu")
    ours = lives[(lives["size"] == TENSOR_BYTES) & (lives["born_event"] >= 0)]
    expect("tensors found", len(ours), TENSORS)
    line = found.stack(int(ours["stack"][0]))
    where = f" at {os.path.basename(line[0].file)}:{line[0].line}" if line else ""
    return f"torch {torch.__version__}: {TENSORS} tensors{where}"


def _cpu() -> list[Any]:
    from memprof.schedule import torch_enum

    return [torch_enum("ProfilerActivity").CPU]
