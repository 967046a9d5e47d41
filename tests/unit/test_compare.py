"""Two recordings set against each other: the rows sum up, whatever is joined."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from events import NAMES, Script, random_stream
from hypothesis import given, settings
from hypothesis import strategies as st

import memprof
from memprof import _core
from memprof.cli import main
from memprof.comparison import BY, compare
from memprof.differences import cut, differences, split_shape
from memprof.recording import Recording

GOLDEN = Path(__file__).parents[1] / "golden"
NAMED = sorted(path.stem for path in GOLDEN.glob("*.memprof"))
KEYS = ("category", "module", "op", "line", "function", "shape", "dtype")
MIB = 1 << 20


def naive(recording: Recording, device: str) -> Counter:
    """What is alive at the peak by category, module and op, the slow way."""
    peak = recording.peak(device)
    held: Counter = Counter()
    for row in recording.allocations(device):
        born, died = int(row["born_event"]), int(row["died_event"])
        if born <= peak.event and (died < 0 or died > peak.event):
            key = (_core.CATEGORIES[row["category"]], recording.op(int(row["op"])))
            held[key] += int(row["size"])
    return held


def check_sums(found: memprof.Comparison) -> None:
    """All that must hold of any comparison."""
    assert found.delta == found.b.requested - found.a.requested
    assert sum(row["delta"] for row in found.rows) == found.delta
    assert sum(row["before"] for row in found.rows) + found.unchanged == found.before
    assert sum(row["after"] for row in found.rows) + found.unchanged == found.after
    for row in found.rows:
        assert row["delta"] == row["after"] - row["before"]
    shown = [row for row in found.rows if "rest" not in row]
    sizes = [abs(row["delta"]) for row in shown]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("first", NAMED)
@pytest.mark.parametrize("second", NAMED)
def test_what_gpus_recorded_sums_to_the_difference(first: str, second: str) -> None:
    a, b = (GOLDEN / f"{name}.memprof" for name in (first, second))
    for limit in (None, 0, 1, 5):
        found = memprof.compare(a, b, limit=limit)
        check_sums(found)
        assert len(found.rows) <= (limit + 1 if limit is not None else 10**6)
    other = memprof.compare(b, a)
    assert other.delta == -found.delta
    assert other.unchanged == memprof.compare(a, b).unchanged
    if first == second:
        assert found.rows == []
        assert found.unchanged == found.before


def test_rows_are_those_of_a_naive_count() -> None:
    recordings = [memprof.load(GOLDEN / f"{n}.memprof") for n in ("convnet", "graphed")]
    found = compare(*recordings, by=("category", "op"))
    before, after = (naive(recording, "cuda:0") for recording in recordings)
    expected = {
        key: after[key] - before[key]
        for key in before | after
        if after[key] != before[key]
    }
    assert {(r["category"], r["op"]): r["delta"] for r in found.rows} == expected


@pytest.mark.parametrize("seed", range(6))
def test_random_streams_sum_up_on_every_device(seed: int) -> None:
    a, b = (
        Recording(
            _core.from_events(random_stream(seed + i, length=1500, gpus=2), NAMES)
        )
        for i in (0, 100)
    )
    for device in set(a.devices) & set(b.devices):
        for at in ("peak", "end"):
            for by in (BY, "category", ("where", "step")):
                check_sums(memprof.compare(a, b, device=device, at=at, by=by, limit=4))


WORDS = st.sampled_from(["", "x", "layers.0.fc", "layers.1.fc", "layers.2.fc"])
KEY = st.tuples(
    st.sampled_from(["activation", "temporary"]),
    WORDS,
    st.sampled_from(["aten::mm", "aten::add"]),
    st.sampled_from(["", "m.py:7", "m.py:8", "m.py:9", "n.py:8"]),
    st.sampled_from(["f", "g"]),
    st.sampled_from(["", "[8, 64]", "[16, 64]"]),
    st.sampled_from(["", "float16", "float32"]),
)
ACCOUNT = st.dictionaries(
    KEY, st.tuples(st.integers(0, 2**62), st.integers(1, 9)), max_size=12
)


@settings(max_examples=300, deadline=None)
@given(ACCOUNT, ACCOUNT, st.booleans(), st.integers(0, 5))
def test_no_byte_and_no_block_is_lost_or_counted_twice(
    a: dict, b: dict, fold: bool, limit: int
) -> None:
    rows, same = differences(KEYS, a, b, fold=fold)
    for table in (rows, cut(rows, limit, KEYS)):
        for side, held in (("before", a), ("after", b)):
            total = sum(row[side] for row in table) + same
            assert total == sum(size for size, _ in held.values())
        delta = sum(row["delta"] for row in table)
        assert delta == sum(s for s, _ in b.values()) - sum(s for s, _ in a.values())
    blocks = [sum(r[f"{side}_count"] for r in rows) for side in ("before", "after")]
    counts = [sum(count for _, count in held.values()) for held in (a, b)]
    assert blocks[1] - blocks[0] == counts[1] - counts[0]
    assert all(
        (row["before"], row["after"]) != (0, 0) or row["delta"] == 0 for row in rows
    )


@given(ACCOUNT, st.integers(-3, 40))
def test_lines_that_move_with_their_function_are_no_difference(
    a: dict, by: int
) -> None:
    def moved(line: str) -> str:
        file, _, number = line.partition(":")
        return f"{file}:{int(number) + by}" if number else line

    b = {(*key[:3], moved(key[3]), *key[4:]): held for key, held in a.items()}
    rows, same = differences(KEYS, a, b)
    assert rows == []
    assert same == sum(size for size, _ in a.values())


def one(key: dict[str, str], size: int, count: int = 1) -> dict:
    """An account of one key."""
    base = dict.fromkeys(KEYS, "")
    return {tuple({**base, **key}[name] for name in KEYS): (size, count)}


def test_a_type_that_changed_is_one_row() -> None:
    at = {"category": "activation", "op": "aten::mm", "line": "m.py:7", "function": "f"}
    a = one({**at, "shape": "[8, 64]", "dtype": "float16"}, 1024, 24)
    b = one({**at, "shape": "[8, 64]", "dtype": "float32"}, 2048, 24)
    (row,), same = differences(KEYS, a, b)
    assert (row["delta"], row["change"], same) == (1024, "f16>f32", 0)
    b = one({**at, "line": "m.py:9", "shape": "[9, 64]", "dtype": "float16"}, 1152, 24)
    (row,), _ = differences(KEYS, a, b)
    assert (row["line"], row["change"]) == ("m.py:9", "[8, 64]>[9, 64]")


def test_what_is_new_and_gone_is_said() -> None:
    a = one({"category": "gradient", "op": "aten::mm", "line": "m.py:7"}, 5)
    b = one({"category": "temporary", "op": "aten::mm", "line": "m.py:7"}, 6)
    rows, _ = differences(KEYS, a, b)
    assert [(row["delta"], row["change"]) for row in rows] == [(6, "new"), (-5, "gone")]


def test_repeated_layers_are_one_row_but_what_stands_out_is_not() -> None:
    a: dict = {}
    b: dict = {}
    for layer in range(4):
        at = {"category": "activation", "module": f"layers.{layer}.fc", "op": "mm"}
        a |= one(at, 100)
        b |= one(at, 200 if layer else 900)
    rows, _ = differences(KEYS, a, b)
    assert [(r["module"], r["delta"], r["modules"]) for r in rows] == [
        ("layers.0.fc", 800, 1),
        ("layers.*.fc", 300, 3),
    ]
    rows, _ = differences(KEYS, a, b, fold=False)
    assert len(rows) == 4


def test_a_line_that_was_doubled_is_new() -> None:
    at = {"category": "activation", "op": "mm", "function": "f"}
    a = one({**at, "line": "m.py:7"}, 100) | one({**at, "line": "m.py:9"}, 50)
    b = (
        one({**at, "line": "m.py:7"}, 100)
        | one({**at, "line": "m.py:8"}, 100)
        | one({**at, "line": "m.py:10"}, 50)
    )
    (row,), same = differences(KEYS, a, b)
    assert (row["delta"], row["change"], same) == (100, "new", 150)
    assert row["line"] in ("m.py:7", "m.py:8")  # equal lines: either is the new one


def test_split_shape() -> None:
    assert split_shape("bfloat16[]") == ("[]", "bfloat16")
    assert split_shape("") == ("", "")


# -- the object ----------------------------------------------------------------


def run(dtype: str, lines: tuple[int, ...], size: int) -> Recording:
    """A layer that keeps a tensor of SIZE bytes for each of LINES of its code."""
    made = Script()
    made.write("step", address=7, size=1)
    made.write("window_begin", address=7)
    for i, line in enumerate(lines):
        address = 4096 + i * MIB
        at = {"device": -1, "address": address, "size": size, "step": 1, "phase": 1}
        stack = (("forward", "/run/model.py", line),)
        made.write("alloc", op="aten::mm", module="head", stack=stack, flags=35, **at)
        made.write("shape", device=-1, address=address, op=f"{dtype}[256, 256]", step=1)
    made.write("window_end", address=7)
    return Recording(made.core(record_shapes=True, cwd="/run"))


def test_types_are_told_where_both_recordings_have_them() -> None:
    a, b = run("float16", (141, 150), 131072), run("float32", (141, 150), 262144)
    found = memprof.compare(a, b)
    assert found.keys == BY
    rows = [(r["line"], r["change"], r["delta"], r["modules"]) for r in found.rows]
    assert rows == [
        ("model.py:141", "f16>f32", 131072, 1),
        ("model.py:150", "f16>f32", 131072, 1),
    ]
    assert "f16>f32" in str(found)
    b._core.info = "{}"
    found = memprof.compare(a, b)
    assert "dtype" not in found.keys
    assert {row["change"] for row in found.rows} == {""}
    assert "without shapes and types" in str(found)


def test_an_edit_above_a_function_is_no_difference() -> None:
    a, b = run("float32", (141, 150), 262144), run("float32", (143, 152), 262144)
    assert memprof.compare(a, b).rows == []
    # A second buffer on a line of its own is all there is to tell.
    b = run("float32", (143, 144, 153), 262144)
    (row,) = memprof.compare(a, b).rows
    assert (row["delta"], row["change"]) == (262144, "new")
    assert row["line"] in ("model.py:143", "model.py:144")


def test_text_has_the_sums_and_the_instants() -> None:
    a, b = (GOLDEN / f"{name}.memprof" for name in ("convnet", "checkpointed"))
    found = memprof.compare(a, b, limit=4)
    text = str(found)
    assert "convnet.memprof > checkpointed.memprof" in text
    assert f"{found.before} > {found.after} bytes requested" in text
    assert "in both: step 2 backward" in text
    assert "-25.3 MiB of -25.3 MiB explained" in text
    assert "tests/golden/record.py:58" in text
    assert "more rows" in text
    assert str(found.rows[0]["after"]) in found.text(exact=True)
    moved = str(memprof.compare(a, GOLDEN / "graphed.memprof"))
    assert "peak moved: step 2 backward > before the recording" in moved


def test_as_data() -> None:
    a, b = (GOLDEN / f"{name}.memprof" for name in ("convnet", "checkpointed"))
    found = memprof.compare(a, b)
    facts = json.loads(json.dumps(found.to_dict()))
    assert facts["delta_bytes"] == found.delta == sum(r["delta"] for r in facts["rows"])
    assert facts["a"]["step"] == 2
    rows = found.to_numpy()
    assert rows["delta"].dtype == np.int64
    assert rows["delta"].sum() == found.delta
    assert rows["line"].tolist() == [row["line"] for row in found.rows]
    assert len(memprof.compare(a, a).to_numpy()) == 0


def test_html_is_static_and_escaped(tmp_path: Path) -> None:
    names = [f"<script>{i}" for i in range(99)]
    core = _core.from_events(random_stream(5, length=400, gpus=0), names)
    path = tmp_path / "<b>.memprof"
    Recording(core).save(path)
    empty = Recording(_core.from_events(random_stream(6, length=200, gpus=0), NAMES))
    text = memprof.compare(empty, path)._repr_html_()
    assert "&lt;script&gt;" in text
    assert "<script" not in text
    assert "<b>" not in text
    assert text.count("<tr") == text.count("</tr>")


def test_devices_must_be_alike() -> None:
    cpu = Recording(_core.from_events(random_stream(5, length=400, gpus=0), NAMES))
    gpu = GOLDEN / "convnet.memprof"
    with pytest.raises(ValueError, match=r"a is of cpu and b of cuda:0.*device="):
        memprof.compare(cpu, gpu)


def test_bad_arguments_say_what_there_is() -> None:
    file = GOLDEN / "convnet.memprof"
    with pytest.raises(ValueError, match="cannot compare by 'colour'; choose category"):
        memprof.compare(file, file, by="colour")
    with pytest.raises(ValueError, match="choose 'peak', 'end' or 'step:3'"):
        memprof.compare(file, file, at="start")
    with pytest.raises(ValueError, match="no step 77"):
        memprof.compare(file, file, at="step:77")
    with pytest.raises(ValueError, match="record_shapes=True"):
        memprof.compare(file, file, by=("shape", "dtype"))
    with pytest.raises(TypeError, match="b is int"):
        memprof.compare(file, 5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit must be 0 or more"):
        memprof.compare(file, file, limit=-1)
    assert memprof.compare(file, file, at=3).at == "step:3"


# -- the command ---------------------------------------------------------------


def diff(*words: object) -> int:
    return main(["diff", *map(str, words)])


CONVNET, CHECKPOINTED = (GOLDEN / f"{n}.memprof" for n in ("convnet", "checkpointed"))


def test_diff_prints_the_comparison(capsys: pytest.CaptureFixture) -> None:
    assert diff(CONVNET, CHECKPOINTED, "--limit", 5) == 0
    out, err = capsys.readouterr()
    assert out == str(memprof.compare(CONVNET, CHECKPOINTED, limit=5))
    assert err == ""


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (["peak:5%"], 0),
        (["count:5%"], 3),
        (["peak:5%", "count:2000"], 0),
        (["peak:5%", "count:900", "growth:1KiB/step"], 3),
    ],
)
def test_diff_judges(
    limits: list[str], code: int, capsys: pytest.CaptureFixture
) -> None:
    words = [word for text in limits for word in ("--fail", text)]
    assert diff(CONVNET, CHECKPOINTED, "--json", *words) == code
    out, err = capsys.readouterr()
    verdicts = json.loads(out)["verdicts"]
    assert [v["metric"] for v in verdicts] == [t.partition(":")[0] for t in limits]
    assert any(v["exceeded"] for v in verdicts) == (code == 3)
    assert err.count("memprof: ") == len(limits)
    assert ("exceeds" in err) == (code == 3)


def test_what_is_cut_gets_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    whole = CONVNET.read_bytes()
    torn = tmp_path / "torn.memprof"
    torn.write_bytes(whole[:-20])
    assert diff(CONVNET, torn) == 0  # to look at it is no verdict
    capsys.readouterr()
    assert diff(CONVNET, torn, "--fail", "peak:500%") == 4
    assert "no verdict: torn.memprof is cut" in capsys.readouterr().err


def test_what_was_not_measured_is_said(capsys: pytest.CaptureFixture) -> None:
    assert diff(CONVNET, CHECKPOINTED, "--fail", "outside:5%") == 1
    assert "outside was not measured" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["peak", "peak:5kg", "speed:5%", "growth:1%/step"])
def test_bad_limits_are_usage(text: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        diff(CONVNET, CONVNET, "--fail", text)
    assert ended.value.code == 2
    assert "argument --fail" in capsys.readouterr().err


def test_diff_writes_a_page_but_not_over_one(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    page = tmp_path / "diff.html"
    assert diff(CONVNET, CHECKPOINTED, "--html", page) == 0
    assert page.read_text().startswith("<!doctype html>")
    assert "default-src 'none'" in page.read_text()
    page.write_text("mine")
    capsys.readouterr()
    assert diff(CONVNET, CHECKPOINTED, "--html", page) == 1
    assert "--force" in capsys.readouterr().err
    assert page.read_text() == "mine"
    assert diff(CONVNET, CHECKPOINTED, "--html", page, "--force") == 0
    assert page.read_text() != "mine"
    assert list(tmp_path.iterdir()) == [page]
    assert diff(CONVNET, CHECKPOINTED, "--html", tmp_path / "no" / "x.html") == 1


def test_the_example_of_the_help_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memprof.commands import diff as command

    for name in ("before", "after"):
        (tmp_path / f"{name}.memprof").write_bytes(CONVNET.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert main(command.EXAMPLE.split()[1:]) == 0
