"""Perfetto traces: valid, and what they show is what the recording says."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import sources
from check_pftrace import BEGIN, END, INSTANT, Track, check_pftrace, read
from events import KIND, rows
from hypothesis import given, settings
from hypothesis import strategies as st

import memprof
from memprof import _core, perfetto, pftrace
from memprof.module_spans import module_spans
from memprof.recording import Recording

RECORDINGS = dict(sources.all_of_them())


@pytest.fixture(params=RECORDINGS)
def recording(request) -> Recording:
    return RECORDINGS[request.param]


@pytest.fixture(params=[False, True], ids=["thinned", "full"])
def full(request, monkeypatch) -> bool:
    """Whether all is written; if not, little is left even of small recordings."""
    if not request.param:
        monkeypatch.setattr(perfetto, "BUCKETS", 7)
        monkeypatch.setattr(perfetto, "EACH", 5)
        monkeypatch.setattr(perfetto, "LARGEST", 6)
    return request.param


# What no timeline has: tests/unit/test_counters_beside.py.
BESIDE = {"device used", "outside torch", "largest free block"}


def trace(recording: Recording, folder: Path, **arguments) -> dict[int, Track]:
    path = folder / "a.pftrace"
    recording.export_perfetto(path, **arguments)
    content = path.read_bytes()
    recording.export_perfetto(path, **arguments)
    assert path.read_bytes() == content, "equal input gives equal bytes"
    assert os.listdir(folder) == [path.name]
    path.unlink()
    tracks, wrong = read(content)
    assert wrong == []
    return tracks


def of_device(tracks: dict[int, Track], device: str) -> dict[str, list[Track]]:
    """Return the tracks below a device, by name, in the order of ranks."""
    (group,) = (track for track in tracks.values() if track.name == device)
    found: dict[str, list[Track]] = {}
    mine = [track for track in tracks.values() if track.parent == group.uuid]
    for track in sorted(mine, key=lambda track: track.rank):
        found.setdefault(track.name, []).append(track)
    return found


def slices(track: Track) -> Iterator[tuple[dict, int]]:
    """Give the slices of a track: the begin and when it ends."""
    open_ = []
    for event in track.events:
        if event["type"] == BEGIN:
            open_.append(event)
        elif event["type"] == END:
            yield open_.pop(), event["time"]


def test_counters_are_the_timeline(recording, tmp_path, full) -> None:
    tracks = trace(recording, tmp_path, full=full)
    clock = np.maximum.accumulate(recording.events()["time_ns"])
    for device in recording.devices:
        shown = of_device(tracks, device)
        totals = recording.timeline(device, by="total")
        parts = recording.timeline(device, by="category")
        columns = {
            "allocated": (totals, totals.bytes[:, 0]),
            **{
                f"cat/{name}": (parts, parts.bytes[:, place])
                for place, name in enumerate(parts.labels)
            },
        }
        if device != "cpu":
            columns["active"] = (totals, totals.bytes[:, 1])
            columns["reserved"] = (totals, totals.bytes[:, 2])
        counters = {name for name, (one, *_) in shown.items() if one.counter}
        counters -= BESIDE
        quiet = {name for name, (_, column) in columns.items() if not column.any()}
        assert counters | quiet == set(columns)
        for name in counters:
            line, column = columns[name]
            times = clock[np.maximum(line.events, 0)]
            allowed = set(zip(times.tolist(), column.tolist()))
            (track,) = shown[name]
            *found, last = [(e["time"], e["value"]) for e in track.events]
            assert max(value for _, value in found) == column.max()
            assert last[1] == column[-1], "the last value is seen"
            assert last[0] >= clock[-1]
            if full:
                assert set(found) <= allowed
                values = [value for _, value in found]
                changes = column[np.flatnonzero(np.diff(column, prepend=-1))]
                assert values == changes.tolist()
            for time, value in found:  # each is a value of that very time
                at = recording.at(time_ns=time, device=device)
                if name == "allocated" and not (times == time).sum() > 1:
                    assert value == at.requested


def test_weights_sum_to_all_that_was_allocated(recording, tmp_path, full) -> None:
    tracks = trace(recording, tmp_path, full=full)
    for device in recording.devices:
        lives = recording.allocations(device)
        born = lives[lives["born_event"] >= 0]
        shown = of_device(tracks, device).get("allocations", [])
        events = [event for track in shown for event in track.events]
        marks = [event for event in events if event["type"] == BEGIN]
        total = sum(event["weight"] for event in marks)
        assert total == born["size"].sum(dtype=np.int64)
        assert all(event["stack"] for event in marks)
        if full:
            assert len(marks) == len(born)
        by_stack: dict[tuple, float] = {}
        for event in marks:
            key = event["stack"]
            by_stack[key] = by_stack.get(key, 0) + event["weight"]
        expected: dict[tuple, float] = {}
        for life in born:
            frames = tuple(
                (f"{f.function} ({os.path.basename(f.file)}:{f.line})", f.file, f.line)
                for f in reversed(_stack(recording, life))
            )
            expected[frames] = expected.get(frames, 0) + int(life["size"])
        for frames, size in expected.items():
            if frames:
                assert by_stack[frames] == size


def _stack(recording: Recording, life: np.void):
    from memprof.moment import _Columns

    (code,) = _Columns(recording, np.array([life["id"]])).stacks().tolist()
    return recording.stack(code - 1) if code else ()


def test_the_largest_at_the_peak_are_shown_as_lives(recording, tmp_path, full) -> None:
    tracks = trace(recording, tmp_path, full=full)
    clock = np.maximum.accumulate(recording.events()["time_ns"])
    for device in recording.devices:
        peak = recording.peak(device)
        alive = np.sort(peak.live()["size"])[::-1]
        shown = of_device(tracks, device).get("largest allocations", [])
        assert len({track.rank for track in shown}) <= 1
        sizes = []
        for track in shown:
            ((begin, end),) = slices(track)
            sizes.append(begin["args"]["bytes"])
            moment = clock[max(peak.event, 0)]
            assert begin["time"] <= moment <= end
            assert begin["args"]["category"] in _core.CATEGORIES
        limit = perfetto.LARGEST
        assert sizes == alive[:limit].tolist()
        # An arrow leads to each that was born in the recording.
        arrows = [e["flow_ends"] for t in shown for e in t.events if "flow_ends" in e]
        live = peak.live()
        live = live[np.argsort(live["size"], kind="stable")[::-1][:limit]]
        assert len(arrows) == int((live["born_event"] >= 0).sum())


def test_steps_and_phases_are_those_of_the_recording(recording, tmp_path) -> None:
    tracks = trace(recording, tmp_path)
    for device in recording.devices:
        shown = of_device(tracks, device)
        steps = [one for track in shown.get("steps", []) for one in slices(track)]
        assert [begin["name"] for begin, _ in steps] == [
            f"step {number}" for number in recording.steps["number"].tolist()
        ]
        stats = {int(row["number"]): row for row in recording.step_stats(device)}
        for (begin, end), row in zip(steps, recording.steps):
            assert (begin["time"], end) == (row["start_ns"], row["end_ns"])
            known = stats.get(int(row["number"]))
            if known is not None:
                assert begin["args"]["peak_bytes"] == known["requested_bytes_peak"]
        phases = [one for track in shown.get("phases", []) for one in slices(track)]
        assert [begin["name"] for begin, _ in phases] == (
            recording.phases["name"].tolist()
        )


def test_findings_name_the_peak_and_failures(recording, tmp_path) -> None:
    tracks = trace(recording, tmp_path)
    kinds = recording.events()["kind"]
    for device in recording.devices:
        (track,) = of_device(tracks, device)["findings"]
        (begin,) = (e for e in track.events if e["type"] == BEGIN)
        peak = recording.peak(device)
        assert begin["name"].startswith("peak: ")
        assert begin["args"]["requested_bytes"] == peak.requested
        assert sum(begin["args"].get(c, 0) for c in peak.categories) == peak.requested
        instants = [e for e in track.events if e["type"] == INSTANT]
        number = memprof.recording.parse_device(device)
        failed = (kinds == 8) & (recording.events()["device"] == number)
        assert len(instants) == int(failed.sum())


def test_modules_nest_by_name_and_hold_their_births(recording, tmp_path) -> None:
    for device in recording.devices:
        number = memprof.recording.parse_device(device)
        spans = module_spans(recording, number)
        lives = recording.allocations(device)
        told = lives[lives["born_event"] >= 0]
        for thread, found in spans.items():
            assert (np.diff(found.event) >= 0).all()
            open_: list[tuple[int, int]] = []
            covered: dict[int, list[tuple[int, int]]] = {}
            for event, begins, name in zip(
                found.event.tolist(), found.begins.tolist(), found.name.tolist()
            ):
                if begins:
                    open_.append((name, event))
                else:
                    last, since = open_.pop()
                    assert last == name, "ends are in reverse order of begins"
                    covered.setdefault(name, []).append((since, event))
            assert open_ == []
            # Every birth in a module lies in a span of that name.
            number_of = {name: place for place, name in enumerate(found.names)}
            for life in told[told["thread"] == thread]:
                word = recording.op(int(life["module"]))
                if not word:
                    continue
                model, path = recording._known_models().place(word)
                full = recording._known_models().name(model, path)
                inside = covered[number_of[full]]
                event = int(life["born_event"])
                assert any(since <= event <= until for since, until in inside)


def test_golden_runs_show_forward_and_backward_of_modules(tmp_path) -> None:
    recording = memprof.load(sources.GOLDEN / "checkpointed.memprof")
    shown = of_device(trace(recording, tmp_path), "cuda:0")
    modules = [tracks[0] for name, tracks in shown.items() if "modules" in name]
    assert len(modules) == 2, "autograd has a thread of its own"
    names = {e["name"] for track in modules for e in track.events if e["type"] == BEGIN}
    known = {
        recording.module(int(index))
        for index in set(recording.allocations("cuda:0")["module"].tolist())
    } - {""}
    assert known <= names


def test_a_training_run_on_the_cpu(tmp_path) -> None:
    pytest.importorskip("torch")
    recording = sources.trained_on_cpu()
    shown = of_device(trace(recording, tmp_path, full=True), "cpu")
    assert {"allocated", "cat/parameter", "steps", "phases", "findings"} <= set(shown)
    steps = [begin["name"] for begin, _ in slices(shown["steps"][0])]
    assert steps == ["step 0", "step 1", "step 2"]
    modules = [track for name, tracks in shown.items() for track in tracks]
    names = {e.get("name") for t in modules for e in t.events if "modules" in t.name}
    assert "Sequential" in names
    functions = {
        frame[0].partition(" (")[0]
        for event in shown["allocations"][0].events
        for frame in event.get("stack", ())
    }
    assert {"trained_on_cpu", "Linear.forward"} <= functions


def test_one_device_is_alone_in_its_trace(tmp_path) -> None:
    recording = sources.synthetic(3)
    assert len(recording.devices) > 2
    for device in recording.devices:
        tracks = trace(recording, tmp_path, device=device)
        (top,) = (track for track in tracks.values() if not track.parent)
        assert [t.name for t in tracks.values() if t.parent == top.uuid] == [device]


@given(seed=st.integers(0, 10_000), length=st.integers(0, 150), hostile=st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_stream(tmp_path_factory, seed: int, length: int, hostile: bool) -> None:
    recording = sources.synthetic(seed, length, hostile)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        trace(recording, tmp_path_factory.mktemp("any"))


def test_hostile_names_come_through_whole(tmp_path) -> None:
    names: set[str] = set()
    for seed in range(100, 108):
        recording = sources.synthetic(seed, hostile=True)
        for track in trace(recording, tmp_path, full=True).values():
            for event in track.events:
                names.add(event.get("name", ""))
                names |= {frame[0] for frame in event.get("stack", ())}
    for name in sources.HOSTILE[:8]:
        assert name in names, "an op of that name"
        assert any(f"{name} (" in text for text in names), "a function of that name"


def test_kernels_have_a_track_for_each_stream(tmp_path) -> None:
    def work(start, end, name, stream=7, device=0, number=1):
        return {
            "kind": KIND["gpu_work"], "address": start, "stream": end, "op": name,
            "thread": stream, "op_instance": number, "device": device, "size": 5,
            "time_ns": 900,
        }  # fmt: skip

    names = ["aten::mm", 'gemm<"\n\x1b>', "relu"]
    launch = {"kind": KIND["gpu_launch"], "address": 1, "op": 0, "time_ns": 10}
    events = [
        launch,
        work(20, 40, 1),
        work(30, 60, 2),  # beside the first
        work(40, 50, 1),
        work(20, 90, 2, stream=8, number=2),
        work(5, 6, 2, device=1, number=2),
    ]
    recording = Recording(_core.from_events(rows(events), names, None), None)
    tracks = trace(recording, tmp_path)
    first = of_device(tracks, "cuda:0 kernels")
    assert list(first) == ["stream 7", "stream 8"]
    drawn = [
        sorted((b["time"], end, b["name"]) for b, end in slices(track))
        for track in first["stream 7"]
    ]
    gemm = names[1]
    assert drawn == [[(20, 40, gemm), (40, 50, gemm)], [(30, 60, "relu")]]
    (begin, _), *_ = slices(first["stream 7"][0])
    assert begin["args"]["op"] == "aten::mm"
    assert begin["args"]["kind"] == "kernel"
    assert len(of_device(tracks, "cuda:1 kernels")["stream 7"]) == 1
    without = trace(sources.synthetic(3), tmp_path).values()
    assert not any("kernels" in track.name for track in without)


def test_an_empty_recording_and_an_unknown_device(tmp_path) -> None:
    path = tmp_path / "a.pftrace"
    with pytest.warns(UserWarning, match="nothing was recorded"):
        sources.empty().export_perfetto(path)
    assert check_pftrace(path.read_bytes()) == []
    with pytest.warns(UserWarning, match=r"cuda:7 was not recorded"):
        RECORDINGS["convnet"].export_perfetto(path, device=7)
    assert check_pftrace(path.read_bytes()) == []
    with pytest.raises(ValueError, match="is not a device"):
        RECORDINGS["convnet"].export_perfetto(path, device="gpu")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        RECORDINGS["convnet"].export_perfetto(tmp_path / "nowhere" / "a.pftrace")


def test_rows_that_name_nothing_are_refused(tmp_path) -> None:
    path = str(tmp_path / "a")
    document = pftrace.Document()
    events = document.new_events(1)
    tracks = np.zeros(1, pftrace.TRACK_DTYPE)
    tracks["uuid"], tracks["description"] = 7, memprof.recording.NO_INDEX
    none = np.zeros(0, np.int64)

    def write(**changes) -> None:
        rows = {
            "texts": [b"name"],
            "samples": [],
            "tracks": tracks,
            "events": events,
            "args": np.zeros(0, pftrace.ARG_DTYPE),
            "frames": np.zeros((0, 3), np.uint32),
            "stack_offsets": np.zeros(1, np.int64),
            "stack_frames": np.zeros(0, np.uint32),
            **changes,
        }
        _core.write_pftrace(path, *rows.values())

    write()
    for field in ("track", "name", "category", "stack", "args_count"):
        wrong = events.copy()
        wrong[field] = 1
        with pytest.raises(ValueError, match="not there"):
            write(events=wrong)
    with pytest.raises(ValueError, match="not there"):
        write(tracks=np.zeros(1, pftrace.TRACK_DTYPE))
    with pytest.raises(ValueError, match="not there"):
        write(stack_offsets=np.array([0, 2]), stack_frames=np.zeros(1, np.uint32))
    with pytest.raises(ValueError, match="not there"):
        write(stack_frames=np.zeros(1, np.uint32))
    with pytest.raises(ValueError, match="not there"):
        write(frames=np.ones((1, 3), np.uint32))
    with pytest.raises(ValueError, match="rows take 48 bytes"):
        write(events=np.zeros(7, np.uint8))
    with pytest.raises(ValueError, match="as many times as values"):
        write(samples=[(7, none, np.zeros(1, np.int64))])
    with pytest.raises(TypeError, match="samples are"):
        write(samples=[7])
    with pytest.raises(OSError, match="No such file"):
        _core.write_pftrace(str(tmp_path / "no" / "a"), [], [], *[b""] * 6)


# -- Perfetto's own message classes ---------------------------------------------------


def unknown_fields(message, path: str = "") -> list[str]:
    """Return the fields that the classes do not know, at any depth."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    found = [f"{path}.{one.field_number}" for one in UnknownFieldSet(message)]
    for descriptor, value in message.ListFields():
        if descriptor.type == descriptor.TYPE_MESSAGE:
            for one in value if descriptor.is_repeated else [value]:
                found += unknown_fields(one, f"{path}.{descriptor.name}")
    return found


