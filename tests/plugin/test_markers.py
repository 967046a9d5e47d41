"""Markers: what they let pass, what they fail, and what is said then."""

from __future__ import annotations

import pytest
from inner import amounts, text_of


def test_a_peak_within_the_limit_passes_and_one_above_fails(tests, run):
    at = tests(
        """
@pytest.mark.memprof_limit(peak="3 MiB")
def test_within():
    bytes_of(3 * MIB)


@pytest.mark.memprof_limit(peak="3 MiB")
def test_above():
    kept = bytes_of(2 * MIB)  # kept
    more = bytes_of(MIB + 1)  # more
"""
    )
    result = run("--tb=short")
    result.assert_outcomes(passed=1, failed=1)
    text = text_of(result)
    assert "memprof: peak 3.00 MiB, limit 3.00 MiB: +1 B" in text
    assert "test_it.py::test_above" in text
    assert at("kept") in text
    assert at("more") in text
    assert sum(amounts(text.partition("what the peak is made of")[2])) == 3 << 20
    assert "= 3.00 MiB of 3.00 MiB explained" in text
    assert "MEMORY test_it.py::test_above" in text
    assert ".M" in text  # the letter
    assert "runner.py" not in text  # no traceback of ours


def test_the_word_is_MEMORY(tests, run):
    tests(
        """
@pytest.mark.memprof_limit(peak=1)
def test_above():
    bytes_of(MIB)
"""
    )
    run("-v").stdout.fnmatch_lines(["*test_above MEMORY*", "* 1 failed*"])


def test_the_peak_is_above_the_level_at_the_start(tests, run):
    tests(
        """
HELD = bytes_of(64 * MIB)


@pytest.fixture
def held():
    return bytes_of(32 * MIB)


@pytest.mark.memprof_limit(peak="1 MiB")
def test_it(held):
    bytes_of(MIB)
"""
    )
    run().assert_outcomes(passed=1)


def test_growth_is_measured_over_several_runs_after_the_warmup(tests, run):
    at = tests(
        """
import collections

HELD, CALLS = [], collections.Counter()


@pytest.mark.memprof_limit(growth="64 KiB/step")
def test_lazy():
    CALLS["lazy"] += 1
    if CALLS["lazy"] <= 2:
        HELD.append(bytes_of(MIB))


@pytest.mark.memprof_limit(growth="64 KiB/step", steps=4, warmup=1)
def test_grows():
    CALLS["grows"] += 1
    HELD.append(bytes_of(MIB))  # grows


def test_counts():
    assert CALLS == {"lazy": 7, "grows": 2 * 5}  # run again to confirm
"""
    )
    result = run("--tb=short")
    result.assert_outcomes(passed=2, failed=1)
    text = text_of(result)
    assert "growth 1.00 MiB/step, limit 64.0 KiB/step" in text
    assert "4.00 MiB  4    4/4" in text
    assert at("grows") in text


def test_no_leaks(tests, run):
    at = tests(
        """
HELD, LAST = [], {}


class Cycle:
    pass


@pytest.mark.memprof_no_leaks()
def test_leaks():
    HELD.append(bytes_of(4096))  # leak


@pytest.mark.memprof_no_leaks(steps=3, warmup=1)
def test_replaces():
    LAST["it"] = bytes_of(MIB)


@pytest.mark.memprof_no_leaks()
def test_cyclic_garbage():
    one = Cycle()
    one.me, one.data = one, bytes_of(MIB)


@pytest.mark.memprof_no_leaks(allow="20 KiB")
def test_allowed():
    HELD.append(bytes_of(4096))


@pytest.mark.memprof_no_leaks(allow="20479 B")
def test_not_allowed():
    HELD.append(bytes_of(4096))
"""
    )
    result = run("--tb=short")
    result.assert_outcomes(passed=3, failed=2)
    text = text_of(result)
    assert "20.0 KiB left over after 5 steps, 0 B allowed: +4.00 KiB/step" in text
    assert at("leak") in text
    assert "= 20.0 KiB in 5 steps" in text
    assert "MEMORY test_it.py::test_not_allowed" in text


