"""Many allocations: the same exact numbers, few rows in the document, small files."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from report import training

from memprof.reports.units import size_text

# Bytes of heap: of the page itself, and of an allocation, of which 56 were measured
# (132 with arrays all of 32 and 64 bits).  With fewer sites it is less.
BASE, BYTES = 5e6, 75


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    recording = training(200_000)
    path = tmp_path_factory.mktemp("large") / "r.html"
    recording.report(path)
    return recording, path


@pytest.fixture(scope="module")
def unlike(tmp_path_factory):
    """Many of which nothing repeats."""
    recording = training(200_000, periodic=False)
    path = tmp_path_factory.mktemp("unlike") / "r.html"
    recording.report(path)
    return recording, path


def test_many_allocations_are_exact_at_every_zoom(opened, many):
    recording, path = many
    page = opened(path)
    chance = random.Random(1)
    last = recording.info["events"] - 1
    chosen = [chance.randint(-1, last) for _ in range(1000)]
    totals = page.js("(all) => all.map((e) => memprof.totalsAt(e))", chosen)
    lives = recording.allocations("cuda:0")
    born, died, size = lives["born_event"], lives["died_event"], lives["size"]
    for event, said in zip(chosen, totals, strict=True):
        alive = (born <= event) & ((died < 0) | (died > event))
        assert said["allocated"] == int(size[alive].sum())
        assert sum(said["categories"].values()) == said["allocated"]
    drawn = page.js("memprof.columns()")
    assert not drawn["exact"]
    assert max(drawn["total"]) == recording.peak().requested
    page.check_quiet()


def test_what_the_page_holds_is_little(opened, unlike):
    """Of a million allocations 150 MB of JavaScript's heap is the budget; after a
    collection, so that it is what the page holds."""
    recording, path = unlike
    page = opened(path)
    page.js("memprof.search('attn')")
    for tab in ("all", "leaks", "lanes", "frag", "cursor"):
        page.js("(tab) => memprof.select({tab})", tab)
        page.settle()
    inspector = page.page.context.new_cdp_session(page.page)
    inspector.send("HeapProfiler.enable")
    inspector.send("HeapProfiler.collectGarbage")
    heap = inspector.send("Runtime.getHeapUsage")
    held = heap["usedSize"] + heap["backingStorageSize"]
    count = len(recording.allocations("cuda:0"))
    assert count > 190_000
    assert held < BASE + BYTES * count, (held - BASE) / count
    page.check_quiet()


FOUND = """async (events) => {
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const said = [];
  for (const event of events) {
    memprof.select({cursor: event});
    await frame();
    await frame();
    const text = document.querySelector("[data-testid=found]").textContent;
    said.push([memprof.eventNumber(event), text]);
  }
  return said;
}"""


def test_bytes_of_what_is_found_are_exact_at_any_event(opened, unlike):
    recording, path = unlike
    page = opened(path, "#tab=leaks&q=module:attn")
    lives = recording.allocations("cuda:0")
    mine = lives[["attn" in recording.op(int(i)) for i in lives["module"]]]
    assert 0 < len(mine) < len(lives)
    last = page.js("memprof.meta().devices[0].events") - 1
    chance = random.Random(2)
    # The peak is its block's highest event, whose bytes are remembered.
    chosen = [-1, 0, last, *[page.js("memprof.meta().devices[0].peak.event")] * 2]
    chosen += [chance.randint(0, last) for _ in range(15)]
    for event, said in page.js(FOUND, chosen):
        alive = (mine["born_event"] <= event) & (
            (mine["died_event"] < 0) | (mine["died_event"] > event)
        )
        assert said.endswith(
            f" hits, {size_text(int(mine['size'][alive].sum()))} at cursor"
        )
    page.check_quiet()


def test_a_page_saved_while_it_is_shown_opens_again(opened, tmp_path):
    """Browsers save the document as it is then: the data must still be in it."""
    recording = training(2_000)
    recording.report(tmp_path / "r.html")
    page = opened(tmp_path / "r.html")
    copy = tmp_path / "copy.html"
    copy.write_text(page.page.content(), "utf-8")
    again = opened(copy)
    assert again.js("memprof.peak().bytes") == recording.peak().requested
    assert again.js("memprof.errors()") == []


def test_the_end_of_a_long_table_is_reached(opened, many):
    recording, path = many
    page = opened(path, "#tab=all")
    count = len(recording.allocations("cuda:0"))
    assert count * 26 < 6e6 or count > 230_000
    page.js("document.querySelector('[data-testid=all-table]').scrollTop = 1e9")
    page.settle()
    rows = page.js(
        "[...document.querySelectorAll('[data-testid=all-table] tr[data-row]')]"
        ".map((row) => Number(row.dataset.row))"
    )
    assert max(rows) == count - 1
    assert len(rows) <= 60
    page.check_quiet()


def test_files_are_small():
    """Periodic and random data: what the plan of 4 to 12 MB a million allows."""
    for periodic, most in ((True, 4e6), (False, 15e6)):
        recording = training(100_000, periodic=periodic)
        from memprof.reports import html

        assert len(html.page(recording)) - 250_000 < most / 10


def test_twelve_steps_of_resnet50_are_less_than_a_megabyte(opened, tmp_path):
    torch = pytest.importorskip("torch")
    models = pytest.importorskip("torchvision.models")
    import memprof

    model = models.resnet50()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([1, 2])
    with memprof.profile(record_shapes=True) as prof:
        for _ in range(12):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    path = tmp_path / "r.html"
    prof.report(path)
    assert path.stat().st_size < 1_000_000
    page = opened(path)
    assert page.js("memprof.peak().bytes") == prof.peak("cpu").requested
    stairs = page.js("memprof.meta().devices[0].stairs")
    rows = prof.module_stats("cpu", prof.peak("cpu").step)
    assert stairs["name"] == rows["name"].tolist()
    assert stairs["retained_bytes"] == rows["retained_bytes"].tolist()
    page.check_quiet()
