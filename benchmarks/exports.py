"""What exports cost: beside torch's own in one run, and of a million events.

    python benchmarks/exports.py                     # both parts, on the CPU
    python benchmarks/exports.py --device cuda       # as the goals are meant
    python benchmarks/exports.py --events 1e6 1e7 --no-run

The run is 12 steps of ResNet-50 under both profilers at once; each then writes its
files of it.  Made-up events need neither torch nor a GPU: of each export the time
and the memory above that of the recording, each in a process of its own.

Another export is one line of ``EXPORTS``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

GOAL_FILE_MS = 25  # a timeline of the run
GOAL_SECONDS, GOAL_MIB = 1.0, 200  # of a million events

# name -> (name of the file, what writes it of a recording or profile)
EXPORTS: dict[str, tuple[str, Callable[[Any, str], object]]] = {
    "timeline .json": ("t.json", lambda rec, path: rec.export_memory_timeline(path)),
    "timeline .json.gz": (
        "t.json.gz",
        lambda rec, path: rec.export_memory_timeline(path),
    ),
    "timeline .raw.json.gz": (
        "t.raw.json.gz",
        lambda rec, path: rec.export_memory_timeline(path),
    ),
    "timeline .html": ("t.html", lambda rec, path: rec.export_memory_timeline(path)),
    "chrome trace .json": (
        "t.trace.json",
        lambda rec, path: rec.export_chrome_trace(path),
    ),
    "chrome trace .json.gz": (
        "t.trace.json.gz",
        lambda rec, path: rec.export_chrome_trace(path),
    ),
}

# The same of torch's; a trace can be saved once only.
TORCHS: dict[str, Callable[[Any, str, str], object]] = {
    "timeline .json": lambda p, path, device: p.export_memory_timeline(path, device),
    "timeline .json.gz": lambda p, path, device: p.export_memory_timeline(path, device),
    "timeline .raw.json.gz": lambda p, path, device: p.export_memory_timeline(
        path, device
    ),
    "chrome trace .json": lambda p, path, _: p.export_chrome_trace(path),
}


def timed(write: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    write()
    return time.perf_counter() - start


# -- one run, both profilers ---------------------------------------------------


def run(device: str, steps: int, batch: int, size: int) -> None:
    """Train under both profilers, then let each write its files."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile
    from torchvision.models import resnet50

    import memprof

    model = resnet50().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step() -> None:
        images = torch.randn(batch, 3, size, size, device=device)
        labels = torch.randint(1000, (batch,), device=device)
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with torch_profile(
        activities=activities, profile_memory=True, record_shapes=True, with_stack=True
    ) as theirs:
        with memprof.profile() as ours:
            for _ in range(steps):
                step()
    events = len(ours.recording.events())
    print(
        f"{steps} steps of ResNet-50, batch {batch} of {size}x{size} on {device}, "
        f"torch {torch.__version__}: {events} events"
    )
    name = "cuda:0" if device == "cuda" else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        best = {}
        for what, (file, write) in EXPORTS.items():
            path = os.path.join(folder, file)
            write(ours, path)  # what is computed once (steps, phases) is
            best[what] = min(
                timed(lambda w=write, p=path: w(ours, p)) for _ in range(5)
            )
            text = f"  memprof {what:24} {best[what] * 1e3:9.1f} ms {_size(path)}"
            print(text, flush=True)
        for what, save in TORCHS.items():
            path = os.path.join(folder, f"torch.{EXPORTS[what][0]}")
            spent = timed(lambda w=save, p=path: w(theirs, p, name))
            text = f"  torch   {what:24} {spent * 1e3:9.1f} ms {_size(path)}"
            print(f"{text}  {spent / best[what]:7.0f} x", flush=True)
    print(f"  goal: {GOAL_FILE_MS} ms a timeline")


def _size(path: str) -> str:
    return f"{os.path.getsize(path) / 1e6:7.2f} MB"


# -- made-up events ------------------------------------------------------------


def synthetic(count: int, device: int = 0) -> Any:
    """Return a recording of COUNT events: ops that allocate, and free an older one."""
    from memprof import _core
    from memprof.recording import EVENT_DTYPE, NO_INDEX, Recording

    random = np.random.default_rng(1)
    events = np.zeros(count, EVENT_DTYPE)
    index = np.arange(count)
    ops = index // 4
    kind = np.array([16, 1, 17, 2], np.uint8)[index % 4]
    events["kind"] = kind
    is_memory = (kind == 1) | (kind == 2)
    events["device"] = np.where(is_memory, device, -1)
    events["thread"] = 100
    events["time_ns"] = 1_000_000 + index * 700 + random.integers(0, 300, count)
    events["stack"] = NO_INDEX
    events["op"] = ops % 50
    events["module"] = 50 + ops // 25 % 20
    events["phase"] = index // 1000 % 4
    slots, sizes = 3000, random.integers(512, 1 << 24, count // 4 + 1)
    of = np.where(kind == 2, np.maximum(ops - slots // 2, 0), ops)
    events["address"][is_memory] = (1 << 40) + (of[is_memory] % slots) * (1 << 25)
    events["size"][is_memory] = sizes[of[is_memory]]
    events["address"][kind == 16] = 2**64 - 1
    names = [f"aten::op{n}" for n in range(50)] + [f"layers.{n}" for n in range(20)]
    return Recording(_core.from_events(events, names), device)


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def one(what: str, count: int) -> None:
    """Measure one export of COUNT events; print the result as JSON."""
    recording = synthetic(count)
    file, write = EXPORTS[what]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, file)
        base, highest, over = resident(), [0], threading.Event()

        def watch() -> None:
            while not over.wait(0.002):
                highest[0] = max(highest[0], resident())

        watcher = threading.Thread(target=watch)
        watcher.start()
        cpu = time.process_time()
        spent = timed(lambda: write(recording, path))
        cpu = time.process_time() - cpu
        over.set()
        watcher.join()
        above = max(highest[0] - base, 0)
        size = os.path.getsize(path)
    print(json.dumps({"seconds": spent, "cpu": cpu, "above": above, "size": size}))


def made_up(count: int) -> None:
    """Measure every export, each in a fresh process."""
    print(f"{count} made-up events, the first export of each process")
    for what in EXPORTS:
        command = [sys.executable, __file__, "--one", what, "--events", str(count)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"  {what:24} failed: {done.stderr.strip().splitlines()[-1]}")
            continue
        found = json.loads(done.stdout)
        print(
            f"  {what:24} {found['seconds']:7.2f} s wall, {found['cpu']:6.2f} s CPU, "
            f"{found['above'] / 2**20:6.0f} MiB above, {found['size'] / 1e6:8.1f} MB",
            flush=True,
        )
    print(f"  goal: {GOAL_SECONDS} s and {GOAL_MIB} MiB for 1,000,000 on two cores")


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--events", type=float, nargs="*", default=[1e6])
    parser.add_argument("--no-run", action="store_true", help="made-up events only")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    words = parser.parse_args()
    warnings.simplefilter("ignore")
    if words.one:
        one(words.one, int(words.events[0]))
        return
    if not words.no_run:
        run(words.device, words.steps, words.batch, words.size)
    for count in words.events:
        made_up(int(count))


if __name__ == "__main__":
    main()
