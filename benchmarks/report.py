"""What the HTML report costs: to write, to keep, to open, to look around in.

    python benchmarks/report.py                    # a million made-up allocations
    python benchmarks/report.py --recording run.memprof

Writes the page, opens it in headless Chromium (``make browser-tools``, Debian's
chromium) and prints times beside the budgets.  The processor's own speed is printed
too: on a machine with other work all times grow.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from memprof import _core, load
from memprof.recording import EVENT_DTYPE, NO_INDEX, Recording
from memprof.reports import html

MODULES = [f"layers.{i}.{part}" for i in range(24) for part in ("attn", "mlp", "norm")]
OPS = [f"aten::op{i}" for i in range(30)]
LAYERS, STEPS = len(MODULES), 100


def training(allocations: int, *, periodic: bool = True, seed: int = 0) -> Recording:
    """Make a recording that looks like training on a GPU.

    Each step allocates in forward, frees six of ten blocks at once and the others
    backwards, last ones first.

    Args:
        allocations: how many, about.
        periodic: every step does the same, as programs do; else sizes, ops and
            lines are random, which no compressor likes.
        seed: of the random numbers.
    """
    random = np.random.default_rng(seed)
    per = max(allocations // STEPS, 1)
    stacks = [
        [("forward", "/w/model.py", 100 + i), ("train", "/w/train.py", 20 + i % 7)]
        for i in range(300)
    ]
    probe = _core.from_events(np.zeros(0, EVENT_DTYPE), [], stacks)
    known = [i for i in range(probe.stacks()) if len(probe.stack(i)) == 2]
    stack_ids = np.array(known, np.uint32)
    parts = [_events(1, kind=48, address=1 << 40, size=1 << 38)]

    def draw() -> tuple[Any, ...]:
        return (
            (random.integers(1, 4000, per) * 512).astype(np.uint64),
            random.integers(0, len(OPS), per),
            stack_ids[random.integers(0, len(stack_ids), per)],
            random.random(per) < 0.6,
        )

    sizes, ops, lines, short = draw()
    module = np.arange(per) * LAYERS // per
    for step in range(STEPS):
        if not periodic:
            sizes, ops, lines, short = draw()
        address = (1 << 40) + np.concatenate(([0], np.cumsum(sizes)[:-1]))
        parts.append(_events(1, kind=32, address=7, size=step, device=-1))
        births = np.arange(per) + 2 * np.concatenate(([0], np.cumsum(short)[:-1]))
        forward = _events(per + 2 * int(short.sum()), phase=1, flags=3)
        forward["kind"][births] = 1
        forward["address"][births], forward["size"][births] = address, sizes
        forward["op"][births], forward["module"][births] = LAYERS + ops, module
        forward["stack"][births] = lines
        for kind in (2, 3):
            frees = births[short] + kind - 1
            forward["kind"][frees] = kind
            forward["address"][frees] = address[short]
            forward["size"][frees] = sizes[short]
        rest = np.repeat(np.flatnonzero(~short)[::-1], 2)
        backward = _events(len(rest), phase=2)
        backward["kind"][0::2], backward["kind"][1::2] = 2, 3
        backward["address"], backward["size"] = address[rest], sizes[rest]
        for part in (forward, backward):
            part["step"] = step
        parts += [forward, backward]
    events = np.concatenate(parts)
    events["time_ns"] = 10**6 + np.cumsum(random.integers(500, 5000, len(events)))
    return Recording(_core.from_events(events, [*MODULES, *OPS], stacks))


def _events(count: int, **fields: int) -> np.ndarray[Any, Any]:
    rows = np.zeros(count, EVENT_DTYPE)
    for name in ("op", "module", "stack"):
        rows[name] = NO_INDEX
    rows["thread"] = 1
    for name, value in fields.items():
        rows[name] = value
    return rows


LOOK_AROUND = """async () => {
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const times = async (count, step) => {
    for (let i = 0; i < count; i++) { step(i / count); await frame(); await frame(); }
    return memprof.perf().slice(-count);
  };
  const whole = memprof.state().v1, last = memprof.meta().devices[memprof.state().d].events;
  const found = {};
  found.zoom = await times(60, (x) => memprof.setView({t0: 0.3 * whole * x, t1: whole * (1 - 0.69 * x)}));
  found.pan = await times(60, (x) => memprof.setView({t0: whole * (0.3 + 0.3 * x), t1: whole * (0.31 + 0.3 * x)}));
  found['click to table'] = await times(30, (x) => memprof.select({cursor: Math.floor(last * x)}));
  found.search = ['cat:activation size>1MiB', 'attn', 'op:aten::op3 step:5-9', 'stack:model.py:150']
    .map((q) => { const began = performance.now(); memprof.search(q); return performance.now() - began; });
  memprof.search('');
  for (const tab of ['all', 'leaks', 'lanes', 'frag']) {
    found[`tab ${tab}`] = await times(3, () => memprof.select({tab}));
  }
  let spin = performance.now(), sum = 0;
  for (let i = 0; i < 1e8; i++) sum += i & 7;
  found['100 M additions'] = [performance.now() - spin + 0 * sum];
  return found;
}"""  # noqa: E501

BUDGETS = {"zoom": 16, "pan": 16, "click to table": 50, "search": 150}
HEAP = "performance.memory.usedJSHeapSize / 1e6"


def heap(page: Any, what: str, most: float = 0) -> None:
    """Print how large the page's heap is: as it is, garbage included, and collected.

    What is collected is what the page holds; when the browser collects by itself is
    the browser's affair, so the first figure differs from run to run.
    """
    before = page.evaluate(HEAP)
    inspector = page.context.new_cdp_session(page)
    inspector.send("HeapProfiler.enable")
    inspector.send("HeapProfiler.collectGarbage")
    inspector.detach()
    seen = f", at most {max(most, before):.0f} until then" if most else ""
    print(
        f"{what:18} {before:8.0f} MB with garbage{seen}; "
        f"{page.evaluate(HEAP):.0f} MB held  budget 150"
    )


def opened(browser: Any, path: Path) -> tuple[Any, float]:
    """Open PATH; return the page and the largest heap that was seen until then."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(path.resolve().as_uri())
    most = 0.0
    while not page.evaluate("memprof.ready || memprof.errors().length"):
        most = max(most, page.evaluate(HEAP))
        page.wait_for_timeout(20)
    if page.evaluate("memprof.errors()"):
        sys.exit(str(page.evaluate("memprof.errors()")))
    return page, most


