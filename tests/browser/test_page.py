"""The page by itself: quiet, offline, by keyboard, accessible, honest."""

from __future__ import annotations

import base64
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
from events import KIND, NAMES, random_stream, rows

from memprof import _core, load
from memprof.recording import Recording
from memprof.reports import html

GOLDEN = Path(__file__).parents[1] / "golden"
ALL_TABS = ["cursor", "stairs", "leaks", "compare", "lanes", "frag", "all"]


def made(
    tmp_path: Path, events: list[dict] | np.ndarray, names=(), stacks=(), **info
) -> Path:
    """Write the report of made-up events."""
    array = events if isinstance(events, np.ndarray) else rows(events)
    core = _core.from_events(array, list(names), list(stacks))
    core.info = json.dumps(info)
    path = tmp_path / "r.html"
    Recording(core).report(path)
    return path


def test_every_tab_is_there_and_quiet_in_both_themes(opened, gpu):
    page = opened(gpu)
    shown = [t.get_attribute("id") for t in page.page.get_by_role("tab").all()]
    assert shown == [f"tab-{name}" for name in ALL_TABS]
    for _ in range(2):
        for name in ALL_TABS:
            page.test(f"tab-{name}").click()
            page.settle()
            assert page.js("memprof.state().tab") == name
            assert page.page.locator("#panel").inner_text().strip()
        page.test("theme").click()
    page.test("patterns").click()
    page.settle()
    page.check_quiet()


def test_the_page_asks_for_nothing_but_itself(opened, gpu):
    page = opened(gpu)
    assert [url for url in page.asked if not url.startswith("about:")] == [gpu.as_uri()]
    blocked = page.js(
        "fetch('https://example.com/x').then(() => 'sent', () => 'blocked')"
    )
    assert blocked == "blocked"
    assert any("Content Security Policy" in text for text in page.said)


def test_the_keyboard_alone(opened, gpu):
    page = opened(gpu)
    press = page.page.keyboard.press

    def state():
        page.settle()
        return page.js("memprof.state()")

    begin = state()
    press("w")
    near = state()
    assert near["v1"] - near["v0"] == pytest.approx(0.7 * (begin["v1"] - begin["v0"]))
    press("d")
    assert state()["v0"] > near["v0"]
    press("s")
    press("z")
    press("0")
    assert state()["v1"] == begin["v1"]
    press("ArrowRight")
    assert state()["cursor"] == begin["cursor"] + 1
    press("Shift+ArrowLeft")
    assert state()["cursor"] == max(begin["cursor"] + 1 - 100, -1)
    press("p")
    assert state()["cursor"] == begin["cursor"]
    press("]")
    after = state()["cursor"]
    assert after > begin["cursor"]
    press("[")
    assert state()["cursor"] < after
    press("Shift+P")
    assert state()["cursor"] != after
    press("c")
    assert state()["b"] is not None
    press("t")
    assert state()["axis"] == "event"
    press("t")
    press("g")
    assert state()["group"] != "blame"
    press("/")
    page.page.keyboard.type("cat:activation w")  # w is no zoom while typing
    page.wait("memprof.state().hits !== null")
    assert state()["q"] == "cat:activation w"
    press("Escape")
    page.wait("memprof.state().q === ''")
    page.js("memprof.search('cat:activation')")
    before = state()["cursor"]
    press("n")
    assert state()["cursor"] != before
    assert page.test("detail").is_visible()
    press("Escape")
    assert not page.test("detail").is_visible()
    press("?")
    assert page.test("help").is_visible()
    press("Escape")
    # Tabs by arrows, and a table's rows.
    page.test("tab-cursor").focus()
    for name in [*ALL_TABS[1:], ALL_TABS[0]]:
        press("ArrowRight")
        assert state()["tab"] == name
        assert page.js("document.activeElement.id") == f"tab-{name}"
    page.test("live-table").focus()
    press("ArrowDown")
    press("ArrowDown")
    assert page.js("document.querySelector('.table tr.on').dataset.row") == "1"
    assert page.test("detail").is_visible()
    page.wait("document.getElementById('live').textContent.includes('bytes')")
    page.check_quiet()


