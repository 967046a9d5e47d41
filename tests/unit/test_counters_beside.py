"""Counters in traces beside the tracker's: the driver's, the largest free block."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "validators")]

from check_chrome import check_chrome  # noqa: E402
from check_pftrace import read  # noqa: E402
from events import KIND, NAMES, Script, random_stream, rows  # noqa: E402
from test_totals import MIB, put  # noqa: E402

import memprof  # noqa: E402
from memprof import _core  # noqa: E402
from memprof.recording import CPU, Recording  # noqa: E402

GOLDEN = sorted((HERE.parent / "golden").glob("*.memprof"))
FREE = "largest free block"
BESIDE = ("device used", "outside torch", FREE)
SOLID = (KIND["segment_alloc"], KIND["segment_free"])
MAPPED = (KIND["segment_map"], KIND["segment_unmap"])
PAGE = (2 << 20) // 512  # in units
PENDING = 1 << 3  # MP_FLAG_PENDING, csrc/event.h


def made(script: Script) -> Recording:
    """Return what a script says, as a recording."""
    return Recording(_core.from_events(rows(script.events), NAMES, None), None)


def found(recording: Recording, device: int, most: int = 2**40) -> np.ndarray:
    """Return what the core says: pairs of event and bytes."""
    raw = _core.free_blocks(recording._core, device, most)
    return np.frombuffer(raw, np.int64).reshape(-1, 2)


class Naive:
    """Segments and blocks in units of 512, looked through at every event."""

    def __init__(self) -> None:
        self.solid: dict[int, int] = {}
        self.pages: set[int] = set()  # mapped: their first units
        self.blocks: dict[int, int] = {}  # first unit: units

    def cut(self, first: int, count: int) -> None:
        """Take pages out of a segment that was not told to be of pages."""
        for begin, units in list(self.solid.items()):
            end, last = begin + units, first + count
            if begin == first or end == last:
                raise Unknown
            if begin < first and last < end:
                self.solid[begin] = first - begin
                self.solid[last] = end - last

    def largest(self) -> int:
        """Return the longest stretch without a block, in bytes."""
        runs = [(begin, begin + count) for begin, count in self.solid.items()]
        for page in sorted(self.pages):
            if runs and runs[-1][1] == page and page - PAGE in self.pages:
                runs[-1] = (runs[-1][0], page + PAGE)
            else:
                runs.append((page, page + PAGE))
        best = 0
        for begin, end in runs:
            at = begin
            for first in sorted(self.blocks):
                if begin <= first < end:
                    best = max(best, first - at)
                    at = max(at, first + self.blocks[first])
            best = max(best, end - at)
        return best * 512


class Unknown(Exception):
    """Segments do not add up."""


def naive(recording: Recording, device: int) -> list[tuple[int, int]]:
    """Return when the largest stretch changes, and to what; [] if it is not known."""
    try:
        return replayed(recording, device)
    except Unknown:
        return []


def replayed(recording: Recording, device: int) -> list[tuple[int, int]]:
    events, lives = recording.events("all"), recording.allocations("all")
    lives = lives[(lives["device"] == device) & (lives["size"] > 0)]
    # Not those whose free was asked for before they were heard of.
    over = (lives["born_event"] >= 0) & (lives["born_event"] == lives["died_event"])
    lives = lives[~over]
    state = Naive()

    def block(life: np.void) -> tuple[int, int]:
        first = int(life["address"]) // 512
        end = -(-(int(life["address"]) + int(life["size"])) // 512)
        return first, end - first

    def segment(event: np.void, comes: bool, mapped: bool) -> None:
        first, count = int(event["address"]) // 512, int(event["size"]) // 512
        if mapped and comes:
            state.pages.update(range(first, first + count, PAGE))
        elif mapped:
            state.pages.difference_update(range(first, first + count, PAGE))
            state.cut(first, count)
        elif comes:
            state.solid[first] = count
        else:
            if state.solid.pop(first, None) is None:
                raise Unknown

    mine = events["device"] == device
    for event in events[mine & (events["kind"] == KIND["seed_segment"])]:
        segment(event, True, bool(event["flags"] & PENDING))
    for life in lives[lives["born_event"] < 0]:
        state.blocks.__setitem__(*block(life))
    told = [(-1, state.largest())]
    for number, event in enumerate(events):
        for life in lives[lives["completed_event"] == number]:
            state.blocks.pop(block(life)[0])
        if mine[number] and event["kind"] in (*SOLID, *MAPPED):
            comes = event["kind"] in (SOLID[0], MAPPED[0])
            segment(event, comes, event["kind"] in MAPPED)
        for life in lives[lives["born_event"] == number]:
            state.blocks.__setitem__(*block(life))
        if mine[number] and state.largest() != told[-1][1]:
            told.append((number, state.largest()))
    return told


@pytest.mark.parametrize("seed", range(25))
def test_the_largest_free_block_is_what_a_naive_replay_finds(seed) -> None:
    events = random_stream(seed, length=150, window=bool(seed % 2))
    recording = Recording(_core.from_events(events, NAMES, None), None)
    gpus = [number for number in recording._core.devices() if number != CPU]
    for device in gpus:
        assert list(map(tuple, found(recording, device).tolist())) == naive(
            recording, device
        )


def shown(recording: Recording, folder: Path, device: str) -> dict[str, list]:
    """Return the counters beside, of both kinds of trace: values in order."""
    recording.export_chrome_trace(folder / "a.json")
    data = (folder / "a.json").read_bytes()
    assert check_chrome(data) == []
    pid = 9_000_900 if device == "cpu" else 9_000_000 + 10 * int(device[5:])
    out: dict[str, list] = {}
    for event in json.loads(data)["traceEvents"]:
        if event["ph"] == "C" and event["pid"] == pid and event["name"] in BESIDE:
            out.setdefault(event["name"], []).append(event["args"]["bytes"])
    recording.export_perfetto(folder / "a.pftrace", full=True)
    tracks, wrong = read((folder / "a.pftrace").read_bytes())
    assert wrong == []
    (group,) = (track for track in tracks.values() if track.name == device)
    mine = {t.name: t for t in tracks.values() if t.parent == group.uuid}
    assert {name for name in mine if name in BESIDE} == set(out)
    for name, values in out.items():
        assert [e["value"] for e in mine[name].events] == changes(values)
    return out


def changes(values: list[int]) -> list[int]:
    """Return values without repeats, and the last once more."""
    kept = [v for v, before in zip(values, [None, *values]) if v != before]
    return [*kept, values[-1]]


@pytest.mark.parametrize(
    "path", [p for p in GOLDEN if p.stem != "checkpointed"], ids=lambda p: p.stem
)
def test_golden_recordings_show_it_in_both_traces(path, tmp_path) -> None:
    recording = memprof.load(path)
    values = found(recording, 0)[:, 1].tolist()
    assert values == [value for _, value in naive(recording, 0)]
    assert shown(recording, tmp_path, "cuda:0")[FREE] == [*values, values[-1]]
    if "cpu" in recording.devices:
        assert FREE not in shown(recording, tmp_path, "cpu")


def test_what_the_driver_said_and_what_of_it_is_not_torchs(tmp_path) -> None:
    script = Script()
    script.write("segment_alloc", device=0, address=64 * MIB, size=20 * MIB)
    put(script, 1, process=100 * MIB)
    script.write("alloc", device=0, address=64 * MIB, size=100)
    script.write("segment_alloc", device=0, address=128 * MIB, size=40 * MIB)
    put(script, 2, process=170 * MIB)
    script.write("alloc", device=-1, address=3, size=100)
    put(script, 2, device=-1, process=5 * MIB, method="/proc, this process")
    put(script, 3, process=2**64 - 1, why="NVML failed")  # not measured
    put(script, 4, process=30 * MIB)  # torch took more while it was asked
    recording = made(script)
    assert shown(recording, tmp_path, "cuda:0") == {
        "device used": [3 << 30] * 5,
        "outside torch": [80 * MIB, 110 * MIB, 0, 0],
        FREE: [0, 20 * MIB, 20 * MIB - 512, 40 * MIB, 40 * MIB],
    }
    # The CPU's pages may never have been touched: no difference is told.
    assert shown(recording, tmp_path, "cpu") == {"device used": [3 << 30] * 2}


def test_segments_that_do_not_add_up_give_no_counter(tmp_path) -> None:
    for address in (60 * MIB, 84 * MIB, 500 * MIB):
        script = Script()
        script.write("segment_alloc", device=0, address=64 * MIB, size=20 * MIB)
        script.write("alloc", device=0, address=64 * MIB, size=100)
        script.write("alloc", device=0, address=address, size=100)
        recording = made(script)
        assert len(found(recording, 0)) == 0
        assert shown(recording, tmp_path, "cuda:0") == {}
    script = Script()
    script.write("segment_alloc", device=0, address=64 * MIB, size=20 * MIB)
    script.write("alloc", device=0, address=64 * MIB, size=100)
    script.write("segment_free", device=0, address=64 * MIB, size=20 * MIB)
    assert len(found(made(script), 0)) == 0


def test_neighbours_join_only_if_they_are_pages() -> None:
    for kind, joined in (("segment_alloc", 20), ("segment_map", 40)):
        script = Script()
        for address in (64, 84):
            script.write(kind, device=0, address=address * MIB, size=20 * MIB)
        values = found(made(script), 0)[:, 1]
        assert values[-1] == joined * MIB


def test_many_changes_are_thinned_and_keep_the_extremes() -> None:
    recording = memprof.load(next(p for p in GOLDEN if p.stem == "checkpointed"))
    full, thin = found(recording, 0), found(recording, 0, 40)
    assert len(full) > 200
    assert 10 <= len(thin) <= 60
    assert {tuple(row) for row in thin} <= {tuple(row) for row in full}
    for extreme in (np.min, np.max):
        assert extreme(thin[:, 1]) == extreme(full[:, 1])
    assert thin[-1].tolist() == full[-1].tolist()
