"""Snapshots: how long a recording takes to become one, and one to be read.

Beside ``pickle.load`` on the same file, in the same process.  Prints what it
measures; asserts nothing.

    python benchmarks/snapshot.py [--events 1000000] [--folder /dev/shm]
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import time
from pathlib import Path

import numpy as np

from memprof import _core
from memprof.recording import EVENT_DTYPE, NO_INDEX, Recording, load

ALIVE = 3000
"""Blocks alive at once."""

STACKS, DEPTH, OPS, MODULES = 2000, 24, 60, 200


def synthetic(events: int) -> Recording:
    """A run of EVENTS events: an alloc, its free's request and completion each."""
    rng = np.random.default_rng(0)
    blocks = events // 3
    rows = np.zeros((blocks, 3), EVENT_DTYPE)
    number = np.arange(blocks)
    rows["address"] = ((1 << 34) + number % ALIVE * (1 << 21))[:, None]
    rows["size"] = rng.integers(1, 1 << 21, blocks)[:, None]
    rows["kind"] = (2, 3, 1)  # first goes what was there
    rows["size"][ALIVE:, :2] = rows["size"][:-ALIVE, 2:]
    for name, count in (("op", OPS), ("module", MODULES), ("stack", STACKS)):
        rows[name] = rng.integers(0, count, blocks)[:, None]
    rows["module"] += OPS
    rows["stack"] = rows["stack"] * DEPTH + DEPTH - 1
    rows["phase"] = (number // 1000 % 4)[:, None]
    rows["thread"] = 1
    flat = rows.reshape(-1)[3 * ALIVE :]
    first = rows[:ALIVE, 2]
    flat = np.concatenate([first, flat])
    segment = np.zeros(1, EVENT_DTYPE)
    segment["kind"], segment["address"], segment["size"] = 4, 1 << 34, ALIVE << 21
    for name in ("op", "module", "stack"):
        segment[name] = NO_INDEX
    flat = np.concatenate([segment, flat])
    flat["time_ns"] = np.arange(len(flat)) * 2000
    names = [f"aten::op{i}" for i in range(OPS)]
    names += [f"model.layers.{i}.attention" for i in range(MODULES)]
    stacks = [
        [(f"f{i}_{k}", f"/home/user/project/module{k}.py", k + 1) for k in range(DEPTH)]
        for i in range(STACKS)
    ]
    core = _core.from_events(flat.tobytes(), names, stacks)
    return Recording(core)


class Measured:
    """Seconds, wall and CPU, and MiB above what there was at the beginning."""

    def __enter__(self) -> Measured:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is held
        self._held = kib("VmRSS")
        self._start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.perf_counter() - self._start[0]
        self.cpu = time.process_time() - self._start[1]
        self.mib = (kib("VmHWM") - self._held) / 1024

    def __str__(self) -> str:
        return f"{self.wall:6.2f} s ({self.cpu:.2f} s of CPU)  +{self.mib:.0f} MiB"


def kib(name: str) -> int:
    """Return a figure of /proc/self/status, KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise KeyError(name)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    args = parser.parse_args()
    path = args.folder / f"memprof-benchmark-{os.getpid()}.pickle"
    recording = synthetic(args.events)
    recording.allocations("all")
    gc.collect()
    count = recording.info["events"]
    print(f"{count} events, {recording.info['allocations']} allocations")
    try:
        for _ in range(3):
            with Measured() as cost:
                recording.export_snapshot(path, force=True)
            size = path.stat().st_size
            each = size / count
            print(f"export  {cost}  {size / 1e6:.1f} MB  {each:.1f} B/event")
        del recording
        for _ in range(2):
            with Measured() as cost:
                again = load(path)
            print(f"load    {cost}  {again.info['events']} events")
            del again
        for collecting in (False, True):
            (gc.enable if collecting else gc.disable)()
            with Measured() as cost, open(path, "rb") as file:
                value = pickle.load(file)
            print(f"pickle  {cost}  pickle.load, gc {'on' if collecting else 'off'}")
            del value
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
