"""What verbs cost on a recording of a million events, as whole processes.

    python benchmarks/cli.py                 # made-up training, nothing repeats
    python benchmarks/cli.py --periodic      # every step does the same, as programs do
    python benchmarks/cli.py --events 4e6 --runs 5

Each run is a process of its own, Python's start included. Of several runs the median
is shown, and the least: on a busy machine that says more. ``cpu`` is user and system
time of all threads.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from report import training

VERBS = {
    "summary": (["summary", "a.memprof"], 1.0),
    "report": (["report", "a.memprof", "-f", "-o", "r.html"], 3.0),
    "diff": (["diff", "a.memprof", "b.memprof"], 2.0),
    "table": (["table", "a.memprof"], None),
    "tree": (["tree", "a.memprof"], None),
    "timeline": (["timeline", "a.memprof"], None),
    "check": (["check", "b.memprof", "--baseline", "a.memprof"], None),
    "query": (["query", "a.memprof", "cat:activation size>1MiB alive:peak"], None),
}
"""Verb -> its words, and the goal in seconds."""


def timed(words: list[str], folder: str) -> tuple[float, float]:
    """Return seconds, and seconds of CPU, of one process."""
    root = str(Path(__file__).parents[1])
    began = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "memprof", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(child.pid, 0)
    spent = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 3):
        sys.exit(f"memprof {' '.join(words)} ended with {child.returncode}")
    return spent, used.ru_utime + used.ru_stime


def main() -> None:
    """Make the recordings and time the verbs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=float, default=1e6)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--periodic", action="store_true")
    parser.add_argument("verbs", nargs="*", choices=[[], *VERBS], default=[])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for seed, name in enumerate("ab"):
            # Three events an allocation: its birth, and two of its death.
            made = training(
                round(arguments.events / 3), periodic=arguments.periodic, seed=seed
            )
            path = Path(folder, f"{name}.memprof")
            made.save(path)
        size = path.stat().st_size / 1e6
        print(f"{made.info['events']} events, {size:.1f} MB, load {os.getloadavg()[0]}")
        print(f"{'':10} {'median s':>9} {'least s':>9} {'cpu s':>7}  goal")
        for verb in arguments.verbs or VERBS:
            words, goal = VERBS[verb]
            runs = [timed(words, folder) for _ in range(arguments.runs)]
            wall, cpu = zip(*runs, strict=True)
            told = "" if goal is None else f"{goal:.0f} s"
            print(
                f"{verb:10} {statistics.median(wall):9.2f} {min(wall):9.2f} "
                f"{min(cpu):7.2f}  {told}"
            )


if __name__ == "__main__":
    main()