def test_every_control_is_reached_by_tab(opened, gpu):
    page = opened(gpu)
    seen = set()
    page.js("document.body.focus()")
    for _ in range(90):
        page.page.keyboard.press("Tab")
        name = page.js("document.activeElement.getAttribute('data-testid')")
        seen.add(name)
    for name in (
        "device",
        "theme",
        "query",
        "overview",
        "live-table",
        "group",
        "axis-event",
    ):
        assert name in seen, seen
    small = page.js(
        """[...document.querySelectorAll('button, select, input')]
        .filter((e) => e.offsetParent && e.getBoundingClientRect().height < 23.5
            && e.type !== 'range').map((e) => e.outerHTML.slice(0, 90))"""
    )
    assert small == []


def test_back_and_forward_and_links(opened, gpu):
    page = opened(gpu)
    page.test("tab-leaks").click()
    page.js("memprof.search('cat:parameter')")
    page.settle()
    link = page.js("location.href")
    page.page.go_back()
    page.wait("memprof.state().q === ''")
    page.page.go_back()
    page.wait("memprof.state().tab === 'cursor'")
    page.page.go_forward()
    page.wait("memprof.state().tab === 'leaks'")
    other = opened(gpu, link[link.index("#") :])
    state = other.js("memprof.state()")
    assert (state["tab"], state["q"]) == ("leaks", "cat:parameter")
    assert state["hits"] > 0
    for odd in (
        "#d=99&t=x&tab=none&v=9~1&group=__proto__&blame=constructor",
        "#%%%",
        "#v=NaN~NaN",
    ):
        page.open(gpu, odd)
        page.check_quiet()


def test_pointer_zoom_pan_range_and_cursor(opened, gpu):
    page = opened(gpu)
    box = page.test("overview").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    mouse = page.page.mouse

    def state():
        page.settle()
        return page.js("memprof.state()")

    whole = state()
    mouse.move(x, y)
    mouse.wheel(0, -400)
    near = state()
    assert near["v1"] - near["v0"] < whole["v1"] - whole["v0"]
    mouse.down()
    mouse.move(x + 150, y, steps=4)
    mouse.up()
    assert state()["v0"] < near["v0"]
    page.page.keyboard.down("Shift")
    mouse.move(x - 100, y)
    mouse.down()
    mouse.move(x + 100, y, steps=4)
    mouse.up()
    page.page.keyboard.up("Shift")
    ranged = state()
    assert ranged["v1"] - ranged["v0"] < near["v1"] - near["v0"]
    mouse.click(x + 60, y)
    hit = page.js("([x, y]) => memprof.hit(x, y)", [x + 60 - box["x"], y - box["y"]])
    assert hit["event"] == state()["cursor"]
    assert hit["category"] in _core.CATEGORIES
    mouse.dblclick(x, y)
    assert page.js("memprof.perf().length") > 3
    page.check_quiet()


@pytest.mark.parametrize("theme", ["light", "dark", "forced"])
def test_accessibility_audit(opened, gpu, theme):
    from axe_playwright_python.sync_playwright import Axe

    options = {"forced_colors": "active"} if theme == "forced" else {}
    # The audit's own script is put in by the tester: past the page's policy.
    page = opened(
        gpu, f"#theme={theme}" if theme != "forced" else "", bypass_csp=True, **options
    )
    found = {}
    for name in ALL_TABS:
        page.test(f"tab-{name}").click()
        page.settle()
        results = Axe().run(page.page)
        for rule in results.response["violations"]:
            nodes = [node["html"][:160] for node in rule["nodes"][:3]]
            found[f"{name}: {rule['id']}"] = nodes
    page.test("open-help").click()
    for rule in Axe().run(page.page).response["violations"]:
        found[f"help: {rule['id']}"] = [
            node["html"][:160] for node in rule["nodes"][:3]
        ]
    assert found == {}