def test_perfettos_own_classes_read_the_trace(recording, tmp_path) -> None:
    """The classes of the package ``perfetto``, made from Perfetto's own protos."""
    package = pytest.importorskip(
        "perfetto.protos.perfetto.trace.perfetto_trace_pb2",
        reason="perfetto and protobuf are not installed (tests/validators need them)",
    )
    path = tmp_path / "a.pftrace"
    recording.export_perfetto(path)
    content = path.read_bytes()
    theirs = package.Trace.FromString(content)
    tracks, wrong = read(content)
    assert wrong == []
    assert unknown_fields(theirs) == []
    assert len(theirs.SerializeToString()) == len(content), "nothing is lost"
    described = [
        p.track_descriptor for p in theirs.packet if p.HasField("track_descriptor")
    ]
    assert [(t.uuid, t.name, t.parent_uuid) for t in described] == [
        (track.uuid, track.name, track.parent) for track in tracks.values()
    ]
    for track in described:
        if track.HasField("counter"):
            assert track.counter.unit == package.CounterDescriptor.UNIT_SIZE_BYTES
            assert track.counter.y_axis_share_key == "bytes"
        elif track.child_ordering:
            assert track.child_ordering == package.TrackDescriptor.EXPLICIT
    interned: dict[tuple[str, int], object] = {}
    by_track: dict[int, list] = {}
    for packet in theirs.packet:
        for kind, entries in packet.interned_data.ListFields():
            for entry in entries:
                interned[kind.name, entry.iid] = entry
        if packet.HasField("track_event"):
            by_track.setdefault(packet.track_event.track_uuid, []).append(packet)
    for uuid, track in tracks.items():
        packets = by_track.pop(uuid, [])
        assert len(packets) == len(track.events)
        for packet, mine in zip(packets, track.events):
            event = packet.track_event
            assert (packet.timestamp, event.type) == (mine["time"], mine["type"])
            if "value" in mine:
                assert event.counter_value == mine["value"]
            if "name" in mine:
                name = interned["event_names", event.name_iid].name
                assert name == mine["name"]
            if "weight" in mine:
                assert event.callstack_weight == mine["weight"]
                stack = interned["callstacks", event.callstack_iid]
                frames = [interned["frames", iid] for iid in stack.frame_ids]
                names = [
                    interned["function_names", frame.function_name_id].str.decode()
                    for frame in frames
                ]
                assert names == [frame[0] for frame in mine["stack"]]
                assert [frame.line_number for frame in frames] == [
                    frame[2] for frame in mine["stack"]
                ]
            args = {
                interned["debug_annotation_names", arg.name_iid].name: (
                    arg.int_value if arg.HasField("int_value") else arg.string_value
                )
                for arg in event.debug_annotations
            }
            assert args == mine["args"]
    assert by_track == {}
