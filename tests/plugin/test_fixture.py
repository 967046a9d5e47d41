"""The fixture: parts of a test, measured where it says."""

from __future__ import annotations

from inner import text_of


def test_track(tests, run, pytester):
    at = tests(
        """
def test_figures(memprof, tmp_path):
    with memprof.track(steps=3, warmup=1) as p:
        for _ in p:
            kept = bytes_of(2 * MIB)
            del kept
    assert p.peak == 2 * MIB
    assert p.growth == 0
    assert p.count == 1
    assert p.reserved is None
    assert p.device == "cpu"
    p.assert_peak_below("2.1 MiB")
    p.assert_growth_below("1 B/step")
    p.save(tmp_path / "run.memprof")
    assert memprof.load(tmp_path / "run.memprof").info["events"] > 0
    assert "peak 2.00 MiB on cpu" in repr(p)


def test_steps_by_hand(memprof):
    held = []
    with memprof.track(warmup=1) as p:
        for _ in range(4):
            held.append(bytes_of(MIB))
            p.step()
    assert p.growth == MIB
    assert p.peak == 3 * MIB


def test_two_parts(memprof):
    with memprof.track() as a:
        bytes_of(MIB)
    with memprof.track(device="cpu") as b:
        bytes_of(3 * MIB)
    assert (a.peak, b.peak) == (MIB, 3 * MIB)
    b.assert_peak_below("3 MiB")  # asserted


def test_leaves_over(memprof):
    held = []
    with memprof.track(steps=3) as p:
        for _ in p:
            held.append(bytes_of(MIB))  # held
    p.assert_growth_below("1 MiB/step")


def test_own_error(memprof):
    with memprof.track() as p:
        bytes_of(MIB)
        raise KeyError("own")


def test_too_early(memprof):
    with memprof.track() as p:
        p.peak
"""
    )
    result = run("--tb=short", "--junitxml=x.xml")
    result.assert_outcomes(passed=2, failed=4)
    text = text_of(result)
    assert "MEMORY test_it.py::test_two_parts" in text
    assert "memprof: peak 3.00 MiB, limit 3.00 MiB: 0 B" in text
    assert "= 3.00 MiB of 3.00 MiB explained" in text
    assert at("asserted") in text or "b.assert_peak_below" in text
    assert "MEMORY test_it.py::test_leaves_over" in text
    assert at("held") in text
    assert "FAILED test_it.py::test_own_error - KeyError: 'own'" in text
    assert "FAILED test_it.py::test_too_early" in text
    assert "only after the with statement" in text
    assert "tracking.py" not in text.partition("test_own_error")[0].partition("FAIL")[2]
    xml = (pytester.path / "x.xml").read_text()
    assert 'name="memprof_track_peak" value="1048576"' in xml
    assert 'name="memprof_track_2_peak" value="3145728"' in xml


def test_off(tests, run):
    tests(
        """
def test_it(memprof):
    with memprof.track(steps=2) as p:
        for _ in p:
            bytes_of(MIB)
    assert p.off
    assert p.peak == 0
    p.assert_peak_below("1 B")
    p.save("nothing.memprof")


@pytest.mark.memprof_limit(peak="1 B")
@pytest.mark.memprof_no_leaks()
def test_marked():
    bytes_of(MIB)
"""
    )
    result = run("--memprof-off")
    result.assert_outcomes(passed=2)
    assert "\nmemprof" not in text_of(result)


def test_wrong_arguments_are_told(tests, run):
    tests(
        """
def test_it(memprof):
    with pytest.raises(ValueError, match="steps=-1"):
        with memprof.track(steps=-1):
            pass
    with pytest.raises(ValueError, match="'tpu' is not a device"):
        with memprof.track(device="tpu"):
            pass
    with memprof.track() as p:
        with pytest.raises(ValueError, match="say how many"):
            for _ in p:
                pass
    with pytest.raises(ValueError, match="assert_peak_below"):
        p.assert_peak_below("2 gib")
"""
    )
    run().assert_outcomes(passed=1)
