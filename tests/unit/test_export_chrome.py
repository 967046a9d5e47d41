"""The Chrome trace: what viewers insist on, and the bytes that the recording says."""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from check_chrome import GPU_WORK, check_chrome, extent
from events import KIND, NAMES, SESSION, Script, random_stream, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from unpack import unpack

import memprof
from memprof import _core, chrome_trace
from memprof.recording import CPU, NO_INDEX, Recording

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.memprof"))
SEEDS = range(60)


def made(events, names=NAMES, stacks=None) -> Recording:
    return Recording(_core.from_events(events, names, stacks), None)


def of_seed(seed: int, length: int = 300) -> Recording:
    return made(random_stream(seed, length=length, window=bool(seed % 2)))


def exported(recording, folder, name="t.pt.trace.json.gz", **options):
    path = folder / name
    recording.export_chrome_trace(path, **options)
    data = path.read_bytes()
    assert os.listdir(folder) == [name]  # nothing half-written beside it
    path.unlink()
    assert check_chrome(data) == []
    return json.loads(unpack(data)[0])


def clock_of(recording):
    """Return when each event happened, on the clock of the trace; ns."""
    times = recording._times()
    return times - min(int(times[0]), recording._core.start_ns)


def pid_of(device: str) -> int:
    return 9_000_900 if device == "cpu" else 9_000_000 + 10 * int(device[5:])


def of(trace, ph, **wanted):
    return [
        e
        for e in trace["traceEvents"]
        if e["ph"] == ph and all(e.get(k) == v for k, v in wanted.items())
    ]


@pytest.fixture(scope="module", params=GOLDEN, ids=lambda p: p.stem)
def golden(request):
    return memprof.load(request.param)


def test_golden_recordings_give_valid_traces(golden, tmp_path):
    for options in ({}, {"full": True}, {"stacked": True}):
        exported(golden, tmp_path, **options)
    plain = exported(golden, tmp_path, "t.json")
    assert plain["traceEvents"] == exported(golden, tmp_path)["traceEvents"]


@pytest.mark.parametrize("first", SEEDS[::10])
def test_random_recordings_give_valid_traces(first, tmp_path):
    for seed in range(first, first + 10):
        exported(of_seed(seed), tmp_path, full=True, stacked=True)


def test_counters_are_the_timeline_and_hold_its_peak(golden, tmp_path):
    trace = exported(golden, tmp_path)
    for device in golden.devices:
        pid = pid_of(device)
        name = "CPU" if device == "cpu" else f"GPU {device[5:]}"
        (process,) = of(trace, "M", pid=pid, name="process_name")
        assert process["args"] == {"name": f"memprof {name} memory"}
        totals = golden.timeline(device, "total")
        for column, counter in enumerate(("allocated", "active", "reserved")):
            samples = of(trace, "C", pid=pid, name=counter)
            if counter == "active" or (counter, device) == ("reserved", "cpu"):
                assert samples == []
                continue
            values = [e["args"]["bytes"] for e in samples]
            assert set(values) <= set(totals.bytes[:, column].tolist())
            assert max(values) == totals.bytes[:, column].max()
            assert values[-1] == totals.bytes[-1, column]
        line = golden.timeline(device)
        for column, label in enumerate(line.labels):
            samples = of(trace, "C", pid=pid, name=f"cat/{label}")
            assert samples[0]["args"]["bytes"] == line.bytes[0, column]
            assert samples[-1]["args"]["bytes"] == line.bytes[-1, column]
        (peak,) = of(trace, "X", pid=pid, cat="memprof.finding") or [None]
        assert peak["args"] == {"peak_bytes": golden.peak(device).requested}


