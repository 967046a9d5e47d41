"""The report as a widget: its class, and what a front end makes of its state."""

from __future__ import annotations

import base64
import gc
import html
import sys
import weakref
import zlib
from pathlib import Path

import pytest

import memprof
from memprof.integrations.jupyter import Shown
from memprof.integrations.widget import widget

GOLDEN = Path(__file__).parents[1] / "golden"

# What a front end does with a widget: its module is imported and draws into an
# element; state that is bytes arrives as views.
FRONT_END = """async ({esm, traits, blocks}) => {
  const state = {...traits, blocks: {}};
  for (const [name, text] of Object.entries(blocks)) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    state.blocks[name] = new DataView(bytes.buffer);
  }
  const {default: module} = await import("data:text/javascript;base64," + esm);
  const el = document.body.appendChild(document.createElement("div"));
  window.done = await module.render({model: {get: (name) => state[name]}, el});
}"""


@pytest.fixture(scope="module")
def golden():
    return memprof.load(GOLDEN / "checkpointed.memprof")


@pytest.fixture(scope="module")
def made(golden):
    pytest.importorskip("anywidget")
    return golden.widget(height=700)


def state_of(made) -> dict:
    return made.get_state(["page", "blocks", "height", "_esm"])


def test_data_goes_beside_the_page(made, golden):
    state = state_of(made)
    assert state["height"] == 700
    assert {"core", "allocs-1", "events-1", "stacks"} <= set(state["blocks"])
    for name, block in state["blocks"].items():
        assert zlib.decompress(block, 31).startswith(b"mpcols"), name
        tag = (
            f'<script type="application/x-memprof" id="mp-{name}" data-enc="message">'
            "</script>"
        )
        assert state["page"].count(tag) == 1
    assert len(state["page"]) < 300_000


def test_who_shows_no_widgets_gets_the_table(made, golden):
    shown = made._repr_mimebundle_()
    data = shown[0] if isinstance(shown, tuple) else shown
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["text/html"] == golden.summary()._repr_html_()


def test_a_closed_widget_is_its_table(golden):
    pytest.importorskip("anywidget")
    closed = golden.widget()
    assert repr(closed) == "<memprof report: a notebook shows it>"
    closed.close()
    assert repr(closed) == "<memprof report: a notebook shows it>"
    # What IPython asks for next where there is no bundle.
    assert closed._repr_mimebundle_ is None
    assert closed._repr_html_() == golden.summary()._repr_html_()


def test_a_widget_keeps_no_recording_alive():
    pytest.importorskip("anywidget")
    recording = memprof.load(GOLDEN / "checkpointed.memprof")
    seen, shown = weakref.ref(recording), recording.widget()
    del recording
    gc.collect()
    assert seen() is None
    shown.close()


def test_bad_arguments(golden):
    pytest.importorskip("anywidget")
    with pytest.raises(ValueError, match="height"):
        golden.widget(height=3)
    with pytest.raises(ValueError, match="cuda:7"):
        golden.widget("cuda:7")


def test_without_anywidget_it_is_show_and_says_so(golden, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.warns(UserWarning, match="pip install anywidget"):
        shown = widget(golden, None, 600)
    assert isinstance(shown, Shown)


def start(opened, made):
    """Show the widget as a front end does; return the page and the report's frame."""
    page = opened()
    state = state_of(made)
    argument = {
        "esm": base64.b64encode(state["_esm"].encode()).decode(),
        "traits": {"page": state["page"], "height": state["height"]},
        "blocks": {
            name: base64.b64encode(block).decode()
            for name, block in state["blocks"].items()
        },
    }
    page.js(FRONT_END, argument)
    (frame,) = [f for f in page.page.frames if f.parent_frame is not None]
    return page, frame


def ready(page, frame) -> None:
    for _ in range(1500):
        if frame.evaluate(
            "Boolean(window.memprof && (memprof.ready || memprof.errors().length))"
        ):
            break
        page.page.wait_for_timeout(20)
    assert frame.evaluate("memprof.errors()") == []
    assert frame.evaluate("memprof.ready")


def test_a_front_end_shows_the_same_report(opened, made, golden):
    page, frame = start(opened, made)
    ready(page, frame)
    peak = golden.peak()
    assert frame.evaluate("memprof.peak().bytes") == peak.requested
    live = frame.evaluate("memprof.liveSet(memprof.peak().event)")
    assert sum(row["bytes"] for row in live) == peak.requested
    box = page.page.locator("iframe")
    assert box.get_attribute("sandbox") == "allow-scripts"
    assert page.js("document.querySelector('iframe').clientHeight") == 700
    # No reach into the notebook, and the notebook's other frames none into it.
    reach = (
        "(() => { try { return Boolean(parent.document); } catch { return false; } })"
    )
    assert frame.evaluate(f"{reach}()") is False
    page.js("window.done()")
    assert page.said == []
    assert [url for url in page.asked if not url.startswith(("data:", "about:"))] == []


def test_blocks_may_be_views_of_one_buffer(opened, made, golden):
    page = opened()
    state = state_of(made)
    blocks = {k: base64.b64encode(b).decode() for k, b in state["blocks"].items()}
    page.js(
        """({text, blocks}) => {
          const parts = Object.entries(blocks).map(
            ([name, b]) => [name, Uint8Array.from(atob(b), (c) => c.charCodeAt(0))]);
          const all = new Uint8Array(parts.reduce((n, [, b]) => n + b.length, 0));
          const views = {};
          let at = 0;
          for (const [name, b] of parts) {
            all.set(b, at);
            views[name] = new DataView(all.buffer, at, b.length);
            at += b.length;
          }
          addEventListener("message", (event) => {
            event.source.postMessage({memprof: views}, "*");
          });
          const frame = document.createElement("iframe");
          frame.setAttribute("sandbox", "allow-scripts");
          frame.srcdoc = text;
          document.body.append(frame);
        }""",
        {"text": state["page"], "blocks": blocks},
    )
    (frame,) = page.page.frames[1:]
    ready(page, frame)
    assert frame.evaluate("memprof.peak().bytes") == golden.peak().requested


def test_only_the_owner_of_the_frame_may_send_data(opened, made):
    page = opened()
    state = state_of(made)
    page.js(
        """(text) => {
          const frame = document.createElement("iframe");
          frame.setAttribute("sandbox", "allow-scripts");
          frame.srcdoc = text;
          const other = document.createElement("iframe");
          other.setAttribute("sandbox", "allow-scripts");
          other.srcdoc = `<script>setInterval(() => parent.frames[0].postMessage(
            {memprof: {core: new Uint8Array(9)}}, "*"), 5)</script>`;
          document.body.append(frame, other);
        }""",
        state["page"],
    )
    page.page.wait_for_timeout(500)
    frame = page.page.frames[1]
    assert frame.evaluate("memprof.ready") is False
    assert frame.evaluate("memprof.errors()") == []
    # The table is there while nobody answers.
    assert "What held the peak" in frame.evaluate("document.body.textContent")


def test_a_block_that_was_not_sent_is_named(opened, made):
    page = opened()
    page.js(
        """(text) => {
          addEventListener("message", (event) => {
            event.source.postMessage({memprof: {}}, "*");
          });
          const frame = document.createElement("iframe");
          frame.setAttribute("sandbox", "allow-scripts");
          frame.srcdoc = text;
          document.body.append(frame);
        }""",
        state_of(made)["page"],
    )
    page.page.wait_for_timeout(500)
    (frame,) = page.page.frames[1:]
    text = html.unescape(frame.evaluate("document.body.textContent"))
    assert "“core” was not sent" in text
