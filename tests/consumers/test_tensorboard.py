"""TensorBoard with the plugin of torch-tb-profiler: its reader, and its pages."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import pytest
from conftest import tool


def test_the_plugins_reader_takes_every_trace(traces, recordings):
    data = tool("torch_tb_profiler.profiler.data")
    views = tool("torch_tb_profiler.profiler.run_generator")
    for name, path in traces.items():
        recording = recordings[name]
        found = data.RunProfileData.parse("host_1", "1", str(path), str(path.parent))
        numbers = [str(n) for n in recording.steps["number"].tolist()]
        assert found.steps_names == numbers or not numbers, name
        run = views.RunGenerator("host_1", "1", found).generate_run_profile()
        shown = {view.name for view in run.views}
        assert {"overall", "operator", "trace"} <= shown, name
        changes = found.memory_snapshot
        assert ("memory" in shown) == (changes is not None)
        lives = recording.allocations("all")
        was_changed = (lives["born_event"] >= 0) | (lives["died_event"] >= 0)
        over = (lives["born_event"] >= 0) & (lives["born_event"] == lives["died_event"])
        assert (changes is not None) == bool((was_changed & ~over).any()), name


def test_the_plugins_ops_and_modules_are_those_recorded(traces, recordings):
    data = tool("torch_tb_profiler.profiler.data")
    path, recording = traces["convnet"], recordings["convnet"]
    found = data.RunProfileData.parse("host_1", "1", str(path), str(path.parent))
    events = recording.events()
    names = {recording.op(op) for op in events["op"][events["kind"] == 16]}
    assert {op.name for op in found.op_list_groupby_name} <= names
    assert len(found.op_list_groupby_name) > 20
    module = tool("torch_tb_profiler.profiler.module_op")
    tool("torch_tb_profiler.profiler.node")
    stats = module.aggegate_module_view(found.tid2tree, found.events)
    assert stats is not None
    assert [s.name for s in stats] == ["Sequential"]
    assert len(stats[0].children) > 3


@pytest.fixture(scope="module")
def server(logs):
    tool("tensorboard")
    tool("torch_tb_profiler")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--load_fast", "false"]
    environment = {**os.environ, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    log = (logs.parent / "tensorboard.log").open("w+")
    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(page, **words):
        base = f"http://127.0.0.1:{port}/data/plugin/pytorch_profiler/{page}"
        with opener.open(f"{base}?{urllib.parse.urlencode(words)}", timeout=30) as got:
            answer = got.read()
            return gzip.decompress(answer) if answer[:2] == b"\x1f\x8b" else answer

    wanted = {folder.name for folder in logs.iterdir()}
    try:
        for _ in range(240):
            assert process.poll() is None, (logs.parent / "tensorboard.log").read_text()
            try:
                state = json.loads(ask("runs"))
                if set(state["runs"]) == wanted and not state["loading"]:
                    break
            except OSError:
                pass
            time.sleep(0.25)
        else:
            pytest.fail((logs.parent / "tensorboard.log").read_text())
        yield ask
    finally:
        process.terminate()
        process.wait(20)
        log.close()


def test_tensorboard_shows_every_run(server, recordings):
    for name in recordings:
        assert json.loads(server("workers", run=name, view="Overview")) == ["host_1"]
        assert {"Overview", "Operator", "Trace"} <= set(
            json.loads(server("views", run=name))
        )
        where = {"run": name, "worker": "host_1", "span": "1"}
        overview = json.loads(server("overview", **where, view="Overview"))
        assert overview["steps"]["rows"]
        assert json.loads(server("trace", **where))["traceEvents"]


def test_tensorboards_memory_curve_is_the_recordings(server, recordings):
    where = {"run": "convnet", "worker": "host_1", "span": "1"}
    recording = recordings["convnet"]
    curve = json.loads(server("memory_curve", **where))
    rows = curve["rows"]["GPU0"]
    names = [column["name"] for column in curve["columns"]]
    allocated = next(i for i, n in enumerate(names) if n.startswith("Allocated"))
    highest = max(row[allocated] for row in rows)
    factor = curve["metadata"]["memory_factor"]
    assert highest == pytest.approx(recording.peak("cuda:0").requested * factor)
