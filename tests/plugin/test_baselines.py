"""Committed baselines: the ratchet, its file, and what a failure says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from inner import text_of

KEY = "cpu_torch{}.{}_native".format(*torch.__version__.split(".")[:2])

# One buffer, which DOUBLED doubles and GRANULE makes 512 bytes larger.
SOURCE = """
def work():
    kept = bytes_of(4 * MIB + EXTRA)  # kept
DOUBLED
    return kept


@pytest.mark.memprof_baseline(peak="10%")
def test_fit():
    work()
"""


def source(doubled: bool = False, extra: int = 0, above: int = 0) -> str:
    text = SOURCE.replace("EXTRA", str(extra))
    more = "    more = bytes_of(4 * MIB)  # doubled" if doubled else "    pass"
    return "#\n" * above + text.replace("DOUBLED", more)


def stored(pytester: pytest.Pytester, key: str = KEY) -> dict:
    return json.loads((pytester.path / "memprof_baselines" / f"{key}.json").read_text())


def test_the_ratchet(tests, run, pytester):
    tests(source())
    result = run("--memprof-update-baseline")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_it.py::test_fit: new, peak 4.00 MiB"])
    entry = stored(pytester)["tests"]["test_it.py::test_fit"]
    assert entry["peak"] == 4 << 20

    # An allocator's granule never fails it, wherever the code has moved to.
    tests(source(extra=512, above=7))
    run().assert_outcomes(passed=1)

    # A doubled buffer does, and its row names the line.
    at = tests(source(doubled=True, above=7))
    result = run("--tb=short")
    result.assert_outcomes(failed=1)
    text = text_of(result)
    assert (
        "memprof: peak 8.00 MiB, baseline 4.00 MiB, tolerance 10 %: +4.00 MiB " in text
    )
    assert "(+100.0 %)   test_it.py::test_fit" in text
    assert "what made the peak grow" in text
    row = next(line for line in text.splitlines() if at("doubled") in line)
    assert row.split()[:5] == ["+4.00", "MiB", "0", "B", "4.00"]
    assert row.endswith("new")
    assert at("kept") not in text  # it has only moved
    assert "= +4.00 MiB of +4.00 MiB explained" in text
    assert f"compared with: {KEY}" in text

    # To remove it is all there is to do.
    tests(source(above=7))
    run().assert_outcomes(passed=1)


def test_a_granule_never_fails_even_a_small_peak(tests, run):
    small = """
@pytest.mark.memprof_baseline(peak="10%")
def test_small():
    bytes_of(SIZE)
"""
    tests(small.replace("SIZE", "1024"))
    run("--memprof-update-baseline").assert_outcomes(passed=1)
    tests(small.replace("SIZE", "1024 + 512"))
    run().assert_outcomes(passed=1)
    tests(small.replace("SIZE", "2048"))
    run().assert_outcomes(failed=1)


def test_without_a_tolerance_it_is_one_percent_or_two_mib(tests, run):
    text = """
@pytest.mark.memprof_baseline()
def test_fit():
    bytes_of(SIZE)
"""
    for base, within in ((8 << 20, 2 << 20), (1 << 30, (1 << 30) // 100)):
        tests(text.replace("SIZE", str(base)))
        run("--memprof-update-baseline").assert_outcomes(passed=1)
        tests(text.replace("SIZE", str(base + within)))
        run().assert_outcomes(passed=1)
        tests(text.replace("SIZE", str(base + within + 1)))
        result = run("--memprof-confirm=0")
        result.assert_outcomes(failed=1)
        assert "tolerance 1 % or 2.00 MiB" in text_of(result)


def test_rows_that_cancel_sum_up_too(tests, run):
    tests(
        """
