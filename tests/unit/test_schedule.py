"""The schedule says what torch's says, and the profile goes along as torch's."""

from __future__ import annotations

import random
import warnings
from typing import Any

import fake_core
import pytest


# Actions by first letter: None, Warm-up, Record, Save (record and save).
def numbers(text: str) -> dict[str, int]:
    """Read ``"1 2 3"`` as wait, warmup, active, repeat and so on."""
    names = ("wait", "warmup", "active", "repeat", "skip_first", "skip_first_wait")
    return dict(zip(names, map(int, text.split()), strict=False))


TABLE = [
    ("1 1 2", "NWRSNWRSNWRS"),
    ("1 2 3 1", "NWWRRSNNNNNN"),
    ("0 0 1", "SSSS"),
    ("2 0 1 0 3", "NNNNNSNNS"),
    ("3 1 1 0 2 1", "NNWSNNNWS"),
    ("2 1 1 2 0 1", "WSNNWSNNNN"),
]
LETTERS = {"NONE": "N", "WARMUP": "W", "RECORD": "R", "RECORD_AND_SAVE": "S"}


def letters(function: Any, steps: int) -> str:
    return "".join(LETTERS[function(step).name] for step in range(steps))


def random_schedules(count: int) -> list[dict[str, int]]:
    choose = random.Random(7).randrange
    limits = ((0, 5), (0, 4), (1, 5), (0, 4), (0, 6), (0, 2))
    return [
        numbers(" ".join(str(choose(*limit)) for limit in limits)) for _ in range(count)
    ]


@pytest.fixture
def m():
    with fake_core.loaded(fake_core.FakeTorch()) as modules, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield modules


@pytest.mark.parametrize(("text", "expected"), TABLE)
def test_table(m, text, expected):
    schedule = m.memprof.schedule(**numbers(text))
    assert letters(schedule, len(expected)) == expected


@pytest.mark.parametrize("bad", ["-1 0 1", "0 -1 1", "0 0 0", "0 0 1 -1", "0 0 1 0 -1"])
def test_bad_numbers_are_assertion_errors_as_in_torch(m, bad):
    with pytest.raises(AssertionError, match="Invalid profiler schedule"):
        m.memprof.schedule(**numbers(bad))


@pytest.mark.parametrize("name", ["wait", "warmup", "active", "repeat", "skip_first"])
def test_numbers_are_whole(m, name):
    numbers = {"wait": 1, "warmup": 1, "active": 1, name: 1.5}
    with pytest.raises(TypeError, match=f"^{name}=1.5"):
        m.memprof.schedule(**numbers)


def test_negative_step(m):
    with pytest.raises(AssertionError, match="non-negative"):
        m.memprof.schedule(wait=0, warmup=1, active=1)(-1)


def test_no_warmup_warns(m):
    with pytest.warns(UserWarning, match="warmup"):
        m.memprof.schedule(wait=0, warmup=0, active=1)


def test_members_are_torchs_where_torch_is_loaded(m):
    assert m.memprof.schedule(wait=0, warmup=1, active=1)(0) is (
        fake_core.TorchAction.WARMUP
    )
    assert m.memprof.ProfilerAction is fake_core.TorchAction


def test_members_are_ours_without_torch(m, monkeypatch):
    import sys

    monkeypatch.delitem(sys.modules, "torch.profiler")
    action = m.memprof.schedule(wait=0, warmup=1, active=1)(0)
    assert action is m.schedule.ProfilerAction.WARMUP
    assert [a.value for a in m.schedule.ProfilerAction] == [0, 1, 2, 3]
    assert m.memprof.ProfilerActivity.CPU.name == "CPU"


def test_describe_reads_ours_and_torchs(m):
    mine = m.schedule.describe(m.memprof.schedule(**numbers("1 2 3 4 5")))
    assert mine == numbers("1 2 3 4 5 0")
    assert m.schedule.describe(None) is None
    assert m.schedule.describe(letters) == "letters"


# ---- beside the genuine torch.profiler -----------------------------------------


def quiet_profile(torch_profiler: Any) -> Any:
    """Return torch's state machine without Kineto behind it."""

    def nothing(self: Any) -> None:
        pass

    steps = ("prepare_trace", "start_trace", "stop_trace")
    return type("Quiet", (torch_profiler.profile,), dict.fromkeys(steps, nothing))


def life(profile: Any, schedule: Any, steps: int) -> list[Any]:
    """Run STEPS steps and return what a handler saw, and all step numbers."""
    seen: list[Any] = []
    prof = profile(
        schedule=schedule, on_trace_ready=lambda p: seen.append(("ready", p.step_num))
    )
    with prof:
        for _ in range(steps):
            seen.append((prof.step_num, prof.current_action.name))
            prof.step()
    seen.append((prof.step_num, prof.current_action.name))
    return seen


def test_life_is_torchs_for_random_schedules():
    torch_profiler = pytest.importorskip("torch.profiler")
    quiet = quiet_profile(torch_profiler)
    with fake_core.loaded() as m, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m.profiler.open_follower = lambda torch, options: fake_core.FakeFollower(m.core)
        for chosen in random_schedules(40):
            theirs = torch_profiler.schedule(**chosen)
            ours = m.memprof.schedule(**chosen)
            assert [ours(k) for k in range(200)] == [theirs(k) for k in range(200)]
            expected = life(quiet, theirs, 200)
            assert life(m.profile, ours, 200) == expected
            assert life(m.profile, theirs, 200) == expected
            assert life(quiet, ours, 200) == expected
            assert m.schedule.describe(theirs) == m.schedule.describe(ours)


@pytest.mark.parametrize("seed", range(20))
def test_wild_schedules_warn_and_save_as_torchs(seed):
    torch_profiler = pytest.importorskip("torch.profiler")
    quiet = quiet_profile(torch_profiler)
    choices = list(torch_profiler.ProfilerAction)[:4]
    actions = random.Random(seed).choices(choices, k=61)

    def run(profile: Any) -> tuple[list[Any], list[str]]:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            seen = life(profile, lambda step: actions[step], 60)
        return seen, [str(w.message) for w in said if "Incorrect" in str(w.message)]

    with fake_core.loaded() as m:
        m.profiler.open_follower = lambda torch, options: fake_core.FakeFollower(m.core)
        assert run(m.profile) == run(quiet)


def test_the_next_recorded_step_is_the_schedules_own(m):
    for numbers_ in random_schedules(300):
        schedule = m.memprof.schedule(**numbers_)
        text = letters(schedule, 80)
        for step in range(0, 40, 7):
            found = [i for i in range(step, 80) if text[i] in "RS"]
            assert m.schedule.next_recorded(schedule, step) == (
                found[0] if found else None
            ), (numbers_, step)
    assert m.schedule.next_recorded(None, 5) == 5
    assert m.schedule.next_recorded(lambda step: 1 / 0, 5) is None
