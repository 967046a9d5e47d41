"""A program written for torch.profiler, with only its import changed.

    python examples/torch_profiler_program.py --output traces

Below the imports everything is as it was for ``from torch.profiler import ...``.
The folder gets the traces of two windows for TensorBoard (``tensorboard --logdir``),
one for chrome://tracing or Perfetto, and memory timelines in all of torch's forms.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn

# was: from torch.profiler import (
from memprof import (
    ProfilerActivity,
    profile,
    record_function,
    schedule,
    tensorboard_trace_handler,
)


def trace_handler(prof: profile) -> None:
    """Print the table of a window, and write its files."""
    kind = "cuda" if DEVICE.type == "cuda" else "cpu"
    print(
        prof.key_averages().table(
            sort_by=f"self_{kind}_memory_usage",
            row_limit=10,
            header=f"Memory by operator, step {prof.step_num}",
        )
    )
    device = "cuda:0" if DEVICE.type == "cuda" else "cpu"
    prof.export_chrome_trace(str(OUTPUT / f"step{prof.step_num}.json.gz"))
    for suffix in ("html", "json", "json.gz", "raw.json.gz"):
        path = OUTPUT / f"memory{prof.step_num}.{suffix}"
        prof.export_memory_timeline(str(path), device=device)
    tensorboard_trace_handler(str(OUTPUT / "tensorboard"))(prof)


def main() -> None:
    """Train a small network for a few steps."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10),
    ).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    loss_function = nn.CrossEntropyLoss()
    activities = [ProfilerActivity.CPU]
    if DEVICE.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(
        activities=activities,
        schedule=schedule(wait=1, warmup=1, active=3, repeat=2),
        on_trace_ready=trace_handler,
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
    ) as prof:
        for step in range(12):
            prof.step()
            images = torch.randn(16, 3, 32, 32, device=DEVICE)
            labels = torch.randint(10, (16,), device=DEVICE)
            with record_function("## forward ##"):
                loss = loss_function(model(images), labels)
            with record_function("## backward ##"):
                loss.backward()
            with record_function("## optimizer ##"):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            print(f"step {step}: loss {loss.item():.3f}, at step {prof.step_num}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("traces"))
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu"
    )
    words = parser.parse_args()
    OUTPUT, DEVICE = words.output, torch.device(words.device)
    os.makedirs(OUTPUT, exist_ok=True)
    main()
