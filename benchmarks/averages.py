"""What the operator table takes, beside torch.profiler's of the same program.

    python benchmarks/averages.py                    # 12 steps of ResNet-50
    python benchmarks/averages.py --device cuda --batch 64 --size 224

One process records 12 training steps twice, under memprof and then under
torch.profiler(profile_memory=True), and asks each for
``key_averages().table(sort_by="self_cpu_memory_usage")``.  The figures are of that
call alone: memprof's is the median of many, with the first of all beside it;
torch keeps its answer, so its is one.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from overhead import describe_machine, resnet50_step
from torch.profiler import ProfilerActivity

import memprof


def milliseconds(call: Callable[[], object]) -> float:
    """Return how long one call takes."""
    began = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--size", type=int, default=64, help="of the images")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    for name, value in describe_machine(args.device).items():
        print(f"{name:12}{value}")
    warnings.simplefilter("ignore")
    step, about = resnet50_step(torch.device(args.device), args.batch, args.size)
    print(f"{'program':12}{args.steps} steps of {about}")
    step()
    sort_by = f"self_{torch.device(args.device).type}_memory_usage"

    with memprof.profile() as ours:
        for _ in range(args.steps):
            step()
            ours.step()
    recording = ours.recording
    texts = []

    def our_table() -> None:
        texts.append(recording.key_averages().table(sort_by=sort_by))

    first = milliseconds(our_table)
    times = [milliseconds(our_table) for _ in range(args.rounds)]
    sums = [
        milliseconds(lambda: recording._core.op_table(0)) for _ in range(args.rounds)
    ]
    events = len(recording.events())
    print(
        f"{'memprof':12}{statistics.median(times):.2f} ms (first {first:.2f}; the sums "
        f"in C {statistics.median(sums):.2f}), {events:,} events, "
        f"{len(recording.key_averages())} rows"
    )

    activities = [ProfilerActivity.CPU]
    if args.device != "cpu":
        activities.append(ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, profile_memory=True) as theirs:
        for _ in range(args.steps):
            step()
            theirs.step()
    theirs_ms = milliseconds(lambda: theirs.key_averages().table(sort_by=sort_by))
    print(
        f"{'torch':12}{theirs_ms:.0f} ms: "
        f"{theirs_ms / statistics.median(times):.0f} times as long"
    )


if __name__ == "__main__":
    main()
