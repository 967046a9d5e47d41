"""What a test asks for: its markers, read once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from memprof.integrations.settings import settings_of
from memprof.limits import Limit, per_step, size, tolerance
from memprof.reports.units import told

LIMIT, NO_LEAKS, BASELINE = "memprof_limit", "memprof_no_leaks", "memprof_baseline"

_FIXED = ("peak", "reserved", "outside", "growth")
_SHARED = ("device", "warmup", "steps")
_TAKES = {
    LIMIT: (*_FIXED, *_SHARED),
    NO_LEAKS: ("allow", *_SHARED),
    BASELINE: ("peak", "growth", "reserved", "outside", "count", *_SHARED),
}

# As many runs as show a growth that is none of the first run's.
WARMUP, STEPS = 2, 5


class Plan(NamedTuple):
    """How to run a test, and what to hold against it."""

    limits: Mapping[str, int]
    """Metric -> the highest value that passes."""
    allow: int | None
    """Bytes that all steps together may leave over; None: not asked."""
    tolerances: Mapping[str, Limit] | None
    """Of the committed baseline, those that were given; None: not asked."""
    device: str | None
    warmup: int
    steps: int

    @property
    def growth(self) -> bool:
        """Whether growth is measured: the body then runs several times."""
        return self.steps > 1


def check_items(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check the markers of all tests before one runs.

    Raises:
        pytest.UsageError: one is wrong; names the test. Not in a worker of xdist,
            where the test fails with the same words.
    """
    if hasattr(config, "workerinput"):
        return
    for item in items:
        try:
            plan_of(item)
        except ValueError as problem:
            raise pytest.UsageError(told(f"{item.nodeid}: {problem}")) from None


def plan_of(item: pytest.Item) -> Plan | None:
    """Return what a test asks for; None: nothing, it runs as if we were not there.

    Raises:
        ValueError: a marker is wrong; says which and why.
    """
    settings = settings_of(item.config)
    if settings.off or not isinstance(item, pytest.Function):
        return None
    marks = {name: item.get_closest_marker(name) for name in _TAKES}
    if not any(marks.values()) and not settings.measures_all:
        return None
    given = {name: _arguments(mark) for name, mark in marks.items() if mark is not None}
    limits = {
        metric: (per_step if metric == "growth" else size)(value, f"{LIMIT}({metric}=)")
        for metric, value in given.get(LIMIT, {}).items()
        if metric in _FIXED
    }
    if LIMIT in given and not limits:
        raise ValueError(f"{LIMIT}() limits nothing: give one of {', '.join(_FIXED)}")
    if settings.default_peak is not None:
        limits.setdefault("peak", settings.default_peak)
    allow = None
    if NO_LEAKS in given:
        allow = size(given[NO_LEAKS].get("allow", 0), f"{NO_LEAKS}(allow=)")
    tolerances = None
    if BASELINE in given:
        tolerances = {
            metric: tolerance(metric, value, f"{BASELINE}({metric}=)")
            for metric, value in given[BASELINE].items()
            if metric not in _SHARED
        }
    repeated = (
        allow is not None
        or "growth" in limits
        or (tolerances is not None and "growth" in tolerances)
        or (settings.measures_all and any("steps" in args for args in given.values()))
    )
    return Plan(
        limits=limits,
        allow=allow,
        tolerances=tolerances,
        device=_device(given),
        warmup=_whole(given, "warmup", WARMUP if repeated else 0),
        steps=max(_whole(given, "steps", STEPS if repeated else 1), 1 + repeated),
    )


def _arguments(mark: pytest.Mark) -> dict[str, Any]:
    takes = _TAKES[mark.name]
    if mark.args:
        raise ValueError(
            f"{mark.name}: takes keywords only, as {mark.name}({takes[0]}=...)"
        )
    unknown = [name for name in mark.kwargs if name not in takes]
    if unknown:
        raise ValueError(
            f"{mark.name}: no argument {unknown[0]!r}; there are {', '.join(takes)}"
        )
    return {name: value for name, value in mark.kwargs.items() if value is not None}


def _device(given: Mapping[str, Mapping[str, Any]]) -> str | None:
    from memprof.devices import device_name, parse_device

    asked = [args["device"] for args in given.values() if "device" in args]
    if not asked:
        return None
    number = parse_device(asked[0])
    return "cuda" if number is None else device_name(number)


def _whole(given: Mapping[str, Mapping[str, Any]], name: str, default: int) -> int:
    """Return the most that a marker asks for."""
    asked = [args[name] for args in given.values() if name in args]
    for value in asked:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name}={value!r}: a whole number, 0 or more")
    return max(asked, default=default)