def test_steps_and_phases_say_what_they_reached(golden, tmp_path):
    trace = exported(golden, tmp_path)
    base = int(golden._times()[0] - clock_of(golden)[0])
    for device in golden.devices:
        pid = pid_of(device)
        steps = of(trace, "X", pid=pid, cat="memprof.step")
        assert [e["name"] for e in steps] == [
            f"step {n}" for n in golden.steps["number"]
        ]
        for event, row in zip(steps, golden.steps):
            number = int(row["number"])
            assert (
                event["args"]["peak_bytes"]
                == golden.peak(device, step=number).requested
            )
            at_end = golden.at(event=int(row["end_event"]), device=device)
            assert event["args"]["retained_bytes"] == at_end.requested
            assert extent(event) == (row["start_ns"] - base, row["end_ns"] - base)
        line = golden.timeline(device, "total")
        phases = of(trace, "X", pid=pid, cat="memprof.phase")
        assert [e["name"] for e in phases] == golden.phases["name"].tolist()
        for event, row in zip(phases, golden.phases):
            inside = (line.events >= row["begin_event"]) & (
                line.events <= row["end_event"]
            )
            before = line.bytes[line.events < row["begin_event"], 0][-1]
            after = line.bytes[line.events <= row["end_event"], 0][-1]
            assert event["args"] == {
                "peak_bytes": max([before, *line.bytes[inside, 0]]),
                "retained_bytes": after,
                "delta_bytes": after - before,
            }
    marks = of(trace, "X", cat="user_annotation")
    numbers = [e["name"] for e in marks if e["name"].startswith("ProfilerStep#")]
    assert numbers == [f"ProfilerStep#{n}" for n in golden.steps["number"]]


def naive_slices(recording, device):
    """Return begin, end, kind, name, own thread, bytes of each slice, in order."""
    lives = recording.allocations("all")
    born, died = {}, {}
    for life in lives:
        if life["device"] != device:
            continue
        if life["born_event"] >= 0 and life["born_event"] == life["died_event"]:
            continue
        if life["born_event"] >= 0:
            born[int(life["born_event"])] = life
        if life["died_event"] >= 0:
            died[int(life["died_event"])] = life
    kinds = {16: "op", 17: "op", 18: "module", 19: "module", 20: "region", 21: "region"}
    found, stacks = [], defaultdict(list)
    events = recording.events()
    for at, event in enumerate(events):
        stack = stacks[int(event["thread"])]
        kind = kinds.get(int(event["kind"]))
        if kind is None:
            continue
        name = int(event["module" if kind == "module" else "op"])
        if event["kind"] in (16, 18, 20):
            found.append(
                {"begin": at, "kind": kind, "name": name, "thread": event["thread"]}
            )
            stack.append(found[-1])
            continue
        for place in reversed(range(len(stack))):
            one = stack[place]
            if (one["kind"], one["name"]) != (kind, name) or "ended" in one:
                continue
            inside = [s for s in stack[place + 1 :] if "ended" not in s]
            if kind == "region" and inside:
                one["ended"] = True
            else:
                for gone in stack[place:]:
                    gone["end"] = at
                del stack[place:]
                while stack and "ended" in stack[-1]:
                    stack.pop()["end"] = at
            break
    level, levels = 0, []
    start = [x for x in lives if x["device"] == device and x["born_event"] < 0]
    level = sum(int(x["size"]) for x in start)
    first = level
    for at in range(len(events)):
        level += int(born[at]["size"]) if at in born else 0
        level -= int(died[at]["size"]) if at in died else 0
        levels.append(level)
    for one in found:
        end = one.setdefault("end", len(events) - 1)
        mine = [
            at
            for at in range(one["begin"], end + 1)
            if events[at]["thread"] == one["thread"] and (at in born or at in died)
        ]
        one["touched"] = bool(mine)
        gained = [born[at] for at in mine if at in born]
        one["delta"] = sum(int(x["size"]) for x in gained) - sum(
            int(died[at]["size"]) for at in mine if at in died
        )
        one["retained"] = sum(
            int(x["size"]) for x in gained if not 0 <= int(x["died_event"]) <= end
        )
        before = levels[one["begin"] - 1] if one["begin"] else first
        one["peak"] = max([before, *levels[one["begin"] : end + 1]])
    return found


@pytest.mark.parametrize("seed", SEEDS[::6])
def test_slices_are_what_a_naive_replay_finds(seed, tmp_path):
    recording = of_seed(seed)
    trace = exported(recording, tmp_path)
    clock = clock_of(recording)
    compared = 0
    for device in recording.devices:
        number = CPU if device == "cpu" else int(device[5:])
        naive = [s for s in naive_slices(recording, number) if s["touched"]]
        slices = [e for e in of(trace, "X", pid=pid_of(device)) if e["tid"] >= 100]
        assert len(slices) == len(naive)
        for event, one in zip(slices, naive):
            assert event["cat"] == f"memprof.{one['kind']}"
            assert event["name"] == recording.op(one["name"])
            assert extent(event) == (clock[one["begin"]], clock[one["end"]])
            assert event["args"] == {
                "peak_bytes": one["peak"],
                "retained_bytes": one["retained"],
                "delta_bytes": one["delta"],
            }
            compared += 1
    assert compared > 10


