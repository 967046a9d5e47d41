"""Options and their twins: the summary, stored runs, what is usage."""

from __future__ import annotations

import json
import re

import pytest
import torch
from inner import text_of

KEY = "cpu_torch{}.{}_native".format(*torch.__version__.split(".")[:2])

SOURCE = """
@pytest.mark.parametrize("size", [1, 2, 3])
def test_sizes(size):
    bytes_of(size * MIB + EXTRA)
"""


def source(extra: int = 0) -> str:
    return SOURCE.replace("EXTRA", str(extra))


def test_the_summary_has_the_highest_peaks(tests, run):
    tests(source())
    assert "memprof" not in text_of(run()).partition("collected")[2]
    result = run("--memprof", "--memprof-top=2")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "*peak  before  growth  count  device  test",
            "3.00 MiB *1  cpu     test_it.py::test_sizes[[]3[]]",
            "2.00 MiB *1  cpu     test_it.py::test_sizes[[]2[]]",
            "and 1 more test",
        ]
    )


def test_ini_twins(tests, run, pytester):
    tests(source())
    pytester.makeini(
        "[pytest]\nmemprof = true\nmemprof_top = 1\nmemprof_default_peak = 2 MiB\n"
    )
    result = run()
    result.assert_outcomes(passed=2, failed=1)
    text = text_of(result)
    assert "memprof: peak 3.00 MiB, limit 2.00 MiB" in text
    assert "and 2 more tests" in text
    result = run("--memprof-top=3")  # the option stands above its twin
    assert "more test" not in text_of(result)
    pytester.makeini("[pytest]\nmemprof = true\nmemprof_off = true\n")
    assert "peak" not in text_of(run())


def test_numbers_in_junits_xml(tests, run, pytester):
    tests(
        """
@pytest.mark.memprof_limit(peak="1 MiB")
def test_it():
    bytes_of(2 * MIB)
"""
    )
    run("--junitxml=x.xml").assert_outcomes(failed=1)
    xml = (pytester.path / "x.xml").read_text()
    assert xml.count('name="memprof_peak" value="2097152"') == 1
    assert f'name="memprof_environment" value="{KEY}"' in xml
    assert "memprof: peak 2.00 MiB, limit 1.00 MiB" in xml


def test_stored_runs(tests, run, pytester):
    tests(source())
    result = run("--memprof-autosave")
    result.assert_outcomes(passed=3)
    folder = pytester.path / ".memprof"
    (first,) = (folder / KEY).glob("*.json")
    assert re.fullmatch(r"0001_\w+\.json", first.name)
    assert (folder / ".gitignore").read_text() == "*\n"
    assert json.loads(first.read_text())["tests"]["test_it.py::test_sizes[3]"]["rows"]
    tests(source(1 << 20))
    run("--memprof-save=larger").assert_outcomes(passed=3)
    assert (folder / KEY / "0002_larger.json").exists()

    result = run("--memprof-compare=1")
    result.assert_outcomes(passed=3)
    assert "3.00 MiB, +1.00 MiB (+33.3 %)" in text_of(result)
    result = run("--memprof-compare")  # the last one
    assert "4.00 MiB, 0 B" in text_of(result)
    tests(source())
    result = run("--memprof-compare=larger", "--memprof-compare-fail=peak:5%")
    result.assert_outcomes(passed=3)

    tests(source(2 << 20))
    result = run(
        "--memprof-compare=0001",
        "--memprof-compare-fail=peak:70%",
        "--memprof-compare-fail=count:5",
        "--memprof-confirm=0",
    )
    result.assert_outcomes(passed=1, failed=2)
    text = text_of(result)
    assert "memprof: peak 4.00 MiB, stored run 0001_" in text
    assert "[2097152]>[4194304]" in text
    assert "= +2.00 MiB of +2.00 MiB explained" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--memprof-compare-fail=peak:5%"], "needs --memprof-compare"),
        (["--memprof-compare", "--memprof-compare-fail=peak:5%"], "no stored run in"),
        (["--memprof-compare=7"], "no stored run '7' in"),
        (["--memprof-compare-fail=peak:5kg"], "has no unit of B, KiB"),
        (["--memprof-compare-fail=speed:5%"], "no metric 'speed'; choose peak"),
        (["--memprof-top=many"], "'many' is no number"),
        (["--memprof-confirm=-1"], "'-1' is no number"),
        (["--memprof-save=a/b"], "must be letters"),
    ],
)
def test_usage(tests, run, words, said):
    tests(source())
    result = run(*words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    error = result.stderr.str()
    assert said in error
    assert words[0].partition("=")[0] in error


def test_html_reports(tests, run, pytester):
    from memprof.integrations import html_report

    tests(
        """
@pytest.mark.memprof_limit(peak="1 MiB")
def test_above():
    bytes_of(2 * MIB)
"""
    )
    result = run("--memprof-html=out")
    if html_report.why_not():
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert "--memprof-html: needs memprof.reports.html" in result.stderr.str()
    else:
        result.assert_outcomes(failed=1)
        path = pytester.path / "out" / "test_it.py-test_above.html"
        assert "html" in path.read_text()[:200]
        assert f"full report: {path}" in text_of(result)


def test_names_of_reports():
    from memprof.integrations.html_report import file_name

    assert file_name("tests/test_a.py::T::test_b[x/y]", ".html") == (
        "tests-test_a.py-T-test_b[x-y].html"
    )
    name = file_name("tests/test_a.py::" + "ä" * 300, ".html")
    assert len(name.encode()) <= 255
    assert re.search(r"-[0-9a-f]{16}\.html$", name)
    assert name != file_name("tests/test_a.py::" + "ä" * 301, ".html")


def test_the_markers_are_named(run):
    text = text_of(run("--markers"))
    for name in ("memprof_limit", "memprof_no_leaks", "memprof_baseline"):
        assert f"@pytest.mark.{name}(" in text
    run("--strict-markers", "--collect-only")
