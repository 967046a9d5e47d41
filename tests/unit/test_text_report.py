"""The terminal block: golden texts, and sums that are proven, not believed."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
from events import NAMES, Script, random_stream, rows

from memprof import _core
from memprof.recording import Recording
from memprof.reports.facts import fold
from memprof.reports.text import Summary, write
from memprof.reports.units import count_text, shares, size_text, sparks

DATA = Path(__file__).parent / "data"
TORCH = "/env/lib/python3.12/site-packages/torch"
MIB = 1 << 20
BASE = 1 << 40


def training() -> Script:
    """Three steps of a small model with four layers, on one GPU and the CPU."""
    script = Script()
    linear = ("forward", f"{TORCH}/nn/modules/linear.py", 120)
    model = ("forward", "/run/model.py", 141)
    train = ("main", "/run/train.py", 88)
    script.write("seed_segment", device=0, address=BASE, size=512 * MIB)
    address = BASE
    for layer in range(4):
        for name, size in (("attn.weight", 12 * MIB), ("mlp.weight", 24 * MIB)):
            script.write("seed_block", device=0, address=address, size=size)
            owner = f"layers.{layer}.{name}"
            script.write("role", device=0, address=address, size=1, op=owner)
            address += size
    script.write("step", address=7, size=2)
    script.write("window_begin", address=7)
    for step in (2, 3, 4):
        held = []
        at = {"device": 0, "step": step, "flags": 35, "phase": 1}
        script.write("region_begin", op="forward")
        for layer in range(4):
            for part, op, size in (
                ("attn", "aten::_softmax", 20 * MIB + 512 * step),
                ("mlp", "aten::gelu", 9 * MIB),
            ):
                held.append((BASE + 256 * MIB + 32 * MIB * len(held), size))
                script.write(
                    "alloc",
                    address=held[-1][0],
                    size=size,
                    op=op,
                    module=f"layers.{layer}.{part}",
                    stack=(linear, model, train),
                    **at,
                )
        script.write("region_end", op="forward")
        script.write("alloc", device=-1, address=64, size=4096, phase=1, step=step)
        script.write("free_completed", device=-1, address=64, step=step)
        for address, size in reversed(held):
            gone = {"device": 0, "address": address, "size": size, "step": step}
            script.write("free_requested", phase=2, **gone)
            script.write("free_completed", phase=2, **gone)
        script.write("step", address=7, size=step + 1)
    script.write("window_end", address=7)
    return script


def info(peak: int) -> dict[str, object]:
    """What a profile writes beside such a recording."""
    begin = {"allocated_peak": 5 * MIB, "requested_peak": 5 * MIB}
    end = {"allocated_peak": peak + 3 * 512, "requested_peak": peak}
    return {
        "argv": ["/run/train.py", "--layers", "4"],
        "cwd": "/run",
        "paths": {"torch": TORCH, "cwd": "/run"},
        "devices": {"cuda:0": {"name": "NVIDIA H200", "total_bytes": 139 << 30}},
        "current_device": 0,
        "sources": {
            "cpu allocator": {"live": True, "why": ""},
            "cuda allocator": {"live": True, "why": ""},
            "ops": {"live": True, "why": ""},
            "stacks": {"live": False, "why": "switched off by the caller"},
        },
        "own": {"own_bytes": 3 * MIB, "events": 99, "dropped": 0},
        "torch_counters": {
            "cuda:0": {"start": begin, "begin": begin, "end": end, "peak_rose": True}
        },
    }


PEAK = 4 * (12 + 24 + 20 + 9) * MIB + 4 * 512 * 4


def recording(**changes: object) -> Recording:
    return Recording(training().core(**{**info(PEAK), **changes}))


def check_golden(name: str, text: str) -> None:
    """Compare with tests/unit/data; MEMPROF_GOLDEN=write writes it anew."""
    path = DATA / name
    if os.environ.get("MEMPROF_GOLDEN") == "write":
        DATA.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(
    ("name", "device", "width", "exact"),
    [
        ("summary_cuda.txt", None, 80, False),
        ("summary_cuda_wide.txt", "cuda:0", 120, False),
        ("summary_cuda_bytes.txt", 0, 100, True),
        ("summary_cpu.txt", "cpu", 80, False),
    ],
)
def test_golden(name: str, device: object, width: int, exact: bool) -> None:
    summary = recording().summary(device)
    check_golden(name, summary.text(width, exact=exact))


def table_of(text: str) -> tuple[list[int], int]:
    """Read the bytes of the table's rows and of its total."""
    lines = text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.split()[:2] == ["bytes", "%"])
    numbers = [int(line.split()[0]) for line in lines[head + 1 :]]
    return numbers[:-1], numbers[-1]


