"""Traces of torch.profiler, raw timelines, and what is neither; without torch."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memprof
from memprof import _core, imports, json_stream
from memprof.cli import main
from memprof.json_stream import Cut, Text, items

PID = 77


def memory(ts, addr, size, total, device=-1, tid=1, reserved=0):
    args = {
        "Total Reserved": reserved, "Total Allocated": total, "Bytes": size,
        "Device Id": device, "Device Type": int(device >= 0), "Addr": addr,
        "Ev Idx": 3,
    }  # fmt: skip
    return {
        "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",
        "pid": PID, "tid": tid, "ts": ts, "args": args,
    }  # fmt: skip


def slice_(name, ts, dur, cat="cpu_op", tid=1):
    return {
        "ph": "X", "cat": cat, "name": name, "pid": PID, "tid": tid, "ts": ts,
        "dur": dur, "args": {"External id": 1},
    }  # fmt: skip


def trace(*events, base=1_700_000_000_000_000_000):
    return {
        "schemaVersion": 1,
        "deviceProperties": [],
        "baseTimeNanoseconds": base,
        "traceEvents": list(events),
        "traceName": "x",
    }


EVENTS = [
    slice_("ProfilerStep#5", 0.0, 100.0, "user_annotation"),
    slice_("ProfilerStep#6", 100.0, 100.0, "user_annotation"),
    slice_("nn.Module: Linear_0", 5.0, 40.0, "python_function"),
    slice_("aten::linear", 10.0, 30.0),
    slice_("aten::mm", 12.0, 5.0),
    memory(1.5, 4096, 100, 1100, 0, reserved=2048),
    memory(13.125, 8192, 50, 1150, 0, reserved=2048),
    memory(30.0, 4096, -100, 1050, 0, reserved=2048),
    memory(120.0, 999, -600, 450, 0, reserved=1024),
    memory(121.0, 64, 8, 8),
    memory(130.0, 64, -8, 0),
    {"ph": "M", "name": "process_name", "pid": PID, "tid": 0, "ts": 0, "args": {}},
    {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 200},
]


def write(path, value, zipped=False):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    path.write_bytes(gzip.compress(data) if zipped else data)
    return path


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", ["a.json", "a.pt.trace.json.gz", "a.bin"])
def test_a_trace_is_a_recording(name, zipped, tmp_path):
    recording = memprof.load(write(tmp_path / name, trace(*EVENTS), zipped))
    assert recording.devices == ["cpu", "cuda:0"]
    assert recording.steps["number"].tolist() == [5, 6]
    lives = recording.allocations("cuda:0")
    # 600 bytes that are freed, 400 that are only known as a sum, and two births.
    assert lives["size"].tolist() == [600, 400, 100, 50]
    assert lives["born_event"].tolist()[:2] == [-1, -1]
    assert recording.op(lives["op"][3]) == "aten::mm"
    assert recording.module(lives["module"][3]) == "Linear_0"
    assert lives["op"][2] == 2**32 - 1
    totals = recording.timeline("cuda:0", by="total")
    levels = [level for level, _ in itertools.groupby(totals.bytes[:, 0].tolist())]
    assert levels[-4:] == [1100, 1150, 1050, 450]
    assert recording.peak("cuda:0").requested == 1150
    assert recording.peak("cuda:0").reserved == 2048
    assert recording.at(step=6, device="cuda:0").reserved == 1024
    assert recording.peak("cuda:0").categories["unknown"] == 1150
    wall = recording.info["start_wall_ns"]
    assert wall == 1_700_000_000_000_000_000  # where the first step begins
    assert not any(recording.info["defects"].values())
    told = recording.info["imported"]
    assert told["from"] == "a trace of torch.profiler"
    assert told["file"] == name
    assert told["damage"] is None
    assert any("400 bytes" in text for text in told["lacks"])
    for device in recording.devices:
        assert "at peak" in str(recording.summary(device))
        assert recording.key_averages(device=device).table()
        assert recording.peak(device).rows()


def test_what_is_missing_in_a_trace_is_counted(tmp_path):
    events = [memory(1, 64, 8, 8), memory(2, 128, 8, 24), memory(3, 64, -8, 16)]
    recording = memprof.load(write(tmp_path / "a.json", trace(*events)))
    lacks = " ".join(recording.info["imported"]["lacks"])
    assert "1 times the trace's sum is another" in lacks


def test_a_list_of_events_is_a_trace_too(tmp_path):
    recording = memprof.load(write(tmp_path / "a.json", EVENTS))
    assert recording.steps["number"].tolist() == [5, 6]


def test_a_trace_out_of_order_is_put_in_order(tmp_path):
    events = EVENTS[::-1]
    recording = memprof.load(write(tmp_path / "a.json", trace(*events)))
    assert recording.peak("cuda:0").requested == 1150
    assert (np.diff(recording.events()["time_ns"]) >= 0).all()


def test_out_of_memory_is_an_event(tmp_path):
    args = {"Bytes": 1 << 30, "Device Type": 1, "Device Id": 0}
    oom = {
        "ph": "i",
        "name": "[OutOfMemory]",
        "pid": 1,
        "tid": 1,
        "ts": 5,
        "args": args,
    }
    recording = memprof.load(write(tmp_path / "a.json", trace(EVENTS[5], oom)))
    kinds = [recording.kind(k) for k in recording.events()["kind"]]
    assert "oom" in kinds


def test_a_trace_without_memory_says_what_to_do(tmp_path, capsys):
    path = write(tmp_path / "a.json", trace(*EVENTS[:5]))
    with pytest.raises(memprof.MemprofError, match="profile_memory=True"):
        memprof.load(path)
    assert main(["summary", str(path)]) == 1
    assert "profile_memory=True" in capsys.readouterr().err


def test_odd_memory_events_are_counted_and_left_out(tmp_path):
    odd = [
        memory("soon", 1, 2, 3),
        memory(1, "x", 2, 3),
        memory(1, 1, None, 3),
        memory(1, 1 << 70, 5, 5),
        memory(1e400, 1, 2, 3),
        {"ph": "i", "name": "[memory]"},
        {"ph": "i", "name": "[memory]", "args": 5, "ts": 1},
        memory(1, 1, 2, 3, device=1 << 40),
    ]
    data = json.dumps(trace(*EVENTS, *odd)).encode()
    recording = memprof.load(write(tmp_path / "a.json", data))
    assert recording.peak("cuda:0").requested == 1150
    assert f"{len(odd)} memory events" in " ".join(recording.info["imported"]["lacks"])


@pytest.mark.parametrize("zipped", [False, True])
def test_a_cut_trace_gives_what_precedes(zipped, tmp_path):
    many = [memory(i + 1, 64 * i + 64, 8, 8 * i + 8) for i in range(4000)]
    rng = np.random.default_rng(0)
    for event in many:  # so that it does not compress to nothing
        event["args"]["noise"] = rng.bytes(24).hex()
    data = json.dumps(trace(*many)).encode()
    data = gzip.compress(data) if zipped else data
    seen = []
    for part in (0.3, 0.6, 0.999):
        path = write(tmp_path / "a.json", data[: int(len(data) * part)])
        recording = memprof.load(path)
        assert "byte" in recording.info["imported"]["damage"]
        seen.append(len(recording.allocations("cpu")))
    assert seen == sorted(seen)
    assert 900 < seen[0] < 1400
    assert seen[2] > 3950


def test_a_control_character_is_no_reason_to_give_up(tmp_path):
    data = json.dumps(trace(*EVENTS)).replace("aten::linear", "a\x01\tb").encode()
    recording = memprof.load(write(tmp_path / "a.json", data))
    assert recording.info["imported"]["damage"] is None


# -- raw timelines ------------------------------------------------------------------

ROWS = [
    [-1, 1, 1000, 0],
    [-1, 1, 500, 1],
    [5000, 2, 64, 4],
    [6000, 2, 32, 7],
    [6000, 3, -64, 4],
    [6000, 3, 64, 2],
    [7000, 4, -32, 7],
    [8000, 4, -500, 1],
    [9000, 4, -77, 3],
]


def test_a_raw_timeline_is_a_recording(tmp_path):
    recording = memprof.load(write(tmp_path / "a.raw.json.gz", ROWS, True))
    assert recording.devices == ["cuda:0"]
    line = recording.timeline("cuda:0")
    assert dict(zip(line.labels, line.bytes[-1].tolist(), strict=True)) == {
        **dict.fromkeys(line.labels, 0), "parameter": 1000, "input": 64,
    }  # fmt: skip
    assert recording.peak().requested == 1596
    assert recording.peak(category="unknown").categories["unknown"] == 32
    info = recording.info
    assert info["start_wall_ns"] == 5000
    lacks = " ".join(info["imported"]["lacks"])
    assert "1 frees of blocks" in lacks
    assert "cuda:0" in lacks
    assert "at peak" in str(recording.summary())
    again = tmp_path / "again.memprof"
    recording.save(again)
    assert memprof.load(again).peak().categories == recording.peak().categories


def test_an_empty_raw_timeline(tmp_path):
    assert memprof.load(write(tmp_path / "a.json", [])).devices == []


@pytest.mark.parametrize(
    "value", [[[], []], [[1], [[0] * 9]], [[1, 2, 3, 4], [[0] * 9] * 4], [[1, 2]]]
)
@pytest.mark.parametrize("zipped", [False, True])
def test_sums_are_no_recording(value, zipped, tmp_path):
    with pytest.raises(memprof.MemprofError, match=r"sums|raw timeline"):
        memprof.load(write(tmp_path / "timeline.json", value, zipped))


@pytest.mark.parametrize(
    "row", [[1, 9, 5, 0], [1, 2, 5, 8], [1, 2, "x", 0], [1, 2, 5], 7, None, {}]
)
def test_a_row_that_is_none_is_named(row, tmp_path):
    with pytest.raises(memprof.MemprofError, match="its row 2 is not"):
        memprof.load(write(tmp_path / "a.json", [*ROWS[:2], row, *ROWS[2:]]))


# -- what it is is told by what is in it ----------------------------------------------


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"MEMPROF\0rest", imports.RECORDING),
        (b"", imports.RECORDING),
        (b"plain text", imports.RECORDING),
        (b"\x80\x04}.", imports.SNAPSHOT),
        (b"\x80\x02}.", imports.SNAPSHOT),
        (b"\x80\x09", imports.RECORDING),
        (b'{"schemaVersion": 1', imports.TRACE),
        (b' \n[ {"ph": "X"', imports.TRACE),
        (b"\xef\xbb\xbf{", imports.TRACE),
        (b"[[1, 2, -3, 0], [", imports.RAW),
        (b"[ ]", imports.RAW),
        (b"[5]", imports.RECORDING),
        (b"\x1f\x8bnot gzip", imports.RECORDING),
    ],
)
def test_kinds(data, kind, tmp_path):
    assert imports.kind_of(write(tmp_path / "x", data)) == kind


def test_what_is_nothing_says_so_as_before(tmp_path):
    for data in (b"", b"plain text", b"\x1f\x8bxxxx", b"[5]"):
        with pytest.raises(memprof.MemprofError, match="not a memprof recording"):
            memprof.load(write(tmp_path / "x", data))
    with pytest.raises(FileNotFoundError):
        memprof.load(tmp_path / "nowhere")
    with pytest.raises((memprof.MemprofError, OSError)):
        memprof.load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(memprof.MemprofError, match="not a regular file"):
        memprof.load(tmp_path / "pipe")


# -- the stream ---------------------------------------------------------------------


def streamed(path, key="traceEvents"):
    text, rest = Text(path), {}
    try:
        return list(items(text, key, rest)), rest
    finally:
        text.close()


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 1 << 20])
def test_the_stream_is_json(chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "CHUNK", chunk)
    value = trace(*EVENTS, {"text": 'é"\\ \U0001f600'}, 5, -1.5e3, None, [])
    found, rest = streamed(write(tmp_path / "a.json", value))
    assert found == value.pop("traceEvents")
    assert rest == value


@settings(max_examples=150, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    ),
    st.binary(max_size=8),
    st.integers(0, 200),
)
def test_anything_as_json_is_read_or_refused(tmp_path, value, noise, at):
    data = bytearray(json.dumps(trace(*EVENTS, value)).encode())
    at %= len(data)
    data[at : at + len(noise)] = noise
    for body in (data, json.dumps([*ROWS, value]).encode(), json.dumps(value).encode()):
        path = write(tmp_path / "a.json", bytes(body))
        with contextlib.suppress(memprof.MemprofError):
            assert isinstance(memprof.load(path), memprof.Recording)


def test_depth_and_length_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "MOST_VALUE", 10_000)
    deep = (
        b'{"traceEvents": [' + json.dumps(EVENTS[5]).encode() + b", " + b"[" * 200_000
    )
    recording = memprof.load(write(tmp_path / "a.json", deep))
    assert recording.info["imported"]["damage"]
    long = (
        b'{"traceEvents": ['
        + json.dumps(EVENTS[5]).encode()
        + b', "'
        + b"x" * 9_999_999
    )
    recording = memprof.load(write(tmp_path / "a.json", long))
    assert "10000 characters" in recording.info["imported"]["damage"]


def test_a_gzip_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "LEAST_LIMIT", 1 << 20)
    bomb = b'{"traceEvents": [' + b" " * (64 << 20)
    with pytest.raises(memprof.MemprofError, match="decompresses"):
        memprof.load(write(tmp_path / "a.json.gz", bomb, True))


def test_the_stream_says_where_it_ends(tmp_path):
    with pytest.raises(Cut, match="about byte 4"):
        streamed(write(tmp_path / "a.json", b'{"a"'))
    assert streamed(write(tmp_path / "a.json", b"{}")) == ([], {})
    assert streamed(write(tmp_path / "a.json", b'{"traceEvents": [1,]}')) == ([1], {})


def test_imported_recordings_can_be_saved_and_exported(tmp_path):
    recording = memprof.load(write(tmp_path / "a.json", trace(*EVENTS)))
    recording.save(tmp_path / "a.memprof")
    again = memprof.load(tmp_path / "a.memprof")
    assert again.info["imported"] == recording.info["imported"]
    assert again.peak("cuda:0").requested == 1150
    again.export_snapshot(tmp_path / "a.pickle")
    third = memprof.load(tmp_path / "a.pickle")
    assert third.peak("cuda:0").requested == 1150
    assert _core.CATEGORIES[third.allocations("cuda:0")["category"][0]] == "unknown"