def test_life_spans_are_the_largest_at_the_peak(golden, tmp_path):
    trace = exported(golden, tmp_path)
    clock = clock_of(golden)
    for device in golden.devices:
        begins = of(trace, "b", pid=pid_of(device))
        live = golden.peak(device).live()
        live = live[live["size"] > 0]
        largest = np.sort(live["size"])[::-1][:200]
        assert [e["args"]["bytes"] for e in begins] == largest.tolist()
        ends = {e["id"]: e for e in of(trace, "e", pid=pid_of(device))}
        by_id = {int(life["id"]): life for life in live}
        for event in begins:
            life = by_id[int(event["id"], 16) - 1]
            assert event["args"]["category"] == _core.CATEGORIES[life["category"]]
            assert event["args"]["op"] == golden.op(life["op"])
            end = life["died_event"]
            ended = clock[end] if end >= 0 else clock[-1] + 1000
            assert round(ends[event["id"]]["ts"] * 1000) == ended


def test_flows_lead_from_the_allocating_to_the_freeing_slice(tmp_path):
    recording = memprof.load(next(p for p in GOLDEN if p.stem == "convnet"))
    trace = exported(recording, tmp_path)
    starts, finishes = of(trace, "s"), of(trace, "f")
    assert len(starts) == len(finishes) > 5
    lives = recording.allocations("all")
    clock = clock_of(recording)
    for start, finish in zip(starts, finishes):
        life = lives[start["id"] - 1]
        assert start["cat"] == start["name"] == finish["cat"] == "alloc2free"
        assert round(start["ts"] * 1000) == clock[life["born_event"]]
        assert round(finish["ts"] * 1000) == clock[life["died_event"]]


def test_full_has_every_change_and_what_is_not_full_the_largest(golden, tmp_path):
    lives = golden.allocations("all")
    over = (lives["born_event"] >= 0) & (lives["born_event"] == lives["died_event"])
    lives = lives[~over]
    changes = int((lives["born_event"] >= 0).sum() + (lives["died_event"] >= 0).sum())
    trace = exported(golden, tmp_path, full=True)
    memory = of(trace, "i", name="[memory]")
    assert len(memory) == changes
    assert trace["metadata"]["memory_events"] == "all"
    for device in golden.devices:
        number = CPU if device == "cpu" else int(device[5:])
        mine = [e["args"] for e in memory if e["args"]["Device Id"] == number]
        last = golden.timeline(device, "total").bytes[-1].tolist()
        if mine:
            assert mine[-1]["Total Allocated"] == last[0]
            if number != CPU:
                assert mine[-1]["Total Reserved"] == last[2]


