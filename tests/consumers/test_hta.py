"""Holistic Trace Analysis: its parsers of traces and of memory timelines."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest
from conftest import text_of, tool

import memprof


def parsed(folder):
    """Return HTA's object of a folder, which leaves nothing out."""
    analysis = tool("hta.trace_analysis").TraceAnalysis
    return analysis(trace_dir=str(folder), include_last_profiler_step=True).t


def test_hta_reads_every_trace(traces, recordings, tmp_path):
    for name, path in traces.items():
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(path, folder)
        read = parsed(folder)
        events = json.loads(text_of(path))["traceEvents"]
        (rank,) = read.get_ranks()
        frame = read.get_trace(rank)
        texts = read.symbol_table.sym_table
        found = Counter(texts[index] for index in frame["name"])
        assert found == Counter(e["name"] for e in events if e["ph"] == "X"), name
        numbers = recordings[name].steps["number"].tolist()
        assert [n for n in numbers if found[f"ProfilerStep#{n}"] != 1] == []


def test_hta_tells_ranks_apart(recordings, tmp_path):
    for rank in (0, 3):
        recording = memprof.Recording(recordings["convnet"]._core, None)
        before = recording._core.info
        place = {"backend": "nccl", "rank": rank, "world_size": 4}
        recording._core.info = json.dumps({**json.loads(before), "distributed": place})
        recording.export_chrome_trace(tmp_path / f"rank{rank}.json.gz")
        recording._core.info = before
    assert sorted(parsed(tmp_path).get_ranks()) == [0, 3]


def test_htas_memory_timeline_ends_as_the_recording(recordings, tmp_path):
    memory = tool("hta.memory_analysis")
    for name, recording in recordings.items():
        for device in recording.devices:
            path = tmp_path / f"{name}.{device.replace(':', '')}.raw.json.gz"
            recording.export_memory_timeline(path, device)
            times, sizes = memory.MemoryAnalysis(str(path))._process_raw_events()
            line = recording.timeline(device, "total").bytes[:, 0]
            lives = recording.allocations(device)
            if not len(lives):
                assert sizes == []
                continue
            assert sum(sizes[-1]) == line[-1], (name, device)
            assert len(times) == len(sizes)
            # One sample a nanosecond: of events at one time only the last.
            assert max(map(sum, sizes)) == pytest.approx(line.max(), rel=0.2)