def test_a_leak_that_something_else_hides_is_found(tests, run):
    at = tests(
        """
LEAK, SHRINKS = [], [bytes_of(MIB) for _ in range(20)]


@pytest.mark.memprof_no_leaks()
def test_hidden():
    LEAK.append(bytes_of(4096))  # leak
    SHRINKS.pop()
"""
    )
    result = run("--tb=short")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*+4.00 KiB * 20.0 KiB  5    5/5 *{at('leak')}*"])


@pytest.mark.parametrize(
    ("body", "outcome", "said"),
    [
        ("assert 1 == 2", "failed", "assert 1 == 2"),
        ("raise KeyError('own')", "failed", "KeyError: 'own'"),
        ("pytest.skip('not here')", "skipped", "not here"),
        ("pytest.fail('by itself')", "failed", "by itself"),
    ],
)
def test_what_a_test_says_itself_is_kept(tests, run, body, outcome, said):
    tests(
        f"""
@pytest.mark.memprof_no_leaks()
@pytest.mark.memprof_limit(peak="1 KiB")
def test_it():
    bytes_of(MIB)
    {body}
"""
    )
    result = run("--tb=short", "-rs")
    result.assert_outcomes(**{outcome: 1})
    text = text_of(result)
    assert said in text
    assert "memprof: peak" not in text
    assert "MEMORY" not in text


def test_expected_failures_may_be_by_memory(tests, run):
    tests(
        """
@pytest.mark.xfail
@pytest.mark.memprof_limit(peak="1 KiB")
def test_fails():
    bytes_of(MIB)


@pytest.mark.xfail
@pytest.mark.memprof_limit(peak="1 GiB")
def test_does_not():
    pass
"""
    )
    run().assert_outcomes(xfailed=1, xpassed=1)


def test_methods_unittests_and_parameters(tests, run):
    tests(
        """
import unittest


class TestClass:
    seen = []

    @pytest.mark.memprof_limit(peak="2 MiB")
    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_sizes(self, size, tmp_path):
        self.seen.append(size)
        assert tmp_path.is_dir()
        bytes_of(size * MIB)


class Case(unittest.TestCase):
    @pytest.mark.memprof_limit(peak="2 MiB")
    def test_within(self):
        bytes_of(MIB)

    @pytest.mark.memprof_limit(peak="2 MiB")
    def test_above(self):
        bytes_of(3 * MIB)

    @pytest.mark.memprof_limit(peak="2 MiB")
    def test_own(self):
        bytes_of(3 * MIB)
        self.assertEqual(1, 2)
"""
    )
    result = run("--tb=short")
    result.assert_outcomes(passed=3, failed=3)
    text = text_of(result)
    assert "MEMORY test_it.py::TestClass::test_sizes[[]3[]]" in text or (
        "MEMORY test_it.py::TestClass::test_sizes[3]" in text
    )
    assert "MEMORY test_it.py::Case::test_above" in text
    assert "FAILED test_it.py::Case::test_own" in text


@pytest.mark.parametrize("plugin", ["asyncio", "anyio"])
def test_async_tests_are_awaited(tests, run, plugin):
    tests(
        f"""
import asyncio

HELD = []


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.{plugin}
@pytest.mark.memprof_limit(peak="2 MiB")
async def test_above():
    kept = bytes_of(MIB)
    await asyncio.sleep(0)
    more = bytes_of(2 * MIB)


@pytest.mark.{plugin}
@pytest.mark.memprof_no_leaks(steps=2, warmup=1)
async def test_leaks():
    await asyncio.sleep(0)
    HELD.append(bytes_of(MIB))


@pytest.mark.{plugin}
@pytest.mark.memprof_no_leaks()
@pytest.mark.memprof_limit(peak="2 MiB")
async def test_within():
    bytes_of(MIB)
    await asyncio.sleep(0)


@pytest.mark.{plugin}
@pytest.mark.memprof_limit(peak="2 MiB")
async def test_own():
    await asyncio.sleep(0)
    assert 1 == 2
"""
    )
    result = run("--tb=short", "-W", "ignore", plugins=[plugin])
    result.assert_outcomes(passed=1, failed=3)
    text = text_of(result)
    assert "memprof: peak 3.00 MiB, limit 2.00 MiB" in text
    assert "2.00 MiB left over after 2 steps" in text
    assert "FAILED test_it.py::test_own - assert 1 == 2" in text


