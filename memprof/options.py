"""What the arguments of ``memprof.profile`` ask for."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from memprof.warn import warn

DEFAULT_BUDGET = 2 << 30
"""Bytes of address space for events, and for lives; touched only as used."""

ALL_OPS, BACKWARD_AND_REGIONS = 2, 1


class Options(NamedTuple):
    """What a profile follows, and how much memory it may use for it."""

    cpu: bool = True
    cuda: bool = True
    ops: bool = True
    stacks: bool = True
    modules: bool = True
    shapes: bool = False
    kernels: bool = False
    cupti: str = "auto"
    event_budget: int = DEFAULT_BUDGET
    allocation_budget: int = DEFAULT_BUDGET

    @property
    def op_level(self) -> int:
        """The core's ``ops``: record_function regions are always followed."""
        return ALL_OPS if self.ops else BACKWARD_AND_REGIONS


MOST_BUDGET = sys.maxsize // 4
"""Far more than any address space has; what the core reckons with."""


def check_budgets(**budgets: object) -> None:
    """Check numbers of bytes.

    Raises:
        ValueError: One is not a positive ``int``, or no machine has as much;
            names it.
    """
    for name, value in budgets.items():
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise ValueError(f"{name}={value!r}: a number of bytes above 0")
        if value > MOST_BUDGET:
            raise ValueError(f"{name}={value!r}: at most {MOST_BUDGET} bytes")


def check_callables(**arguments: object) -> None:
    """Check what will be called.

    Raises:
        TypeError: One is neither None nor callable; names it.
    """
    for name, value in arguments.items():
        if value is not None and not callable(value):
            raise TypeError(f"{name}={value!r} cannot be called")


def check_whole(**numbers: object) -> None:
    """Check what is counted in ones.

    Raises:
        TypeError: One is no whole number; names it.
    """
    for name, value in numbers.items():
        try:
            operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(f"{name}={value!r}: a whole number") from None


def choices(names: Iterable[object]) -> str:
    """Join NAMES for what an error says of them."""
    return ", ".join(repr(str(name)) for name in names)


def activity_names(activities: Iterable[Any]) -> set[str]:
    """Return the names of the activity groups, as ``{"CPU", "CUDA"}``.

    Args:
        activities: ``ProfilerActivity`` members of memprof or torch, or dicts
            from a member to the names of single activities, as torch takes
            them. A group with an empty list is left out.

    Raises:
        TypeError: An item is neither.
        AssertionError: There is no item, which is torch's answer too.
    """
    names: set[str] = set()
    for item in activities:
        groups = item if isinstance(item, dict) else {item: None}
        for activity, chosen in groups.items():
            name = getattr(activity, "name", None)
            if not isinstance(name, str):
                raise TypeError(f"activities: {activity!r} is no ProfilerActivity")
            if chosen is None or len(chosen) > 0:
                names.add(name)
    if not names:
        raise AssertionError("No valid profiler activities found")
    return names


def followed_devices(
    activities: Iterable[Any] | None, use_cuda: bool | None
) -> tuple[bool, bool]:
    """Return whether to follow the CPU's and CUDA's memory.

    Raises:
        MemprofError: ``activities`` names neither.
    """
    if activities is None:
        return True, use_cuda is not False
    names = activity_names(activities)
    if use_cuda is not None:
        names = names | {"CUDA"} if use_cuda else names - {"CUDA"}
    if not names & {"CPU", "CUDA"}:
        from memprof.errors import MemprofError  # not above: it loads the core

        raise MemprofError(
            "memprof follows the memory of CPU and CUDA; activities has only "
            + ", ".join(sorted(names) or ["what use_cuda=False takes out"])
        )
    return "CPU" in names, "CUDA" in names


def warn_ignored(**arguments: object) -> None:
    """Say once which arguments have no meaning for memory.

    Args:
        arguments: Name and value; None and False ask for nothing.
    """
    ignored = [k for k, v in arguments.items() if v is not None and v is not False]
    if ignored:
        warn(f"memprof ignores {', '.join(ignored)}: no meaning for memory")
