"""The C tracker and timeline against a replay in plain Python."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from events import NAMES, random_stream, with_shapes
from naive import STATS, Naive

from memprof import _core
from memprof.recording import ALLOCATION_DTYPE, NO_INDEX, STEP_DTYPE

SEEDS = range(300)

# Of ALLOCATION_DTYPE: what the rules of categories decide, and what is not told.
DECIDED = {"id", "category", "reason"}


@lru_cache(maxsize=len(SEEDS))
def both(seed: int, length: int = 400, window: bool = True):
    """Replay one stream twice."""
    events = with_shapes(random_stream(seed, length=length, window=window), seed)
    core = _core.from_events(events, NAMES)
    return events, core, Naive().replay(events)


@pytest.mark.parametrize("first", SEEDS[::50])
def test_stats_are_those_of_the_naive_replay(first: int) -> None:
    for seed in range(first, first + 50):
        _, core, naive = both(seed)
        assert core.devices() == sorted(naive.stats), seed
        for device, stats in naive.stats.items():
            assert core.stats(device) == stats, (seed, device)
        assert core.defects() == naive.defects, seed


@pytest.mark.parametrize("first", SEEDS[::50])
def test_lives_are_those_of_the_naive_replay(first: int) -> None:
    for seed in range(first, first + 50):
        _, core, naive = both(seed)
        lives = np.frombuffer(core.allocations(), ALLOCATION_DTYPE)
        assert len(lives) == len(naive.lives), seed
        assert lives["id"].tolist() == list(range(len(lives)))
        for name in lives.dtype.names:
            if name not in DECIDED:
                expected = [life[name] for life in naive.lives]
                assert lives[name].tolist() == expected, (seed, name)


def test_most_ways_to_get_a_shape_occur() -> None:
    found = set()
    for seed in SEEDS[:20]:
        _, _, naive = both(seed)
        for life in naive.lives:
            whole = life["shape_bytes"] == life["size"]
            found.add("none" if life["shape"] == NO_INDEX else whole)
    assert found == {"none", True, False}


@pytest.mark.parametrize("first", SEEDS[::50])
def test_steps_are_those_of_the_naive_replay(first: int) -> None:
    for seed in range(first, first + 50):
        _, core, naive = both(seed)
        steps = np.frombuffer(core.steps(), STEP_DTYPE)
        assert len(steps) == len(naive.steps), seed
        for name in steps.dtype.names:
            expected = [row[name] for row in naive.steps]
            assert steps[name].tolist() == expected, (seed, name)


@pytest.mark.parametrize("first", SEEDS[::50])
def test_timeline_is_that_of_the_naive_replay(first: int) -> None:
    for seed in range(first, first + 50):
        events, core, naive = both(seed)
        seeds = int((events["kind"] >= 48).sum())
        for device, curve in naive.curve.items():
            event, _, amount = core.timeline(device, 0)
            event = np.frombuffer(event, np.int64)
            amount = np.frombuffer(amount, np.int64).reshape(-1, 3)
            assert (np.diff(event) > 0).all()
            for number, *expected in curve:
                if number < seeds * 2:  # seeds and their roles: the start
                    continue
                row = amount[np.searchsorted(event, number, "right") - 1].tolist()
                if device == -1:  # keeps no segments
                    row[2] = expected[2] = 0
                assert row == expected, (seed, device, number)


def test_categories_divide_the_requested_bytes() -> None:
    for seed in SEEDS:
        _, core, _ = both(seed)
        for device in core.devices():
            event, _, parts = core.timeline(device, 1)
            whole, _, totals = core.timeline(device, 0)
            event, whole = np.frombuffer(event, "i8"), np.frombuffer(whole, "i8")
            sums = np.frombuffer(parts, "i8").reshape(len(event), -1).sum(1)
            totals = np.frombuffer(totals, "i8").reshape(-1, 3)[:, 0]
            at = np.searchsorted(event, whole, "right") - 1
            assert (sums[at] == totals).all(), (seed, device)


def test_a_stream_without_a_window() -> None:
    for seed in range(40):
        _, core, naive = both(seed, length=150, window=False)
        for device, stats in naive.stats.items():
            assert core.stats(device) == stats, (seed, device)


def test_a_long_stream() -> None:
    _, core, naive = both(3, length=20_000)
    for device, stats in naive.stats.items():
        assert {name: core.stats(device)[name] for name in STATS} == stats


def test_no_events() -> None:
    core = _core.from_events(random_stream(0, length=0, window=False), [])
    assert core.devices() == []
    assert core.events_count == 0