def look(path: Path) -> None:
    """Open PATH in Chromium and print what takes how long."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("MEMPROF_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--enable-precise-memory-info"],
        )
        page, _ = opened(browser, path)
        marks = page.evaluate(
            "performance.getEntriesByType('mark').map((m) => [m.name, m.startTime])"
        )
        for name, at in marks:
            print(f"{name:18} {at:8.0f} ms")
        for name, times in page.evaluate(LOOK_AROUND).items():
            times = sorted(times)
            budget = f"  budget {BUDGETS[name]}" if name in BUDGETS else ""
            high = times[min(len(times) - 1, int(0.95 * len(times)))]
            middle = times[len(times) // 2]
            print(f"{name:18} median {middle:6.1f}  p95 {high:6.1f} ms{budget}")
        heap(page, "JS heap, looked at")
        page.close()
        # In a page of its own: a collection throws compiled code away as well.
        page, most = opened(browser, path)
        heap(page, "JS heap, opened", most)
        browser.close()


def main() -> None:
    """Write a page and look at it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recording", type=Path)
    parser.add_argument("--allocations", type=int, default=1_000_000)
    parser.add_argument("--random", action="store_true", help="nothing repeats")
    arguments = parser.parse_args()
    if arguments.recording:
        recording = load(arguments.recording)
    else:
        recording = training(arguments.allocations, periodic=not arguments.random)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.html")
        began, used = time.perf_counter(), time.process_time()
        html.write(recording, path)
        spent = time.perf_counter() - began
        print(f"{len(recording.allocations('all'))} allocations")
        print(f"{'file':18} {path.stat().st_size / 1e6:8.2f} MB")
        print(
            f"{'write':18} {spent:8.2f} s  ({time.process_time() - used:.2f} s of CPU)"
        )
        look(path)


if __name__ == "__main__":
    main()
