"""What the page shows is what Python's replay says, to the byte."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from events import NAMES, random_stream

from memprof import _core, load
from memprof.moment import _Columns
from memprof.recording import Recording
from memprof.reports import html
from memprof.reports.shown_paths import shown_place

GOLDEN = Path(__file__).parents[1] / "golden"
KEYS = ("category", "module", "op", "line")


def page_events(recording: Recording, device: str) -> list[int]:
    """Return the recording's events that the page has, and -1."""
    lives = recording.allocations(device)
    both = np.concatenate((lives["born_event"], lives["died_event"]))
    return sorted({-1, *both[both >= 0].tolist()})


def check_totals(page, recording: Recording, device: str, chosen: list[int]) -> None:
    """Compare totals and live sets at events with Python's."""
    answers = page.js(
        "(events) => events.map((e) => [memprof.totalsAt(e), memprof.liveSet(e)])",
        chosen,
    )
    for event, (totals, live) in zip(chosen, answers, strict=True):
        moment = recording.at(event=event, device=device)
        assert totals["allocated"] == moment.requested, event
        categories = {k: v for k, v in totals["categories"].items() if v}
        assert categories == {k: v for k, v in moment.categories.items() if v}, event
        assert sum(totals["categories"].values()) == totals["allocated"]
        # Python puts lines of other folders otherwise: as the page shows them.
        rows: dict[tuple[str, ...], list[int]] = {}
        for row in moment.rows(KEYS):
            key = *(row[k] for k in KEYS[:3]), shown_place(row["line"], "relative")
            sums = rows.setdefault(key, [0, 0])
            sums[0] += row["bytes"]
            sums[1] += row["count"]
        found = {tuple(row["keys"]): [row["bytes"], row["count"]] for row in live}
        assert len(found) == len(live)
        assert found == rows, event
        assert sum(row["bytes"] for row in live) == moment.requested


@pytest.mark.parametrize(
    "name", ["convnet", "checkpointed", "churn", "expandable", "graphed"]
)
def test_random_instants_of_a_gpu_are_pythons(opened, tmp_path, name):
    recording = load(GOLDEN / f"{name}.memprof")
    path = tmp_path / "r.html"
    recording.report(path)
    page = opened(path)
    chance = random.Random(name)
    last = recording.info["events"] - 1
    chosen = [-1, last, *(chance.randint(-1, last) for _ in range(198))]
    check_totals(page, recording, "cuda:0", chosen)
    assert page.js("memprof.peak().bytes") == recording.peak().requested
    assert page.js("memprof.peak().event") == recording.peak().event
    page.check_quiet()


@pytest.mark.parametrize("seed", range(4))
def test_random_streams_of_many_devices_are_pythons(opened, tmp_path, seed):
    recording = Recording(_core.from_events(random_stream(seed, 3000, 3), NAMES))
    path = tmp_path / "r.html"
    recording.report(path)
    page = opened(path)
    chance = random.Random(seed)
    for index, device in enumerate(
        page.js("memprof.meta().devices.map((d) => d.name)")
    ):
        page.js("(d) => memprof.switchDevice(d)", index)
        last = recording.info["events"] - 1
        chosen = [chance.randint(-1, last) for _ in range(60)]
        check_totals(page, recording, device, chosen)
    page.check_quiet()


def test_reserved_and_waiting_are_the_trackers(opened, tmp_path):
    recording = Recording(_core.from_events(random_stream(2, 6000, 1), NAMES))
    path = tmp_path / "r.html"
    recording.report(path, "cuda:0")
    page = opened(path)
    samples = recording.timeline("cuda:0", by="total")
    lives = recording.allocations("cuda:0")
    reserved = np.flatnonzero(np.diff(samples.bytes[:, 2])) + 1
    known = np.unique(
        np.concatenate(
            (lives["born_event"], lives["died_event"], samples.events[reserved])
        )
    )
    known = known[known >= 0]
    checked = waited = 0
    for index in range(0, len(known) - 1, 5):
        # The page's event lasts until its next one.
        until = int(known[index + 1]) - 1
        totals = page.js("(e) => memprof.totalsAt(e)", int(known[index]))
        moment = recording.at(event=until, device="cuda:0")
        assert totals["allocated"] == moment.requested
        assert totals["reserved"] == moment.reserved
        assert totals["allocated"] + totals["waiting"] == moment.active
        waited += totals["waiting"] > 0
        checked += 1
    assert checked > 100
    assert waited > 10


@pytest.mark.parametrize("axis", ["time", "event"])
def test_columns_show_states_that_existed_and_miss_no_peak(opened, tmp_path, axis):
    recording = load(GOLDEN / "checkpointed.memprof")
    path = tmp_path / "r.html"
    recording.report(path, "cuda:0")
    page = opened(path, f"#axis={axis}")
    for zoom in range(6):
        drawn = page.js("memprof.columns()")
        k = len(_core.CATEGORIES)
        parts = np.array(drawn["parts"]).reshape(drawn["n"], k)
        assert np.array_equal(parts.sum(axis=1), drawn["total"])
        for column in range(0, drawn["n"], 37):
            event = drawn["event"][column]
            moment = recording.at(event=event, device="cuda:0")
            assert drawn["total"][column] == moment.requested
            assert parts[column].tolist() == list(moment.categories.values())
        if zoom == 0:
            assert max(drawn["total"]) == recording.peak("cuda:0").requested
        page.page.keyboard.press("w")
        page.settle()
    page.check_quiet()


