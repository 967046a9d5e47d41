"""Record the golden files on a machine with a GPU: python record.py FOLDER.

Each program leaves NAME.memprof and NAME.json; the latter holds what torch's
own counters said at the end of every recorded step, so that the replay of the
file can be checked without a GPU (tests/unit/test_golden.py).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import memprof

COUNTERS = (
    "allocation.all.current",
    "active.all.current",
    "requested_bytes.all.current",
    "requested_bytes.all.peak",
    "allocated_bytes.all.current",
    "reserved_bytes.all.current",
)
SETTINGS = {"expandable": "expandable_segments:True"}
Step = Callable[[int], None]


def convnet() -> Step:
    """Train a small convolutional network with SGD and momentum."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, 10),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(number: int) -> None:
        x = torch.randn(16, 3, 64, 64, device="cuda")
        y = torch.randint(10, (16,), device="cuda")
        with memprof.record_function("forward"):
            loss = nn.functional.cross_entropy(model(x), y)
        with memprof.record_function("backward"):
            loss.backward()
        with memprof.record_function("optimizer"):
            optimizer.step()
            optimizer.zero_grad()

    return step


class Block(nn.Module):
    """A transformer's layer, recomputed in backward."""

    def __init__(self) -> None:
        """Make a layer of width 64."""
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it under checkpointing."""
        return checkpoint(self.layer, x, use_reentrant=False)


def checkpointed() -> Step:
    """Train a checkpointed transformer with AdamW under autocast."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(3))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(number: int) -> None:
        x = torch.randn(8, 64, 64, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def churn() -> Step:
    """Allocate, free, use other streams and empty the cache at random."""
    rng = random.Random(5)
    held = [torch.empty(rng.randrange(1, 1 << 20), device="cuda") for _ in range(9)]
    other = torch.cuda.Stream()

    def step(number: int) -> None:
        for _ in range(120):
            dice = rng.random()
            if dice < 0.5 or not held:
                size = rng.choice([1, 513, rng.randrange(1, 8 << 20)])
                held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            elif dice < 0.95:
                block = held.pop(rng.randrange(len(held)))
                if rng.random() < 0.3:
                    block.record_stream(other)
                del block
            else:
                torch.cuda.empty_cache()

    return step


def graphed() -> Step:
    """Capture a CUDA graph in the second recorded step and replay it."""
    static = torch.randn(512, 512, device="cuda")
    kept: list[Any] = []
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        (static @ static).relu().sum()
    torch.cuda.synchronize()

    def step(number: int) -> None:
        if not kept:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = (static @ static).relu().sum()
            kept.extend((graph, out))
        kept[0].replay()
        torch.cuda.synchronize()

    return step


PROGRAMS: dict[str, Callable[[], Step]] = {
    "convnet": convnet,
    "checkpointed": checkpointed,
    "churn": churn,
    "expandable": churn,
    "graphed": graphed,
}


def run(name: str, folder: Path) -> None:
    """Record one program in this process."""
    step = PROGRAMS[name]()
    schedule = memprof.schedule(wait=1, warmup=1, active=3, repeat=1)
    at_end: dict[int, dict[str, int]] = {}

    def save(prof: memprof.profile) -> None:
        prof.save(folder / f"{name}.memprof")
        # Of the last recorded step: step() has not begun another one yet.
        at_end[prof.step_num - 1] = counters()

    def counters() -> dict[str, int]:
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        return {key: int(stats[key]) for key in COUNTERS}

    with memprof.profile(schedule=schedule, on_trace_ready=save) as prof:
        for number in range(6):
            if number == 2:
                torch.cuda.reset_peak_memory_stats()
            step(number)
            at_end.setdefault(number, counters())
            prof.step()
    (folder / f"{name}.json").write_text(
        json.dumps(
            {
                "torch": torch.__version__,
                "device": torch.cuda.get_device_name(),
                "settings": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
                "steps": {str(k): v for k, v in sorted(at_end.items())},
            },
            indent=1,
        )
        + "\n"
    )


def children(folder: Path) -> Iterator[str]:
    """Run each program in a process of its own."""
    for name in PROGRAMS:
        environment = dict(os.environ)
        if name in SETTINGS:
            environment["PYTORCH_CUDA_ALLOC_CONF"] = SETTINGS[name]
        subprocess.run(
            [sys.executable, __file__, str(folder), name], env=environment, check=True
        )
        yield name


def main() -> None:
    """Record everything, or the one program that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) > 2:
        run(sys.argv[2], folder)
        return
    for name in children(folder):
        print(name, (folder / f"{name}.memprof").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
