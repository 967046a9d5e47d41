"""Sizes and limits as people write them: what is read, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memprof.limits import METRICS, Limit, limit, per_step, size, tolerance


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 GiB", 2 << 30),
        ("2GiB", 2 << 30),
        ("1.5 KiB", 1536),
        (".5 MiB", 1 << 19),
        ("24 MB", 24_000_000),
        ("1 kB", 1000),
        ("0 B", 0),
        ("17", 17),
        (17, 17),
    ],
)
def test_sizes(text: object, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize(
    "text", ["", "GiB", "2 GB/s", "-1 B", "1e3", "2 gib", "two", -1, True, 1.5, None]
)
def test_what_is_no_size_is_told_with_the_units(text: object) -> None:
    with pytest.raises(ValueError, match="peak"):
        size(text, "peak")


@given(st.integers(0, 10**15), st.sampled_from(["B", "KiB", "MiB", "GiB", "KB", "MB"]))
def test_no_byte_is_lost_in_reading(number: int, unit: str) -> None:
    factor = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3}
    assert size(f"{number} {unit}") == number * factor.get(unit, 10**6)


def test_growth_is_per_step() -> None:
    assert per_step("64 KiB/step") == per_step("64KiB / step") == per_step(65536)
    assert limit("growth:64KiB/step") == Limit("growth", None, 65536)
    with pytest.raises(ValueError, match="only growth is per step"):
        limit("peak:64KiB/step")


def test_a_share_is_exact_to_the_byte() -> None:
    five = limit("peak:5%")
    assert five.allowed(2 << 30) == (2 << 30) + (2 << 30) // 20
    assert five.allowed(10**18 + 20) == 10**18 + 20 + (10**18 + 20) // 20
    assert tolerance("peak", "0%").allowed(7) == 7
    assert str(tolerance("peak", "2.5 %")) == "peak:2.5 %"


def test_an_amount_is_added() -> None:
    assert limit("reserved:1MiB").allowed(5) == (1 << 20) + 5
    assert limit("count:3").allowed(4) == 7
    assert str(limit("peak:24MB")) == "peak:22.9 MiB"  # echoed in IEC


@pytest.mark.parametrize(
    "text", ["peak", "peak:", ":5%", "speed:5%", "peak:5%%", "count:1MiB", "5%"]
)
def test_what_is_no_limit_is_told_as_it_was_written(text: str) -> None:
    with pytest.raises(ValueError, match=repr(text)):
        limit(text)


def test_there_is_a_limit_of_every_metric() -> None:
    for name in METRICS:
        assert limit(f"{name}:10%").metric == name
