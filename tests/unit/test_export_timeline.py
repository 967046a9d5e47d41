"""torch's memory timeline: its shapes, and the bytes that the recording says."""

from __future__ import annotations

import gzip
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from check_timeline import check_timeline, replayed
from events import KIND, NAMES, random_stream, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from unpack import unpack

import memprof
from memprof import _core
from memprof.recording import Recording
from memprof.reports import html

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.memprof"))
SEEDS = range(60)
EIGHT = [*_core.CATEGORIES[:8]]


def made(events, names=NAMES) -> Recording:
    return Recording(_core.from_events(events, names), None)


def of_seed(seed: int) -> Recording:
    return made(random_stream(seed, length=300, window=bool(seed % 2)))


def exported(recording, folder, device, suffix):
    path = folder / f"timeline{suffix}"
    recording.export_memory_timeline(path, device)
    data = path.read_bytes()
    assert check_timeline(data) == []
    assert os.listdir(folder) == [path.name]  # nothing half-written beside it
    path.unlink()
    return data, json.loads(unpack(data)[0])


def expected(recording, device):
    """Return [times, sizes] as the recording's own timeline has them."""
    line = recording.timeline(device)
    order = [line.labels.index(name) for name in EIGHT]
    sizes = line.bytes[:, order].copy()
    sizes[:, 7] += line.bytes[:, line.labels.index("workspace")]
    core, events = recording._core, recording.events()
    # A block that was about to go when the recording began never counts.
    counts = (line.events < 0) | (events["kind"][line.events] != KIND["seed_block"])
    sizes = sizes[counts]
    clock = np.maximum.accumulate(events["time_ns"])
    wall = clock[np.maximum(line.events[counts], 0)]
    wall = wall - core.start_ns + core.start_wall_ns
    times = [int(time / 1000) for time in wall.tolist()]
    lives = recording.allocations(device)
    found: list[list[int]] = [[], []]
    if (lives["born_event"] < 0).any():
        first = times[1] if len(times) > 1 else int(core.start_wall_ns / 1000)
        found = [[first], [sizes[0].tolist()]]
    begun = len(found[0])
    for time, row in zip(times[1:], sizes[1:].tolist()):
        if len(found[0]) > begun and found[0][-1] == time:
            found[1][-1] = row
        else:
            found[0].append(time)
            found[1].append(row)
    return [found[0], [[0, *row] for row in found[1]]]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_golden_recordings_give_what_they_hold(path, tmp_path):
    recording = memprof.load(path)
    for device in recording.devices:
        data, series = exported(recording, tmp_path, device, ".json")
        assert series == expected(recording, device)
        packed, same = exported(recording, tmp_path, device, ".json.gz")
        assert same == series
        assert gzip.decompress(packed) == data
        _, raw = exported(recording, tmp_path, device, ".raw.json.gz")
        if any(row[0] >= 0 for row in raw):  # else torch's rule says -1
            assert replayed(raw) == series
        lives = recording.allocations(device)
        alive = lives[lives["died_event"] < 0]
        assert sum(row[2] for row in raw) == alive["size"].sum()
        counted = (lives["born_event"] < 0) | (
            lives["born_event"] != lives["died_event"]
        )
        assert sum(row[1] in (1, 2) for row in raw) == counted.sum()


@pytest.mark.parametrize("first", SEEDS[::10])
def test_random_recordings_give_what_they_hold(first, tmp_path):
    for seed in range(first, first + 10):
        recording = of_seed(seed)
        for device in recording.devices:
            _, series = exported(recording, tmp_path, device, ".json")
            assert series == expected(recording, device), seed
            _, raw = exported(recording, tmp_path, device, ".raw.json.gz")
            if any(row[0] >= 0 for row in raw):  # else torch's rule says -1
                assert replayed(raw) == series, seed