def check_sums(found: Recording, device: str) -> None:
    peak = found.peak(device)
    for limit in (0, 1, 5, 1000):
        summary = Summary(found, device, limit=limit)
        facts = summary.to_dict()
        text = summary.text(80, exact=True)
        assert facts["peak"]["requested_bytes"] == peak.requested
        assert sum(row["bytes"] for row in facts["rows"]) == peak.requested
        assert sum(row["count"] for row in facts["rows"]) == len(peak.live())
        assert sum(facts["categories"].values()) == peak.requested
        assert f"{peak.requested} bytes requested" in text
        if facts["rows"]:
            parts, total = table_of(text)
            assert sum(parts) == total == peak.requested
            assert f"sum {peak.requested} bytes" in text
        json.dumps(facts)


def test_the_printed_table_sums_to_the_printed_headline() -> None:
    for device in ("cuda:0", "cpu"):
        check_sums(recording(), device)


@pytest.mark.parametrize("seed", range(40))
def test_sums_on_random_runs(seed: int) -> None:
    found = Recording(_core.from_events(random_stream(seed), NAMES))
    for device in found.devices:
        check_sums(found, device)


def test_peak_and_total_are_independent_of_the_report() -> None:
    """The headline against a sum made here, from the events alone."""
    found, now, peak = recording(), 0, 0
    for event in found.events("cuda:0"):
        if event["kind"] in (1, 49):
            now += int(event["size"])
        elif event["kind"] == 2:
            now -= int(event["size"])
        peak = max(peak, now)
    assert peak == PEAK == found.summary().to_dict()["peak"]["requested_bytes"]


@pytest.mark.parametrize("width", [80, 81, 97, 120, 200])
def test_lines_are_no_wider_than_asked(width: int) -> None:
    script = training()
    long = "very_long_module_name." * 6 + "weight"
    script.write("step", address=7, size=9)
    script.write("window_begin", address=7)
    script.write("alloc", device=0, address=64, size=PEAK, op=long, module=long)
    found = Recording(script.core(**info(0)))
    for line in found.summary().text(width).splitlines():
        assert len(line) <= width, line
    assert found.summary().text(10) == found.summary().text(80)


# -- the pieces ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "digits", "text"),
    [
        (0, 3, "0 B"),
        (1, 3, "1 B"),
        (1023, 3, "1023 B"),
        (1024, 3, "1.00 KiB"),
        (10 * 1024, 3, "10.0 KiB"),
        (100 * 1024, 3, "100 KiB"),
        (1023 * 1024, 3, "1023 KiB"),
        (MIB - 1, 3, "1.00 MiB"),
        (MIB - 1, 4, "1.000 MiB"),
        (10 * MIB - 1, 3, "10.0 MiB"),
        (100 * MIB - 1, 3, "100 MiB"),
        (12_713_115_648, 3, "11.8 GiB"),
        (12_713_115_648, 4, "11.84 GiB"),
        (160 * MIB, 3, "160 MiB"),
        (-3 * MIB, 3, "-3.00 MiB"),
        (1 << 62, 3, "4.00 EiB"),
    ],
)
def test_size_text(amount: int, digits: int, text: str) -> None:
    assert size_text(amount, digits) == text


def test_count_text() -> None:
    assert [count_text(n) for n in (0, 999, 1_004_212)] == ["0", "999", "1 004 212"]


@pytest.mark.parametrize("parts", [[1, 1, 1], [999, 1], [0, 0], [7], [5] * 7, []])
def test_shares_sum_to_a_hundred(parts: list[int]) -> None:
    for places in (0, 1):
        total = sum(float(share) for share in shares(parts, places))
        assert total == pytest.approx(100 if sum(parts) else 0)


def test_sparks_go_from_zero_to_the_top() -> None:
    assert sparks([0, 1, 50, 99, 100], 100) == "..+@@"
    assert sparks([0, 0], 0) == ".."


def row(**fields: object) -> dict[str, object]:
    base = {"bytes": 1, "count": 1, "category": "c", "module": "", "op": "", "line": ""}
    return {**base, **fields}


def test_fold_repeated_layers() -> None:
    folded = fold(
        [row(module=f"net.layers.{i}.mlp.0", bytes=i, line="m.py:3") for i in (1, 2)]
        + [row(module="net.layers.1.mlp.0", op="x")]
        + [row(module="block12.conv"), row(module="block13.conv")]
        + [row(line=f"exp_avg of layers.{i}.weight") for i in (1, 2, 3)]
    )
    texts = {(r["module"], r["line"], r["bytes"]) for r in folded}
    assert texts == {
        ("net.layers.*.mlp.0", "m.py:3", 3),
        ("net.layers.1.mlp.0", "", 1),
        ("block12.conv", "", 1),
        ("block13.conv", "", 1),
        ("", "exp_avg of layers.*.weight", 3),
    }


