"""The data of the HTML report: what is packed is what the recording says."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from events import NAMES, random_stream

from memprof import _core, load
from memprof.errors import MemprofError
from memprof.recording import Recording
from memprof.reports import html, page_data
from memprof.reports.columns import MAGIC, armoured, block, column
from memprof.reports.page_device import ALIVE, Device, Names, segment_pieces
from memprof.reports.shown_paths import shown_path, shown_place

GOLDEN = Path(__file__).parents[1] / "golden"


def unpacked(data: bytes) -> tuple[dict[str, np.ndarray], object]:
    """Read a block as the format says it, apart from the code that writes it."""
    assert data[:8] == MAGIC
    length = int.from_bytes(data[8:12], "little")
    header = json.loads(data[12 : 12 + length])
    base = 12 + length
    assert base % 8 == 0
    columns = {}
    for one in header["cols"]:
        raw = data[base + one["off"] : base + one["off"] + one["len"]]
        assert one["off"] % 8 == 0
        dtypes = {"u8": "u1", "u16": "<u2", "u32": "<u4", "f64": "<f8"}
        dtype = dtypes[one["dtype"]]
        width = np.dtype(dtype).itemsize
        if "p" in one["enc"]:
            raw += bytes(one["n"] * width - len(raw))  # planes of zeros are left out
            planes = [raw[i * one["n"] : (i + 1) * one["n"]] for i in range(width)]
            raw = bytes(byte for row in zip(*planes, strict=True) for byte in row)
        values = np.frombuffer(raw, dtype)
        if "d" in one["enc"]:
            values = np.cumsum(values, dtype=np.uint32)
        assert len(values) == one["n"]
        columns[one["name"]] = values
    return columns, header["meta"]


def blocks_of(page: str) -> dict[str, bytes]:
    """Return the blocks of a page, unpacked."""
    found = {}
    pattern = (
        r'<script type="application/x-memprof" id="mp-([^"]+)" '
        r'data-enc="([^"]+)">([^<]*)</script>'
    )
    for name, how, text in re.findall(pattern, page):
        data = base64.b64decode(text, validate=True)
        found[name] = gzip.decompress(data) if how.startswith("gzip") else data
    return found


def random_recording(seed: int, length: int = 2500, gpus: int = 2) -> Recording:
    return Recording(_core.from_events(random_stream(seed, length, gpus), NAMES))


@pytest.mark.parametrize("enc", ["", "d", "p", "dp"])
def test_u32_columns_come_back_whatever_their_encoding(enc):
    values = np.random.default_rng(1).integers(0, 2**32, 1001, np.uint64)
    values[:3] = [2**32 - 1, 0, 1]
    columns, meta = unpacked(block([column("x", values, enc=enc)], {"é": [1]}))
    assert np.array_equal(columns["x"], values)
    assert meta == {"é": [1]}


@pytest.mark.parametrize(
    ("most", "dtype", "enc", "planes"),
    [
        *((255, "u1", None, 1), (256, "u2", None, 2), (2**16 - 1, "u2", "", 2)),
        *((2**16, "u4", None, 3), (2**24, "u4", None, 4), (2**16, "u4", "", 4)),
        (1000, "u4", "dp", 2),  # ascending: gaps are narrow, the array is not
    ],
)
def test_whole_numbers_are_as_narrow_as_they_can_be(most, dtype, enc, planes):
    values = np.array([0, 1, most - 1, most], np.int64)
    data = block([column("x", values, enc=enc)])
    columns, _ = unpacked(data)
    assert columns["x"].dtype == np.dtype(dtype)
    assert columns["x"].tolist() == values.tolist()
    length = int.from_bytes(data[8:12], "little")
    assert json.loads(data[12 : 12 + length])["cols"][0]["len"] == planes * 4


def test_bytes_and_floats_come_back_and_columns_are_aligned():
    sizes = np.array([2**52 + 1, 0, 5], np.uint64)
    columns, _ = unpacked(
        block([column("a", [7] * 3, "u8"), column("b", sizes, "f64"), column("c", [])])
    )
    assert columns["a"].tolist() == [7] * 3
    assert columns["b"].astype(np.uint64).tolist() == sizes.tolist()
    assert len(columns["c"]) == 0


@pytest.mark.parametrize(
    ("values", "dtype"), [([-1], "u32"), ([2**32], "u32"), ([256], "u8")]
)
def test_what_does_not_fit_is_refused(values, dtype):
    with pytest.raises(OverflowError):
        column("x", values, dtype)


def test_armour_is_one_gzip_member_without_a_time():
    data = bytes(range(256)) * 100
    text, how = armoured(data)
    packed = base64.b64decode(text)
    assert how == "gzip+base64"
    assert packed[4:8] == bytes(4)  # mtime
    assert gzip.decompress(packed) == data
    assert armoured(data) == (text, how)
    assert armoured(data, compress=False) == (base64.b64encode(data).decode(), "base64")


@pytest.mark.parametrize("seed", range(6))
def test_lives_and_levels_are_the_recordings(seed):
    recording = random_recording(seed)
    names = Names(recording, "full")
    for number in recording._core.devices():
        device = Device(recording, number, names)
        columns, _ = unpacked(block(device.allocs()))
        lives = device.lives
        size = columns["sizes"][columns["size"]]
        assert np.array_equal(size, lives["size"].astype(float))
        event = np.append(-1, device.event)
        born = event[columns["birth"]]
        assert np.array_equal(born, lives["born_event"])
        alive = columns["life"] == ALIVE
        assert np.array_equal(alive, lives["died_event"] < 0)
        death = columns["birth"].astype(np.int64) - 1 + columns["life"]
        assert np.array_equal(event[death[~alive] + 1], lives["died_event"][~alive])
        texts = names.texts
        for key, field in (("op", "op"), ("owner", "owner"), ("region", "region")):
            said = [texts[i] for i in columns[f"s_{key}"][columns["site"]]]
            assert said == [recording.op(int(i)) for i in lives[field]]
        # Reserved: the level before each next event is the core's.
        events, _ = unpacked(block(device.events()))
        if number < 0:
            assert "res_bytes" not in events
            continue
        samples = recording._sampled(number, 0)
        for index in range(-1, len(device.event), 7):
            place = np.searchsorted(events["res_event"], index + 1, "right") - 1
            until = event[index + 2] if index + 2 < len(event) else 2**62
            row = np.searchsorted(samples.event, until - 1, "right") - 1
            assert events["res_bytes"][place] == samples.bytes[row, 2]


@pytest.mark.parametrize(("seed", "keep"), [(0, 0), (3, 30), (5, 30), (2, 400)])
def test_folded_blocks_add_what_they_had_at_each_event(seed, keep):
    recording = random_recording(seed, 2500)
    names, kinds = Names(recording, "full"), len(_core.CATEGORIES)
    folded = 0
    for number in recording._core.devices():
        device = Device(recording, number, names, keep)
        lives = recording.allocations(device.name)
        assert len(device.lives) + len(device.folded) == len(lives)
        # Folded is only what is both small and short-lived.
        fold = device.fold
        gone = device.folded["died_event"] - device.folded["born_event"]
        assert (device.folded["size"] <= fold.size).all()
        assert ((gone >= 0) & (gone <= fold.events)).all()
        columns, _ = unpacked(block(device.folds()))
        count = len(device.event)
        bytes_, blocks = np.zeros((2, count, kinds))
        at = columns["fold_event"], columns["fold_cat"]
        bytes_[at], blocks[at] = columns["fold_bytes"], columns["fold_count"]
        bytes_, blocks = bytes_.cumsum(axis=0), blocks.cumsum(axis=0)
        for place, event in enumerate(device.event.tolist()):
            rows = device.folded
            there = rows[(rows["born_event"] <= event) & (rows["died_event"] > event)]
            sums = np.bincount(there["category"], there["size"], kinds)
            assert np.array_equal(bytes_[place], sums)
            assert np.array_equal(
                blocks[place], np.bincount(there["category"], None, kinds)
            )
        # The peak is an event of the page, and whole.
        peak = recording.peak(device.name)
        if peak.event >= 0:
            assert peak.event in device.event
            assert not bytes_[device.rank(peak.event)].any()
        told = device.told_folds("full")
        assert sum(row[0] for row in told["rows"]) == told["bytes"]
        assert (
            sum(row[1] for row in told["rows"]) == told["count"] == len(device.folded)
        )
        folded += len(device.folded)
    assert folded or keep == 400


@pytest.mark.parametrize("seed", range(6))
def test_segments_add_up_to_what_is_reserved(seed):
    recording = random_recording(seed, 4000)
    checked = 0
    for number in recording._core.devices():
        if number < 0:
            continue
        device = Device(recording, number, Names(recording, "full"))
        placed = device.addresses()
        if placed is None:
            continue
        columns, meta = unpacked(block(*placed))
        samples = recording._sampled(number, 0)
        for index in range(-1, len(device.event), 11):
            at = index + 1
            there = (columns["seg_birth"] <= at) & (
                (columns["seg_death"] == ALIVE) | (columns["seg_death"] > at)
            )
            event = device.event[index] if index >= 0 else -1
            until = device.event[index + 1] if index + 1 < len(device.event) else 2**62
            row = np.searchsorted(samples.event, max(until - 1, event), "right") - 1
            assert columns["seg_size"][there].sum() == samples.bytes[row, 2]
            checked += 1
        assert columns["stretch"][-1] * meta["unit"] == meta["total"]
    assert checked


def test_a_hole_in_a_segment_leaves_two_pieces():
    events = np.zeros(2, recording_events())
    events["kind"], events["address"], events["size"] = [6, 7], [100, 120], [60, 20]
    assert sorted(segment_pieces(events)) == [
        (100, 20, 0, -1, 2, 0),
        (120, 20, 0, 1, 2, 0),
        (140, 20, 0, -1, 2, 0),
    ]


def recording_events():
    from memprof.rows import EVENT_DTYPE

    return EVENT_DTYPE


@pytest.mark.parametrize(
    ("path", "relative"),
    [
        ("/home/ann/work/net/train.py", "net/train.py"),
        ("/root/x.py", "x.py"),
        ("/Users/ann/x/y/z.py", "y/z.py"),
        ("/data/secret/project/net/a.py", "net/a.py"),
        ("/srv/env/lib/python3.11/site-packages/torch/nn/x.py", "torch/nn/x.py"),
        ("/usr/lib/python3.11/threading.py", "python3.11/threading.py"),
        ("net/train.py", "net/train.py"),
        ("../../other/train.py", "other/train.py"),
        ("<string>", "<string>"),
        ("", ""),
    ],
)
def test_paths_lose_what_is_private(path, relative):
    assert shown_path(path, "relative") == relative
    assert shown_path(path, "full") == path
    hashed = shown_path(path, "hash")
    assert not path or ("ann" not in hashed and "secret" not in hashed)
    assert hashed == shown_path(path, "hash")


def test_places_keep_their_line():
    assert shown_place("/home/ann/a/b.py:12", "relative") == "a/b.py:12"
    assert shown_place("layers.0.weight", "relative") == "layers.0.weight"


def test_the_page_is_the_same_each_time_and_forbids_everything_else():
    recording = load(GOLDEN / "convnet.memprof")
    page = html.page(recording)
    assert page == html.page(recording)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy.start() < page.index("<script") < page.index("</html>")
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules["default-src"] == "'none'"
    script = re.search(r"<script>(.*?)</script>", page, re.S)
    style = re.search(r"<style>(.*?)</style>", page, re.S)
    assert rules["script-src"] == f"'{html.digest(script[1])}'"
    assert rules["style-src"] == f"'{html.digest(style[1])}'"
    assert rules["base-uri"] == rules["form-action"] == "'none'"
    assert len(re.findall("<script>", page)) == len(re.findall("<style>", page)) == 1
    assert not re.search(r"\son\w+=|\sstyle=|https?://", page.replace(script[1], ""))
    assert len(script[1]) + len(style[1]) < 250_000


def test_the_table_without_script_adds_up():
    recording = load(GOLDEN / "checkpointed.memprof")
    page = html.page(recording)
    part = page[page.index('<section id="mp-static">') : page.index("</section>")]
    rows = re.findall(r'<tr><td class="n">[^<]*</td><td class="n">(\d+)</td>', part)
    *parts, total = map(int, rows)
    assert sum(parts) == total == recording.peak().requested


def test_core_is_small_and_names_the_peak():
    recording = load(GOLDEN / "checkpointed.memprof")
    blocks = blocks_of(html.page(recording))
    assert next(iter(blocks)) == "core"
    columns, meta = unpacked(blocks["core"])
    peak = recording.peak()
    opened = meta["devices"][meta["opened"]]
    assert opened["name"] == "cuda:0"
    assert opened["peak"]["bytes"] == peak.requested
    assert f"step {peak.step}" in meta["sentence"]
    highest = sum(columns[f"c_{i}"] for i in range(len(meta["categories"])))
    assert highest.max() == peak.requested
    assert len(highest) <= 1500


def test_nothing_private_is_written_unless_asked(tmp_path):
    core = _core.from_events(random_stream(3, 800), NAMES)
    core.info = json.dumps(
        {
            "argv": ["/home/ann/secret/train.py", "--token", "hunter2"],
            "cwd": "/home/ann/secret",
            "host": "annbox",
            "pid": 4242,
        }
    )
    page = html.page(Recording(core))
    blocks = b"".join(blocks_of(page).values())
    for word in ("hunter2", "annbox", "/home/ann"):
        assert word not in page
        assert word.encode() not in blocks
    assert b"train.py" in blocks


def test_source_lines_only_when_asked(tmp_path):
    file = tmp_path / "model.py"
    file.write_text("def f():\n    return torch.secret_sauce()\n")
    events = np.zeros(1, recording_events())
    events["kind"], events["size"], events["device"] = 1, 8, -1
    events["op"] = events["module"] = 0xFFFFFFFF
    core = _core.from_events(events, [], [[("f", str(file), 2)]])
    recording = Recording(core)
    without = b"".join(blocks_of(html.page(recording)).values())
    asked = html.page(recording, source=True)
    assert b"secret_sauce" not in without
    assert b"secret_sauce" in b"".join(blocks_of(asked).values())
    assert "source lines: yes" in asked


def test_write_replaces_whole_files_only(tmp_path):
    recording = load(GOLDEN / "convnet.memprof")
    path = tmp_path / "r.html"
    path.write_text("old")
    path.chmod(0o640)
    recording.export_html(path)
    assert path.read_text().startswith("<!doctype html>")
    assert path.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]
    with pytest.raises(OSError, match="no folder"):
        recording.report(tmp_path / "none" / "r.html")
    with pytest.raises(ValueError, match="not recorded"):
        recording.report(path, "cuda:7")
    with pytest.raises(ValueError, match="paths="):
        recording.report(path, paths="some")


def test_too_much_that_cannot_be_folded_is_refused_in_words(monkeypatch):
    recording = load(GOLDEN / "convnet.memprof")
    monkeypatch.setattr(page_data, "MAX_ALLOCATIONS", 10)
    monkeypatch.setattr(page_data, "KEEP", 10)
    with pytest.raises(MemprofError, match="live too long to be folded, more than"):
        html.page(recording)
    monkeypatch.undo()
    monkeypatch.setattr(html, "MAX_BLOCK", 1000)
    with pytest.raises(MemprofError, match="more than the 1000 B"):
        html.page(recording)


def test_a_large_page_is_warned_of(monkeypatch, tmp_path):
    monkeypatch.setattr(html, "LARGE", 1000)
    with pytest.warns(UserWarning, match="the report has"):
        html.write(load(GOLDEN / "convnet.memprof"), tmp_path / "r.html")


def test_compared_runs_sum_to_both_peaks():
    now, before = load(GOLDEN / "convnet.memprof"), load(GOLDEN / "churn.memprof")
    data = page_data.PageData(now, compare=before)
    rows = data.meta["compare"]["rows"]
    assert sum(row[5] for row in rows) == now.peak().requested
    assert sum(row[7] for row in rows) == before.peak().requested
    change = [abs(row[5] - row[7]) for row in rows]
    assert change == sorted(change, reverse=True)
