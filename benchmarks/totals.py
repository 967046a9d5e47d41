"""What one look at the process's and the devices' totals costs.

    python benchmarks/totals.py
    python benchmarks/totals.py --json totals.json

A sample is taken on a thread of memprof's own, never in a hook, so a step pays
nothing but for what that thread and the driver's locks take from it: the second
table is a loop of small kernels, each step marked by prof.step(), bare, under a
profile that does not measure, and under one that does, turn by turn.  Without a
GPU only the host is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import memprof
from memprof import cuda

SAMPLES = 300
ROUNDS = 7
STEPS = 60
KERNELS = 200  # a step


def microseconds(device: object) -> dict[str, float]:
    """Time looks at DEVICE."""
    costs = [memprof.device_totals(device).cost_ns / 1e3 for _ in range(SAMPLES)]
    costs.sort()
    return {
        "median": statistics.median(costs),
        "p99": costs[int(0.99 * len(costs))],
        "worst": costs[-1],
    }


def loop(step: Callable[[], object]) -> float:
    """Return the milliseconds of a step of small kernels."""
    x = torch.ones(1024, device="cuda")
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        for _ in range(KERNELS):
            x = x + 1
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / STEPS * 1e3


def profiled(totals: bool) -> tuple[float, int]:
    """Return the same under a profile, and how many samples it took."""
    os.environ["MEMPROF_TOTALS"] = "1" if totals else "0"
    with memprof.profile(with_ops=False, with_stack=False) as prof:
        took = loop(prof.step)
    return took, len(prof.totals("cuda"))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", help="write the figures to this file too")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"host_us": microseconds("cpu")}
    print("us a look     median     p99   worst")
    if cuda.why_not(torch) is None:
        torch.ones(1, device="cuda")
        found["device_us"] = microseconds(torch.cuda.current_device())
        found["method"] = memprof.device_totals("cuda").method
    for name in ("host_us", "device_us"):
        if name in found:
            figures = "".join(f"{value:8.1f}" for value in found[name].values())
            print(f"{name[:-3]:<12}{figures}")
    if "device_us" in found:
        print(f"method: {found['method']}")
        loop(lambda: None)
        bare, without, measured, samples = [], [], [], 0
        for _ in range(ROUNDS):
            bare.append(loop(lambda: None))
            took, samples = profiled(False)
            without.append(took)
            assert samples == 0
            took, samples = profiled(True)
            measured.append(took)
        found["step_ms"] = {
            "bare": statistics.median(bare),
            "profile": statistics.median(without),
            "profile, totals": statistics.median(measured),
            "samples": samples,
        }
        print(f"\nms a step of {KERNELS} kernels, {samples} samples in {STEPS} steps")
        for name in ("bare", "profile", "profile, totals"):
            value = found["step_ms"][name]
            print(f"{name:<18}{value:8.3f}  x {value / found['step_ms']['bare']:.3f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