def test_a_zoomed_out_column_is_the_highest_of_its_events(
    opened, tmp_path, monkeypatch
):
    """With exact replay allowed for few events, the pyramid is what is drawn."""
    script = html.app_script().replace("const EXACT = 150000", "const EXACT = 100")
    assert script != html.app_script()
    monkeypatch.setattr(html, "app_script", lambda: script)
    recording = Recording(_core.from_events(random_stream(1, 60_000, 1), NAMES))
    path = tmp_path / "r.html"
    recording.report(path, "cuda:0")
    page = opened(path, "#axis=event")
    drawn = page.js("memprof.columns()")
    assert not drawn["exact"]
    parts = np.array(drawn["parts"]).reshape(drawn["n"], -1)
    assert np.array_equal(parts.sum(axis=1), drawn["total"])
    assert max(drawn["total"]) == recording.peak("cuda:0").requested
    for column in range(0, drawn["n"], 53):
        moment = recording.at(event=drawn["event"][column], device="cuda:0")
        assert drawn["total"][column] == moment.requested
    page.check_quiet()


@pytest.mark.parametrize("name", ["checkpointed", "expandable"])
def test_segments_are_what_is_reserved(opened, tmp_path, name):
    recording = load(GOLDEN / f"{name}.memprof")
    path = tmp_path / "r.html"
    recording.report(path)
    page = opened(path, "#tab=frag")
    for event in (-1, recording.peak().event, recording.info["events"] - 1):
        page.js("(e) => memprof.select({cursor: memprof.totalsAt(e).event})", event)
        strips = page.js("memprof.segments()")
        totals = page.js("(e) => memprof.totalsAt(e)", event)
        assert sum(strip["bytes"] for strip in strips) == totals["reserved"]
        assert sum(strip["used"] for strip in strips) == totals["allocated"]
        assert all(0 <= strip["gap"] <= strip["bytes"] for strip in strips)


def steps_of(row: dict, low: int, high: int) -> bool:
    return row["step"] is not None and low <= row["step"] <= high


QUERIES = {
    "cat:activation": lambda r: r["category"] == "activation",
    "size>4096": lambda r: r["size"] > 4096,
    "size<=1KiB": lambda r: r["size"] <= 1024,
    "-cat:temporary": lambda r: r["category"] != "temporary",
    "op:aten::op1": lambda r: "aten::op1" in r["op"],
    "module:layers.*.attn": lambda r: (
        r["module"].startswith("layers.") and r["module"].endswith(".attn")
    ),
    "step:FIRST": lambda r: steps_of(r, *[r["first"]] * 2),
    "step:FIRST-LAST size>4KiB": lambda r: (
        steps_of(r, r["first"], r["last"]) and r["size"] > 4096
    ),
    "alive:peak": lambda r: r["alive"],
    "owner:layers.0": lambda r: "layers.0" in r["owner"],
}


def test_the_filter_finds_what_python_finds(opened, tmp_path):
    recording = Recording(_core.from_events(random_stream(5, 4000, 1), NAMES))
    path = tmp_path / "r.html"
    recording.report(path, "cuda:0")
    page = opened(path)
    lives = recording.allocations("cuda:0")
    peak = recording.peak("cuda:0")
    steps = recording.steps
    first = int(lives["born_step"][60])
    last = first + 5
    codes, modules = _Columns(recording, lives["id"].astype(np.int64)).part("module")
    rows = []
    for row, code in zip(lives, codes, strict=True):
        inside = (steps["begin_event"] <= row["born_event"]) & (
            row["born_event"] <= steps["end_event"]
        )
        number = steps["number"][inside]
        rows.append(
            {
                "category": _core.CATEGORIES[row["category"]],
                "size": int(row["size"]),
                "op": recording.op(int(row["op"])),
                "module": modules[code],
                "owner": recording.owner(int(row["owner"])),
                "step": int(number[-1]) if len(number) else None,
                "alive": row["born_event"] <= peak.event
                and (row["died_event"] < 0 or row["died_event"] > peak.event),
                "first": first,
                "last": last,
            }
        )
    for query, test in QUERIES.items():
        wanted = sum(map(bool, map(test, rows)))
        text = query.replace("FIRST", str(first)).replace("LAST", str(last))
        found = page.js("(q) => memprof.search(q)", text)
        assert found == {"count": wanted, "problem": ""}, query
        assert 0 < wanted < len(lives), query


def test_a_wrong_query_is_told(opened, tmp_path):
    path = tmp_path / "r.html"
    load(GOLDEN / "convnet.memprof").report(path)
    page = opened(path)
    for query in ("size>much", "sizes:3", "step:one", "alive:then", "modul:x"):
        found = page.js("(q) => memprof.search(q)", query)
        assert found["problem"], query
        page.settle()
        assert page.test("found").inner_text() == found["problem"]
    page.check_quiet()
