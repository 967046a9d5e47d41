"""Beside other plugins: several processes, and tests that run again."""

from __future__ import annotations

import json

import pytest
import torch
from inner import text_of

KEY = "cpu_torch{}.{}_native".format(*torch.__version__.split(".")[:2])


def test_xdist(tests, run, pytester):
    at = tests(
        """
HELD = []


@pytest.mark.memprof_baseline(peak="10%")
@pytest.mark.parametrize("size", [1, 2])
def test_fit(size):
    bytes_of(size * MIB)


@pytest.mark.memprof_limit(peak="1 MiB")
def test_above():
    bytes_of(3 * MIB)  # above


def test_own():
    assert 1 == 2
"""
    )
    result = run(
        "-n2", "--memprof", "--memprof-update-baseline", "--junitxml=x.xml",
        plugins=["xdist"],
    )  # fmt: skip
    result.assert_outcomes(passed=2, failed=2)
    text = text_of(result)
    assert "MEMORY test_it.py::test_above" in text
    assert "FAILED test_it.py::test_own" in text
    assert at("above") in text
    assert text.count("what the peak is made of") == 1
    assert text.count("peak: bytes above the level") == 1
    assert text.count("2 tests of 2 changed") == 1
    path = pytester.path / "memprof_baselines" / f"{KEY}.json"
    found = json.loads(path.read_text())["tests"]
    assert {test: entry["peak"] for test, entry in found.items()} == {
        "test_it.py::test_fit[1]": 1 << 20,
        "test_it.py::test_fit[2]": 2 << 20,
    }
    assert 'name="memprof_peak" value="3145728"' in (
        (pytester.path / "x.xml").read_text()
    )


def test_a_wrong_marker_fails_its_test_in_a_worker(tests, run):
    tests(
        """
@pytest.mark.memprof_limit(peak="two")
def test_wrong():
    pass


def test_right():
    pass
"""
    )
    result = run("-n1", plugins=["xdist"])
    result.assert_outcomes(passed=1, failed=1)
    assert "memprof: memprof_limit(peak=)" in text_of(result)


@pytest.mark.parametrize("others", [["rerun"], ["rerun", "xdist"]])
def test_reruns(tests, run, others):
    tests(
        """
CALLS = {"flaky": 0, "above": 0, "leaks": 0}


@pytest.mark.memprof_limit(peak="2 MiB")
def test_flaky():
    CALLS["flaky"] += 1
    bytes_of((3 if CALLS["flaky"] < 2 else 1) * MIB)


@pytest.mark.memprof_limit(peak="2 MiB")
def test_above():
    CALLS["above"] += 1
    bytes_of(3 * MIB)


@pytest.mark.memprof_no_leaks(steps=2, warmup=1)
def test_own():
    CALLS["leaks"] += 1
    assert False


def test_counts():
    assert CALLS == {"flaky": 2, "above": 3, "leaks": 3}
"""
    )
    words = ["--reruns=2", "--memprof-confirm=0", "-v"]
    if "xdist" in others:
        words += ["-n1"]
    result = run(*words, plugins=others)
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["failed"], outcomes["rerun"]) == (2, 2, 5)
    text = text_of(result)
    assert "MEMORY test_it.py::test_above" in text
    assert "FAILED test_it.py::test_own" in text


def test_a_baseline_is_of_the_run_that_passed(tests, run, pytester):
    tests(
        """
CALLS = []


@pytest.mark.memprof_baseline()
def test_flaky():
    CALLS.append(1)
    bytes_of(len(CALLS) * MIB)
    assert len(CALLS) == 2


@pytest.fixture
def broken():
    yield
    assert False


@pytest.mark.memprof_baseline()
def test_torn_down(broken):
    bytes_of(MIB)
"""
    )
    run("--reruns=1", "--memprof-update-baseline", plugins=["rerun"])
    path = pytester.path / "memprof_baselines" / f"{KEY}.json"
    found = json.loads(path.read_text())["tests"]
    assert {test: entry["peak"] for test, entry in found.items()} == {
        "test_it.py::test_flaky": 2 << 20
    }
