"""What the pytest plugin costs a suite that does not use it, and one that does.

    python benchmarks/pytest_plugin.py                 # 300 tests, 15 rounds
    python benchmarks/pytest_plugin.py --tests 50 --rounds 5

Ratios of whole pytest runs, each in a process of its own: with the plugin loaded
over without it, in rounds of one each, in an order that changes. The median is
shown, of wall time and of the CPU time of the process, and the lowest of both.
Nothing is asserted.

"calls" is free of noise: how many calls of functions Python's profiler counts in the
run, and how many more a test adds with the plugin, from a suite twice as long.

"unused": no marker, fixture or option of ours. "import torch": the same, and the
tests import torch, as suites for which the plugin is made do. "limit": every test has
memprof_limit, which is a measured run each: the cost of a test is then shown in
seconds, not as a ratio.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PLUGIN = "memprof.integrations.pytest_plugin"
ROOT = Path(__file__).resolve().parents[1]

PLAIN = """
import pytest
{torch}

@pytest.mark.parametrize("n", range({tests}))
def test_it(n, tmp_path):
    assert sum(range(1000)) + n >= 0
"""
LIMIT = """
import pytest
import torch

@pytest.mark.memprof_limit(peak="1 GiB")
@pytest.mark.parametrize("n", range({tests}))
def test_it(n):
    torch.empty(1000)
"""


COUNT = """
import contextlib, cProfile, io, pstats, sys
import pytest

profiler = cProfile.Profile()
with contextlib.redirect_stdout(io.StringIO()):
    profiler.runcall(pytest.main, sys.argv[1:])
print(pstats.Stats(profiler).total_calls)
"""


def environment() -> dict[str, str]:
    """Return that of a run: no plugin but those named."""
    off = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **off}


def calls(tests: int) -> None:
    """Print how many calls a suite that does not use the plugin makes."""
    counted: dict[tuple[bool, int], int] = {}
    for number in (tests, 2 * tests):
        for with_plugin in (False, True):
            words = ["-q", "-p", "no:cacheprovider", *["-p", PLUGIN] * with_plugin]
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "test_it.py").write_text(
                    PLAIN.format(torch="", tests=number).replace(", tmp_path", "")
                )
                command = [sys.executable, "-c", COUNT, *words]
                found = subprocess.check_output(command, cwd=folder, env=environment())
            counted[with_plugin, number] = int(found.split()[-1])
    without, with_it = counted[False, tests], counted[True, tests]
    each = [
        (counted[key, 2 * tests] - counted[key, tests]) / tests for key in (False, True)
    ]
    print(
        f"unused         calls {without} > {with_it}, ratio {with_it / without:.3f};  "
        f"a test {each[0]:.1f} > {each[1]:.1f}"
    )


def once(folder: Path, with_plugin: bool) -> tuple[float, float]:
    """Run the suite; returns wall and CPU seconds."""
    words = ["-p", PLUGIN] if with_plugin else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        env=environment(),
    )
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, used


def compare(name: str, source: str, rounds: int) -> None:
    """Print the ratios of one suite."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_it.py").write_text(source)
        once(Path(folder), True)  # compiled files
        ratios: list[tuple[float, float]] = []
        times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for number in range(rounds):
            order = (False, True) if number % 2 else (True, False)
            taken = {
                with_plugin: once(Path(folder), with_plugin) for with_plugin in order
            }
            ratios.append(
                tuple(a / b for a, b in zip(taken[True], taken[False], strict=True))
            )
            for with_plugin, both in taken.items():
                times[with_plugin].append(both)
    for index, what in enumerate(("wall", "CPU")):
        least = {
            key: min(both[index] for both in found) for key, found in times.items()
        }
        print(
            f"{name:<14} {what:<5} median ratio "
            f"{statistics.median(ratio[index] for ratio in ratios):.3f}   "
            f"lowest {least[False]:.3f} s > {least[True]:.3f} s, "
            f"ratio {least[True] / least[False]:.3f}"
        )


def per_test(tests: int) -> None:
    """Print what a measured test takes."""
    with tempfile.TemporaryDirectory() as folder:
        taken = []
        for number in (1, tests + 1):
            Path(folder, "test_it.py").write_text(LIMIT.format(tests=number))
            taken.append(min(once(Path(folder), True)[1] for _ in range(3)))
    print(f"limit          CPU   {(taken[1] - taken[0]) / tests:.3f} s a measured test")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only-calls", action="store_true")
    asked = parser.parse_args()
    calls(asked.tests)
    if asked.only_calls:
        return
    compare("unused", PLAIN.format(torch="", tests=asked.tests), asked.rounds)
    source = PLAIN.format(torch="import torch", tests=asked.tests)
    compare("import torch", source, max(asked.rounds // 2, 1))
    per_test(10)


if __name__ == "__main__":
    main()
