"""Prints torch.profiler's own categories beside memprof's, for the same programs.

    python -m tests.programs.compare_torch [words for pytest, as -k adam]

Each program runs once, with both profilers on; at each of its marks the bytes of
every category are printed, memprof's and torch's. Slow, and no test: torch infers
its categories from the flow of data over the whole run and is often wrong, or has
no answer. The marks are where they are in both: a mark is a record_function.
A program that passes alone may fail here: torch's profiler keeps some tensors (what
torch.func wraps) alive until it stops, and memprof shows them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity

MARK = "mark: "


class Beside:
    """torch.profiler around one program, and the table of what it says."""

    def __init__(self, test: str) -> None:
        """Prepare for the program TEST."""
        self._test = test
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(
            activities=activities,
            profile_memory=True,
            record_shapes=True,
            with_stack=True,
        )

    def __enter__(self) -> Beside:
        self._profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._profile.__exit__(*error)

    def compare(self, program: Any) -> None:
        """Print both answers at each mark."""
        print(f"\n{self._test}")
        try:
            theirs = self._states(program.device)
        except Exception as problem:
            print(f"  torch has no answer: {type(problem).__name__}: {problem}")
            theirs = {}
        for mark in program.marks:
            state = program.at(mark)
            ours = dict.fromkeys(state.moment.categories, 0)
            for block in state.blocks:
                ours[block.category] += block.size
            their = theirs.get(mark, {})
            print(f"  {mark:<28}{'memprof':>12}{'torch':>12}")
            for name in ours:
                mine, other = ours[name], their.get(name, 0)
                if mine or other:
                    said = f"{other:>12,}" if mark in theirs else f"{'-':>12}"
                    sign = "" if mine == other or mark not in theirs else "   differs"
                    print(f"    {name:<26}{mine:>12,}{said}{sign}")

    def _states(self, device: str) -> dict[str, dict[str, int]]:
        """Return mark -> category -> bytes, as torch has them."""
        profile = self._profile._memory_profile()
        times = {
            event.name.removeprefix(MARK): event.start_time_ns
            for event in profile._op_tree.dfs()
            if event.name.startswith(MARK)
        }
        waiting = sorted(times.items(), key=lambda item: item[1], reverse=True)
        states: dict[str, dict[str, int]] = {}
        held: dict[str, int] = {}

        def category(key: Any, version: int) -> str:
            found = profile._categories.get(key, version)
            return "unknown" if found is None else found.name.lower()

        def add(name: str, size: int) -> None:
            held[name] = held.get(name, 0) + size

        for time_ns, action, (key, version), size in profile.timeline:
            while waiting and waiting[-1][1] < time_ns:
                states[waiting.pop()[0]] = dict(held)
            if key.device.type != device:
                continue
            if action.name in ("PREEXISTING", "CREATE"):
                add(category(key, version), size)
            elif action.name == "INCREMENT_VERSION":
                add(category(key, version), -size)
                add(category(key, version + 1), size)
            else:
                # A key without an id carries the negative size of its free.
                add(category(key, version), -abs(size))
        while waiting:
            states[waiting.pop()[0]] = dict(held)
        return states


class Plugin:
    """What the fixture ``program`` looks for."""

    def beside(self, test: str) -> Any:
        """Return what makes the ``Beside`` of the program TEST."""
        return lambda: Beside(test)


class Registrar:
    """pytest names no plugin that ``main`` gives it; this one names ours."""

    def pytest_configure(self, config: pytest.Config) -> None:
        """Let the fixture find the plugin."""
        config.pluginmanager.register(Plugin(), "compare_torch")


def main(arguments: list[str]) -> int:
    """Run the programs of this folder with both profilers."""
    folder = str(Path(__file__).parent)
    options = ["-q", "-s", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-rN"]
    return int(pytest.main([*options, folder, *arguments], plugins=[Registrar()]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
