"""Kernels with a fake CUPTI: rows, files, losses, other profilers, refusals.

The fixtures are those of ``test_driver.py``: a child for each test.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from test_driver import child, hears, libraries  # noqa: F401

import memprof
from memprof import kernels
from memprof.driver import check_kernels


@hears
def test_kernels_have_names_places_and_files(child):  # noqa: F811
    told = child(
        """
        run = Run(fake_torch(), kernels=True)
        def of_mine():
            return launch()
        number = of_mine()
        copy = launch(b"cuMemcpyHtoDAsync_v2")
        ran(copy, None, kind=1, ago=10_000, size=4096, stream=9)
        ran(number, b"_Z7my_gemmPfi", ago=5_000_000_000, took=2000)
        rec, facts = run.end()
        rows = rec.kernels()
        import memprof
        path = FOLDER + "/kernels.memprof"
        rec.save(path)
        again = memprof.load(path)
        tell({
            "why": run.why,
            "kinds": [memprof.recording.GPU_KINDS[k] for k in rows["kind"]],
            "names": [rec.op(i) for i in rows["name"]],
            "bytes": rows["bytes"].tolist(), "streams": rows["stream"].tolist(),
            "took": (rows["end_ns"] - rows["start_ns"]).tolist(),
            "apart": int(rows["start_ns"][1] - rows["start_ns"][0]),
            "where": rec.stack(rows["stack"][0])[1].function,
            "numbers": rows["correlation"].tolist() == [number, copy],
            "launched": bool((rows["launch_ns"] > 0).all()),
            "same": again.kernels().tobytes() == rows.tobytes(),
            "none": [len(rec.kernels("cuda:1")), len(rec.kernels("cuda:0"))],
            "facts": facts["kernels"], "lost": rec.info["kernels_lost"],
            "frozen": not rows.flags.writeable,
            "clock": facts["kernels"]["clock_error_ns"],
            "events": [e for e in (96, 97) if (rec.events()["kind"] == e).any()],
        })
        """
    )  # fmt: skip
    assert told["why"] == ""
    assert told["kinds"] == ["kernel", "gpu_memcpy"]
    assert told["names"][0] in ("my_gemm(float*, int)", "_Z7my_gemmPfi")
    assert told["names"][1] == "Memcpy HtoD (Pinned -> Device)"
    assert told["bytes"] == [0, 4096]
    assert told["streams"] == [7, 9]
    assert all(
        abs(took - asked) < 50 for took, asked in zip(told["took"], (2000, 1000))
    )
    assert abs(told["apart"] - 5_000_000_000) < 1_000_000_000
    assert told["where"] == "of_mine"
    assert [told[name] for name in ("numbers", "launched", "same", "frozen")] == [
        True
    ] * 4
    assert told["none"] == [0, 2]
    assert told["facts"]["live"] is True
    assert (told["facts"]["records"], told["facts"]["launches"]) == (2, 2)
    assert told["lost"] == {} == told["facts"]["lost"]
    assert 0 <= told["clock"] < 50_000_000
    assert told["events"] == [96, 97]


@hears
def test_what_is_lost_is_in_the_file(child):  # noqa: F811
    told = child(
        """
        run = Run(fake_torch(), kernels=True)
        fake.fakecupti_drop(5)
        ran(launch(), ago=9000, took=-100)
        ran(launch())
        rec, facts = run.end()
        rec.save(FOLDER + "/lost.memprof")
        import memprof
        again = memprof.load(FOLDER + "/lost.memprof")
        tell([len(rec.kernels()), rec.info["kernels_lost"], again.info["kernels_lost"],
              facts["kernels"]["lost"], str(again.summary())])
        """
    )
    count, lost, again, facts, text = told
    assert count == 1
    assert lost == again == facts == {"dropped": 5, "unknown": 1}
    assert "6 records of GPU work are missing" in " ".join(text.split())


@hears
def test_nobody_asked(child):  # noqa: F811
    told = child(
        """
        run = Run(fake_torch())
        number = launch()
        rec, facts = run.end()
        tell([len(rec.kernels()), ran(number), b"Activity" in fake.fakecupti_calls(),
              rec.info["kernels_lost"]])
        """
    )
    assert told == [0, 0, False, {}]


# ---- torch.profiler --------------------------------------------------------------


@hears
@pytest.mark.parametrize("kineto", ["old", "new"])
def test_torch_profiler_ends_kernels_at_every_start(child, kineto):  # noqa: F811
    """Old: it takes the subscription as well. New: the ledger goes on without."""
    told = child(
        f"""
        torch = fake_torch({kineto!r})
        run = Run(torch, kernels=True)
        ran(launch())
        torch.profiler_module._prepare_profiler()
        kinds = fake.fakecupti_kinds()
        ran(launch(), b"unseen")
        rec, facts = run.end()
        second = Run(torch, kernels=True)
        ran(launch(), b"second")
        torch.profiler_module._prepare_profiler()
        after = fake.fakecupti_kinds()
        other, more = second.end()
        tell([torch.seen, kinds, [rec.op(i) for i in rec.kernels()["name"]],
              facts["kernels"], second.why, len(other.kernels()), after,
              more["kernels"]])
        """,
        warnings=None,
    )
    seen, kinds, names, facts, why, others, after, more = told
    assert seen == [1, 1]  # its own GPU events are all there
    assert kinds == after == 0
    assert names == ["a_kernel"]
    assert (facts["live"], facts["why"]) == (False, kernels.PROFILER_CAME)
    assert facts["records"] == 1
    if kineto == "old":
        assert "only subscription" in why
        assert others == 0
    else:
        assert (why, others, more["why"]) == ("", 1, kernels.PROFILER_CAME)


@hears
def test_not_beside_a_profiler_that_runs(child):  # noqa: F811
    told = child(
        """
        torch = fake_torch("new")
        torch.profiler_module._is_profiler_enabled = True
        run = Run(torch, kernels=True)
        kinds = fake.fakecupti_kinds()
        torch.profiler_module._is_profiler_enabled = False
        second = Run(torch, kernels=True)
        ran(launch())
        both = [len(r.end()[0].kernels()) for r in (run, second)]
        tell([run.why, kinds, second.why, both, fake.fakecupti_kinds()])
        """
    )
    why, kinds, second, both, after = told
    assert why == kernels.PROFILER_RUNS
    assert (kinds, second, after) == (0, "", 0)
    assert both == [1, 1]


@hears
def test_two_profiles_share_it(child):  # noqa: F811
    told = child(
        """
        torch = fake_torch()
        one, two, none = Run(torch, kernels=True), Run(torch, kernels=True), Run(torch)
        ran(launch())
        first, _ = one.end()
        ran(launch())
        second, _ = two.end()
        after = fake.fakecupti_kinds()
        third, _ = none.end()
        tell([len(first.kernels()), len(second.kernels()), len(third.kernels()), after,
              fake.fakecupti_subscribed()])
        """
    )
    assert told == [1, 2, 0, 0, 0]


# ---- refusals --------------------------------------------------------------------


@hears
@pytest.mark.parametrize(
    ("play", "reason"),
    [
        ("fake.fakecupti_set_version(130000)", "update nvidia-cuda-cupti to 13.0.1"),
        ("fake.fakecupti_set_version(140000)", "update memprof"),
        ("fake.fakecupti_set_longer(ctypes.c_size_t(8))", "not those that"),
        ("fake.fakecupti_fail(b'cuptiActivityEnable', 35, 2)", "35: no privileges"),
        ("fake.fakecupti_hold_slot(b'Nsight')", "only subscription"),
        ("fake.fakecupti_fail(b'cuptiSubscribe', 999, 0)", "no usable NVIDIA driver"),
    ],
)  # fmt: skip
def test_refusals_say_why(child, play, reason):  # noqa: F811
    told = child(
        f"""
        {play}
        run = Run(fake_torch(), kernels=True)
        kinds = fake.fakecupti_kinds()
        number = launch()
        rec, facts = run.end()
        tell([run.why, kinds, len(rec.kernels()), facts["kernels"]["live"],
              facts["kernels"]["why"], facts["live"]])
        """,
        warnings=None,
    )
    assert reason in told[0]
    assert told[1:4] == [0, 0, False]
    assert told[4] == told[0]


@hears
def test_a_profiler_that_cannot_be_hooked(child):  # noqa: F811
    told = child(
        """
        run = Run(fake_torch(names=False), policy="on", kernels=True)
        rec, facts = run.end()
        tell([run.why, facts["live"], fake.fakecupti_kinds()])
        """,
        warnings=None,
    )
    assert told == [kernels.NO_HOOK, True, 0]


@hears
def test_a_forked_child_has_none(child):  # noqa: F811
    told = child(
        """
        run = Run(fake_torch(), kernels=True)
        ran(launch())
        pid = os.fork()
        if pid == 0:
            calls = fake.fakecupti_calls()
            facts = the_ledger().kernel_facts()
            why = the_ledger().record_kernels()
            the_ledger().release_kernels()
            the_ledger().settle()
            fine = not facts["live"] and "fork" in why
            os._exit(0 if fine and fake.fakecupti_calls() == calls else 1)
        status = os.waitpid(pid, 0)[1]
        rec, facts = run.end()
        tell([status, len(rec.kernels()), facts["kernels"]["live"]])
        """
    )
    assert told == [0, 1, True]


def test_kernels_without_cupti_are_a_contradiction():
    assert check_kernels(True, "auto") is True
    assert check_kernels(False, "off") is False
    with pytest.raises(ValueError, match="leave one away"):
        memprof.profile(with_kernels=True, cupti="off")