def test_folding_keeps_lines_of_files_apart() -> None:
    folded = fold([row(line="1.2.py:3"), row(line="1.3.py:3")])
    assert len(folded) == 2


# -- honest states -------------------------------------------------------------


def torch_text(**end: object) -> str:
    facts = info(PEAK)
    counters = facts["torch_counters"]["cuda:0"]
    counters["end"].update(end)
    return recording(torch_counters={"cuda:0": counters}).summary().text(100)


def test_torchs_own_figure_beside_ours() -> None:
    text = torch_text()
    assert f"{PEAK + 1536} = {PEAK} + 1536 bytes" in text


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ({"requested_peak": 5 * MIB}, "before the recorded steps"),
        ({"requested_peak": 6 * MIB}, "reset while we recorded"),
        ({"requested_peak": PEAK + 99}, "99 bytes more that we did not see"),
    ],
)
def test_torchs_figure_that_is_not_ours_says_why(end: dict, why: str) -> None:
    text = torch_text(**end)
    assert why in text
    assert "rounding" not in text.partition("max_memory_allocated")[2]


def test_an_old_torch_counts_only_rounded_bytes() -> None:
    text = torch_text(requested_peak=None)
    assert f"{PEAK + 1536} = {PEAK} + 1536 bytes" in text
    text = torch_text(requested_peak=None, allocated_peak=5 * MIB)
    assert "before the recorded steps" in text


def test_without_info_the_block_still_stands() -> None:
    found = Recording(training().core())
    text = found.summary().text(80)
    assert "max_memory_allocated" not in text
    assert "cuda:0" in text.splitlines()[0]


class Cut:
    """A core recording whose writer was killed."""

    def __init__(self, core: object, **facts: object) -> None:
        self._core = core
        self._facts = facts

    def __getattr__(self, name: str) -> object:
        return self._facts.get(name, getattr(self._core, name))


def test_a_cut_recording_and_lost_events_are_said() -> None:
    core = training().core()
    text = Recording(Cut(core, finished=False, damaged_bytes=512)).summary().text(80)
    assert "! the recording is cut (512 bytes at its end are damaged)" in text
    text = Recording(Cut(core, dropped=1234)).summary().text(80)
    assert "(1 234 dropped)" in text.splitlines()[0]
    assert "! events were lost" in text


def test_an_empty_recording() -> None:
    found = Recording(_core.from_events(rows([]), []))
    text = found.summary().text(80)
    assert "0 bytes requested" in text
    assert "nothing was alive" in text
    assert "<table>" in found.summary()._repr_html_()


def test_many_steps_fit_into_a_line() -> None:
    for count in (5, 6, 30, 500):
        script = Script()
        script.write("window_begin", address=7)
        script.write("alloc", device=-1, address=1, size=9)
        for step in range(count):
            script.write("step", address=7, size=step)
            script.write("alloc", device=-1, address=64, size=step, step=step)
            script.write("free_completed", device=-1, address=64, step=step)
        text = Recording(script.core()).summary().text(80)
        lines = [line for line in text.splitlines() if line.startswith("  steps ")]
        assert all(len(line) <= 80 for line in lines)
        assert ("maximum of" in text) == (count > 5)


def test_bad_limit() -> None:
    with pytest.raises(ValueError, match="limit must be 0 or more"):
        recording().summary(limit=-1)


# -- other forms ---------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_forms_have_no_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = recording().summary()
    plain = summary.text(80)
    assert plain.isascii()
    for stream, options in (
        (io.StringIO(), {}),
        (Terminal(), {"plain": True}),
    ):
        write(summary, stream, width=80, **options)
        assert stream.getvalue() == plain
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    write(summary, stream, width=80)
    assert stream.getvalue() == plain


def test_a_terminal_without_rich_gets_the_plain_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    write(recording().summary(), stream, width=80)
    assert stream.getvalue() == recording().summary().text(80)


def test_rich_changes_no_character(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    for width in (80, 150):
        stream = Terminal()
        write(recording().summary(), stream, width=width)
        assert "\x1b[" in stream.getvalue()
        bare = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
        assert bare == recording().summary().text(width)


def test_html_is_static_and_escaped() -> None:
    script = training()
    bad = "<script>alert('x')</script>"
    script.write("alloc", device=0, address=64, size=PEAK, op=bad, module=bad)
    page = Recording(script.core(**info(0))).summary(limit=400)._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "<style" not in page
    assert len(page) < 100_000


def test_str_and_repr() -> None:
    summary = recording().summary()
    assert str(summary).startswith("memprof  train.py  cuda:0  NVIDIA H200 139 GiB")
    assert repr(summary) == "<memprof.Summary: peak 260.0 MiB on cuda:0>"