def many(count: int, size=lambda i: 1000 + i) -> Recording:
    events = rows([{}]).repeat(2 * count)
    index = np.arange(2 * count)
    events["kind"] = np.where(index % 2 == 0, KIND["alloc"], KIND["free_completed"])
    events["device"] = CPU
    events["address"] = 64 * (index // 2 + 1)
    events["size"] = np.where(index % 2 == 0, size(index), 0)
    events["time_ns"] = index * 1000
    events["thread"] = 7
    return made(events, ["op"])


def test_too_many_memory_events_leave_the_largest(tmp_path):
    trace = exported(many(15_000), tmp_path)
    sizes = [abs(e["args"]["Bytes"]) for e in of(trace, "i", name="[memory]")]
    assert len(sizes) == 20_000
    assert min(sizes) >= 1000 + 10_000 * 15 // 16
    assert len(of(exported(many(15_000), tmp_path, full=True), "i")) == 30_000 + 1
    # Equal ones have no largest: the first stay.
    equal = exported(many(15_000, lambda i: 0 * i + 512), tmp_path)
    assert len(of(equal, "i", name="[memory]")) == 20_000


def test_counters_are_thinned_out_and_keep_the_extremes(tmp_path):
    recording = many(100_000, lambda i: (i * 7919) % 1_000_003)
    trace = exported(recording, tmp_path)
    values = [e["args"]["bytes"] for e in of(trace, "C", name="allocated")]
    assert len(values) < 12_000
    assert max(values) == recording.peak().requested


def test_too_large_is_refused_unless_forced(tmp_path, monkeypatch):
    recording = many(1000)
    monkeypatch.setattr(chrome_trace, "MAX_BYTES", 50_000)
    with pytest.raises(memprof.MemprofError, match="force=True"):
        recording.export_chrome_trace(tmp_path / "t.json", full=True)
    assert os.listdir(tmp_path) == []
    exported(recording, tmp_path, full=True, force=True)
    monkeypatch.setattr(chrome_trace, "WARN_BYTES", 50_000)
    with pytest.warns(UserWarning, match="Perfetto opens it"):
        recording.export_chrome_trace(tmp_path / "t.json", full=True, force=True)


def test_an_empty_recording_gives_a_valid_trace_and_words(tmp_path):
    with pytest.warns(UserWarning, match="no memory in it"):
        trace = exported(made(rows([])), tmp_path)
    assert [e["name"] for e in of(trace, "X")] == ["memprof: the recording"]


HOSTILE = [
    'a "quoted" \\ name',
    "NUL\0 and \x1b[31m and \x7f",
    "‮right to left‏",
    "emoji 😀 é é",
    "</script><script>alert(1)</script>",
    "x" * 70_000,
    "line\nbreak\ttab",
    "NaN",
    '"rank": 7',
    "ProfilerStep#not a number",
    "",
]


def test_hostile_names_round_trip(tmp_path):
    events = []
    for i in range(len(HOSTILE)):
        same = {"thread": 5, "op": i, "module": i, "stack": 0}
        at = 10 * i
        events += [
            {"kind": KIND["region_begin"], "time_ns": at, **same},
            {"kind": KIND["op_begin"], "time_ns": at + 1, **same},
            {
                "kind": KIND["alloc"],
                "time_ns": at + 2,
                "device": 0,
                "address": 512 * (i + 1),
                "size": 2**20,
                **same,
            },
            {"kind": KIND["op_end"], "time_ns": at + 3, **same},
            {"kind": KIND["region_end"], "time_ns": at + 4, **same},
        ]
    stack = [[(HOSTILE[0], HOSTILE[1], 3)]]
    names = [*HOSTILE]
    trace = exported(made(rows(events), names, stack), tmp_path)
    ops = {e["name"] for e in of(trace, "X", cat="memprof.op")}
    assert ops == set(HOSTILE)
    regions = {e["name"] for e in of(trace, "X", cat="user_annotation")}
    assert regions == {"ProfilerStep#0", *HOSTILE} - {"ProfilerStep#not a number"}
    assert {e["args"]["op"] for e in of(trace, "b")} == set(HOSTILE)
    assert of(trace, "b")[0]["args"]["where"] == f"{HOSTILE[0]} ({HOSTILE[1]}:3)"


@given(st.lists(st.text(), min_size=1, max_size=6, unique=True), st.data())
@settings(max_examples=60, deadline=None)
def test_any_names_round_trip(tmp_path_factory, names, data):
    names = [n.encode("utf-8", "replace").decode() for n in names]
    names = list(dict.fromkeys(names))
    events, now = [], 0
    for i in range(len(names)):
        for kind in ("op_begin", "alloc", "op_end"):
            now += data.draw(st.integers(0, 2))
            events.append(
                {
                    "kind": KIND[kind],
                    "time_ns": now,
                    "thread": 5,
                    "op": i,
                    "device": 0,
                    "address": 512 * (i + 1),
                    "size": 512,
                }
            )
    folder = tmp_path_factory.mktemp("any")
    trace = exported(made(rows(events), names), folder)
    assert [e["name"] for e in of(trace, "X", cat="memprof.op")] == names


def test_what_is_outside_of_memory_is_written_too(tmp_path):
    events = [
        {"kind": KIND["window_begin"], "address": SESSION},
        {"kind": KIND["step"], "address": SESSION, "size": 4, "time_ns": 1},
        {"kind": KIND["alloc"], "device": 0, "address": 512, "size": 9, "time_ns": 2},
        {"kind": KIND["oom"], "device": 0, "address": 77, "size": 99, "time_ns": 3},
        {"kind": KIND["step"], "address": SESSION, "size": 5, "time_ns": 9},
    ]
    trace = exported(made(rows(events)), tmp_path)
    (oom,) = of(trace, "i", name="out of memory")
    assert oom["s"] == "g"
    assert oom["args"] == {"asked_bytes": 99, "device_free_bytes": 77}
    (kineto,) = of(trace, "i", name="[OutOfMemory]")
    assert kineto["args"]["Bytes"] == 99
    assert "Addr" not in kineto["args"]
    assert of(trace, "X", name="ProfilerStep#4")


KERNEL, COPY, SET = range(3)


def launch_of(number, time_ns, op=NO_INDEX, thread=5):
    return {
        "kind": KIND["gpu_launch"], "address": number, "time_ns": time_ns, "op": op,
        "thread": thread, "device": 0,
    }  # fmt: skip


def work_of(number, start, end, name, what=KERNEL, device=0, stream=7, size=0):
    return {
        "kind": KIND["gpu_work"], "address": start, "stream": end, "size": size,
        "time_ns": 9000, "thread": stream, "op": name, "op_instance": number,
        "device": device, "pool": what,
    }  # fmt: skip


def test_what_ran_on_gpus_has_rows_of_its_own(tmp_path):
    op = {"thread": 5, "op": 0, "device": CPU}
    names = ["aten::mm", 'gemm<"\\n>', "Memcpy HtoD (Pinned -> Device)", "Memset"]
    events = [
        {"kind": KIND["window_begin"], "address": SESSION, "time_ns": 1000},
        {"kind": KIND["op_begin"], "time_ns": 2000, **op},
        launch_of(1, 2000, 0),
        launch_of(2, 2500, 0),
        {"kind": KIND["op_end"], "time_ns": 3000, **op},
        launch_of(3, 3500, thread=6),
        work_of(2, 4000, 6000, 2, COPY, size=77),
        work_of(1, 2600, 4000, 1),
        work_of(1, 3000, 3900, 1),  # a second kernel of a graph, beside the first
        work_of(3, 4100, 4200, 3, SET, device=2, stream=0, size=5),
        work_of(99, 100, 200, 1, stream=8),  # launched before the recording
        {"kind": KIND["gpu_lost"], "address": 1, "size": 3, "time_ns": 9000},
    ]
    recording = made(rows(events), names)
    trace = exported(recording, tmp_path)
    work = [e for e in of(trace, "X") if e.get("cat") in GPU_WORK]
    found = {(e["name"], e["pid"], e["ts"], e["dur"]) for e in work}
    assert {f[0] for f in found} == set(names[1:])
    assert (names[2], 0, 3.0, 2.0) in found  # from 4000 to 6000; 1000 is the start
    first, second = (e for e in work if e["args"]["correlation"] == 1)
    assert first["tid"] == 7
    assert second["tid"] not in (0, 7)
    assert first["args"]["op"] == "aten::mm"
    (copy,) = (e for e in work if e["cat"] == "gpu_memcpy")
    assert copy["args"]["bytes"] == 77
    (other,) = (e for e in work if e["cat"] == "gpu_memset")
    assert other["pid"] == 2
    flows = of(trace, "s", cat="ac2g")
    assert len(flows) == len(of(trace, "f", cat="ac2g")) == 4
    assert len(of(trace, "X", cat="cuda_driver")) == 3
    assert {e["tid"] for e in flows} == {5, 6}
    assert recording.info["kernels_lost"] == {"dropped": 3}
    row = recording.kernels("cuda:2")[0]
    assert (int(row["bytes"]), int(row["stream"]), recording.op(row["name"])) == (
        5, 0, "Memset",
    )  # fmt: skip


def test_work_that_no_gpu_can_have_done_is_left_out(tmp_path):
    """A file may hold anything."""
    far = 2**63 - 1
    events = [
        launch_of(1, 500),
        work_of(1, 600, 700, 0),
        work_of(1, 400, 700, 0),  # before its launch: two clocks differ; no arrow
        work_of(1, 700, 600, 0),
        work_of(1, 700, far, 0),
        work_of(1, 600, 700, 0, device=-1),
        work_of(1, 600, 700, 0, what=9),
        work_of(2**32 - 1, 600, 700, NO_INDEX, stream=2**32 - 1, size=far),
        {"kind": KIND["gpu_lost"], "address": 99, "size": far, "time_ns": 900},
    ]
    recording = made(rows(events), ["k"])
    assert len(recording.kernels()) == 3
    assert recording.info["kernels_lost"] == {}
    trace = exported(recording, tmp_path)
    assert len(of(trace, "X", cat="kernel")) == 3
    assert len(of(trace, "s", cat="ac2g")) == 1
    recording.save(tmp_path / "odd.memprof")
    again = memprof.load(tmp_path / "odd.memprof")
    assert again.kernels().tobytes() == recording.kernels().tobytes()


def test_a_gpu_whose_number_is_the_process_is_told_apart(tmp_path):
    recording = made(rows([launch_of(1, 10), work_of(1, 20, 30, 0, device=1)]), ["k"])
    trace = exported(recording, tmp_path)  # no info: the process is taken for 1
    (work,) = of(trace, "X", cat="kernel")
    assert work["pid"] != trace["traceEvents"][0]["pid"] == 1
    assert work["args"]["device"] == 1


def test_a_merge_leaves_kernels_to_the_other_trace(tmp_path):
    recording = made(rows([launch_of(1, 10), work_of(1, 20, 30, 0)]), ["k"])
    other = tmp_path / "other.json"
    other.write_text('{"baseTimeNanoseconds": 1, "traceEvents": []}')
    recording.export_chrome_trace(tmp_path / "merged.json", merge=other)
    assert b'"cat":"kernel"' not in (tmp_path / "merged.json").read_bytes()


@pytest.mark.parametrize("seed", range(6))
def test_random_work_nests_and_flows(seed, tmp_path):
    """Overlapping work of many streams, in any order."""
    random = np.random.default_rng(seed)
    events = [launch_of(i, 100 + i, thread=1 + i % 3) for i in range(40)]
    for _ in range(200):
        number, what, device = (int(random.integers(n)) for n in (60, 3, 3))
        start, took = 200 + int(random.integers(4800)), int(random.integers(400))
        stream = int(random.choice([0, 7, 8, 2**32 - 1]))
        events.append(work_of(number, start, start + took, 0, what, device, stream))
    recording = made(rows(events), ["k"])
    trace = exported(recording, tmp_path)
    work = [e for e in trace["traceEvents"] if e.get("cat") in GPU_WORK]
    assert len(work) == 200 == len(recording.kernels())
    starts = recording.kernels()["start_ns"]
    assert (starts[1:] >= starts[:-1]).all()


def test_segments_freed_in_one_go_are_one_instant(tmp_path):
    script = Script()
    for address in (64, 128, 256, 512):
        script.write("segment_alloc", device=0, address=address << 20, size=2 << 20)
    for address in (64, 128):
        script.write("segment_free", device=0, address=address << 20, size=2 << 20)
        script.write("alloc", device=1, address=address, size=9)  # of another device
    script.write("alloc", device=0, address=256 << 20, size=9)
    script.write("segment_free", device=0, address=512 << 20, size=2 << 20)
    trace = exported(made(rows(script.events)), tmp_path)
    given = of(trace, "i", name="given back to the driver", pid=9_000_000)
    assert [e["args"] for e in given] == [
        {"bytes": 4 << 20, "segments": 2},
        {"bytes": 2 << 20, "segments": 1},
    ]
    assert {e["s"] for e in given} == {"g"}
    assert of(trace, "i", name="given back to the driver", pid=9_000_010) == []


def test_steps_that_a_region_cuts_have_a_row_of_their_own(tmp_path):
    common = {"thread": 5, "op": 0}
    events = [
        {"kind": KIND["window_begin"], "address": SESSION, "time_ns": 0},
        {
            "kind": KIND["step"],
            "address": SESSION,
            "size": 1,
            "time_ns": 1,
            "thread": 5,
        },
        {"kind": KIND["region_begin"], "time_ns": 2, **common},
        {"kind": KIND["alloc"], "device": CPU, "address": 64, "size": 9, "time_ns": 3},
        {
            "kind": KIND["step"],
            "address": SESSION,
            "size": 2,
            "time_ns": 4,
            "thread": 5,
        },
        {"kind": KIND["region_end"], "time_ns": 5, **common},
        {"kind": KIND["alloc"], "device": CPU, "address": 128, "size": 9, "time_ns": 6},
        {
            "kind": KIND["step"],
            "address": SESSION,
            "size": 3,
            "time_ns": 7,
            "thread": 5,
        },
    ]
    trace = exported(made(rows(events)), tmp_path)
    steps = [e for e in of(trace, "X") if e["name"].startswith("ProfilerStep#")]
    assert [e["tid"] for e in steps] == [2**22 + 1] * 2
    del events[2], events[4]
    trace = exported(made(rows(events)), tmp_path)
    steps = [e for e in of(trace, "X") if e["name"].startswith("ProfilerStep#")]
    assert [e["tid"] for e in steps] == [5, 5]


def test_regions_that_do_not_nest_are_made_to(tmp_path):
    names = ["outer", "inner", "op"]
    common = {"thread": 5, "device": CPU}
    kinds = [
        ("region_begin", 0),
        ("region_begin", 1),
        ("op_begin", 2),
        ("alloc", 2),
        ("region_end", 0),  # before what began inside it
        ("op_end", 2),
        ("alloc", 0),
        ("region_end", 1),
    ]
    events = [
        {"kind": KIND[kind], "op": op, "time_ns": i, "address": i, "size": 8, **common}
        for i, (kind, op) in enumerate(kinds)
    ]
    trace = exported(made(rows(events), names), tmp_path)
    found = {
        e["name"]: extent(e)
        for e in of(trace, "X", pid=9_000_900)
        if "op" in e["cat"] or "region" in e["cat"]
    }
    assert found == {"outer": (0, 7), "inner": (1, 7), "op": (2, 5)}


# -- what stands around the events -----------------------------------------------


def with_info(**info) -> Recording:
    recording = made(random_stream(1, length=100))
    recording._core.info = json.dumps(info)
    return recording


def test_facts_of_the_run_stand_in_the_head(tmp_path):
    recording = with_info(
        pid=4321,
        host="a host",
        trace_id="T1",
        devices={
            "cuda:0": {"name": "GPU X", "total_bytes": 7, "capability": "9.0"},
        },
        distributed={"backend": "nccl", "rank": 3, "world_size": 8},
        metadata={
            "rank": 9,
            "note": 'says "rank": 5',
            "deep": {"rank": 4},
            "traceEvents": [],
            "odd \ud800": float("inf"),
            "schemaVersion": 2,
        },
    )
    trace = exported(recording, tmp_path)
    assert trace["distributedInfo"] == {"backend": "nccl", "rank": 3, "world_size": 8}
    names = [p["name"] for p in trace["deviceProperties"]]
    assert names[0] == "GPU X"
    assert names[1:] == [f"cuda:{n}" for n in range(1, len(names))]
    assert trace["deviceProperties"][0]["computeMajor"] == 9
    assert (trace["user.rank"], trace["deep"]) == (9, {"rank": 4})
    assert trace["note"] == 'says "rank": 5'
    assert (trace["user.traceEvents"], trace["user.schemaVersion"]) == ([], 2)
    assert trace["odd �"] is None
    assert (trace["host_name"], trace["trace_id"]) == ("a host", "T1")
    host = of(trace, "M", name="process_labels")
    assert [(e["pid"], e["args"]) for e in host] == [(4321, {"labels": "CPU"})]


@pytest.mark.parametrize(
    "odd",
    [
        {"distributed": 5, "metadata": [1], "devices": 3, "pid": "x", "paths": 1},
        {"distributed": {"rank": -1, "world_size": "a"}, "pid": -5, "paths": {"a": 0}},
        {"pid": 2**40, "devices": {"cuda:0": 1, "cuda:1": {"capability": "a.b"}}},
    ],
)
def test_odd_facts_do_no_harm(odd, tmp_path):
    trace = exported(with_info(**odd), tmp_path)
    assert trace["distributedInfo"]["rank"] == 0


# -- merging -------------------------------------------------------------------

KINETO = """ {
    "schemaVersion": 1,
    "deviceProperties": [],
      "note": "a \\"traceEvents\\": [ in a text",
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": 5000,
    "traceEvents": [

  {
    "ph": "X", "cat": "cpu_op", "name": "aten::odd ]}", "pid": 3, "tid": 3,
    "ts": 1.250, "dur": 0.001
    ,
    "args": {
      "External id": 1, "list": [[], {"a": [1]}]
    }
  },
  {
    "ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 9.0
  }
  ],
  "traceName": "x.json"
}"""


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("memory", [False, True])
def test_a_merge_keeps_every_byte_and_adds_before_the_end(packed, memory, tmp_path):
    text = KINETO.replace("aten::odd ]}", "[memory]") if memory else KINETO
    given = tmp_path / "given.json"
    given.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    recording = made(random_stream(1, length=200))
    out = tmp_path / "out.json"
    recording.export_chrome_trace(out, merge=given)
    merged = out.read_text()
    assert check_chrome(merged.encode(), merged=True) == []
    at = text.index('{\n    "ph": "i"')
    assert merged.startswith(text[:at])
    assert merged.endswith(text[at:])
    events = json.loads(merged)["traceEvents"]
    assert events[-1]["name"] == "Record Window End"
    ours = events[1:-1]
    # Kineto's own ops and [memory] events are not written twice.
    assert not [e for e in ours if e.get("cat") in ("cpu_op", "python_function")]
    assert bool([e for e in ours if e["name"] == "[memory]"]) != memory
    folder = tmp_path / "alone"
    folder.mkdir()
    alone = exported(recording, folder)
    base = int(alone["baseTimeNanoseconds"])
    alloc = [e for e in ours if e["ph"] == "C" and e["name"] == "allocated"]
    same = of(alone, "C", name="allocated")
    assert [e["args"] for e in alloc] == [e["args"] for e in same]
    for here, there in zip(alloc, same):
        moved = max(round(there["ts"] * 1000) + base - 5000, 0)
        assert round(here["ts"] * 1000) == moved


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "[ ]",
        '[{"ph":"M","name":"a","pid":1,"tid":1,"ts":0}]',
        '{"traceEvents":[]}',
        '{"a":{"traceEvents":[1]},"traceEvents":[{"ph":"M","name":"a","pid":1,"tid":1}]}',
    ],
)
def test_a_merge_into_other_shapes(text, tmp_path):
    given = tmp_path / "given.json"
    given.write_text(text)
    made(random_stream(1, length=50)).export_chrome_trace(
        tmp_path / "out.json", merge=given
    )
    data = (tmp_path / "out.json").read_bytes()
    assert check_chrome(data, merged=True) == []
    value = json.loads(data)
    events = value if isinstance(value, list) else value["traceEvents"]
    assert len(events) > 10


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"nothing",
        b'{"traceEvents": [{"a": 1}',
        b'{"traceEvents": [{"a": 1},]}',
        b'{"traceEvents": {"a": 1}}',
        b'{"traceEvents": [1 2]}',
        b'{"traceEvents": [}',
        b'{"traceEvents": ["unfinished]}',
        b"[1, 2",
        b"\x1f\x8b damaged",
        gzip.compress(KINETO.encode())[:-20],
    ],
)
def test_what_is_no_trace_is_refused_by_name(text, tmp_path):
    given = tmp_path / "given.json"
    given.write_bytes(text)
    with pytest.raises(memprof.MemprofError, match=r"merge=.*given\.json"):
        made(random_stream(1, length=50)).export_chrome_trace(
            tmp_path / "out.json", merge=given
        )
    assert os.listdir(tmp_path) == ["given.json"]


@given(st.binary(max_size=60), st.integers(0, len(KINETO)), st.integers(0, 20))
@settings(max_examples=300, deadline=None)
def test_a_damaged_trace_is_refused_or_taken_whole(noise, place, cut):
    text = KINETO.encode()[:place] + noise + KINETO.encode()[place + cut :]
    try:
        found = _core.trace_place(text)
    except ValueError:
        return
    assert 0 < found[0] < len(text)