@pytest.mark.memprof_baseline(peak="1 KiB")
def test_fit():
    for size in [96, 12, 31]:
        kept = [torch.ones(size, MIB // 32) for _ in range(2)]
        del kept
    a = torch.ones(MIB, dtype=torch.float16)
"""
    )
    run("--memprof-update-baseline").assert_outcomes(passed=1)
    tests(
        """
@pytest.mark.memprof_baseline(peak="1 KiB")
def test_fit():
    held = torch.zeros(MIB)
    for size in [12, 97, 31]:
        kept = [torch.ones(size, MIB // 32) for _ in range(2)]
        del kept
    a = torch.ones(MIB, dtype=torch.float32)
"""
    )
    result = run()
    result.assert_outcomes(failed=1)
    text = text_of(result)
    found = re.search(r"= (\S+ \S+) of (\S+ \S+) explained", text)
    assert found is not None
    assert found[1] == found[2]
    assert "[96, 32768]>[97, 32768]" in text


def test_what_is_written(tests, run, pytester):
    tests(
        """
@pytest.mark.memprof_baseline(growth="1 KiB/step")
@pytest.mark.parametrize("size", [2, 1])
def test_b(size):
    bytes_of(size * MIB)


@pytest.mark.memprof_baseline()
def test_a():
    bytes_of(MIB)


@pytest.mark.memprof_baseline()
def test_fails():
    assert False


def test_unmarked():
    pass
"""
    )
    run("--memprof-update-baseline").assert_outcomes(passed=4, failed=1)
    path = pytester.path / "memprof_baselines" / f"{KEY}.json"
    lines = path.read_text().splitlines()
    assert [re.findall(r'"(test_it[^"]+)"', line) for line in lines[2:-1]] == [
        ["test_it.py::test_a"],
        ["test_it.py::test_b[1]"],
        ["test_it.py::test_b[2]"],
    ]
    facts = json.loads(path.read_text())
    assert facts["schema"] == 1
    assert facts["env"]["torch"] == torch.__version__.partition("+")[0]
    assert facts["tests"]["test_it.py::test_b[2]"]["growth"] == 0
    assert "growth" not in facts["tests"]["test_it.py::test_a"]
    assert facts["tests"]["test_it.py::test_a"]["count"] == 1
    before = path.read_bytes()
    result = run("--memprof-update-baseline", "-k", "test_a")
    result.stdout.fnmatch_lines(["*0 tests of 1 changed"])
    assert path.read_bytes() == before  # the others stay


def test_a_change_is_printed(tests, run):
    tests(source())
    run("--memprof-update-baseline")
    tests(source(doubled=True))
    result = run("--memprof-update-baseline")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "test_it.py::test_fit: peak 4.00 MiB > 8.00 MiB, +4.00 MiB (+100.0 %), "
            "count 1 allocations > 2 allocations",
            "*1 test of 1 changed",
        ]
    )
    run().assert_outcomes(passed=1)


def test_no_baseline_is_a_note_or_a_failure(tests, run):
    tests(source())
    result = run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"*no baseline of this test for {KEY}; *"])
    result = run("--memprof-require-baseline")
    result.assert_outcomes(failed=1)
    assert "pytest --memprof-update-baseline writes it" in text_of(result)


def test_to_be_far_below_is_a_hint(tests, run):
    tests(source(doubled=True))
    run("--memprof-update-baseline")
    tests(source())
    result = run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*peak 4.00 MiB is below the baseline 8.00 MiB: *"])


def test_another_environment_is_a_warning_line(tests, run, pytester):
    tests(source())
    run("--memprof-update-baseline")
    path = pytester.path / "memprof_baselines" / f"{KEY}.json"
    facts = json.loads(path.read_text())
    facts["env"]["python"] = "3.1.0"
    path.write_text(json.dumps(facts))
    result = run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*baseline of another environment: python 3.1 > 3.*"])
    tests(source(doubled=True))
    result = run()
    result.assert_outcomes(failed=1)
    assert "other than then: python 3.1 > 3." in text_of(result)


@pytest.mark.parametrize("damage", ["gone", "broken", "of another peak"])
def test_figures_alone_are_enough_to_judge(tests, run, pytester, damage):
    tests(source())
    run("--memprof-update-baseline")
    path = pytester.path / "memprof_baselines" / f"{KEY}.rows.json"
    if damage == "gone":
        path.unlink()
    elif damage == "broken":
        path.write_text("{")
    else:
        path.write_text(path.read_text().replace("[4194304", "[4194303"))
    at = tests(source(doubled=True))
    result = run()
    result.assert_outcomes(failed=1)
    text = text_of(result)
    assert "what the peak was made of then is not stored" in text
    assert at("doubled") in text
    assert "= 8.00 MiB of 8.00 MiB explained" in text


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 99, "tests": {}}'])
def test_a_file_that_cannot_be_read_fails_and_is_written_anew(
    tests, run, pytester, text
):
    tests(source())
    folder = pytester.path / "memprof_baselines"
    folder.mkdir()
    (folder / f"{KEY}.json").write_text(text)
    result = run()
    result.assert_outcomes(failed=1)
    assert "--memprof-update-baseline" in text_of(result)
    assert (folder / f"{KEY}.json").read_text() == text
    run("--memprof-update-baseline").assert_outcomes(passed=1)
    assert stored(pytester)["tests"]["test_it.py::test_fit"]["peak"] == 4 << 20
    run("--memprof-require-baseline").assert_outcomes(passed=1)


def test_growth_is_compared_if_asked(tests, run):
    grows = """
HELD = []


@pytest.mark.memprof_baseline(growth="64 KiB/step")
def test_fit():
    HELD.append(bytes_of(SIZE))  # held
"""
    tests(grows.replace("SIZE", "1024"))
    run("--memprof-update-baseline").assert_outcomes(passed=1)
    tests(grows.replace("SIZE", "65 * 1024"))
    run().assert_outcomes(passed=1)
    at = tests(grows.replace("SIZE", "65 * 1024 + 1"))
    result = run("--memprof-confirm=0")
    result.assert_outcomes(failed=1)
    text = text_of(result)
    assert (
        "growth 65.0 KiB/step, baseline 1.00 KiB/step, tolerance 64.0 KiB/step" in text
    )
    assert at("held") in text


def test_where_the_files_are(tests, run, pytester):
    tests(source())
    pytester.makeini("[pytest]\nmemprof_baselines = kept/here\n")
    run("--memprof-update-baseline")
    assert (pytester.path / "kept" / "here" / f"{KEY}.json").exists()
    run("--memprof-update-baseline", f"--memprof-baselines={pytester.path / 'other'}")
    assert (pytester.path / "other" / f"{KEY}.json").exists()
    assert not Path(pytester.path / "memprof_baselines").exists()
    run("--memprof-require-baseline").assert_outcomes(passed=1)
