"""What one allocator event costs, by the depth of the Python stack.

    python benchmarks/hook.py
    python benchmarks/hook.py --device cuda --json hook.json

Two measurements, each at stacks of exactly 1, 5, 10, 20, 40 and 80 Python frames
of distinct functions:

torch
    A loop of torch.empty(16) whose result dies at once: two events, one
    allocation and one free.  Bare, under memprof without Python stacks, and with
    them (operators off in both), turn by turn; an event costs half of what a
    turn of the loop takes longer than in the bare blocks before and after.
core
    memprof._core.bench_hook(events, with_stack): the hook alone, without torch.
"""

from __future__ import annotations

import _thread
import argparse
import functools
import importlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from overhead import describe_machine, memprof_info, percentile

DEPTHS = (1, 5, 10, 20, 40, 80)
WARMUP = 1000  # turns of the loop before the timed ones

Work = Callable[[], object]


def timed_loop(work: Work, count: int, results: list[Any], done: Any) -> None:
    """Append the nanoseconds of one call of WORK, the mean of COUNT."""
    try:
        for _ in itertools.repeat(None, WARMUP):
            work()
        began = time.perf_counter_ns()
        for _ in itertools.repeat(None, count):
            work()
        results.append((time.perf_counter_ns() - began) / count)
    except BaseException as error:  # it is raised again by at_depth()
        results.append(error)
    finally:
        done.release()


def call_once(work: Work, count: int, results: list[Any], done: Any) -> None:
    """Append what WORK returns."""
    try:
        results.append(work())
    except BaseException as error:
        results.append(error)
    finally:
        done.release()


def at_depth(depth: int, innermost: Callable[..., None], work: Work, count: int) -> Any:
    """Run INNERMOST as the last of exactly DEPTH Python frames.

    The stack of a bare thread starts empty, so at depth 1 it is the only frame.
    """
    function = innermost
    for level in range(1, depth):
        # A code object and a file name of its own for each level.
        scope: dict[str, Any] = {"inner": function}
        source = f"def level_{level}(*arguments):\n    inner(*arguments)\n"
        exec(compile(source, f"<level {level}>", "exec"), scope)
        function = scope[f"level_{level}"]
    results: list[Any] = []
    done = _thread.allocate_lock()
    done.acquire()
    _thread.start_new_thread(function, (work, count, results, done))
    done.acquire()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def spread(values: list[float]) -> dict[str, float]:
    """Return the statistics that are reported of a list of figures."""
    return {
        "median": statistics.median(values),
        "p10": percentile(values, 0.1),
        "p90": percentile(values, 0.9),
    }


def measure_torch(
    depth: int, device: str, count: int, rounds: int, memprof: Any
) -> dict[str, Any]:
    """Measure torch.empty(16) at one depth, bare and under memprof."""
    work = functools.partial(torch.empty, 16, device=device)
    bare = functools.partial(at_depth, depth, timed_loop, work, count)
    turns: list[float] = []
    costs: dict[bool, list[float]] = {False: [], True: []}
    dropped = 0
    events = 0
    bare()
    before = bare()
    order = [False, True]
    for _ in range(rounds):
        times = {}
        for with_stack in order:
            with memprof.profile(with_ops=False, with_stack=with_stack) as profiler:
                times[with_stack] = bare()
            dropped += memprof_info(profiler, "dropped") or 0
            events += memprof_info(profiler, "events") or 0
        after = bare()
        for with_stack, nanoseconds in times.items():
            costs[with_stack].append((nanoseconds - (before + after) / 2) / 2)
        turns.append(after)
        before = after
        order.reverse()
    return {
        "bare_turn_ns": spread(turns),
        "event_ns": spread(costs[False]),
        "event_with_stack_ns": spread(costs[True]),
        "events_per_turn": events / (2 * rounds * (count + WARMUP)),
        "dropped": dropped,
    }


def measure_core(
    depth: int, bench: Callable[[int, bool], float], events: int, rounds: int
) -> dict[str, Any]:
    """Measure the core's own loop at one depth."""
    memprof = importlib.import_module("memprof")
    result = {}
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with memprof.profile(activities=cpu, with_ops=False):
        for name, with_stack in (("event_ns", False), ("event_with_stack_ns", True)):
            work = functools.partial(bench, events, with_stack)
            figures = [at_depth(depth, call_once, work, 1) for _ in range(rounds)]
            result[name] = spread([float(figure) for figure in figures])
    return result


def cell(figures: dict[str, float]) -> str:
    """Render a median with its spread."""
    return f"{figures['median']:8.0f} ({figures['p10']:.0f} to {figures['p90']:.0f})"


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--count", type=int, default=20_000, help="turns of the loop")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    args = parser.parse_args(argv)

    machine = describe_machine(args.device)
    for name, value in machine.items():
        print(f"{name:12}{value}")
    report: dict[str, Any] = {"machine": machine, "torch": {}, "core": {}}

    print("\ntorch: ns by stack depth, median (p10 to p90)")
    try:
        memprof = importlib.import_module("memprof")
        profile = memprof.profile
    except (ImportError, AttributeError) as error:
        report["torch"] = {"not_run": str(error)}
        print(f"  not run: memprof cannot be used here ({error})")
    else:
        with profile(with_ops=False):  # the first start compiles, loads, attaches
            pass
        print(
            f"  {'depth':>5}{'bare loop turn':>24}{'event, no stack':>24}"
            f"{'event with stack':>24}{'events/turn':>13}{'dropped':>9}"
        )
        for depth in DEPTHS:
            row = measure_torch(depth, args.device, args.count, args.rounds, memprof)
            report["torch"][depth] = row
            print(
                f"  {depth:5}{cell(row['bare_turn_ns']):>24}"
                f"{cell(row['event_ns']):>24}{cell(row['event_with_stack_ns']):>24}"
                f"{row['events_per_turn']:13.2f}{row['dropped']:9,}",
                flush=True,
            )

    print("\ncore: ns an event by stack depth, median (p10 to p90)")
    try:
        bench = importlib.import_module("memprof._core").bench_hook
    except (ImportError, AttributeError) as error:
        report["core"] = {"not_run": str(error)}
        print(f"  not run: there is no memprof._core.bench_hook ({error})")
    else:
        print(f"  {'depth':>5}{'no stack':>24}{'with stack':>24}")
        for depth in DEPTHS:
            row = measure_core(depth, bench, 5 * args.count, args.rounds)
            report["core"][depth] = row
            print(
                f"  {depth:5}{cell(row['event_ns']):>24}"
                f"{cell(row['event_with_stack_ns']):>24}",
                flush=True,
            )

    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if "not_run" in report["torch"] and "not_run" in report["core"]:
        sys.exit("nothing could be measured")


if __name__ == "__main__":
    main()