def test_hostile_names_are_only_text(opened, tmp_path):
    bad = [
        "</script><script>window.pwned=1</script>",
        "<img src=x onerror=window.pwned=2>",
        "\u202eevil\u202c \U0001f4a5 " + "ü" * 200,
        "a" * 10_000,
        "javascript:window.pwned=3",
        "'\"`${window.pwned=4}",
        "nul\x00 line\nbreak\ttab",
    ]
    events, names = [], [*bad]
    for i, _ in enumerate(bad):
        events.append(
            {
                "kind": KIND["alloc"],
                "address": (i + 1) << 20,
                "size": 1000 + i,
                "device": -1,
                "op": i,
                "module": i,
                "stack": i,
                "time_ns": 10**6 * (i + 1),
            }
        )
    stacks = [[(text[:300], f"/home/x/{text[:300]}.py", 3)] for text in bad]
    path = made(tmp_path, events, names, stacks, argv=[bad[0]])
    page = opened(path)
    for name in ("cursor", "leaks", "all"):
        page.test(f"tab-{name}").click()
        page.settle()
        assert page.js("document.documentElement.scrollWidth") <= 1280, name
    page.test("all-table").focus()
    page.page.keyboard.press("ArrowDown")
    page.settle()
    assert page.js("window.pwned") is None
    assert page.js("document.images.length") == 0
    assert page.js("document.scripts.length") == 1 + len(
        re.findall("application/x-memprof", path.read_text())
    )
    said = {tuple(row["keys"])[2] for row in page.js("memprof.liveSet(99)")}
    assert said == set(bad)
    page.js("(q) => memprof.search(q)", bad[1])
    page.check_quiet()


def test_a_name_without_end_does_not_widen_the_page(opened, tmp_path):
    name = "n" * 10_000
    event = {"kind": 1, "address": 64, "size": 9, "device": -1, "op": 0, "module": 0}
    path = made(tmp_path, [event], [name], argv=[name])
    page = opened(path, viewport={"width": 800, "height": 700})
    for tab in ("cursor", "leaks", "all"):
        page.test(f"tab-{tab}").click()
        page.settle()
        assert page.js("document.documentElement.scrollWidth") <= 800, tab
        assert page.js("document.documentElement.scrollHeight") < 9000, tab
    page.js("memprof.search('nnn')")
    page.test("all-table").focus()
    page.page.keyboard.press("ArrowDown")
    page.settle()
    assert page.js("document.documentElement.scrollWidth") <= 800
    page.check_quiet()


def test_half_a_surrogate_does_not_break_the_file(opened, tmp_path):
    path = tmp_path / "r.html"
    recording = load(GOLDEN / "convnet.memprof")
    info = json.loads(recording._core.info)
    info["argv"] = ["run\udcff.py"]
    recording._core.info = json.dumps(info)
    recording.report(path)
    opened(path).check_quiet()


STATES = {
    "empty": [],
    "one event": [{"kind": 1, "address": 64, "size": 100, "device": -1, "time_ns": 5}],
    "all older": [
        {
            "kind": KIND["seed_segment"],
            "address": 1 << 30,
            "size": 2 << 20,
            "device": 0,
        },
        {"kind": KIND["seed_block"], "address": 1 << 30, "size": 4096, "device": 0},
        {
            "kind": KIND["seed_block"],
            "address": (1 << 30) + 8192,
            "size": 512,
            "device": 0,
        },
    ],
    "out of memory": [
        {
            "kind": KIND["seed_segment"],
            "address": 1 << 30,
            "size": 2 << 20,
            "device": 0,
        },
        {"kind": 1, "address": 1 << 30, "size": 4096, "device": 0, "time_ns": 100},
        {
            "kind": KIND["oom"],
            "address": 1 << 20,
            "size": 1 << 34,
            "device": 0,
            "time_ns": 5000,
        },
    ],
}


