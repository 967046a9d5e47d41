"""Snapshots and torch: its own tools on our files, our reader on its files."""

from __future__ import annotations

import json
import pickle
import re
import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import memprof  # noqa: E402

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "validators"))

from check_snapshot import check_snapshot  # noqa: E402
from torch.cuda import _memory_viz as viz  # noqa: E402

GOLDEN = sorted((TESTS / "golden").glob("*.memprof"))


def train(prof_step=lambda: None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)
    )
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.randn(32, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        prof_step()


@pytest.fixture(scope="module")
def recorded():
    with memprof.profile() as prof:
        train(prof.step)
    return prof


def flamegraph(lines: str) -> str:
    return lines


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_torchs_own_tool_takes_what_a_gpu_recorded(path, tmp_path):
    recording = memprof.load(path)
    recording.export_snapshot(tmp_path / "a.pickle")
    data = (tmp_path / "a.pickle").read_bytes()
    assert check_snapshot(data) == []
    snapshot = pickle.loads(data)
    stats = recording._core.stats(0)

    text = viz.segsum(snapshot)
    assert f"segments: {len(snapshot['segments'])}" in text
    total = sum(s["total_size"] for s in snapshot["segments"])
    assert f"total_reserved: {viz.Bytes(total)}" in text
    allocated = sum(
        recording._core.stats(-1 if d == "cpu" else 0)["requested_bytes"]["current"]
        for d in recording.devices
    )
    assert f"total_allocated: {viz.Bytes(allocated)}" in text

    said = viz.trace(snapshot)
    gpu = snapshot["device_traces"][0]
    if gpu:
        assert f"Device 0 ----------------\n{len(gpu)} entries" in said
        births = [
            entry
            for trace in snapshot["device_traces"]
            for entry in trace
            if entry["action"] == "alloc"
        ]
        assert len(re.findall(r"^\w+ = \S+\[\d+:", said, re.M)) == len(births)

    lines = viz.memory(snapshot, flamegraph)
    sums = re.findall(r"^stream_\d+;active_allocated;.* (\d+)$", lines, re.M)
    whole = sum(
        b["size"]
        for s in snapshot["segments"]
        for b in s["blocks"]
        if b["state"] == "active_allocated"
    )
    assert sum(map(int, sums)) == whole  # what was asked for, and <gaps>
    assert viz.segments(snapshot, flamegraph).count(";seg_") >= len(
        snapshot["segments"]
    )
    lines = viz.compare(snapshot["segments"], [], flamegraph)
    assert "only_before;" in lines
    assert stats["reserved_bytes"]["current"] <= total

    for segments in (False, True):
        html = viz.trace_plot(snapshot, plot_segments=segments)
        assert "MemoryViz" in html
    assert "Allocator State History" in viz.segment_plot(snapshot)
    # Its filter changes the snapshot, so it comes last.
    assert "MemoryViz" in viz.trace_plot(snapshot, filter_freed=True)


def test_a_cpu_run_is_valid_and_comes_back(recorded, tmp_path):
    recorded.export_snapshot(tmp_path / "a.pickle")
    data = (tmp_path / "a.pickle").read_bytes()
    assert check_snapshot(data) == []
    recording = recorded.recording
    again = memprof.load(tmp_path / "a.pickle")
    assert again.devices[0] == "cpu"  # of a GPU, too, where other tests use one
    for one, other in ((recording, again),):
        mine = one.timeline("cpu").bytes
        theirs = other.timeline("cpu").bytes
        assert mine.max(axis=0).tolist() == theirs.max(axis=0).tolist()
        assert one.peak("cpu").requested == other.peak("cpu").requested
        assert one.peak("cpu").categories == other.peak("cpu").categories
        assert one.steps["number"].tolist() == other.steps["number"].tolist()
        for number in one.steps["number"].tolist():
            ends = [
                sorted(
                    (int(row["address"]), int(row["size"]))
                    for row in r.at(step=number, device="cpu").live()
                )
                for r in (one, other)
            ]
            assert ends[0] == ends[1]
        lines = [
            {
                row["line"]: row["bytes"]
                for row in r.peak("cpu").rows(("line",))
                if row["line"]
            }
            for r in (one, other)
        ]
        assert lines[0] == lines[1]
        assert len(lines[0]) > 1
    snapshot = pickle.loads(data)
    assert snapshot["memprof"]["cpu"] == 0
    assert "Device 0" in viz.trace(snapshot)
    assert viz.segsum(snapshot)
    births = [e for e in snapshot["device_traces"][0] if e["action"] == "alloc"]
    ops = {e["user_metadata"].get("op") for e in births}
    assert "aten::addmm" in ops
    assert {e["user_metadata"]["phase"] for e in births} >= {"forward", "backward"}
    assert any(e.get("forward_frames") for e in births)


def kineto(tmp_path, name):
    activities = [torch.profiler.ProfilerActivity.CPU]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(
            activities=activities,
            profile_memory=True,
            record_shapes=True,
            with_stack=True,
            with_modules=True,
        ) as prof:
            train()
        prof.export_chrome_trace(str(tmp_path / name))
        prof.export_memory_timeline(str(tmp_path / "t.raw.json.gz"), device="cpu")
        prof.export_memory_timeline(str(tmp_path / "t.json"), device="cpu")


def test_torchs_traces_and_timelines_are_read(tmp_path):
    kineto(tmp_path, "trace.json.gz")
    recording = memprof.load(tmp_path / "trace.json.gz")
    assert recording.devices == ["cpu"]
    ops = {
        recording.op(row["op"])
        for row in recording.allocations("cpu")
        if row["op"] != 2**32 - 1
    }
    assert "aten::addmm" in ops or "aten::mm" in ops
    assert recording.info["imported"]["damage"] is None
    import gzip

    events = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    totals = [
        e["args"]["Total Allocated"]
        for e in events["traceEvents"]
        if e.get("name") == "[memory]"
    ]
    assert recording.peak("cpu").requested == max(totals)
    assert (
        recording.at(event=len(recording.events()) - 1, device="cpu").requested
        == totals[-1]
    )
    assert "at peak" in str(recording.summary())

    raw = memprof.load(tmp_path / "t.raw.json.gz")
    times, sizes = json.loads((tmp_path / "t.json").read_text())
    assert len(times) == len(sizes)
    line = raw.timeline("cuda:0")
    assert line.bytes[-1].tolist()[:8] == sizes[-1][1:]
    assert int(line.bytes.sum(axis=1).max()) >= max(map(sum, sizes))
    with pytest.raises(memprof.MemprofError, match="sums"):
        memprof.load(tmp_path / "t.json")


def test_what_torch_makes_of_a_profile_is_read(tmp_path):
    """Its converter of profiles to snapshots: CPU behind the GPUs, categories."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(
            profile_memory=True, record_shapes=True, with_stack=True
        ) as prof:
            train()
        snapshot = viz._profile_to_snapshot(prof)
    path = tmp_path / "theirs.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    recording = memprof.load(path)
    assert recording.devices
    device = recording.devices[-1]
    peak = recording.peak(device)
    assert peak.categories["parameter"] > 0
    assert peak.categories["gradient"] > 0
    assert recording.info["imported"]["from"] == "a memory snapshot of torch"
    assert str(recording.summary(device))
