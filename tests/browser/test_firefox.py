"""The page in Firefox: it opens, draws, counts and listens as in Chromium."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from firefox import Page
from test_numbers import check_totals
from test_page import ALL_TABS

from memprof import load
from memprof.reports.units import size_text

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def page(firefox):
    """A tab of its own."""
    made = Page(firefox)
    yield made
    made.close()


def drawn(page: Page) -> dict[str, float]:
    """Return, of each canvas in sight, the share of pixels that are not its ground."""
    return page.js("""Object.fromEntries([...document.querySelectorAll("canvas")]
        .filter((c) => c.offsetParent && c.dataset.testid)
        .map((c) => {
            const {data} = c.getContext("2d").getImageData(0, 0, c.width, c.height);
            const pixels = new Uint32Array(data.buffer), counts = new Map();
            for (const p of pixels) counts.set(p, (counts.get(p) || 0) + 1);
            return [c.dataset.testid, 1 - Math.max(...counts.values()) / pixels.length];
        }))""")


def test_what_a_page_must_not_do_is_seen(page, tmp_path):
    """Else the silence of the others would prove nothing."""
    path = tmp_path / "noisy.html"
    head = '<!doctype html><meta charset="utf-8">'
    path.write_text(
        f"{head}<script>console.error('one'); setTimeout(() => nothing());"
        "fetch('https://example.com/two').catch(() => 0)</script>"
    )
    page.goto(path.as_uri())
    page.wait("document.readyState === 'complete'")
    page.settle()
    assert "error: one" in page.said
    assert any("nothing is not defined" in text for text in page.said)
    assert page.asked == ["https://example.com/two"]
    policy = "default-src 'none'; script-src 'unsafe-inline'"
    page.firefox.told.clear()
    path.write_text(
        f'{head}<meta http-equiv="Content-Security-Policy" content="{policy}">'
        "<script>fetch('https://example.com/three').catch(() => 0)</script>"
        '<img src="https://example.com/four.png">'
    )
    page.goto(path.as_uri())
    page.settle()
    assert "policy: connect-src: https://example.com/three" in page.said
    assert "policy: img-src: https://example.com/four.png" in page.said
    assert page.asked == []


def test_the_page_opens_quietly_and_draws(page, gpu):
    page.open(gpu)
    assert page.js("document.title").startswith("memprof")
    assert not page.js("Boolean(document.querySelector('[data-testid=problem]'))")
    assert 'data-enc="gzip' in gpu.read_text()  # DecompressionStream's work
    shares = drawn(page)
    assert {"overview", "minimap", "icicle"} <= set(shares)
    assert min(shares.values()) > 0.02, shares
    page.check_quiet()
    # Firefox tells of no load of another file: nothing in the page could ask for one.
    assert page.js("document.querySelectorAll('[src], link, object').length") == 0
    # Nothing leaves the page even if it is asked to, and that is told.
    blocked = page.js("fetch('https://example.com/x').then(() => 1, () => 'blocked')")
    assert blocked == "blocked"
    page.settle()
    assert "policy: connect-src: https://example.com/x" in page.said


def test_headline_and_live_set_are_pythons(page, gpu):
    recording = load(GOLDEN / "checkpointed.memprof")
    peak = recording.peak("cuda:0")
    page.open(gpu)
    assert page.js("memprof.peak().bytes") == peak.requested
    assert page.js("memprof.peak().event") == peak.event
    sentence = page.js("document.querySelector('[data-testid=sentence]').textContent")
    assert sentence.startswith(f"Peak {size_text(peak.requested, 4)} on cuda:0")
    page.js("""Object.defineProperty(navigator, "clipboard", {value: {
        writeText: async (text) => { window.copied = text; }}})""")
    page.click("live-table-tsv")
    page.wait("Boolean(window.copied)")
    lines = page.js("window.copied").strip().split("\n")[1:]
    assert len(lines) > 3
    assert sum(int(line.split("\t")[0]) for line in lines) == peak.requested
    chance = random.Random(1)
    last = recording.info["events"] - 1
    chosen = [-1, peak.event, last, *(chance.randint(-1, last) for _ in range(40))]
    check_totals(page, recording, "cuda:0", chosen)
    page.check_quiet()


def test_every_tab_opens_and_draws(page, gpu):
    page.open(gpu)
    figures = set()
    for name in ALL_TABS:
        page.click(f"tab-{name}")
        assert page.js("memprof.state().tab") == name
        assert page.js("document.getElementById('panel').innerText.trim().length") > 50
        shares = drawn(page)
        assert min(shares.values()) > 0.005, (name, shares)
        figures |= set(shares)
        # No style is lost by which the page would be wider than the window.
        assert page.js("document.documentElement.scrollWidth") <= 1280, name
    assert {"stairs", "births", "lanes", "segments", "compare-steps"} <= figures
    page.click("theme")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    assert page.js(ground) == "rgb(16, 20, 24)"
    page.check_quiet()


def test_keys_pointer_and_wheel(page, gpu):
    page.open(gpu)
    begin = page.js("memprof.state()")
    width = begin["v1"] - begin["v0"]

    def pressed(*names):
        page.press(*names)
        return page.js("memprof.state()")

    near = pressed("w")
    assert near["v1"] - near["v0"] == pytest.approx(0.7 * width)
    assert pressed("0")["v1"] == begin["v1"]
    assert pressed("ArrowRight")["cursor"] == begin["cursor"] + 1
    assert pressed("p")["cursor"] == begin["cursor"]
    assert pressed("Shift+P")["cursor"] != begin["cursor"]
    assert pressed("t")["axis"] == "event"
    pressed("/", *"cat:activation w")  # w is no zoom while typing
    page.wait("memprof.state().hits > 0")
    assert page.js("memprof.state().q") == "cat:activation w"
    page.press("Escape")
    page.wait("memprof.state().q === ''")
    page.press("?")
    shown = "document.querySelector('[data-testid=help]').open"
    assert page.js(shown)
    page.press("Escape")
    assert not page.js(shown)
    before = page.js("memprof.state()")
    page.wheel("overview", -400)
    after = page.js("memprof.state()")
    assert after["v1"] - after["v0"] < before["v1"] - before["v0"]
    page.js("document.querySelector('[data-testid=live-table]').focus()")
    page.press("ArrowDown", "ArrowDown")
    assert page.js("document.querySelector('.table tr.on').dataset.row") == "1"
    assert page.js("!document.querySelector('[data-testid=detail]').hidden")
    page.check_quiet()


def test_the_state_is_in_the_link(page, gpu):
    page.open(gpu)
    page.click("tab-leaks")
    page.js("memprof.search('cat:parameter')")
    page.settle()
    page.firefox.ask("browsingContext.traverseHistory", context=page.top, delta=-1)
    page.wait("memprof.state().q === ''")
    page.firefox.ask("browsingContext.traverseHistory", context=page.top, delta=1)
    page.wait("memprof.state().q === 'cat:parameter'")
    # The link through the clipboard, as a reader takes it.
    page.click("link")
    link = page.js("location.href")
    page.js("memprof.search('')")
    page.js("document.querySelector('[data-testid=query]').focus()")
    page.press("Control+v")
    assert page.js("document.querySelector('[data-testid=query]').value") == link
    page.open(gpu, link[link.index("#") :])
    state = page.js("memprof.state()")
    assert (state["tab"], state["q"]) == ("leaks", "cat:parameter")
    assert state["hits"] > 0
    page.open(gpu, "#d=99&t=x&tab=none&v=9~1&group=__proto__")
    page.check_quiet()


def test_the_picture_is_saved(page, firefox, gpu):
    page.open(gpu)
    page.click("png")
    saved = firefox.downloads / "memprof-overview.png"
    until = time.monotonic() + 20
    while not (saved.exists() and saved.stat().st_size):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert saved.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    page.check_quiet()


def test_in_a_notebooks_sandboxed_frame(page, tmp_path):
    recording = load(GOLDEN / "convnet.memprof")
    shown = recording.show(height=500)._repr_html_()
    assert 'sandbox="allow-scripts" srcdoc=' in shown
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><meta charset='utf-8'><title>n</title>{shown}")
    page.goto(path.as_uri())
    page.enter_frame()
    page.wait_ready()
    assert page.js("origin") == "null"
    assert page.js("memprof.peak().bytes") == recording.peak().requested
    assert drawn(page)["overview"] > 0.02
    page.click("tab-leaks")
    page.press("w")
    assert page.js("memprof.state().tab") == "leaks"
    page.check_quiet()


def test_uncompressed_the_page_opens_too(page, tmp_path):
    """What the page says to a browser without DecompressionStream to do."""
    recording = load(GOLDEN / "convnet.memprof")
    path = tmp_path / "plain.html"
    recording.report(path, compress=False)
    page.open(path)
    assert page.js("memprof.peak().bytes") == recording.peak().requested
    page.check_quiet()
