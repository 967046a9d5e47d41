"""What the page says when much is missing, or there is too much: folded allocations,
the driver's figures, half a file, names without end, steps without number."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from events import KIND, rows
from report import training
from test_books import Run, whole_run
from test_totals import MIB

from memprof import _core, load
from memprof.recording import Recording
from memprof.reports import html, page_data

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def folded(tmp_path_factory):
    """A report in which most allocations are folded."""
    recording = training(60_000, periodic=False, seed=3)
    path = tmp_path_factory.mktemp("folded") / "r.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_data, "MAX_ALLOCATIONS", 30_000)
        patch.setattr(page_data, "KEEP", 8_000)
        recording.report(path)
    return recording, path


def test_folded_pages_keep_every_sum_exact(opened, folded):
    recording, path = folded
    page = opened(path)
    told = page.js("memprof.meta().devices[0].folded")
    lives = recording.allocations("cuda:0")
    assert 20_000 < told["count"] < len(lives)
    assert sum(row[0] for row in told["rows"]) == told["bytes"]
    assert sum(row[1] for row in told["rows"]) == told["count"]
    born, died, size = lives["born_event"], lives["died_event"], lives["size"]
    category = lives["category"]
    chance = random.Random(5)
    asked = [chance.randrange(int(died.max())) for _ in range(1000)]
    found = page.js("(all) => all.map((e) => memprof.totalsAt(e))", asked)
    for said in found:
        event = page_event(page, said["event"])
        alive = (born <= event) & ((died < 0) | (died > event))
        sums = np.bincount(category[alive], size[alive], len(_core.CATEGORIES))
        assert said["allocated"] == int(size[alive].sum())
        assert list(said["categories"].values()) == sums.astype(int).tolist()
    page.check_quiet()


def page_event(page, number):
    """Return the recording's number of a page's event, asked for once."""
    if not hasattr(page, "numbers"):
        page.numbers = page.js(
            "(async () => { memprof.select({axis: 'event'}); const found = [];"
            " for (let e = 0; e < memprof.meta().devices[0].events; e++) {"
            "  found.push(memprof.eventNumber(e)); } return found; })()"
        )
    return page.numbers[number] if number >= 0 else -1


def test_folded_pages_miss_no_peak_and_show_it_block_by_block(opened, folded):
    recording, path = folded
    page = opened(path)
    peak = recording.peak()
    assert page.js("memprof.peak().bytes") == peak.requested
    assert max(page.js("memprof.columns().total")) == peak.requested
    rows = page.js(
        "memprof.liveSet(memprof.peak().event, {groupBy: ['category', 'module', 'op']})"
    )
    mine = {
        (row["category"], row["module"], row["op"]): (row["bytes"], row["count"])
        for row in peak.rows(by=("category", "module", "op"))
    }
    assert {tuple(r["keys"]): (r["bytes"], r["count"]) for r in rows} == mine
    # And every step's peak is a state of the page.
    last = page.js("memprof.meta().devices[0].steps.end")
    for place in range(0, len(last), 17):
        step = recording.peak("cuda:0", step=place)
        said = page.js("(e) => memprof.totalsAt(e).allocated", step.event)
        assert said == step.requested
    page.check_quiet()


def test_folded_pages_say_so_where_it_matters(opened, folded):
    recording, path = folded
    page = opened(path)
    assert "folded" in page.test("folded").inner_text()
    assert "folded" in page.test("notes").text_content()
    # Between peaks something is folded: it has a row, and the table still sums.
    event = int(recording.allocations("cuda:0")["born_event"][1000])
    page.js("(e) => memprof.select({cursor: e})", 500)
    page.settle()
    live = page.js("(e) => memprof.liveSet(e)", event)
    assert sum(row["bytes"] for row in live) == page.js(
        "(e) => memprof.totalsAt(e).allocated", event
    )
    page.test("tab-all").click()
    page.settle()
    assert page.test("folded-table").is_visible()
    for tab in ("leaks", "lanes", "frag"):
        page.test(f"tab-{tab}").click()
        page.settle()
    assert "folded" in page.page.locator("#panel").inner_text()
    page.js("memprof.search('op:aten::op3')")
    page.settle()
    assert "not searched" in page.test("found").inner_text()
    page.check_quiet()


def test_what_the_driver_says_is_there_with_its_method(opened, tmp_path):
    recording = whole_run().recording()
    path = tmp_path / "r.html"
    recording.report(path)
    page = opened(path)
    books = recording.books("cuda:0", "peak")
    said = page.js("memprof.meta().devices[0].books")
    assert sum(row[1] for row in said["rows"]) == said["total"] == books.total
    text = page.test("books-table").inner_text()
    assert "NCCL" in text
    assert "unexplained" in text
    assert "3 221 225 472" in page.test("books-device").inner_text().replace(
        "\u202f", " "
    )
    # Process less reserved at the sample is what is outside of torch.
    table = page.js(
        "[...document.querySelectorAll('[data-testid=driver] td.n[title]')]"
        ".map((cell) => Number(cell.title.replace(/\\D/g, '')))"
    )
    assert table[0] + table[1] == table[2] == books.total
    assert "NVML" in page.test("sample").inner_text()
    assert "outside torch" in page.page.locator("#headline").inner_text()
    page.check_quiet()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_accessibility_of_what_only_some_pages_have(opened, folded, tmp_path, theme):
    from axe_playwright_python.sync_playwright import Axe

    path = tmp_path / "r.html"
    whole_run().recording().report(path)
    page = opened(path, color_scheme=theme)
    found = Axe().run(page.page).response["violations"]
    page.open(folded[1], "#tab=all")
    found += Axe().run(page.page).response["violations"]
    assert [(rule["id"], rule["nodes"][0]["html"][:200]) for rule in found] == []
    page.check_quiet()


def test_samples_without_a_figure_are_no_figure(opened, tmp_path):
    run = Run()
    run.segment(20 * MIB)
    run.block(5 * MIB)
    path = tmp_path / "r.html"
    run.recording().report(path)
    page = opened(path)
    assert "not sampled" in page.test("figure-used").inner_text()
    assert "not known" in page.test("driver-none").inner_text()
    assert page.page.get_by_test_id("books").count() == 0
    page.check_quiet()


def test_blocks_without_segments_have_no_reserved_bytes(opened, tmp_path):
    path = tmp_path / "r.html"
    events = [{"kind": 1, "address": 1 << 20, "size": 2000, "device": 0}]
    Recording(_core.from_events(rows(events), [])).report(path)
    page = opened(path)
    assert "not known" in page.test("figure-reserved").inner_text()
    assert page.test("unseen").is_visible()
    assert "-" not in page.test("waterfall").inner_text()
    page.check_quiet()


@pytest.mark.parametrize("share", [0.99, 0.7, 0.01])
def test_half_a_file_still_shows_its_table(opened, tmp_path, share):
    """As a broken download leaves it: the app says that the file is cut."""
    recording = training(20_000, periodic=False)
    text = html.page(recording)
    path = tmp_path / "r.html"
    app = text.index("</script>", text.index('<script>"use strict"')) + 9
    path.write_text(text[: app + int((len(text) - app) * share)])
    page = opened()
    page.page.goto(path.as_uri())
    page.wait("Boolean(document.querySelector('[data-testid=problem]'))")
    assert "copied whole" in page.test("problem").inner_text()
    assert page.page.locator("#mp-static table").is_visible()
    assert page.js("memprof.ready") is False


def test_a_file_cut_before_its_app_is_the_table(opened, tmp_path):
    text = html.page(load(GOLDEN / "churn.memprof"))
    path = tmp_path / "r.html"
    path.write_text(text[: text.index('id="mp-core"') + 200])
    page = opened()
    page.page.goto(path.as_uri())
    assert page.page.locator("#mp-static table").is_visible()
    assert page.said == []


def test_the_app_stands_before_the_large_blocks():
    text = html.page(load(GOLDEN / "checkpointed.memprof"))
    app = text.index('<script>"use strict"')
    assert text.index('id="mp-core"') < app < text.index('id="mp-allocs-0"')


def test_modules_nested_without_end(opened, tmp_path):
    deep, wide = ".".join("a" * 20_000), [f"m{i}.x" for i in range(2000)]
    names = [deep, *wide]
    events = [
        {
            "kind": KIND["alloc"],
            "address": (i + 1) << 20,
            "size": 1 << (12 if i else 24),
            "device": -1,
            "module": i,
            "time_ns": 1000 * i,
        }
        for i in range(len(names))
    ]
    path = tmp_path / "r.html"
    Recording(_core.from_events(rows(events), names)).report(path)
    page = opened(path)
    page.page.locator("[data-testid=icicle]").click(position={"x": 20, "y": 60})
    page.settle()
    page.page.get_by_test_id("icicle-up").click()
    page.settle()
    page.check_quiet()


def test_steps_without_number(opened, tmp_path):
    """So many steps that no square of them fits, nor all of them as arguments."""
    count = 40_000
    array = np.zeros(3 * count, rows([{"kind": 1}]).dtype)
    for name in ("op", "module", "stack"):
        array[name] = 0xFFFFFFFF
    array["device"] = -1
    array["kind"][0::3] = 32
    array["size"][0::3] = np.arange(count)
    array["address"][0::3] = 7
    array["kind"][1::3], array["kind"][2::3] = 1, 3
    array["address"][1::3] = array["address"][2::3] = 4096
    array["size"][1::3] = array["size"][2::3] = 64
    array["time_ns"] = np.arange(len(array)) * 1000 + 1000
    recording = Recording(_core.from_events(array, []))
    path = tmp_path / "r.html"
    recording.report(path, compare=recording)
    page = opened(path)
    for tab in ("leaks", "compare", "all"):
        page.test(f"tab-{tab}").click()
        page.settle()
    page.test("axis-step").click()
    page.settle()
    page.check_quiet()


def test_steps_of_equal_width(opened, tmp_path):
    recording = load(GOLDEN / "convnet.memprof")
    path = tmp_path / "r.html"
    recording.report(path)
    page = opened(path, "#axis=step")
    assert page.js("memprof.state().axis") == "step"
    drawn = page.js("memprof.columns()")
    parts = np.array(drawn["parts"]).reshape(drawn["n"], -1)
    assert np.array_equal(parts.sum(axis=1), drawn["total"])
    assert max(drawn["total"]) == recording.peak().requested
    steps = recording.steps
    # Each step has as many columns as the others, whatever it lasted.
    place = np.searchsorted(steps["begin_event"], drawn["event"], "right") - 1
    many = [int((place == k).sum()) for k in range(len(steps))]
    # (What was made before a step is what its first columns show.)
    assert max(many) - min(many) <= drawn["n"] * 0.1, many
    page.page.keyboard.press("t")
    assert page.js("memprof.state().axis") == "time"
    page.check_quiet()


def test_a_run_of_one_step_has_no_axis_of_them(opened, tmp_path):
    path = tmp_path / "r.html"
    events = [{"kind": 1, "address": 64, "size": 100, "device": -1, "time_ns": 5}]
    Recording(_core.from_events(rows(events), [])).report(path)
    page = opened(path, "#axis=step")
    assert page.js("memprof.state().axis") == "time"
    assert not page.test("axis-step").is_visible()
    page.check_quiet()


HASHES = [
    "#d=99&t=1e99&v=NaN~Infinity&tab=__proto__&group=constructor&blame=toString",
    "#t=-5&b=-1&v=5~1&tab=lanes&axis=%00",
    "#v=-1e300~1e300&q=%22%22%22((((&axis=event",
    "#v=0~0&t=&d=&q=size%3E&theme=x&patterns=2",
    "#%E0%A4%A&v=1e-320~1e-310",
    "#v=0.5~0.5000000001&axis=step&b=1e10",
]


def test_broken_states_open_all_the_same(opened, tmp_path):
    path = tmp_path / "r.html"
    load(GOLDEN / "churn.memprof").report(path)
    page = opened()
    for text in HASHES:
        page.open(path, text)
        state = page.js("memprof.state()")
        assert state["v0"] < state["v1"], text
        assert page.js("memprof.columns().total.every(Number.isFinite)"), text
        page.page.keyboard.press("0")
        page.settle()
        page.check_quiet()


def test_zooms_without_end_and_sizes_without_room(opened, tmp_path):
    path = tmp_path / "r.html"
    load(GOLDEN / "convnet.memprof").report(path)
    page = opened(path)
    for axis in ("time", "event", "step"):
        page.js("(axis) => memprof.select({axis})", axis)
        page.js("document.activeElement.blur()")
        for key in ("w", "s", "a", "d"):
            for _ in range(25):
                page.page.keyboard.press(key)
        page.settle()
        state = page.js("memprof.state()")
        assert state["v0"] < state["v1"], state
        page.js("memprof.setView({t0: -1e308, t1: 1e308})")
        page.js("memprof.setView({t0: NaN, t1: NaN})")
        page.settle()
        total = page.js("memprof.columns().total")
        assert max(total) == page.js("memprof.peak().bytes")
    for width, height in ((320, 200), (2600, 1400), (120, 90), (1280, 900)):
        page.page.set_viewport_size({"width": width, "height": height})
        page.settle()
    page.check_quiet()


def test_times_that_go_back_and_times_without_end(opened, tmp_path):
    times = [5 * 10**9, 10**9, 0, 2**62, 2**62 + 10**9, 10]
    events = [
        {
            "kind": KIND["alloc"],
            "address": (i + 1) << 20,
            "size": 1000 + i,
            "device": -1,
            "time_ns": at,
        }
        for i, at in enumerate(times)
    ]
    path = tmp_path / "r.html"
    recording = Recording(_core.from_events(rows(events), []))
    recording.report(path)
    page = opened(path)
    assert page.js("memprof.peak().bytes") == recording.peak("cpu").requested
    page.test("axis-event").click()
    page.test("tab-leaks").click()
    page.settle()
    page.check_quiet()
