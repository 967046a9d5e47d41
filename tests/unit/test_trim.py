"""A part of a recording: what is alive in it is what was."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from events import CPU, NAMES, SESSION, Script, random_stream, rows, with_shapes

import memprof
from memprof import _core, cutting
from memprof.cli import main
from memprof.recording import Recording

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.memprof"))
NONE = 2**32 - 1


def of_seed(seed: int) -> Recording:
    events = with_shapes(random_stream(seed, length=400), seed)
    return Recording(_core.from_events(events, NAMES))


def alive(recording, device: str, event: int) -> list[tuple]:
    """The live blocks after EVENT, with all that is known of each."""
    lives = recording.allocations(device)
    kinds = recording.events()["kind"]
    there = (lives["born_event"] <= event) & (
        (lives["completed_event"] < 0) | (lives["completed_event"] > event)
    )
    found = []
    for life in lives[there]:
        died = int(life["died_event"])
        asked = 0 <= died <= event
        # A seed that is pending was asked for before.
        asked = asked or (life["born_event"] >= 0 and kinds[life["born_event"]] == 49)
        found.append(
            (
                int(life["address"]),
                int(life["size"]),
                asked,
                _core.CATEGORIES[life["category"]],
                int(life["op"]),
                int(life["module"]),
                int(life["stack"]),
                int(life["forward_module"]),
                int(life["forward_stack"]),
                int(life["phase"]),
            )
        )
    return sorted(found)


def check_part(recording, part, places, span, kept=None) -> None:
    """At every event of the part each device is what it was."""
    begin, end = span
    assert len(places) == end - begin
    for device in part.devices:
        for at in range(begin, end):
            place = int(places[at - begin])
            if place < 0:
                continue
            whole = alive(recording, device, at)
            if kept is not None:
                whole = [row for row in whole if row[:2] in kept[device]]
            assert alive(part, device, place) == whole, (device, at)
            if kept is None and at % 7 == 0:
                mine, theirs = (
                    r.at(event=e, device=device)
                    for r, e in ((part, place), (recording, at))
                )
                for name in ("requested", "active", "reserved", "time_ns"):
                    assert getattr(mine, name) == getattr(theirs, name), name
                assert mine.categories == theirs.categories


@pytest.mark.parametrize("seed", range(12))
def test_every_event_of_a_part_is_what_it_was(seed):
    recording = of_seed(seed)
    count = len(recording.events())
    rng = np.random.default_rng(seed)
    for _ in range(3):
        begin, end = sorted(rng.integers(0, count + 1, 2).tolist())
        if begin == end:
            continue
        part, places = cutting.cut(recording, (begin, end))
        check_part(recording, part, places, (begin, end))
        assert part.info["trimmed"]["first_event"] == begin
        assert part.info["trimmed"]["of_events"] == count
        assert not part.info["defects"]["unapplied_events"]


def test_the_whole_is_a_part():
    recording = of_seed(3)
    span = (0, len(recording.events()))
    part, places = cutting.cut(recording, span)
    check_part(recording, part, places, span)
    assert part.steps["number"].tolist() == recording.steps["number"].tolist()
    again, places = cutting.cut(part, (0, len(part.events())))
    assert again.info["trimmed"]["before"]["of_events"] == span[1]
    check_part(part, again, places, (0, len(part.events())))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_steps_of_what_a_gpu_recorded(path, tmp_path):
    recording = memprof.load(path)
    numbers = recording.steps["number"].tolist()
    out = tmp_path / "part.memprof"
    assert main(["trim", str(path), str(out), "--steps", str(numbers[1])]) == 0
    part = memprof.load(out)
    assert part.steps["number"].tolist() == [numbers[1]]
    if (recording.events()["kind"] == 1).any():
        assert part.info["events"] < recording.info["events"]
    for device in recording.devices:
        mine, theirs = (r.at(step=numbers[1], device=device) for r in (part, recording))
        assert mine.requested == theirs.requested
        assert mine.categories == theirs.categories
        assert mine.reserved == theirs.reserved
        ends = [r.peak(device, step=numbers[1]).requested for r in (part, recording)]
        assert ends[0] == ends[1]
    assert "torch_counters" not in part.info
    assert part.info["torch"] == recording.info["torch"]
    assert str(part.summary())


def test_what_a_cut_off_life_was_for_is_kept():
    """Its death, which said so, is not in the part."""
    script = Script()
    script.write("step", address=SESSION, size=1)
    script.write("window_begin", address=SESSION)
    grad = {"device": 0, "phase": 1, "flags": 1}
    script.write("alloc", address=512, size=10, **grad)
    middle = script.write("alloc", address=1024, size=20, **grad)
    script.write("free_requested", device=0, address=1024, size=20, phase=2)
    script.write("free_requested", device=0, address=512, size=10, phase=2)
    script.write("role", device=0, address=2048, size=1)
    core = _core.from_events(rows(script.events), script.names)
    recording = Recording(core)
    assert set(recording.at(event=middle).categories.values()) == {0, 30}
    part, _ = cutting.cut(recording, (middle, middle + 1))
    assert part.at(event=len(part.events()) - 1).categories["activation"] == 30
    reasons = {_core.REASONS[r] for r in part.allocations()["reason"]}
    assert reasons == {"as the file says that it was read from"}


def test_time_and_the_peak():
    recording = of_seed(5)
    times = recording._times()
    begin, end = cutting.of_time(recording, int(times[100]), int(times[200]))
    assert times[begin] == times[100]
    assert begin == 0 or times[begin - 1] < times[100]
    assert times[end - 1] == times[200]
    assert cutting.of_time(recording, None, None) == (0, len(times))
    with pytest.raises(ValueError, match="no event"):
        cutting.of_time(recording, int(times[-1]) + 1, None)
    peak = recording.peak("cpu").event
    assert cutting.around_peak(recording, "cpu", 3) == (
        max(peak - 3, 0),
        min(peak + 4, len(times)),
    )
    with pytest.raises(ValueError, match="step"):
        cutting.of_steps(recording, 999, 999)


@pytest.mark.parametrize("seed", range(8))
def test_only_the_largest(seed):
    recording = of_seed(seed)
    lives = recording.allocations("all")
    span = (0, len(recording.events()))
    keep = cutting.largest(recording, 9, span)
    assert keep.sum() == min(9, len(lives))
    assert lives["size"][keep].min() >= np.sort(lives["size"])[-9:].min()
    part, places = cutting.cut(recording, span, keep)
    kept = {
        device: {
            (int(row["address"]), int(row["size"]))
            for row in lives[keep]
            if row["device"] == (CPU if device == "cpu" else int(device[5:]))
        }
        for device in recording.devices
    }
    rest = part.allocations("all")
    assert len(rest) == keep.sum()
    assert sorted(rest["size"].tolist()) == sorted(lives["size"][keep].tolist())
    assert [_core.CATEGORIES[c] for c in rest["category"]] == [
        _core.CATEGORIES[c] for c in lives["category"][keep]
    ]
    by_event = {int(at): place for at, place in enumerate(places)}
    for device in part.devices:
        for at, place in by_event.items():
            if place >= 0 and at % 5 == 0:
                chosen = {row[:2] for row in alive(part, device, int(place))}
                assert chosen <= kept[device]
    assert part.info["trimmed"]["left_out"] == len(lives) - keep.sum()


# -- the verb ---------------------------------------------------------------------


def test_snapshots_in_and_out(tmp_path, capsys):
    recording = memprof.load(GOLDEN[0])
    whole, part = tmp_path / "a.pickle", tmp_path / "b.pickle"
    recording.export_snapshot(whole)
    assert main(["trim", str(whole), str(part), "--around-peak", "50"]) == 0
    said = capsys.readouterr().err
    assert "events" in said
    assert str(part) in said
    again = memprof.load(part)
    assert again.peak().requested == recording.peak().requested
    assert again.peak().categories == recording.peak().categories
    assert part.stat().st_size < whole.stat().st_size
    assert "trimmed" in again.info
    assert main(["summary", str(part)]) == 0
    assert "at peak" in capsys.readouterr().out
    assert (
        main(["trim", str(whole), str(tmp_path / "c.memprof"), "--largest", "5"]) == 0
    )
    assert len(memprof.load(tmp_path / "c.memprof").allocations("all")) == 5


def test_the_input_is_never_written_to(tmp_path, capsys):
    path = tmp_path / "a.memprof"
    path.write_bytes(GOLDEN[0].read_bytes())
    link = tmp_path / "link.memprof"
    link.symlink_to(path)
    for output in (path, link, tmp_path / "." / "a.memprof"):
        assert main(["trim", str(path), str(output), "--largest", "5"]) == 1
        assert "the output is the input" in capsys.readouterr().err
    assert path.read_bytes() == GOLDEN[0].read_bytes()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "nothing to trim by"),
        (["--steps", "99"], 1, "no step 99"),
        (["--steps", "4:2"], 2, "ends before it begins"),
        (["--steps", "x"], 2, "must be a number"),
        (["--time", "5"], 2, "two times"),
        (["--time", "nan:"], 2, "two times"),
        (["--time", "1e9:"], 1, "no event"),
        (["--around-peak", "5", "--device", "cuda:7"], 1, "not recorded"),
        (["--steps", "2", "--time", "0:1"], 2, "not allowed with"),
    ],
)
def test_what_cannot_be_done_is_said(words, code, said, tmp_path, capsys):
    arguments = ["trim", str(GOLDEN[0]), str(tmp_path / "out.memprof"), *words]
    if code == 2:
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 2
    else:
        assert main(arguments) == 1
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_output_of_another_kind_is_bad_usage(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["trim", str(GOLDEN[0]), str(tmp_path / "out.html"), "--largest", "1"])
    assert ".memprof" in capsys.readouterr().err


def test_labels_and_facts_go_along(tmp_path):
    recording = memprof.load(GOLDEN[0]).label("mine", op="aten")
    part, _ = cutting.cut(recording, (10, 400))
    assert [rule.label for rule in part.rules] == ["mine"]
    part.save(tmp_path / "a.memprof")
    info = memprof.load(tmp_path / "a.memprof").info
    assert info["labels"]
    assert info["trimmed"]["last_event"] == 399
    assert json.dumps(info["trimmed"])


def test_bad_arguments_of_the_core():
    core = of_seed(1)._core
    count = core.events_count
    for span in ((-1, 5), (5, 4), (0, count + 1)):
        with pytest.raises(ValueError):
            _core.cut(core, *span, None)
    with pytest.raises(ValueError):
        _core.cut(core, 0, count, b"x")
    with pytest.raises(TypeError):
        _core.cut(object(), 0, 0, None)


def test_kernels_go_along_with_their_launches():
    """They are told of at the end, whenever they ran."""
    script = Script()
    for number in range(6):
        script.write("alloc", device=0, address=4096 * (number + 1), size=100)
        script.write("gpu_launch", device=0, address=number, op=1)
    script.write("gpu_launch", device=0, address=1, op=2)  # the numbers went round
    for number in (5, 0, 2, 1, 3, 99):
        script.write(
            "gpu_work", device=0, address=10 + number, stream=20 + number,
            op_instance=number, op=3,
        )  # fmt: skip
    recording = Recording(_core.from_events(rows(script.events), NAMES))
    assert sorted(recording.kernels()["correlation"].tolist()) == [0, 1, 2, 3, 5, 99]
    part, places = cutting.cut(recording, (4, 8))  # of numbers 2 and 3
    rows_ = part.kernels()
    assert rows_["correlation"].tolist() == [2, 3]
    assert (rows_["launch_event"] >= 0).all()
    assert rows_["start_ns"].tolist() == [12, 13]
    assert len(places) == 4
    assert int(part._times()[-1]) == int(recording._times()[7])
    before, _ = cutting.cut(recording, (0, 4))  # of numbers 0 and 1
    assert before.kernels()["correlation"].tolist() == [0]
    whole, _ = cutting.cut(recording, (0, len(recording.events())))
    assert whole.kernels().size == 6


def test_what_is_there_stays_unless_forced(tmp_path, capsys):
    out = tmp_path / "out.memprof"
    out.write_bytes(b"mine")
    words = ["trim", str(GOLDEN[0]), "--largest", "5"]
    assert main([*words, str(out)]) == 1
    assert f"{out} is there already; -f/--force" in capsys.readouterr().err
    assert out.read_bytes() == b"mine"
    assert main([*words, "-o", str(out), "-f", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["schema"] == "memprof.trim/1"
    assert facts["allocations"] == len(memprof.load(out).allocations("all")) == 5


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_from_one_moment_to_another(path):
    recording = memprof.load(path)
    count = len(recording.events())
    start, times = recording.info["start_ns"], recording._times()

    def span(begin, end):
        return cutting.between(recording, begin, end, None)

    assert span(None, None) == (0, count)
    numbers = recording.steps["number"].tolist()
    first, last = numbers[0], numbers[1]
    whole = cutting.of_steps(recording, first, last)
    assert span(f"step:{first}", f"step={last}") == whole
    assert span("event:5", "event:9") == (5, 10)
    peak = max(recording.peak().event, 0)
    assert span(None, "peak") == (0, peak + 1)
    assert span("peak", "end") == (peak, count)
    middle = max(int(times[count // 2]) - start, 0)
    by_time = cutting.of_time(recording, start + middle, start + middle + 10**6)
    assert by_time[0] > 0
    assert span(f"t={middle}ns", f"t={middle + 10**6}ns") == by_time
    with pytest.raises(ValueError, match="no event lies from end to event:1"):
        span("end", "event:1")


def test_the_verb_takes_moments(tmp_path, capsys):
    path, out = GOLDEN[0], tmp_path / "a.memprof"
    assert (
        main(["trim", str(path), "--from", "step:3", "--to", "step:3", str(out)]) == 0
    )
    assert memprof.load(out).steps["number"].tolist() == [3]
