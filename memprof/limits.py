"""Sizes and limits as people write them: ``2 GiB``, ``peak:5%``, ``64KiB/step``.

``KiB MiB GiB TiB`` are powers of 1024, ``kB KB MB GB TB`` powers of 1000. All
arithmetic is in whole bytes: what is within a limit does not hang on rounding.
Standard library only, and nothing of memprof: the pytest plugin reads its options
with it.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

METRICS = ("peak", "reserved", "device", "outside", "growth", "count")
"""What can be limited; all but ``count`` are bytes, ``growth`` bytes a step."""

_UNITS = {
    "": 1,
    "B": 1,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(.*)", re.DOTALL)
_SHOWN = "B, KiB, MiB, GiB, TiB (powers of 1024), KB, MB, GB, TB (of 1000)"


class Limit(NamedTuple):
    """How much a metric may be above what it is compared with."""

    metric: str
    share: Fraction | None
    """Of what it is compared with, 1 % is 1/100; None: ``amount`` is meant."""
    amount: int
    """Bytes (of ``growth`` a step, of ``count`` allocations)."""

    def allowed(self, before: int) -> int:
        """Return the highest value that is within the limit."""
        if self.share is None:
            return before + self.amount
        return before + int(abs(before) * self.share)

    def __str__(self) -> str:
        """Return it as it is written, sizes in IEC units."""
        return f"{self.metric}:{self.words()}"

    def words(self) -> str:
        """Return it without the metric: ``5 %``, ``1.00 MiB``."""
        from memprof.reports.units import size_text

        if self.share is not None:
            return f"{float(self.share * 100):g} %"
        if self.metric == "count":
            return str(self.amount)
        return size_text(self.amount) + "/step" * (self.metric == "growth")


def _number(text: str, what: str) -> tuple[Fraction, str]:
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{what}: {text!r} is no number with a unit ({_SHOWN})")
    return Fraction(found[1]), found[2].strip()


def size(value: object, what: str = "size") -> int:
    """Return a number of bytes.

    Args:
        value: a whole number, or a text such as ``"2 GiB"``.
        what: what is told to be wrong in a message.

    Raises:
        ValueError: it is none, with the units there are.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f"{what}: {value} is below 0")
        return value
    if not isinstance(value, str):
        raise ValueError(f"{what}: {value!r} is neither a text nor a number of bytes")
    number, unit = _number(value, what)
    if unit not in _UNITS:
        raise ValueError(f"{what}: {value!r} has no unit of {_SHOWN}")
    return int(number * _UNITS[unit])


def per_step(value: object, what: str = "growth") -> int:
    """Return bytes a step, of ``"64 KiB/step"``; ``/step`` may be left out.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, str):
        value = re.sub(r"\s*/\s*step\s*$", "", value)
    return size(value, what)


def tolerance(metric: str, value: object, what: str = "") -> Limit:
    """Return how far METRIC may rise: ``"5%"``, ``"1 MiB"``, ``"64 KiB/step"``.

    Args:
        metric: one of ``METRICS``.
        value: as written, or a number of bytes.
        what: what is told to be wrong in a message; ``""``: the metric.

    Raises:
        ValueError: there is no such metric, or VALUE is no limit of it.
    """
    what = what or metric
    if metric not in METRICS:
        raise ValueError(f"{what}: no metric {metric!r}; choose {', '.join(METRICS)}")
    if isinstance(value, str) and value.strip().endswith("%"):
        number, unit = _number(value.strip()[:-1], what)
        if unit:
            raise ValueError(f"{what}: {value!r} is no percentage")
        return Limit(metric, number / 100, 0)
    if metric == "growth":
        return Limit(metric, None, per_step(value, what))
    if metric == "count":
        if isinstance(value, str) and value.strip().isdecimal():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{what}: {value!r} is neither a number nor a percentage")
        return Limit(metric, None, value)
    if isinstance(value, str) and "/" in value:
        raise ValueError(f"{what}: {value!r}: only growth is per step")
    return Limit(metric, None, size(value, what))


def limit(text: str) -> Limit:
    """Read ``metric:limit``, ``peak:5%``, ``growth:64KiB/step``.

    Raises:
        ValueError: it is none, and what is wrong with it.
    """
    metric, colon, value = text.partition(":")
    if not colon or not value.strip():
        raise ValueError(
            f"{text!r} is no METRIC:LIMIT, as peak:5%, peak:1MiB or growth:64KiB/step"
        )
    return tolerance(metric.strip(), value, repr(text))