@pytest.mark.parametrize("name", STATES)
def test_odd_recordings(opened, tmp_path, name):
    path = made(tmp_path, STATES[name])
    page = opened(path)
    tabs = [t.get_attribute("id") for t in page.page.get_by_role("tab").all()]
    for tab in tabs:
        page.page.locator(f"#{tab}").click()
        page.settle()
    for key in (
        "w",
        "d",
        "p",
        "Shift+P",
        "]",
        "[",
        "ArrowLeft",
        "n",
        "t",
        "g",
        "c",
        "z",
        "0",
    ):
        page.page.keyboard.press(key)
        page.settle()
    text = page.page.locator("main").inner_text()
    assert "NaN" not in text
    assert "undefined" not in text
    assert "Infinity" not in text
    if name == "out of memory":
        assert "out of memory: 1 time" in page.test("warnings").inner_text()
    if name == "all older":
        page.page.locator("[data-testid=notes] summary").click()
        assert "2 blocks, 4.50 KiB, are older" in page.test("notes").inner_text()
    page.check_quiet()


def test_eight_devices(opened, tmp_path):
    path = made(tmp_path, random_stream(9, 3000, 8), NAMES)
    page = opened(path)
    names = page.js("memprof.meta().devices.map((d) => d.name)")
    assert len(names) == 9
    for index in range(9):
        page.test("device").select_option(str(index))
        page.wait(f"memprof.state().d === {index}")
        page.settle()
        assert page.js("memprof.totalsAt(memprof.peak().event).allocated") == page.js(
            "memprof.peak().bytes"
        )
    page.check_quiet()


