"""How long exports of stacks, tables and Perfetto traces take, and how much memory.

Made-up training steps: allocations with 4,000 different Python stacks of 12 to 24
frames, in 120 modules and 300 ops, every other step with the begins and ends of its
ops.  Each export runs in a process of its own; memory is what the process rose above
the replayed recording at its highest.

``python benchmarks/outputs.py [--events 1000000] [--only NAME]``
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from memprof import _core
from memprof.recording import EVENT_DTYPE, NO_INDEX, Recording

STACKS, OPS, LAYERS = 4_000, 300, 40
ALLOC, FREE, DONE, SEGMENT, OP_BEGIN, OP_END = 1, 2, 3, 4, 16, 17
MODULE_BEGIN, MODULE_END, STEP = 18, 19, 32

EXPORTS: dict[str, Callable[[Recording, str], None]] = {
    "speedscope": lambda rec, to: rec.export_speedscope(f"{to}/a.speedscope.json"),
    "speedscope by module": lambda rec, to: rec.export_speedscope(
        f"{to}/a.speedscope.json", by="module"
    ),
    "pprof": lambda rec, to: rec.export_pprof(f"{to}/a.pb.gz"),
    "collapsed": lambda rec, to: rec.export_collapsed(f"{to}/a.collapsedstack.txt"),
    "stacks by metric": lambda rec, to: rec.export_stacks(f"{to}/a.txt"),
    "csv allocations": lambda rec, to: rec.export_csv(f"{to}/a.csv", "allocations"),
    "csv events": lambda rec, to: rec.export_csv(f"{to}/a.csv", "events"),
    "parquet allocations": lambda rec, to: rec.export_parquet(f"{to}/a.parquet"),
    "parquet events": lambda rec, to: rec.export_parquet(f"{to}/a.parquet", "events"),
    "perfetto": lambda rec, to: rec.export_perfetto(f"{to}/a.pftrace"),
    "perfetto, full": lambda rec, to: rec.export_perfetto(f"{to}/a.pftrace", full=True),
}


def made_up(count: int) -> Recording:
    """Return a recording of about COUNT events: some 40 % births."""
    rng = np.random.default_rng(0)
    modules = [
        f"layers.{layer}.{part}"
        for layer in range(LAYERS)
        for part in ("attn", "mlp", "norm")
    ]
    names = [f"aten::op{i}" for i in range(OPS)] + modules + ["Model"]
    root = len(names) - 1
    stacks = [
        tuple(
            (f"f{depth}_{i % (3 + 40 * depth)}", f"/run/src/m{depth}.py", 10 + i % 977)
            for depth in range(12 + i % 13)
        )[::-1]
        for i in range(STACKS)
    ]
    per_step = 50_000
    steps = max(count // per_step, 1)
    parts = []
    for step in range(steps):
        with_ops = step % 2 == 1
        blocks = per_step // 5 if with_ops else per_step * 2 // 5
        rows = np.zeros(per_step, EVENT_DTYPE)
        rows["op"] = rows["module"] = rows["stack"] = NO_INDEX
        rows["thread"], rows["step"], rows["phase"] = 7, step, 1
        rows["time_ns"] = (np.arange(per_step) + step * per_step) * 700 + 1_000
        # births, then frees in reverse order, as forward and backward do
        born = np.arange(blocks)
        rows["kind"][:2] = STEP, MODULE_BEGIN
        rows["address"][0], rows["size"][0], rows["module"][1] = 1, step, root
        at = 2 + born
        if with_ops:
            at = 3 + 3 * born
            rows["kind"][at - 1], rows["kind"][at + 1] = OP_BEGIN, OP_END
        rows["kind"][at] = ALLOC
        rows["address"][at] = (1 << 40) + (born.astype(np.uint64) << np.uint64(21))
        rows["size"][at] = rng.integers(512, 2 << 20, blocks)
        rows["op"][at] = rng.integers(0, OPS, blocks)
        rows["module"][at] = OPS + born * len(modules) // blocks
        rows["stack"][at] = rng.integers(0, STACKS, blocks)
        if with_ops:
            for field in ("op", "module", "stack"):
                rows[field][at - 1] = rows[field][at + 1] = rows[field][at]
        gone = at[-1] + 2 + np.arange(blocks)
        rows["kind"][gone] = FREE
        rows["address"][gone] = rows["address"][at][::-1]
        rows["size"][gone] = rows["size"][at][::-1]
        rows["phase"][gone] = 2
        rest = np.arange(gone[-1] + 1, min(gone[-1] + 1 + blocks, per_step - 1))
        rows["kind"][rest] = DONE
        rows["address"][rest] = rows["address"][gone][: len(rest)]
        rows["size"][rest] = rows["size"][gone][: len(rest)]
        rows["phase"][rest] = 2
        rows["kind"][-1] = MODULE_END
        rows["module"][-1] = root
        parts.append(rows)
    return Recording(_core.from_events(np.concatenate(parts), names, stacks))


def _peak_rss() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
        "SC_PAGE_SIZE"
    )


def one(name: str, count: int) -> None:
    """Run one export and print its line."""
    recording = made_up(count)
    events = recording._core.events_count
    before = _rss()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark
    with tempfile.TemporaryDirectory() as folder:
        start, busy = time.perf_counter(), time.process_time()
        EXPORTS[name](recording, folder)
        spent, busy = time.perf_counter() - start, time.process_time() - busy
        above = _peak_rss() - before
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        start = time.perf_counter()
        EXPORTS[name](recording, folder)
        again = time.perf_counter() - start
    print(
        f"{name:22} {events / 1e6:5.1f} M events {spent:7.3f} s ({busy:6.3f} s busy), "
        f"again {again:6.3f} s  {above / 2**20:7.1f} MiB above  "
        f"{size / 2**20:7.1f} MiB file",
        flush=True,
    )


def main() -> None:
    """Run every export, each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--only", choices=EXPORTS)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        one(args.only, args.events)
        return
    for name in [args.only] if args.only else EXPORTS:
        command = [sys.executable, __file__, "--events", str(args.events)]
        done = subprocess.run([*command, "--only", name, "--here"])
        if done.returncode != 0:
            print(f"{name:22} failed", flush=True)


if __name__ == "__main__":
    main()