@given(
    times=st.lists(st.integers(0, 5_000), min_size=1, max_size=30),
    base=st.sampled_from([0, 10**6, 10**15, 1_700_000_000 * 10**9, 2**62]),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_any_times_give_torchs_microseconds(tmp_path_factory, times, base, data):
    """Also such as fall a little, and equal ones."""
    events, live = [], []
    for index, time in enumerate(times):
        if live and data.draw(st.booleans()):
            address = live.pop(data.draw(st.integers(0, len(live) - 1)))
            event = {"kind": 3, "address": address}
        else:
            event = {"kind": 1, "address": 64 * (index + 1), "size": index % 7}
            live.append(event["address"])
        events.append({**event, "device": -1, "time_ns": base + time})
    recording = made(rows(events))
    folder = tmp_path_factory.mktemp("any")
    _, series = exported(recording, folder, "cpu", ".json")
    assert series == expected(recording, "cpu")
    _, raw = exported(recording, folder, "cpu", ".raw.json.gz")
    assert replayed(raw) == series


def test_every_spelling_of_a_device(tmp_path):
    recording = of_seed(3)
    assert {"cpu", "cuda:0", "cuda:1"} <= set(recording.devices)

    class Device:  # as torch.device
        def __str__(self):
            return "cuda:1"

    for device, like in [
        (None, "cuda:0"),
        (0, "cuda:0"),
        (1, "cuda:1"),
        ("cuda", "cuda:0"),
        ("1", "cuda:1"),
        (Device(), "cuda:1"),
        ("CPU", "cpu"),
    ]:
        data, _ = exported(recording, tmp_path, device, ".json")
        assert data == exported(recording, tmp_path, like, ".json")[0]


@pytest.mark.parametrize(
    "device", ["cuda:7", "meta", "tpu", 5, -1, True, 1.5, object()]
)
def test_a_device_that_was_not_recorded_gives_an_empty_file_and_words(device, tmp_path):
    recording = memprof.load(GOLDEN[0])
    for suffix, empty in [(".json", [[], []]), (".raw.json.gz", [])]:
        with pytest.warns(UserWarning, match=r"here: .*cuda:0") as said:
            _, value = exported(recording, tmp_path, device, suffix)
        assert value == empty
        assert len(said) == 1
    with pytest.warns(UserWarning, match="here"):
        recording.export_memory_timeline(tmp_path / "x.html", device)
    assert "Nothing was recorded of this device" in (tmp_path / "x.html").read_text()


def test_an_empty_recording_gives_empty_files_and_words(tmp_path):
    recording = made(rows([]))
    for suffix, empty in [
        (".json", [[], []]),
        (".json.gz", [[], []]),
        (".raw.json.gz", []),
    ]:
        for device in (None, "cpu"):
            with pytest.warns(UserWarning, match="nothing was recorded"):
                assert exported(recording, tmp_path, device, suffix)[1] == empty


def test_what_only_lived_before_has_the_time_of_the_start(tmp_path):
    seed = {"kind": 49, "device": 0, "address": 512, "size": 100, "time_ns": 5_000}
    _, series = exported(made(rows([seed])), tmp_path, 0, ".json")
    assert series == [[0], [[0, 0, 0, 0, 0, 0, 0, 0, 100]]]
    _, raw = exported(made(rows([seed])), tmp_path, 0, ".raw.json.gz")
    assert raw == [[-1, 1, 100, 7]]


def test_the_end_of_the_name_decides_as_in_torch(tmp_path):
    recording = memprof.load(GOLDEN[0])
    kinds = {
        "a.json": "series",
        "a.json.gz": "series",
        "a.raw.json.gz": "raw",
        "araw.json.gz": "raw",  # torch asks for no dot
        "a.raw.json": "series",
        "a.gz": "series",
        "a.txt": "series",
        "a": "series",
    }
    for name, kind in kinds.items():
        recording.export_memory_timeline(str(tmp_path / name), 0)
        data = (tmp_path / name).read_bytes()
        assert data.startswith(b"\x1f\x8b") == name.endswith(".gz")
        value = json.loads(unpack(data)[0])
        assert (len(value) == 2) == (kind == "series"), name


def test_again_and_over_another_it_is_the_same_file(tmp_path):
    recording = memprof.load(GOLDEN[0])
    path = tmp_path / "t.raw.json.gz"
    recording.export_memory_timeline(path)
    before = path.read_bytes()
    path.write_text("something private")
    path.chmod(0o640)
    link = tmp_path / "link.raw.json.gz"
    link.symlink_to(path)
    for _ in range(2):
        recording.export_memory_timeline(link)
        assert path.read_bytes() == before
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_file_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path):
    recording = memprof.load(GOLDEN[0])
    for name in ("t.json", "t.html"):
        with pytest.raises(FileNotFoundError, match=r"no/folder"):
            recording.export_memory_timeline(tmp_path / "no" / "folder" / name)
        (tmp_path / name).mkdir()
        with pytest.raises(IsADirectoryError, match=name):
            recording.export_memory_timeline(tmp_path / name)
        (tmp_path / name).rmdir()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_the_page_is_the_report(path, tmp_path):
    recording = memprof.load(path)
    for device in recording.devices:
        recording.export_memory_timeline(tmp_path / "t.html", device)
        text = (tmp_path / "t.html").read_text("utf-8")
        assert text == html.page(recording, device)
        assert f"on {device}" in text
    assert os.listdir(tmp_path) == ["t.html"]


def test_hostile_names_do_not_break_the_page(tmp_path):
    names = ["<script>alert(1)</script>", "a\0b\x1b[31m", "‮‏", "\"&'"]
    events = [
        {
            "kind": 1,
            "device": 0,
            "address": 512 * (i + 1),
            "size": 1 << 20,
            "time_ns": i,
            "op": i,
            "module": i,
        }
        for i in range(4)
    ]
    recording = made(rows(events), names)
    recording.export_memory_timeline(tmp_path / "t.html", 0)
    text = (tmp_path / "t.html").read_text("utf-8")
    assert "alert(1)" not in text.replace("&lt;script&gt;alert(1)&lt;/script&gt;", "")
    assert not set(text) & {"\0", "\x1b"}
