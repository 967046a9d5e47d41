"""Recording: arrays, devices, peaks, moments and what bad questions are told."""

from __future__ import annotations

import json
import re
from functools import cache

import numpy as np
import pytest
from events import NAMES, Script, random_stream, rows
from naive import Naive

import memprof
from memprof import _core
from memprof.recording import (
    ALLOCATION_DTYPE,
    EVENT_DTYPE,
    NO_INDEX,
    STEP_DTYPE,
    Frame,
    Recording,
    load,
    parse_device,
)

SEEDS = range(60)


@cache
def recorded(seed: int) -> tuple[Recording, Naive]:
    events = random_stream(seed)
    return Recording(_core.from_events(events, NAMES)), Naive().replay(events)


def device_of(name: str) -> int:
    return -1 if name == "cpu" else int(name.removeprefix("cuda:"))


def small() -> Script:
    """Three steps on one GPU and the CPU; the peak is in step 1's backward."""
    script = Script()
    script.write("seed_segment", device=0, address=1 << 40, size=2 << 20)
    script.write("seed_block", device=0, address=1 << 40, size=1000)
    script.write("step", address=7, size=0)
    script.write("window_begin", address=7)
    for step in range(3):
        for phase, size in ((1, 100), (2, 300 if step == 1 else 200), (3, 50)):
            address = (1 << 40) + 4096 * phase
            where = {"device": 0, "address": address, "phase": phase}
            script.write("alloc", size=size, **where)
            script.write("alloc", size=8, device=-1, address=64 * phase, phase=phase)
            script.write("free_completed", device=-1, address=64 * phase, phase=phase)
            script.write("free_requested", size=size, **where)
            script.write("free_completed", size=size, **where)
        script.write("step", address=7, size=step + 1)
    script.write("window_end", address=7)
    return script


def test_row_layouts_are_those_of_the_headers() -> None:
    assert EVENT_DTYPE.itemsize == 64
    assert ALLOCATION_DTYPE.itemsize == 144
    assert STEP_DTYPE.itemsize == 80
    for dtype in (EVENT_DTYPE, ALLOCATION_DTYPE, STEP_DTYPE):
        assert [dtype.fields[n][1] for n in dtype.names] == sorted(
            dtype.fields[n][1] for n in dtype.names
        )


def test_design_names_are_there() -> None:
    promised = (
        "id address size device stream pool thread born_event died_event born_ns "
        "died_ns born_step died_step phase op module stack category reason "
        "forward_module forward_stack"
    )
    assert set(promised.split()) <= set(ALLOCATION_DTYPE.names)


def test_arrays_are_read_only_and_shared() -> None:
    recording, _ = recorded(1)
    for array in (recording.events(), recording.allocations("all"), recording.steps):
        assert not array.flags.writeable
    assert recording.events() is recording.events()
    lives = recording.allocations("all")
    assert not lives.flags.owndata
    assert np.shares_memory(lives, recording.allocations("all"))


def test_allocations_of_a_device() -> None:
    recording, naive = recorded(3)
    for name in recording.devices:
        lives = recording.allocations(name)
        mine = [life for life in naive.lives if life["device"] == device_of(name)]
        assert lives["address"].tolist() == [life["address"] for life in mine]
        assert not lives.flags.writeable
        events = recording.events(name)
        assert (events["device"] == device_of(name)).all()
    total = sum(len(recording.allocations(name)) for name in recording.devices)
    assert total == len(recording.allocations("all"))


@pytest.mark.parametrize("seed", SEEDS)
def test_peaks_are_those_of_the_naive_replay(seed: int) -> None:
    recording, naive = recorded(seed)
    for name in recording.devices:
        stats = naive.stats[device_of(name)]
        for of in ("requested", "active"):
            moment = recording.peak(name, of=of)
            assert getattr(moment, of) == stats[f"{of}_bytes"]["peak"], (name, of)
        if name != "cpu":
            peak = recording.peak(name, of="reserved").reserved
            assert peak == stats["reserved_bytes"]["peak"]


@pytest.mark.parametrize("seed", SEEDS)
def test_step_peaks_are_those_of_the_naive_replay(seed: int) -> None:
    recording, naive = recorded(seed)
    for row in naive.steps:
        if not row["recorded"] or row["number"] not in recording.steps["number"]:
            continue
        name = "cpu" if row["device"] < 0 else f"cuda:{row['device']}"
        moment = recording.peak(name, step=row["number"])
        assert moment.requested == row["requested_bytes_peak"], (seed, row)
        assert moment.step == row["number"]
        end = recording.at(step=row["number"], device=name)
        assert end.requested == row["requested_bytes_at_end"]


