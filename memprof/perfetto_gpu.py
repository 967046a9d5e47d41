"""What ran on GPUs in a trace for Perfetto: a track for each stream.

Work of one stream that overlaps is drawn on tracks of the same name, which the
viewer joins: slices of one track must not overlap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memprof import _core, pftrace
from memprof.devices import device_name
from memprof.kernels import kernels
from memprof.rows import NO_INDEX, Ints, Rows

if TYPE_CHECKING:
    from memprof.recording import Recording

MOST = 200_000
"""Pieces that are drawn, the longest."""

# What the viewer can place: its times are whole nanoseconds above 0.
_EARLIEST = 1


def add_kernels(
    recording: Recording,
    document: pftrace.Document,
    top: int,
    rank: int,
    only: int | None,
) -> None:
    """Add a group for each GPU that something ran on; ONLY: for that one."""
    rows = kernels(recording, None)
    for device in np.unique(rows["device"]).tolist():
        if only is not None and device != only:
            continue
        mine = rows[rows["device"] == device]
        if len(mine) > MOST:
            took = mine["end_ns"] - mine["start_ns"]
            mine = mine[np.sort(np.argsort(took, kind="stable")[-MOST:])]
        name = f"{device_name(device)} kernels"
        group = document.track(f"memprof/{name}", top, name, pftrace.GROUP, rank)
        rank += 1
        for place, stream in enumerate(np.unique(mine["stream"]).tolist(), 1):
            of_stream = mine[mine["stream"] == stream]
            layers = _layers(of_stream)
            for layer in range(int(layers.max()) + 1):
                track = document.track(
                    f"memprof/{name}/{stream}/{layer}",
                    group,
                    f"stream {stream}",
                    pftrace.SLICES,
                    place,
                )
                _draw(recording, document, track, of_stream[layers == layer])


def _layers(rows: Rows) -> Ints:
    """Return for each row, by start, the first layer in which it overlaps none."""
    ends: list[int] = []
    found = np.zeros(len(rows), np.int64)
    for place, (start, end) in enumerate(
        zip(rows["start_ns"].tolist(), rows["end_ns"].tolist(), strict=True)
    ):
        layer = next((k for k, last in enumerate(ends) if last <= start), len(ends))
        ends[layer : layer + 1] = [end]
        found[place] = layer
    return found


def _draw(
    recording: Recording, document: pftrace.Document, track: int, rows: Rows
) -> None:
    names = [recording.op(int(name)) or "?" for name in rows["name"]]
    ops = [_text(recording, int(op)) for op in rows["op"]]
    modules = [_text(recording, int(module)) for module in rows["module"]]
    kinds = [_core.GPU_KINDS[kind] for kind in rows["kind"].tolist()]
    document.slices(
        track,
        np.maximum(rows["start_ns"], _EARLIEST),
        np.maximum(rows["end_ns"], _EARLIEST),
        [document.text(name) for name in names],
        "memprof.kernel",
        {
            "bytes": np.minimum(rows["bytes"], 2**63 - 1).astype(np.int64),
            "correlation": rows["correlation"].astype(np.int64),
            "op": ops,
            "module": modules,
            "kind": kinds,
        },
    )


def _text(recording: Recording, index: int) -> str:
    return "" if index == NO_INDEX else recording.op(index)
