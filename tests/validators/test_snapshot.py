"""Snapshots written and read: the validator, the tracker, and there and back."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from check_snapshot import check_snapshot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memprof
from memprof import _core, snapshots
from memprof.recording import EVENT_DTYPE, Recording

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "unit"))

from events import CPU, NAMES, SESSION, Script, random_stream, rows, with_shapes  # noqa: E402

GOLDEN = sorted((TESTS / "golden").glob("*.memprof"))
REQUESTED = "free_requested"
STACKS = [
    [("forward", "/home/u/model.py", 12), ("train", "/home/u/train.py", 7)],
    [("step", "/home/u/optimizer.py", 3), ("train", "/home/u/train.py", 9)],
    [("<module>", "<string>", 1)],
]


def made(events, **info) -> Recording:
    core = _core.from_events(events, NAMES, STACKS)
    core.info = json.dumps(info)
    return Recording(core)


def of_seed(seed: int, length: int = 400) -> Recording:
    """A random recording with stacks."""
    events = with_shapes(random_stream(seed, length=length), seed)
    rng = np.random.default_rng(seed)
    stack = rng.integers(0, 5, len(events))
    events["stack"] = np.where(stack < 4, stack, 0xFFFFFFFF)
    return made(events)


def exported(recording, tmp_path, name="a.pickle") -> bytes:
    path = tmp_path / name
    recording.export_snapshot(path)
    assert [p.name for p in tmp_path.iterdir() if ".tmp" in p.name] == []
    return path.read_bytes()


def story(recording, device: str):
    """What is alive at the beginning, and what each event changes, in order."""
    lives = recording.allocations(device)
    kinds = recording.events()["kind"]
    start, changes = [], []
    for row in lives:
        life = (int(row["address"]), int(row["size"]))
        born, died = int(row["born_event"]), int(row["died_event"])
        pending = born >= 0 and kinds[born] != 1
        if born < 0 or pending:
            start.append((*life, pending))
        else:
            changes.append((born, 2, "alloc", *life))
        if died >= 0 and not pending:
            changes.append((died, 0, "free_requested", *life))
        if row["completed_event"] >= 0:
            changes.append((int(row["completed_event"]), 1, "free_completed", *life))
    return sorted(start), [change[2:] for change in sorted(changes)]


def index_of(snapshot, device: str) -> int:
    if device == "cpu":
        assert snapshot["memprof"]["cpu"] == len(snapshot["device_traces"]) - 1
        return snapshot["memprof"]["cpu"]
    return int(device.split(":")[1])


def check_tells_the_story(recording, snapshot) -> None:
    """The snapshot's traces are the tracker's lives, entry by entry."""
    for device in recording.devices:
        trace = snapshot["device_traces"][index_of(snapshot, device)]
        start, changes = story(recording, device)
        told = [
            (entry["action"], entry["addr"], entry["size"])
            for entry in trace
            if entry["action"] in ("alloc", "free_requested", "free_completed")
        ]
        assert told == changes, device
        # Going back from the end leads to the beginning.
        live = {
            block["address"]: (block["requested_size"], block["state"])
            for segment in snapshot["segments"]
            if segment["device"] == index_of(snapshot, device)
            for block in segment["blocks"]
            if block["state"] != "inactive"
        }
        for action, address, size in reversed(told):
            if action == "alloc":
                del live[address]
            elif action == "free_completed":
                live[address] = (size, "active_pending_free")
            else:
                live[address] = (size, "active_allocated")
        assert start == sorted(
            (address, size, state == "active_pending_free")
            for address, (size, state) in live.items()
        ), device


def same_lives(one, other) -> None:
    """Both have the same live sets at every event, with what is known of each."""
    assert one.devices == other.devices
    for device in one.devices:
        assert story(one, device) == story(other, device), device
        facts = []
        for recording in (one, other):
            lives = recording.allocations(device)
            facts.append(
                [
                    (
                        _core.CATEGORIES[row["category"]],
                        recording.op(row["op"]) if row["op"] != 2**32 - 1 else None,
                        recording.module(row["module"]),
                        int(row["phase"]),
                        int(row["stream"]),
                        recording.stack(row["stack"]),
                        recording.stack(row["forward_stack"]),
                    )
                    for row in np.sort(lives, order=["address", "born_event", "id"])
                ]
            )
        assert facts[0] == facts[1], device


def same_steps(one, other) -> None:
    assert one.steps["number"].tolist() == other.steps["number"].tolist()
    for number in one.steps["number"].tolist():
        for device in one.devices:
            mine, theirs = (r.at(step=number, device=device) for r in (one, other))
            assert mine.requested == theirs.requested, (number, device)
            assert mine.active == theirs.active
            assert mine.categories == theirs.categories


# -- writing ----------------------------------------------------------------------


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_what_a_gpu_recorded_is_valid_and_comes_back(path, tmp_path):
    recording = memprof.load(path)
    data = exported(recording, tmp_path)
    assert check_snapshot(data) == []
    snapshot = pickle.loads(data)
    check_tells_the_story(recording, snapshot)
    reserved = sum(
        s["total_size"] for s in snapshot["segments"] if not s.get("memprof_made")
    )
    assert reserved == recording._core.stats(0)["reserved_bytes"]["current"]
    again = memprof.load(tmp_path / "a.pickle")
    same_lives(recording, again)
    same_steps(recording, again)
    mine, theirs = (
        r.timeline("cuda:0", by="total").bytes.max(axis=0).tolist()
        for r in (recording, again)
    )
    assert mine == theirs  # requested, active, reserved
    assert again.info["finished"]
    assert again.info["imported"]["from"] == "memprof's snapshot"
    assert again.info["torch"] == recording.info["torch"]
    assert again.info["start_wall_ns"] == recording.info["start_wall_ns"] // 1000 * 1000
    for device in recording.devices:
        assert str(again.summary(device)).count("\n") > 5


@pytest.mark.parametrize("seed", range(60))
def test_random_recordings_are_valid_and_come_back(seed, tmp_path):
    recording = of_seed(seed)
    data = exported(recording, tmp_path)
    assert check_snapshot(data) == []
    if recording.info["defects"]["replaced_blocks"] == 0:
        check_tells_the_story(recording, pickle.loads(data))
    again = memprof.load(tmp_path / "a.pickle")
    same_lives(recording, again)
    same_steps(recording, again)


def test_there_are_true_segments_and_made_ones():
    """Else half of the exporter was not looked at."""
    found = {True: 0, False: 0}
    for seed in range(20):
        recording = of_seed(seed)
        path = Path("/dev/shm") / f"memprof-test-{seed}.pickle"
        try:
            recording.export_snapshot(path)
            snapshot = pickle.loads(path.read_bytes())
        finally:
            path.unlink(missing_ok=True)
        gpus = [s for s in snapshot["segments"] if s["device"] < seed % 4]
        for segment in gpus:
            found["memprof_made" in segment] += 1
    assert found[False] > 20


def test_equal_recordings_give_equal_files(tmp_path):
    one = exported(of_seed(5), tmp_path, "one.pickle")
    assert one == exported(of_seed(5), tmp_path, "two.pickle")
    # And what was read in gives the same traces again.
    memprof.load(tmp_path / "one.pickle").export_snapshot(tmp_path / "three.pickle")
    traces = [
        [
            [(e["action"], e.get("addr"), e["size"], e["time_us"]) for e in trace]
            for trace in pickle.loads((tmp_path / name).read_bytes())["device_traces"]
        ]
        for name in ("one.pickle", "three.pickle")
    ]
    assert traces[0] == traces[1]


def test_metadata_names_the_region(tmp_path):
    script = Script()
    for name, address in (("load", 512), ("train", 1024)):
        script.write("region_begin", op=name, op_instance=address)
        script.write("alloc", device=0, address=address, size=100, op="aten::mm")
        script.write("region_end", op=name, op_instance=address)
    core = _core.from_events(rows(script.events), script.names)
    (trace,) = pickle.loads(exported(Recording(core), tmp_path))["device_traces"]
    regions = [(entry["addr"], entry["user_metadata"]["region"]) for entry in trace]
    assert regions == [(512, "load"), (1024, "train")]


def test_metadata_says_what_is_known(tmp_path):
    script = Script()
    stack = script.name
    script.write("step", address=SESSION, size=4)
    script.write("window_begin", address=SESSION)
    script.write(
        "alloc", device=0, address=512, size=100, op="aten::mm", module="layers.0",
        phase=1, flags=1,
    )  # fmt: skip
    script.write("alloc", device=0, address=2048, size=7)
    assert stack("aten::mm") == 0
    core = _core.from_events(rows(script.events), script.names)
    snapshot = pickle.loads(exported(Recording(core), tmp_path))
    known, nothing = snapshot["device_traces"][0]
    assert known["user_metadata"] == {
        "module": "layers.0",
        "op": "aten::mm",
        "step": 4,
        "phase": "forward",
        "category": "activation",
    }
    assert known["category"] == "activation"
    assert "region" not in known["user_metadata"]
    assert nothing["user_metadata"]["phase"] == "other"
    assert "op" not in nothing["user_metadata"]
    assert [n["name"] for n in snapshot["external_annotations"]] == ["ProfilerStep#4"]


def test_the_smallest_is_called_unknown_if_nothing_is(tmp_path):
    script = Script()
    for number, size in enumerate((300, 40, 500)):
        script.write(
            "alloc", device=0, address=512 * (number + 1), size=size, phase=1, flags=1
        )
    core = _core.from_events(rows(script.events), script.names)
    recording = Recording(core)
    data = exported(recording, tmp_path)
    assert check_snapshot(data) == []
    trace = pickle.loads(data)["device_traces"][0]
    assert [e["category"] for e in trace] == ["activation", "unknown", "activation"]
    assert {e["user_metadata"]["category"] for e in trace} == {"activation"}
    same_lives(recording, memprof.load(tmp_path / "a.pickle"))


def test_a_free_that_waits_for_a_stream_stays_apart(tmp_path):
    script = Script()
    script.write("segment_alloc", device=0, address=1 << 21, size=1 << 21)
    script.write("alloc", device=0, address=1 << 21, size=100)
    script.write("free_requested", device=0, address=1 << 21, size=100)
    script.write("alloc", device=0, address=(1 << 21) + 512, size=9)
    data = exported(Recording(_core.from_events(rows(script.events))), tmp_path)
    assert check_snapshot(data) == []
    (segment,) = pickle.loads(data)["segments"]
    states = [block["state"] for block in segment["blocks"]]
    assert states == ["active_pending_free", "active_allocated", "inactive"]
    script.write("free_completed", device=0, address=1 << 21, size=100)
    data = exported(Recording(_core.from_events(rows(script.events))), tmp_path)
    assert check_snapshot(data) == []
    actions = [entry["action"] for entry in pickle.loads(data)["device_traces"][0]]
    assert actions[1:] == ["alloc", "free_requested", "alloc", "free_completed"]


def test_hostile_names_come_back(tmp_path):
    texts = ['a"b\\c\nd', "nul\0inside", "\u202ertl \U0001f600", "x" * 70_000, ""]
    events = np.zeros(len(texts), EVENT_DTYPE)
    events["kind"], events["address"] = 1, 512 * (1 + np.arange(len(texts)))
    events["size"], events["stack"] = 8, np.arange(len(texts))
    events["op"], events["module"] = np.arange(len(texts)), 0xFFFFFFFF
    stacks = [[(text, text, 3)] for text in texts]
    core = _core.from_events(events, texts, stacks)
    data = exported(Recording(core), tmp_path)
    assert check_snapshot(data) == []
    trace = pickle.loads(data)["device_traces"][0]
    assert [entry["user_metadata"]["op"] for entry in trace] == texts
    assert [entry["frames"][0]["filename"] for entry in trace] == texts
    again = memprof.load(tmp_path / "a.pickle")
    lives = again.allocations("cuda:0")
    assert [again.op(row["op"]) for row in lives] == texts
    assert [again.stack(row["stack"])[0].file for row in lives] == texts


def test_an_empty_recording_is_a_valid_file(tmp_path):
    recording = Recording(_core.from_events(b""))
    data = exported(recording, tmp_path)
    assert check_snapshot(data) == []
    assert memprof.load(tmp_path / "a.pickle").devices == []


@pytest.mark.parametrize("field", ["address", "size", "stream"])
def test_a_number_that_no_page_can_show_is_refused(field, tmp_path):
    script = Script()
    script.write("alloc", device=0, **{"address": 512, "size": 8, field: 1 << 53})
    recording = Recording(_core.from_events(rows(script.events)))
    with pytest.raises(memprof.MemprofError, match="2\\^53"):
        recording.export_snapshot(tmp_path / "a.pickle")
    assert list(tmp_path.iterdir()) == []


def test_a_large_file_warns_and_a_larger_one_is_refused(tmp_path, monkeypatch):
    recording = of_seed(1)
    monkeypatch.setattr(snapshots, "LARGE", 10)
    with pytest.warns(UserWarning, match="memprof trim"):
        recording.export_snapshot(tmp_path / "a.pickle")
    monkeypatch.setattr(snapshots, "TOO_LARGE", 1000)
    with pytest.raises(memprof.MemprofError, match="memprof trim"):
        recording.export_snapshot(tmp_path / "b.pickle")
    assert [path.name for path in tmp_path.iterdir()] == ["a.pickle"]
    with pytest.warns(UserWarning, match="memprof trim"):
        recording.export_snapshot(tmp_path / "b.pickle", force=True)
    assert (tmp_path / "b.pickle").read_bytes() == (tmp_path / "a.pickle").read_bytes()


def test_it_works_while_a_profile_is_open_and_any_number_of_times(tmp_path):
    recording = of_seed(7)
    first = exported(recording, tmp_path)
    assert exported(recording, tmp_path) == first
    with pytest.raises(FileNotFoundError):
        recording.export_snapshot(tmp_path / "no folder" / "a.pickle")


@settings(max_examples=60, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 9, 32, 48, 49, 50, 33]),
            st.integers(0, 12),
            st.integers(0, 6),
            st.sampled_from([CPU, 0, 0, 1]),
            st.sampled_from([0, 8]),
            st.sampled_from([0, 5]),
        ),
        max_size=60,
    )
)
def test_whatever_the_events_are_the_file_is_valid(tmp_path, events):
    """Also what no allocator does: frees of nothing, blocks over blocks."""
    table = np.zeros(len(events), EVENT_DTYPE)
    for name in ("op", "module", "stack"):
        table[name] = 0xFFFFFFFF
    for row, (kind, place, size, device, flags, stream) in zip(
        table, events, strict=True
    ):
        row["kind"], row["device"], row["flags"] = kind, device, flags
        scale = 4096 if kind in (4, 5, 6, 7, 48) else 512
        row["address"] = 0x10000 + place * scale
        row["size"] = size * scale
        row["stream"] = stream
    table["time_ns"] = np.arange(len(events)) * 700
    recording = Recording(_core.from_events(table))
    data = exported(recording, tmp_path)
    assert check_snapshot(data) == []
    again = memprof.load(tmp_path / "a.pickle")
    second = exported(again, tmp_path, "b.pickle")
    assert check_snapshot(second) == []
    for device in again.devices:
        check_tells_the_story(again, pickle.loads(second))
        assert story(again, device) == story(
            memprof.load(tmp_path / "b.pickle"), device
        )


# -- the validator ----------------------------------------------------------------


def dumped(snapshot) -> bytes:
    return pickle.dumps(snapshot, 4)


def changed(snapshot, change) -> list[str]:
    copied = copy.deepcopy(snapshot)
    change(copied)
    return check_snapshot(dumped(copied))


def test_the_validator_finds_what_is_wrong(tmp_path):
    recording = memprof.load(GOLDEN[2])
    snapshot = pickle.loads(exported(recording, tmp_path))
    assert check_snapshot(dumped(snapshot)) == []
    assert "protocol 5" in check_snapshot(pickle.dumps(snapshot, 5))
    assert check_opcodes_of(snapshot, 1 << 53)

    def drop_a_request(s):
        trace = s["device_traces"][0]
        del trace[max(i for i, e in enumerate(trace) if e["action"] == REQUESTED)]

    def lose_unknown(s):
        for entry in s["device_traces"][0]:
            if "category" in entry:
                entry["category"] = "activation"

    def shrink_a_block(s):
        s["segments"][0]["blocks"][0]["size"] -= 512

    def none_as_name(s):
        s["segments"][0]["frames"] = [{"filename": "a", "line": 1, "name": None}]

    def move_a_segment(s):
        at = next(e["addr"] for e in s["device_traces"][0] if e["action"] == "alloc")
        for segment in s["segments"]:
            if 0 <= at - segment["address"] < segment["total_size"]:
                segment["address"] += 1 << 40
                for block in segment["blocks"]:
                    block["address"] += 1 << 40

    def twice_the_frame(s):
        frame = {"filename": "a", "line": 1, "name": "b"}
        s["segments"][0]["frames"] = [dict(frame), dict(frame)]

    for change in (
        drop_a_request, lose_unknown, shrink_a_block, none_as_name, move_a_segment,
        twice_the_frame,
    ):  # fmt: skip
        assert changed(snapshot, change), change.__name__


def check_opcodes_of(snapshot, number) -> list[str]:
    def too_large(s):
        s["allocator_settings"]["n"] = number

    return changed(snapshot, too_large)


# -- reading what others wrote ------------------------------------------------------


def loaded(tmp_path, value, protocol=4) -> Recording:
    path = tmp_path / "theirs.bin"
    path.write_bytes(pickle.dumps(value, protocol))
    return memprof.load(path)


def frame(name="train", file="/u/train.py", line=3):
    return {"name": name, "filename": file, "line": line}


def block(size, state="active_allocated", **more):
    return {"size": size, "requested_size": size - 12, "state": state, **more}


def segment(address, *blocks, **more):
    return {
        "device": 0, "address": address, "total_size": sum(b["size"] for b in blocks),
        "stream": 0, "blocks": list(blocks), **more,
    }  # fmt: skip


def entry(action, addr, size, time_us=None, **more):
    found = {"action": action, "addr": addr, "size": size, "stream": 0, **more}
    if time_us is not None:
        found["time_us"] = time_us
    return found


def theirs(version: str):
    """A snapshot as torch VERSION wrote it, of the same run each time."""
    number = tuple(map(int, version.split(".")))
    timed = number >= (2, 2)
    times = iter(range(1_700_000_000_000_000, 1_700_000_000_000_100, 10))
    stack = [frame("at::empty", "/t/Tensor.cpp", 99), frame()]

    def event(action, addr, size, **more):
        return entry(
            action, addr, size, next(times) if timed else None, frames=stack, **more
        )

    trace = [
        event("segment_alloc", 1 << 21, 4096),
        event("alloc", 1 << 21, 500),
        event("free_requested", 1 << 30, 88),
        event("free_completed", 1 << 30, 88),
        event("alloc", (1 << 21) + 512, 1012),
        event("free_requested", 1 << 21, 500),
        event("free_completed", 1 << 21, 500),
    ]
    if number >= (2, 8):
        for each in trace:
            each["compile_context"] = "N/A"
    if number >= (2, 10):
        trace[1]["user_metadata"] = {"mine": "yes"}
        trace[4]["user_metadata"] = "text"
    if number >= (2, 12):
        for each in trace:
            each["pool_id"] = (0, 0)
    if number >= (2, 14):
        trace.append(event("annotate", 1 << 21, 0, user_metadata="x"))
    if number >= (2, 15):
        trace[1]["internal_metadata"] = {"k": 1}
    trace.append(event("snapshot", 0, 0))
    live = block(1024, frames=stack)
    free = [
        {"size": 512, "state": "inactive", "requested_size": 0, "frames": []},
        {"size": 2560, "state": "inactive", "requested_size": 0, "frames": []},
    ]
    found = {
        "segments": [
            segment(1 << 21, free[0], live, free[1], segment_type="large"),
            segment(1 << 30, block(512, "inactive")),
        ],
        "device_traces": [trace, []],
    }
    if number < (2, 2):  # the history of a block, and no addresses
        del live["frames"], live["requested_size"]
        live["history"] = [{"addr": 0, "real_size": 1012, "frames": stack}]
    if number >= (2, 3):
        found["allocator_settings"] = {"PYTORCH_CUDA_ALLOC_CONF": "", "x": 0.5}
    if number >= (2, 5):
        found["external_annotations"] = [
            {"name": name, "stage": stage, "device": 0, "time_us": time}
            for name, stage, time in (
                ("ProfilerStep#3", "START", 1_700_000_000_000_015),
                ("mine", "START", 1_700_000_000_000_016),
                ("ProfilerStep#3", "END", 1_700_000_000_000_035),
                ("ProfilerStep#4", "START", 1_700_000_000_000_035),
            )
        ]
    if number >= (2, 14):
        found["host_traces"], found["host_segments"] = [[]], []
    found["a key of the future"] = {"x": [None, True, (1, 2, 3)]}
    return found


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("version", [f"2.{minor}" for minor in range(1, 16)])
def test_snapshots_of_every_version_are_read(version, protocol, tmp_path):
    recording = loaded(tmp_path, theirs(version), protocol)
    assert recording.devices == ["cuda:0"]
    lives = recording.allocations("cuda:0")
    assert lives["size"].tolist() == [88, 500, 1012]
    assert lives["born_event"][0] == -1
    assert [row["died_event"] >= 0 for row in lives] == [True, True, False]
    peak = recording.peak("cuda:0")
    assert (peak.requested, peak.reserved) == (1512, 4096 + 512)
    assert recording.stack(lives["stack"][2]) == (("train", "/u/train.py", 3),)
    assert recording.stack(lives["stack"][0]) == ()  # of its free, not its birth
    assert set(peak.categories) == set(_core.CATEGORIES)
    assert peak.categories["unknown"] == 1512
    assert not any(recording.info["defects"].values())
    steps = [3, 4] if tuple(map(int, version.split("."))) >= (2, 5) else [0]
    assert recording.steps["number"].tolist()[: len(steps)] == steps
    told = recording.info["imported"]
    assert told["from"] == "a memory snapshot of torch"
    assert told["damage"] is None
    assert any("no times" in text for text in told["lacks"]) == (version == "2.1")
    assert "1012" in str(recording.summary().to_dict()) or recording.summary()
    assert len(recording.timeline("cuda:0").bytes) > 0
    data = exported(recording, tmp_path)
    assert check_snapshot(data) == []


def test_old_forms_without_traces_or_segments(tmp_path):
    full = theirs("2.6")
    only_state = loaded(tmp_path, full["segments"])  # a bare list
    assert only_state.peak("cuda:0").requested == 1012
    assert "no traces" in " ".join(only_state.info["imported"]["lacks"])
    assert str(only_state.summary())
    no_traces = loaded(tmp_path, {"segments": full["segments"]})
    assert no_traces.peak("cuda:0").requested == 1012
    only_trace = loaded(tmp_path, {"device_traces": full["device_traces"]})
    assert only_trace.peak("cuda:0").requested == 1512
    assert "no segments" in " ".join(only_trace.info["imported"]["lacks"])
    for recording in (only_state, no_traces, only_trace):
        assert check_snapshot(exported(recording, tmp_path)) == []
    empty = loaded(tmp_path, {"segments": [], "device_traces": []})
    assert empty.devices == []


def test_values_of_any_kind_under_any_key_are_survived(tmp_path):
    odd = [
        None,
        True,
        -5,
        1.5,
        "x",
        [],
        {},
        (),
        [1],
        {"size": "y"},
        1 << 200,
        -(1 << 70),
    ]
    for value in odd:
        for key in ("segments", "device_traces", "external_annotations", "memprof"):
            snapshot = theirs("2.15") | {key: value}
            assert isinstance(loaded(tmp_path, snapshot), Recording)
        for key in theirs("2.15")["device_traces"][0][0]:
            snapshot = theirs("2.15")
            snapshot["device_traces"][0][1][key] = value
            assert isinstance(loaded(tmp_path, snapshot), Recording)
        for key in (*segment(0), "is_expandable", "segment_pool_id"):
            snapshot = theirs("2.15")
            snapshot["segments"][0][key] = value
            assert isinstance(loaded(tmp_path, snapshot), Recording)
        for key in ("size", "requested_size", "state", "frames", "address", "history"):
            snapshot = theirs("2.15")
            snapshot["segments"][0]["blocks"][1][key] = value
            assert isinstance(loaded(tmp_path, snapshot), Recording)


@pytest.mark.parametrize("name", ["a.pickle", "a.memprof", "a.json", "noname"])
def test_the_suffix_does_not_matter(name, tmp_path):
    (tmp_path / name).write_bytes(dumped(theirs("2.9")))
    assert memprof.load(tmp_path / name).peak("cuda:0").requested == 1512


# -- damage and malice --------------------------------------------------------------


def test_a_cut_snapshot_gives_what_precedes(tmp_path):
    recording = memprof.load(GOLDEN[2])
    data = exported(recording, tmp_path)
    whole = story(recording, "cuda:0")[1]
    first = (
        data.index(b"segments\x8c" if b"segments\x8c" in data else b"segments]") + 20
    )
    path, seen = tmp_path / "cut.pickle", set()
    for length in range(0, len(data), 97):
        path.write_bytes(data[:length])
        if length < first:
            with contextlib.suppress(memprof.MemprofError):
                assert memprof.load(path).devices == []
            continue
        part = memprof.load(path)
        info = part.info
        assert not info["finished"]
        assert "byte" in info["imported"]["damage"]
        assert 0 <= info["damaged_bytes"] < 300
        if "cuda:0" in part.devices:
            changes = story(part, "cuda:0")[1]
            assert changes == whole[: len(changes)]
            seen.add(len(changes))
    assert max(seen) > 0.9 * len(whole)
    assert len(seen) > 20


def test_a_damaged_byte_never_crashes(tmp_path):
    recording = memprof.load(GOLDEN[0])
    data = exported(recording, tmp_path)
    path = tmp_path / "bad.pickle"
    rng = np.random.default_rng(0)
    read = 0
    for at in rng.integers(2, len(data), 400).tolist():
        bad = bytearray(data)
        bad[at] = int(rng.integers(0, 256))
        path.write_bytes(bad)
        with contextlib.suppress(memprof.MemprofError):
            memprof.load(path)
            read += 1
    assert read > 100


class Runs:
    """Something that a pickle would run."""

    def __reduce__(self):
        return (Path("/tmp/memprof-was-run").touch, ())


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_run(protocol, tmp_path):
    marker = Path("/tmp/memprof-was-run")
    marker.unlink(missing_ok=True)
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps({"segments": [Runs()]}, protocol))
    with pytest.raises(memprof.MemprofError) as error:
        memprof.load(path)
    assert not marker.exists()
    if protocol >= 2:
        assert "refused" in str(error.value)
        assert "GLOBAL" in str(error.value)


def test_refusals_name_the_opcode(tmp_path):
    path = tmp_path / "a.pickle"
    for value, name in (
        (b"bytes", "SHORT_BINBYTES"),
        ({1, 2}, "EMPTY_SET"),
        (np.float64(1), "STACK_GLOBAL"),
        (bytearray(b"x"), "BYTEARRAY8"),
    ):
        protocol = 5 if name == "BYTEARRAY8" else 4
        path.write_bytes(pickle.dumps({"segments": [], "x": value}, protocol))
        with pytest.raises(memprof.MemprofError, match=name):
            memprof.load(path)
    path.write_bytes(b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.")
    with pytest.raises(memprof.MemprofError, match=r"GLOBAL os\.system"):
        memprof.load(path)


def test_a_pickle_that_is_no_snapshot_says_so(tmp_path):
    for value in ({"weights": [1.0]}, [1, 2, 3], 5, "text", None):
        with pytest.raises(memprof.MemprofError, match=r"snapshot|pickle"):
            loaded(tmp_path, value)


def test_containers_that_hold_themselves(tmp_path):
    snapshot = theirs("2.9")
    loop: list = []
    loop.append(loop)
    snapshot["segments"].append(loop)
    snapshot["device_traces"].append(loop)
    snapshot["device_traces"][0][1]["frames"] = loop
    own: dict = {"segments": [], "device_traces": [[]]}
    own["device_traces"][0].append(own)
    assert loaded(tmp_path, snapshot).peak("cuda:0").requested == 1512
    assert loaded(tmp_path, own).devices == []


def test_depth_and_memory_are_bounded(tmp_path):
    path = tmp_path / "a.pickle"
    path.write_bytes(b"\x80\x04" + b"](" * 5000 + b".")
    with pytest.raises(memprof.MemprofError, match=r"snapshot|deep"):
        memprof.load(path)
    for body in (b"]" * 300_000, b"}\x94" * 300_000, b"N" * 500_000):
        path.write_bytes(b"\x80\x04" + body)
        before = _core.own_bytes()
        with pytest.raises(memprof.MemprofError):
            memprof.load(path)
        assert _core.own_bytes() == before
    path.write_bytes(b"\x80\x04X\xff\xff\xff\xffabc")
    with pytest.raises(memprof.MemprofError):
        memprof.load(path)


def test_standard_pickle_reads_ours_as_we_do(tmp_path):
    data = exported(of_seed(11), tmp_path)
    value = pickle.load(io.BytesIO(data))
    again = loaded(tmp_path, value)  # written by Python's pickler
    same_lives(memprof.load(tmp_path / "a.pickle"), again)