def test_hypothesis_tests(tests, run):
    tests(
        """
from hypothesis import given, settings, strategies as st


@pytest.mark.memprof_limit(peak="3 MiB")
@settings(max_examples=5, deadline=None, database=None)
@given(st.integers(4, 5))
def test_above(size):
    bytes_of(size * MIB)
"""
    )
    result = run(plugins=["hypothesis"])
    result.assert_outcomes(failed=1)
    assert "MEMORY" in text_of(result)


def test_a_device_that_is_not_here_is_said(tests, run):
    if pytest.importorskip("torch").cuda.is_available():
        pytest.skip("there is a GPU")
    tests(
        """
@pytest.mark.memprof_limit(peak="1 KiB", device="cuda:0")
def test_it():
    bytes_of(MIB)


@pytest.mark.memprof_limit(reserved="1 KiB", outside="1 KiB")
def test_metrics():
    bytes_of(MIB)
"""
    )
    result = run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "*test_it: not measured: cuda:0: torch sees no GPU here",
            "*test_metrics: reserved was not measured on cpu",
            "*test_metrics: outside was not measured on cpu",
        ]
    )


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ('memprof_limit(peak="2 GB/s")', "memprof_limit(peak=)"),
        ('memprof_limit(peak="two")', "memprof_limit(peak=)"),
        ('memprof_limit("2 GiB")', "takes keywords only"),
        ("memprof_limit()", "limits nothing"),
        ("memprof_limit(peek=3)", "no argument 'peek'; there are peak"),
        ('memprof_limit(peak=1, device="tpu")', "'tpu' is not a device"),
        ("memprof_no_leaks(steps=-1)", "steps=-1"),
        ('memprof_no_leaks(allow="5%")', "memprof_no_leaks(allow=)"),
        ('memprof_baseline(peak="5%%")', "memprof_baseline(peak=)"),
    ],
)
def test_a_wrong_marker_is_usage(tests, run, marker, said):
    tests(
        f"""
@pytest.mark.{marker}
def test_it():
    pass
"""
    )
    result = run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    error = result.stderr.str()
    assert "test_it.py::test_it" in error
    assert said in error


def test_a_nested_profile_of_the_test_is_its_own(tests, run):
    tests(
        """
@pytest.mark.memprof_limit(peak="2 MiB")
def test_it():
    import memprof

    with memprof.profile() as prof:
        for _ in range(3):
            bytes_of(MIB)
            prof.step()
    before = prof.at(event=-1, device="cpu").requested
    assert prof.peak("cpu").requested - before == MIB
    assert len(prof.steps) == 3
"""
    )
    run().assert_outcomes(passed=1)


def test_a_peak_that_does_not_come_back_does_not_fail(tests, run):
    tests(
        """
CALLS = []


@pytest.mark.memprof_limit(peak="2 MiB")
def test_once():
    CALLS.append(1)
    bytes_of((3 if len(CALLS) == 1 else 1) * MIB)


@pytest.mark.memprof_limit(peak="2 MiB")
def test_not_again(tmp_path):
    bytes_of(3 * MIB)
    (tmp_path / "made").mkdir()
"""
    )
    result = run("--tb=short")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*could not be confirmed: run again*FileExistsError*"])
    result = run("--memprof-confirm=0")
    result.assert_outcomes(failed=2)
