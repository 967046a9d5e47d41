"""The validators find what is wrong: each on a good file with one thing broken."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from check_chrome import check_chrome
from check_timeline import check_timeline

import memprof

CONVNET = Path(__file__).parents[1] / "golden" / "convnet.memprof"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    recording = memprof.load(CONVNET)
    recording.export_chrome_trace(folder / "t.json", full=True)
    recording.export_memory_timeline(folder / "m.json")
    recording.export_memory_timeline(folder / "m.raw.json.gz")
    trace = (folder / "t.json").read_bytes()
    assert check_chrome(trace) == []
    raw = gzip.decompress((folder / "m.raw.json.gz").read_bytes())
    return json.loads(trace), json.loads((folder / "m.json").read_bytes()), raw


def first(trace, **wanted):
    return next(
        e for e in trace["traceEvents"] if all(e.get(k) == v for k, v in wanted.items())
    )


BREAKS = {
    "no dur": lambda t: first(t, ph="X").pop("dur"),
    "no cat": lambda t: first(t, ph="X").pop("cat"),
    "no name": lambda t: first(t, ph="C").pop("name"),
    "tid 0": lambda t: first(t, ph="X", cat="memprof.op").update(tid=0),
    "text tid": lambda t: first(t, ph="X").update(tid="a"),
    "overlap": lambda t: first(t, cat="memprof.step").update(
        dur=first(t, cat="memprof.step")["dur"] + 1
    ),
    "counter is text": lambda t: first(t, ph="C")["args"].update(bytes="1"),
    "counter has an id": lambda t: first(t, ph="C").update(id=1),
    "sum": lambda t: first(t, ph="C", name="cat/activation")["args"].update(bytes=1),
    "no end": lambda t: t["traceEvents"].remove(first(t, ph="e")),
    "number as id": lambda t: first(t, ph="b").update(id=1),
    "no finish": lambda t: t["traceEvents"].remove(first(t, ph="f")),
    "flow outside": lambda t: first(t, ph="s").update(ts=0.0),
    "no such device": lambda t: first(t, name="[memory]")["args"].update(
        {"Device Id": 9}
    ),
    "bytes": lambda t: [e for e in t["traceEvents"] if e["name"] == "[memory]"][5][
        "args"
    ].update(Bytes=12345),
    "rank behind": lambda t: t.update(distributedInfo=t.pop("distributedInfo")),
    "no rank": lambda t: t["distributedInfo"].pop("rank"),
    "two ranks": lambda t: t["distributedInfo"].update(deep={"rank": 1}),
    "no window end": lambda t: t["traceEvents"].pop(),
    "step without number": lambda t: first(t, name="ProfilerStep#2").update(
        name="ProfilerStep#x"
    ),
    "nothing takes time": lambda t: [
        e.update(dur=0)
        for e in t["traceEvents"]
        if e["ph"] == "X" and e["pid"] < 9_000_000
    ],
    "deep metadata": lambda t: t["metadata"].update(a=[1]),
    "negative ts": lambda t: first(t, ph="X").update(ts=-1),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_trace_is_found(good, name):
    trace = json.loads(json.dumps(good[0]))
    assert check_chrome(json.dumps(trace).encode()) == []
    BREAKS[name](trace)
    assert check_chrome(json.dumps(trace).encode()) != []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.replace(b"aten::", "ätén".encode()), "ASCII"),
        (lambda d: d.replace(b'"dur": ', b'"dur": NaN, "x": ', 1), "NaN"),
        (lambda d: d.replace(b'"ph": "X"', b'"ph": "X", "ph": "X"', 1), "twice"),
        (lambda d: d[:-5], "JSON"),
        (lambda d: d.replace(b"aten::randn", b"\\ud800"), "surrogate"),
        (lambda d: gzip.compress(d)[:-9], "cut"),
        (lambda d: gzip.compress(d, mtime=0) * 2, "follows"),
        (lambda d: gzip.compress(d, mtime=5), "mtime"),
    ],
)
def test_broken_text_and_wrapping_are_found(good, change, words):
    wrong = check_chrome(change(json.dumps(good[0]).encode()))
    assert any(words in text for text in wrong), wrong


@pytest.mark.parametrize(
    "change",
    [
        lambda times, sizes: times.pop(),
        lambda times, sizes: times.insert(3, 1),
        lambda times, sizes: times.__setitem__(4, times[3]),
        lambda times, sizes: times.__setitem__(4, float(times[4])),
        lambda times, sizes: sizes[3].append(0),
        lambda times, sizes: sizes[3].__setitem__(0, 1),
        lambda times, sizes: sizes[3].__setitem__(2, -1),
        lambda times, sizes: sizes[3].__setitem__(2, True),
    ],
)
def test_a_broken_series_is_found(good, change):
    series = json.loads(json.dumps(good[1]))
    assert check_timeline(json.dumps(series).encode()) == []
    change(*series)
    assert check_timeline(json.dumps(series).encode()) != []


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[-1].append(0),
        lambda rows: rows[-1].__setitem__(3, 8),
        lambda rows: rows[-1].__setitem__(1, 5),
        lambda rows: rows[-1].__setitem__(0, -1),
        lambda rows: rows.insert(40, rows.pop()),
        lambda rows: rows.append([rows[-1][0], 3, 5, 0]),
        lambda rows: rows.extend([[rows[-1][0], 3, -5, 0], [rows[-1][0], 3, 6, 1]]),
        lambda rows: rows.append([rows[-1][0], 4, -(10**15), 2]),
        lambda rows: rows[0].__setitem__(2, -5),
    ],
)
def test_broken_raw_rows_are_found(good, change):
    rows = json.loads(good[2])
    assert check_timeline(json.dumps(rows).encode()) == []
    change(rows)
    assert check_timeline(json.dumps(rows).encode()) != []