def test_a_recording_cut_short_says_so(opened, tmp_path):
    data = (GOLDEN / "checkpointed.memprof").read_bytes()
    short = tmp_path / "cut.memprof"
    short.write_bytes(data[: len(data) // 2])
    path = tmp_path / "r.html"
    load(short).report(path)
    page = opened(path)
    assert "cut" in page.test("warnings").inner_text()
    page.check_quiet()


@pytest.mark.parametrize(
    ("block", "how", "words"),
    [
        ("allocs-1", "cut", "damaged or cut"),
        ("allocs-1", "letters", "damaged"),
        ("events-1", "gone", "missing"),
        ("core", "cut", "damaged or cut"),
        ("stacks", "other", "no block of memprof"),
    ],
)
def test_a_damaged_block_is_a_readable_error(opened, tmp_path, block, how, words):
    text = html.page(load(GOLDEN / "checkpointed.memprof"))
    pattern = re.compile(
        f'(<script type="application/x-memprof" id="mp-{block}" data-enc=")'
        r'([^"]*)(">)([^<]*)(</script>)'
    )
    whole = pattern.search(text)
    data = whole[4]
    enc = whole[2]
    if how == "gone":
        new = ""
    else:
        data = {
            "cut": data[: len(data) // 8 * 4],
            "letters": "!!!!" + data[4:],
            "other": data,
        }[how]
        if how == "other":
            data, enc = (
                base64.b64encode(b"something else altogether").decode(),
                "base64",
            )
        new = f"{whole[1]}{enc}{whole[3]}{data}{whole[5]}"
    path = tmp_path / "r.html"
    path.write_text(text[: whole.start()] + new + text[whole.end() :])
    page = opened()
    page.page.goto(path.as_uri())
    page.wait("Boolean(document.querySelector('[data-testid=problem]'))")
    told = page.test("problem").inner_text()
    assert words in told
    assert block in told or how == "gone"
    assert page.page.locator("#mp-static table").is_visible()
    assert page.js("memprof.ready") is False
    assert not [text for text in page.said if text.startswith("error")]


def test_without_decompression_the_page_says_so(opened, gpu, tmp_path):
    page = opened()
    page.page.add_init_script("delete window.DecompressionStream")
    page.page.goto(gpu.as_uri())
    page.wait("Boolean(document.querySelector('[data-testid=problem]'))")
    assert "compress=False" in page.test("problem").inner_text()
    assert page.page.locator("#mp-static table").is_visible()
    plain = tmp_path / "plain.html"
    load(GOLDEN / "convnet.memprof").report(plain, compress=False)
    page.open(plain)


def test_without_scripts_the_table_is_there(opened, gpu):
    page = opened(java_script_enabled=False)
    page.page.goto(gpu.as_uri())
    assert page.page.locator("#mp-static table tbody tr").count() > 3
    assert "scripts" in page.page.locator("noscript").inner_text()
    assert "Peak" in page.page.locator("h1").inner_text()


def test_tables_copy_and_sort_and_hold_few_rows(opened, tmp_path):
    path = made(tmp_path, random_stream(5, 20_000, 1), NAMES)
    page = opened(path, "#tab=all")
    table = page.test("all-table")
    assert (
        page.js("document.querySelectorAll('[data-testid=all-table] tbody tr').length")
        <= 62
    )
    rows_ = int(table.locator("table").get_attribute("aria-rowcount")) - 1
    assert rows_ == page.js("memprof.meta().devices[memprof.state().d].allocations")
    page.page.get_by_role("button", name="born").click()
    page.settle()
    head = page.page.locator("[data-testid=all-table] th[aria-sort]")
    assert head.get_attribute("aria-sort") == "ascending"
    page.page.get_by_role("button", name="born").click()
    page.settle()
    assert head.get_attribute("aria-sort") == "descending"
    page.js("document.querySelector('[data-testid=all-table]').scrollTop = 1e9")
    page.settle()
    last = page.js(
        "Math.max(...[...document.querySelectorAll('[data-testid=all-table] tr')]"
        ".map((row) => Number(row.dataset.row ?? -1)))"
    )
    assert int(last) == rows_ - 1
    page.test("tab-cursor").click()
    page.settle()
    page.js(
        """Object.defineProperty(navigator, 'clipboard', {value: {
            writeText: async (text) => { window.copied = text; }}})"""
    )
    page.test("live-table-tsv").click()
    page.wait("Boolean(window.copied)")
    lines = page.js("window.copied").strip().split("\n")
    total = sum(int(line.split("\t")[0]) for line in lines[1:])
    assert total == page.js("memprof.peak().bytes")
    page.check_quiet()


def test_system_theme_and_choice(opened, gpu):
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    assert opened(gpu, color_scheme="dark").js(ground) == "rgb(16, 20, 24)"
    page = opened(gpu, color_scheme="light")
    assert page.js(ground) == "rgb(255, 255, 255)"
    page.test("theme").click()
    assert page.js(ground) == "rgb(16, 20, 24)"


def test_narrow_screens_do_not_scroll_sideways(opened, gpu):
    page = opened(gpu, viewport={"width": 480, "height": 800})
    for name in ALL_TABS:
        page.test(f"tab-{name}").click()
        page.settle()
        assert page.js("document.documentElement.scrollWidth") <= 480, name


def test_in_a_notebooks_frame(opened, tmp_path):
    shown = load(GOLDEN / "convnet.memprof").show(height=500)
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><title>n</title>{shown._repr_html_()}")
    page = opened()
    page.page.goto(path.as_uri())
    page.wait("frames.length === 1")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        frame = page.page.frames[-1]
        if frame.evaluate("Boolean(window.memprof && memprof.ready)"):
            break
        page.page.wait_for_timeout(20)
    peak = load(GOLDEN / "convnet.memprof").peak()
    assert frame.evaluate("memprof.peak().bytes") == peak.requested
    frame.get_by_test_id("tab-leaks").click()
    frame.get_by_test_id("figure-peak").click()
    page.page.wait_for_timeout(500)
    assert frame.evaluate("memprof.errors()") == []
    assert page.said == []
    assert [url for url in page.asked if url.startswith("http")] == []