@pytest.mark.parametrize("seed", SEEDS)
def test_moments_hold_what_the_naive_replay_holds(seed: int) -> None:
    recording, naive = recorded(seed)
    count = len(recording.events())
    seeds = int((recording.events()["kind"] >= 48).sum()) * 2
    for event in range(seeds, count, max(count // 20, 1)):
        for name in recording.devices:
            moment = recording.at(event=event, device=name)
            alive = naive.live_at(event, device_of(name))
            addresses = [life["address"] for life in alive]
            assert moment.live()["address"].tolist() == addresses
            assert moment.requested == sum(life["size"] for life in alive)
            assert sum(moment.categories.values()) == moment.requested
            assert moment.requested <= moment.active


def test_peak_in_a_category_a_phase_and_a_step() -> None:
    recording = Recording(small().core())
    assert recording.peak().requested == 1300
    assert (recording.peak().step, recording.peak().phase) == (1, "backward")
    assert recording.peak(step=0).requested == 1200
    assert recording.peak(phase="forward").requested == 1100
    optimizer = recording.peak(phase="optimizer", step=2)
    assert (optimizer.requested, optimizer.step, optimizer.phase) == (
        1050,
        2,
        "optimizer",
    )
    assert recording.peak(category="unknown").categories["unknown"] == 1000
    assert recording.peak(category="gradient").categories["gradient"] == 0
    assert recording.peak("cpu").requested == 8
    assert recording.peak(of="reserved").reserved == 2 << 20


def test_steps_and_phases() -> None:
    recording = Recording(small().core())
    steps = recording.steps
    assert steps["number"].tolist() == [0, 1, 2]  # the mark of step 3 is no step
    assert (steps["start_ns"][1:] == steps["end_ns"][:-1]).all()
    phases = recording.phases
    assert phases["name"].tolist() == ["forward", "backward", "optimizer"] * 3
    assert (phases["start_ns"][1:] == phases["end_ns"][:-1]).all()
    assert (phases["begin_event"][1:] == phases["end_event"][:-1] + 1).all()


def test_step_stats_are_of_the_steps_alone() -> None:
    """The tracker's row of what was alive before the window is none."""
    recording = Recording(small().core())
    for device in ("all", "cuda:0", "cpu"):
        stats = recording.step_stats(device)
        assert set(stats["number"].tolist()) == {0, 1, 2}
        assert (stats["recorded"] == 1).all()
        assert (stats["end_event"] > stats["begin_event"]).all()
        assert not stats.flags.writeable
    assert recording.step_stats()["number"].tolist() == [0, 1, 2]


def looped(last: str, **info: object) -> Recording:
    """Three iterations with prof.step() at their end, and one event LAST."""
    script = Script()
    script.write("step", address=7, size=0)
    script.write("window_begin", address=7)
    for step in range(3):
        script.write("alloc", device=-1, address=64 * step, size=5)
        script.write("step", address=7, size=step + 1)
    script.write(last, device=-1, address=64)
    script.write("window_end", address=7)
    return Recording(script.core(**info))


@pytest.mark.parametrize("info", [{}, {"schedule": {"wait": 0}, "step_num": 3}])
def test_what_follows_the_last_step_counts_if_it_allocates(info: dict) -> None:
    for last in ("free_completed", "region_begin", "op_begin"):
        assert looped(last, **info).steps["number"].tolist() == [0, 1, 2]
        assert looped(last, **info).step_stats("cpu")["number"].tolist() == [0, 1, 2]
    assert looped("alloc", **info).steps["number"].tolist() == [0, 1, 2, 3]


def test_a_step_that_the_schedule_ended_counts_whatever_was_in_it() -> None:
    found = looped("free_completed", schedule={"wait": 0}, step_num=4)
    assert found.steps["number"].tolist() == [0, 1, 2, 3]


def test_a_data_loader_does_not_cut_phases() -> None:
    script = Script()
    for index in range(20):
        thread = 2 if index % 2 else 1
        phase = 1 if thread == 1 and index < 10 else 0
        script.write(
            "alloc", device=-1, address=64 * index, size=1, thread=thread, phase=phase
        )
    recording = Recording(script.core())
    assert recording.phases["name"].tolist() == ["forward", "other"]


def test_moment_by_time() -> None:
    recording = Recording(small().core())
    clock = recording.events()["time_ns"]
    moment = recording.at(time_ns=int(clock[6]) + 1)
    assert moment.event == 6
    assert moment.time_ns == clock[6] + 1
    assert recording.at(time_ns=0).event == -1
    assert recording.at(time_ns=0).requested == 1000
    assert recording.at(time_ns=1 << 60).event == len(clock) - 1
    assert recording.at(event=-1).requested == 1000


def test_timeline() -> None:
    recording = Recording(small().core())
    total = recording.timeline(by="total")
    assert total.labels == ("requested", "active", "reserved")
    assert total.bytes.shape == (len(total.times_ns), 3)
    assert total.bytes[:, 0].max() == 1300
    parts = recording.timeline()
    assert parts.labels == _core.CATEGORIES
    assert parts.bytes.sum(1).max() == 1300
    assert parts.events[0] == -1


class FakeTorchDevice:
    """Prints as a torch.device does."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (None, "cuda:0"),
        (0, "cuda:0"),
        (np.int64(0), "cuda:0"),
        ("0", "cuda:0"),
        ("cuda", "cuda:0"),
        ("cuda:0", "cuda:0"),
        ("cpu", "cpu"),
        (FakeTorchDevice("cuda:0"), "cuda:0"),
        (FakeTorchDevice("cuda"), "cuda:0"),
        (FakeTorchDevice("cpu"), "cpu"),
    ],
)
def test_device_arguments(device: object, name: str) -> None:
    assert Recording(small().core()).peak(device).device == name


def test_the_current_device_is_the_default() -> None:
    script = Script()
    for device in (0, 1, -1):
        script.write("alloc", device=device, address=512, size=device + 2)
    core = script.core()
    assert Recording(core).peak().device == "cuda:0"
    assert Recording(core, current=1).peak().device == "cuda:1"
    assert Recording(core, current=1).peak("cuda").device == "cuda:1"
    assert Recording(core, current=5).peak().device == "cuda:0"
    assert Recording(script.core(current_device=1)).peak().device == "cuda:1"


@pytest.mark.parametrize("device", [3, "cuda:3", FakeTorchDevice("cuda:3")])
def test_an_unknown_device_names_those_there_are(device: object) -> None:
    with pytest.raises(ValueError, match=r"cuda:3|'3'") as caught:
        Recording(small().core()).peak(device)
    assert "'cpu', 'cuda:0'" in str(caught.value)


@pytest.mark.parametrize("device", ["cpu", "cpu:0", " CPU "])
def test_the_cpu_has_two_names(device: str) -> None:
    assert parse_device(device) == -1
    assert Recording(small().core()).peak(device).device == "cpu"


@pytest.mark.parametrize("by", [[], None, 5, ("category",)])
def test_what_a_timeline_cannot_be_by(by: object) -> None:
    with pytest.raises(TypeError, match=r"^by=.*'total', 'category'"):
        Recording(small().core()).timeline(by=by)


@pytest.mark.parametrize("limit", [1.5, "3", []])
def test_limits_are_whole_numbers(limit: object) -> None:
    recording = Recording(small().core())
    with pytest.raises(TypeError, match=r"^limit="):
        recording.peak().rows(limit=limit)
    for wrong in (limit, None):
        with pytest.raises(TypeError, match=r"^limit="):
            recording.summary(limit=wrong)


@pytest.mark.parametrize(
    "device", ["gpu", "cpu:1", "cuda:", "cuda:-1", -1, True, 1.0, "²"]
)
def test_what_is_no_device(device: object) -> None:
    with pytest.raises(ValueError, match="is not a device"):
        parse_device(device)


def test_cuda_without_cuda() -> None:
    script = Script()
    script.write("alloc", device=-1, address=64, size=5)
    recording = Recording(script.core())
    assert recording.peak().device == "cpu"
    with pytest.raises(ValueError, match=r"'cuda' was not recorded.*'cpu'"):
        recording.peak("cuda")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"of": "total"}, "'requested', 'active', 'reserved'"),
        ({"category": "weights"}, "'parameter', 'optimizer_state'"),
        ({"category": "parameter", "of": "active"}, "leave out one"),
        ({"phase": "training"}, "'forward', 'backward', 'optimizer'"),
        ({"step": 9}, "steps: 0 to 2"),
    ],
)
def test_bad_questions_name_the_choices(arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Recording(small().core()).peak(**arguments)


def test_bad_moments() -> None:
    recording = Recording(small().core())
    with pytest.raises(TypeError, match="exactly one"):
        recording.at()
    with pytest.raises(TypeError, match="exactly one"):
        recording.at(event=1, step=1)
    with pytest.raises(ValueError, match="no event 999"):
        recording.at(event=999)
    with pytest.raises(ValueError, match="no event -2"):
        recording.at(event=-2)
    with pytest.raises(ValueError, match="choose 'total', 'category'"):
        recording.timeline(by="colour")


def test_without_step_marks_all_is_step_0() -> None:
    script = Script()
    script.write("alloc", device=-1, address=64, size=5)
    recording = Recording(script.core())
    assert recording.steps["number"].tolist() == [0]
    assert recording.peak(step=0).requested == 5
    with pytest.raises(ValueError, match=r"no step 4 .*; steps: 0$"):
        recording.peak(step=4)


def test_phase_that_did_not_happen() -> None:
    script = Script()
    script.write("alloc", device=-1, address=64, size=5, phase=1)
    recording = Recording(script.core())
    with pytest.raises(ValueError, match="phases here: 'forward'"):
        recording.peak(phase="optimizer")


def test_nothing_recorded() -> None:
    recording = Recording(_core.from_events(rows([]), []))
    assert recording.devices == []
    assert len(recording.phases) == len(recording.allocations()) == 0
    assert recording.peak().requested == 0
    assert recording.timeline().bytes.shape == (1, len(_core.CATEGORIES))
    with pytest.raises(ValueError, match="devices here: none"):
        recording.peak("cuda:0")
    with pytest.raises(ValueError, match=r"prof.step\(\)"):
        recording.peak(step=0)


def test_texts_behind_ids() -> None:
    script = Script()
    frames = (("forward", "/run/model.py", 12), ("main", "/run/train.py", 3))
    script.write("alloc", device=-1, op="aten::mm", module="layers.0", stack=frames)
    recording = Recording(script.core())
    life = recording.allocations()[0]
    assert recording.op(life["op"]) == "aten::mm"
    assert recording.module(life["module"]) == "layers.0"
    assert recording.stack(life["stack"])[0] == Frame("forward", "/run/model.py", 12)
    assert recording.op(NO_INDEX) == recording.module(NO_INDEX) == ""
    assert recording.stack(NO_INDEX) == ()
    with pytest.raises(IndexError):
        recording.op(10_000)


def test_texts_of_owners_regions_and_kinds() -> None:
    script = Script()
    script.write("region_begin", op="load batch")
    script.write("alloc", device=-1, address=64, size=5)
    script.write("role", device=-1, address=64, size=1, op="layers.0.weight")
    recording = Recording(script.core())
    (life,) = recording.allocations()
    assert recording.owner(life["owner"]) == "layers.0.weight"
    assert recording.region(life["region"]) == "load batch"
    assert recording.owner(NO_INDEX) == recording.region(NO_INDEX) == ""
    kinds = [recording.kind(number) for number in recording.events()["kind"]]
    assert kinds == ["region_begin", "alloc", "role"]
    assert memprof.EVENT_KINDS[1] == "alloc"
    with pytest.raises(IndexError, match="200"):
        recording.kind(200)


def test_info_has_the_facts_of_the_core() -> None:
    recording = Recording(small().core(script="train.py", devices={"cuda:0": {"a": 1}}))
    info = recording.info
    assert info["script"] == "train.py"
    assert info["devices"] == ["cpu", "cuda:0"]
    assert info["events"] == len(recording.events())
    assert info["dropped"] == 0
    assert info["defects"]["unmatched_frees"] == 0
    info["events"] = None
    assert recording.info["events"] == len(recording.events())


def test_save_and_load(tmp_path) -> None:
    for seed in range(8):
        core = _core.from_events(random_stream(seed), NAMES)
        core.info = json.dumps({"script": "train.py"})
        recording = Recording(core)
        path = tmp_path / f"{seed}.memprof"
        recording.save(path)
        again = load(path)
        assert again.info["script"] == "train.py"
        assert again.info["finished"]
        assert (again.events() == recording.events()).all()
        assert (again.allocations("all") == recording.allocations("all")).all()
        assert (again.step_stats("all") == recording.step_stats("all")).all()
        for name in recording.devices:
            here, there = recording.peak(name), again.peak(name)
            assert here.rows() == there.rows()


def test_what_cannot_be_loaded_or_saved(tmp_path) -> None:
    recording = Recording(small().core())
    with pytest.raises(OSError, match="no/such/folder"):
        Recording(_core.from_events(recording.events(), [])).save(
            "/no/such/folder/a.memprof"
        )
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*/none"):
        recording.save(tmp_path / "none" / "a.memprof")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        recording.save(tmp_path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing.memprof")
    (tmp_path / "text").write_text("not a recording, but long enough" * 10)
    with pytest.raises(_core.Error):
        load(tmp_path / "text")


def test_repr() -> None:
    recording = Recording(small().core())
    assert "3 steps, cpu, cuda:0" in repr(recording)
    assert "1300 bytes" in repr(recording.peak())
    timeline = recording.timeline(by="total")
    assert repr(timeline) == (
        f"<memprof.Timeline: {len(timeline.bytes)} samples over 0.000 s, "
        "requested, active, reserved>"
    )
    assert repr(recording.timeline()).endswith(" s, 9 columns>")
