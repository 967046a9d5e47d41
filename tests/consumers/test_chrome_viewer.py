"""The chrome://tracing viewer in Chromium: what it imports is what we wrote.

The viewer is the one inside torch-tb-profiler's wheel.  It was built for browsers
with the first kind of custom elements; ``custom_elements.js`` stands in for those,
so that its own importer runs.  (What it draws is not looked at.)
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from conftest import chromium, text_of, tool

HERE = Path(__file__).parent

IMPORT = """(text) => {
  const model = new tr.Model();
  new tr.importer.Import(model).importTraces([text]);
  const found = {warnings: model.importWarnings.map(w => w.message), processes: {}};
  for (const process of model.getAllProcesses()) {
    const one = {name: process.name, threads: {}, counters: {}};
    for (const thread of Object.values(process.threads)) {
      one.threads[thread.tid] = {
        name: thread.name,
        slices: thread.sliceGroup.slices.map(s => [s.title, s.start, s.duration]),
        spans: thread.asyncSliceGroup.slices.map(s => s.title)};
    }
    for (const counter of Object.values(process.counters)) {
      one.counters[counter.name] = Object.fromEntries(counter.series.map(
        s => [s.name, s.samples.map(x => x.value)]));
    }
    found.processes[process.pid] = one;
  }
  found.flows = model.flowEvents.length;
  return found;
}"""


@pytest.fixture(scope="module")
def viewer():
    package = Path(tool("torch_tb_profiler").__file__).parent
    api = tool("playwright.sync_api")
    with api.sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox"]
        )
        page = browser.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.add_init_script(path=str(HERE / "custom_elements.js"))
        page.goto((package / "static" / "trace_viewer_full.html").as_uri())

        def load(text):
            found = page.evaluate(IMPORT, text)
            assert problems == []
            return found

        yield load
        browser.close()


def test_the_viewer_imports_every_trace(viewer, traces):
    for name, path in traces.items():
        text = text_of(path)
        events = json.loads(text)["traceEvents"][:-1]
        found = viewer(text)
        assert found["warnings"] == [], name
        for pid, process in found["processes"].items():
            mine = [e for e in events if str(e["pid"]) == pid]
            (process_name,) = {
                e["args"]["name"] for e in mine if e["name"] == "process_name"
            }
            assert process["name"] == process_name
            written = Counter(
                (str(e["tid"]), e["name"])
                for e in mine
                if e["ph"] == "X" or (e["ph"] == "i" and e["s"] == "t")
            )
            shown = Counter(
                (tid, title)
                for tid, thread in process["threads"].items()
                for title, _, _ in thread["slices"]
            )
            assert shown == written, (name, pid)
            spans = [t for x in process["threads"].values() for t in x["spans"]]
            assert len(spans) >= sum(e["ph"] == "b" for e in mine) - len(
                [e for e in mine if e["ph"] == "b" and not e["args"]["bytes"]]
            )
            for counter, series in process["counters"].items():
                values = [
                    e["args"].get("bytes")
                    for e in mine
                    if e["ph"] == "C" and e["name"] == counter
                ]
                if counter != "by category":
                    assert sorted(series["bytes"]) == sorted(values), (name, counter)
        assert found["flows"] == sum(e["ph"] == "s" for e in events), name


def test_the_viewer_refuses_what_is_broken(viewer, traces):
    text = text_of(traces["convnet"])
    found = viewer(text.replace('"ph":"e"', '"ph":"n"'))
    assert found["warnings"]
