"""The terminal block: golden texts, and sums that are proven, not believed."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from events import KIND, NAMES, Script, random_stream, rows

import memprof
from memprof import _core
from memprof.recording import Recording
from memprof.reports import steps
from memprof.reports.facts import BY, fold
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


def test_without_a_width_no_name_is_cut() -> None:
    script = training()
    long = "very_long_module_name." * 6 + "weight"
    script.write("alloc", device=0, address=64, size=PEAK, op=long + "_backward")
    script.write("alloc", device=0, address=65, size=PEAK, module=long)
    summary = Recording(script.core(**info(0))).summary(limit=3)
    for text in (summary.text(), str(summary)):  # here is no terminal
        assert f"  {long}  " in text
        assert f"  {long}_backward  " in text
        assert "..." not in text.partition("\n\n")[2]
    stream = io.StringIO()
    write(summary, stream)
    assert stream.getvalue() == summary.text()


def test_a_terminal_says_how_wide_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "97")
    monkeypatch.setenv("NO_COLOR", "1")
    script = training()
    script.write("alloc", device=0, address=64, size=PEAK, module="long_name." * 20)
    summary = Recording(script.core(**info(0))).summary()
    stream = Terminal()
    write(summary, stream)
    assert stream.getvalue() == summary.text(97) != summary.text()
    monkeypatch.setattr(sys, "stdout", stream)
    assert str(summary) == summary.text(97)


def resnet(count: int = 30) -> Recording:
    """A run whose table is wider than 80 columns in all three texts."""
    script = Script()
    script.write("window_begin", address=7)
    for index in range(count):
        script.write(
            "alloc",
            device=0,
            address=64 * index,
            size=(1 << 30) + 1000 * (count - index) ** 2,
            op=("aten::cudnn_convolution_backward", "aten::cudnn_convolution")[
                index % 2
            ],
            module=f"layer{index}.downsample.conv{index % 4}",
            stack=(("forward", "/run/some/folder/train_resnet50.py", 96 + index),),
            flags=35,
            phase=1,
        )
    return Recording(script.core(**info(0)))


@pytest.mark.parametrize("width", [80, 90, 100, 120])
def test_the_module_is_whole_where_there_is_room_at_all(width: int) -> None:
    summary = resnet().summary()
    text = summary.text(width)
    for row in summary.to_dict()["rows"][:-1]:
        assert f"  {row['module']}  " in text
        assert row["line"][-4:] + "\n" in text
    lines = [line for line in text.splitlines() if "  activation  " in line]
    assert len(lines) == 12
    if width > 90:  # else ops have no column
        assert all("ckward  " in line for line in lines[::2])
        assert all("lution  " in line for line in lines[1::2])
    assert "aten::cudnn_convolution_backward  " in summary.text()


def test_the_number_of_rows_cut_off_is_never_cut() -> None:
    text = resnet(1300).summary(limit=2).text(80)
    assert "  other       1 298 more rows\n" in text


def test_equal_bytes_have_equal_shares_and_the_rest_the_remainder() -> None:
    script = Script()
    for index in range(29):
        script.write("alloc", device=-1, address=64 * index, size=77, op=f"op{index}")
    text = Recording(script.core()).summary(limit=12).text()
    column = [line.split()[2] for line in text.partition("where\n")[2].splitlines()]
    assert column == ["3.4"] * 12 + ["59.2", "100.0"]


def test_every_category_of_5_percent_has_its_name() -> None:
    script = Script()
    roles = ("parameter", "buffer", "gradient", "optimizer_state", "input")
    for index, size in enumerate((500, 0, 120, 130, 60)):
        script.write("alloc", device=-1, address=64 * index, size=size)
        script.write(
            "role", device=-1, address=64 * index, size=index + 1, op=roles[index]
        )
    script.write("alloc", device=-1, address=990, size=150)
    at = {"device": -1, "phase": 1, "flags": 35}
    script.write("alloc", address=999, size=40, **at)
    (line,) = [
        line
        for line in Recording(script.core()).summary().text(120).splitlines()
        if line.startswith("  at peak ")
    ]
    assert line.split()[2:] == [
        "parameter",
        "50",
        "%",
        "unknown",
        "15",
        "%",
        "optimizer_state",
        "13",
        "%",
        "gradient",
        "12",
        "%",
        "input",
        "6",
        "%",
        "rest",
        "4",
        "%",
    ]


def test_unknown_has_its_reasons() -> None:
    script = Script()
    script.write("seed_block", device=-1, address=64, size=3 * MIB, thread=0)
    script.write("window_begin", address=7)
    script.write("alloc", device=-1, address=128, size=MIB)
    summary = Recording(script.core()).summary()
    assert summary.to_dict()["unknown"] == {
        "older than the recording, no owner found": 3 * MIB,
        "made outside of modules, backward and optimizers": MIB,
    }
    assert (
        "  unknown   3.00 MiB older than the recording, no owner found, "
        "1.00 MiB made outside of modules, backward and optimizers\n"
    ) in summary.text(140)
    assert "  unknown " not in recording().summary().text()


def leaking(kept: int, steps: int = 4) -> Recording:
    """Each step keeps one activation of KEPT bytes and frees another."""
    script = Script()
    at = {"device": -1, "flags": 35, "phase": 1}
    where = (("main", "/run/train.py", 88),)
    script.write("step", address=7, size=0)
    script.write("window_begin", address=7)
    script.write("alloc", device=-1, address=1, size=50 * MIB)
    script.write("role", device=-1, address=1, size=1, op="weight")
    for step in range(steps):
        if step:
            script.write("step", address=7, size=step)
        script.write(
            "alloc", address=64 * (step + 1), size=kept + step, stack=where, **at
        )
        script.write("alloc", address=16, size=MIB, **at)
        script.write("free_completed", device=-1, address=16)
    script.write("window_end", address=7)
    return Recording(script.core(**info(0)))


def test_what_outlived_its_step_is_told_to_the_byte() -> None:
    found = leaking(7 * MIB)
    peak = found.peak()
    assert peak.step == 3
    expected = sum(
        int(row["size"])
        for row in peak.live()
        if row["born_step"] < 3 and _core.CATEGORIES[row["category"]] == "activation"
    )
    earlier = found.summary().to_dict()["earlier"]
    assert earlier["bytes"] == expected == 21 * MIB + 3
    assert earlier["categories"] == {"activation": expected}
    assert earlier["steps"] == [0, 1, 2]
    assert sum(row["bytes"] for row in earlier["rows"]) == expected
    assert (
        "  ! 21.0 MiB of activation alive at the peak was born in earlier steps (0-2)\n"
        "    at train.py:88\n"
    ) in found.summary().text(80)


def test_no_hint_where_nothing_outlived_its_step_or_a_trifle_did() -> None:
    assert recording().summary().to_dict()["earlier"] is None
    assert leaking(7 * MIB, steps=1).summary().to_dict()["earlier"] is None
    trifle = leaking(100)
    assert trifle.summary().to_dict()["earlier"]["bytes"] == 303
    assert "earlier steps" not in trifle.summary().text()


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["-c", "x"], "python -c"),
        (["-"], "python -"),
        ([""], "python"),
        (["/env/torch/distributed/__main__.py"], "python -m distributed"),
        (["/run/train.py", "-c"], "train.py"),
    ],
)
def test_what_ran_has_a_name(argv: list[str], name: str) -> None:
    assert recording(argv=argv).summary().to_dict()["run"] == name


def test_a_line_and_an_owner_have_keys_of_their_own() -> None:
    for row in recording().summary().to_dict()["rows"]:
        assert bool(row["line"]) != bool(row["owner"])
        assert (row["category"] == "parameter") == bool(row["owner"])


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
def test_shares_are_each_rounded_and_equals_read_equal(parts: list[int]) -> None:
    for places in (0, 1):
        written = shares(parts, places)
        for part, share in zip(parts, written, strict=True):
            exact = 100 * part / sum(parts) if sum(parts) else 0
            assert abs(float(share) - exact) <= 0.5 / 10**places + 1e-9
            assert share == written[parts.index(part)]


@pytest.mark.parametrize("parts", [[1, 1, 1], [999, 1], [7], [5] * 7])
def test_a_rest_makes_shares_sum_to_a_hundred(parts: list[int]) -> None:
    for places in (0, 1):
        written = shares(parts, places, rest=True)
        assert sum(map(float, written)) == pytest.approx(100)
        assert written[:-1] == shares(parts, places)[:-1]
    # Even a rest of next to nothing is never below it.
    assert shares([1001, 1001, 1001, 1], 0, rest=True)[-1] == "1"
    assert shares([5015, 15, 15, 1], 1, rest=True)[-1] == "0.0"


def test_sparks_go_from_zero_to_the_top() -> None:
    assert sparks([0, 1, 50, 99, 100], 100) == "..+@@"
    assert sparks([0, 0], 0) == ".."


def row(**fields: object) -> dict[str, object]:
    base = {"bytes": 1, "count": 1, **dict.fromkeys(BY, "")}
    return {**base, **fields}


def test_fold_repeated_layers() -> None:
    folded = fold(
        [row(module=f"net.layers.{i}.mlp.0", bytes=i, line="m.py:3") for i in (10, 11)]
        + [row(module="net.layers.1.mlp.0", op="x")]
        + [row(module="block12.conv"), row(module="block13.conv")]
        + [row(owner=f"exp_avg of layers.{i}.weight") for i in (1, 2, 3)]
    )
    texts = {(r["module"], r["line"] or r["owner"], r["bytes"]) for r in folded}
    assert texts == {
        ("net.layers.*.mlp.0", "m.py:3", 21),
        ("net.layers.1.mlp.0", "", 1),
        ("block12.conv", "", 1),
        ("block13.conv", "", 1),
        ("", "exp_avg of layers.*.weight", 3),
    }


def test_fold_joins_only_what_is_nearly_equal() -> None:
    folded = fold(
        [
            row(module=f"layers.{i}.conv", bytes=size)
            for i, size in enumerate((1000, 900, 899, 950, 100, 95))
        ]
    )
    assert [(r["module"], r["bytes"]) for r in folded] == [
        ("layers.*.conv", 1000 + 900 + 950),
        ("layers.2.conv", 899),
        ("layers.*.conv", 195),
    ]
    assert sum(r["bytes"] for r in folded) == 1000 + 900 + 899 + 950 + 100 + 95


def test_a_sequentials_children_keep_their_numbers() -> None:
    """Of "0", "2.weight" and "exp_avg of 2.weight" no name would be left."""
    for fields in ("0", "2"), ("0.1", "0.2"):
        rows = [row(module=name) for name in fields]
        rows += [row(owner=f"exp_avg of {name}.weight") for name in fields]
        folded = fold(rows)
        assert len(folded) == 4
        assert not any("*" in r["module"] + r["owner"] for r in folded)


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


def test_hostile_names_keep_to_their_lines() -> None:
    names = ["aten::\x1b[31mred\nop", "model\u202e.evil\r", "a\x00b"]
    place = {"device": 0, "thread": 1}
    events = [
        {"kind": KIND["alloc"], "address": 512 * (i + 1), "size": 999, "op": i,
         "module": 1, "time_ns": i, **place}
        for i in range(3)
    ]  # fmt: skip
    recording = Recording(_core.from_events(rows(events), names, None), None)
    for text in (str(recording.summary()), recording.summary().text(80)):
        assert all(line.isprintable() for line in text.split("\n"))
        assert "\\x1b[31mred\\nop" in text
    same = memprof.compare(recording, recording)
    assert all(line.isprintable() for line in str(same).split("\n"))


@pytest.mark.parametrize("seed", range(6))
def test_steps_and_sparks_equal_a_naive_walk(seed: int) -> None:
    recording = Recording(_core.from_events(random_stream(seed, 600), NAMES), None)
    for device in recording.devices:
        facts = recording.summary(device).to_dict()
        samples = recording._sampled(recording._device(device), 0)
        level, event = samples.bytes[:, 0].tolist(), samples.event.tolist()
        time = [max(samples.time_ns[: i + 1].tolist()) for i in range(len(level))]
        assert facts["steps"]
        for step, columns in zip(facts["steps"], facts["sparks"], strict=True):
            (row,) = [r for r in recording.steps if r["number"] == step["number"]]
            before = [b for b, e in zip(level, event) if e <= row["begin_event"]]
            inside = [
                b
                for b, e in zip(level, event)
                if row["begin_event"] < e <= row["end_event"]
            ]
            held = before[-1:] + inside
            assert step["peak_bytes"] == max(held)
            assert step["end_bytes"] == held[-1]
            start, end = int(row["start_ns"]), int(row["end_ns"])
            edges = [start + (end - start) * i // 11 for i in range(12)]
            for drawn, low, high in zip(columns, edges, edges[1:], strict=False):
                first = max(sum(at <= low for at in time) - 1, 0)
                last = max(sum(at <= high for at in time), first + 1)
                assert drawn == max(level[first:last])


@pytest.mark.parametrize("seed", range(3))
def test_the_timeline_draws_as_the_summary_does_and_all_at_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = steps.highest_columns

    def counting(*args: Any) -> list[list[int]]:
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(steps, "highest_columns", counting)
    recording = Recording(_core.from_events(random_stream(seed, 600), NAMES), None)
    for device in recording.devices:
        del calls[:]
        facts = steps.gather(recording, device)
        assert len(calls) == 1  # each goes through all levels
        level = recording._sampled(recording._device(device), 0).bytes[:, 0]
        for part in facts["parts"]:
            assert len(part["columns"]) == 11
            assert max(part["columns"]) <= level.max()
        assert max(max(part["columns"]) for part in facts["parts"]) == level.max()
        number = len([part for part in facts["parts"] if part["step"] is not None])
        for limit in (1, 2, 5):
            rows = steps.bundled(facts["parts"], limit)
            shown = [row for row in rows if row["step"] is not None]
            assert len(shown) == min(limit, -(-number // -(-number // limit)))
            assert sum(r["last_step"] - r["step"] + 1 for r in shown) == number
