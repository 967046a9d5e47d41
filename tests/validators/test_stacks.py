"""Speedscope, pprof and collapsed stacks: valid, and right to the byte."""

from __future__ import annotations

import json
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import sources
from check_collapsed import check_collapsed, check_stacks, weights
from check_pprof import check_pprof, read
from check_speedscope import check_speedscope
from hypothesis import given, settings
from hypothesis import strategies as st

import memprof
from memprof.averages import SORT_NAMES
from memprof.recording import Recording
from memprof.stacks import NO_STACK

RECORDINGS = dict(sources.all_of_them())


@pytest.fixture(params=RECORDINGS)
def recording(request) -> Recording:
    return RECORDINGS[request.param]


@pytest.fixture(scope="module")
def trained() -> Recording:
    pytest.importorskip("torch")
    return sources.trained_on_cpu()


def written(write, path: Path) -> bytes:
    """Return what WRITE makes; no other file may stay beside it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        write(path)
        first = path.read_bytes()
        write(path)
    assert path.read_bytes() == first, "equal input gives equal bytes"
    assert os.listdir(path.parent) == [path.name]
    path.unlink()
    return first


def speedscope(recording: Recording, folder: Path, **arguments) -> dict:
    content = written(
        lambda path: recording.export_speedscope(path, **arguments),
        folder / "a.speedscope.json",
    )
    assert check_speedscope(content) == []
    return json.loads(content)


def pprof(recording: Recording, folder: Path, **arguments):
    content = written(
        lambda path: recording.export_pprof(path, **arguments), folder / "a.pb.gz"
    )
    profile, wrong = read(content)
    assert wrong == []
    return profile


def collapsed(recording: Recording, folder: Path, **arguments) -> dict[str, int]:
    content = written(
        lambda path: recording.export_collapsed(path, **arguments),
        folder / "a.collapsedstack.txt",
    )
    assert check_collapsed(content) == []
    return weights(content)


def moments(recording: Recording, device: str) -> list:
    """Return values of ``at`` and the moments they must be."""
    last = len(recording.events()) - 1
    found = [
        ("peak", recording.peak(device)),
        ("end", recording.at(event=last, device=device)),
    ]
    for number in recording.steps["number"][:2].tolist():
        found.append((f"step={number}", recording.at(step=number, device=device)))
        found.append((number, recording.at(step=number, device=device)))
    when = int(recording.events()["time_ns"][last // 2])
    found.append((f"time={when}", recording.at(time_ns=when, device=device)))
    found.append((found[0][1], found[0][1]))
    return found


def test_every_weight_sums_to_the_moment_to_the_byte(recording, tmp_path) -> None:
    for device in recording.devices:
        for at, moment in moments(recording, device):
            of = {"device": device, "at": at}
            (profile,) = speedscope(recording, tmp_path, **of)["profiles"]
            assert sum(profile["weights"]) == moment.requested
            assert sum(collapsed(recording, tmp_path, **of).values()) == (
                moment.requested
            )
            found = pprof(recording, tmp_path, **of)
            totals = np.array([values for _, values in found.samples]).reshape(-1, 4)
            lives = recording.allocations(device)
            born = lives["born_event"]
            seen = lives[(born >= 0) & (born <= moment.event)]
            assert totals[:, 0].sum() == len(seen)
            assert totals[:, 1].sum() == seen["size"].sum(dtype=np.int64)
            assert totals[:, 2].sum() == len(moment.live())
            assert totals[:, 3].sum() == moment.requested


@pytest.mark.parametrize("by", ["category", "module", "op", ("category", "phase")])
def test_outer_frames_have_the_bytes_of_rows(recording, tmp_path, by) -> None:
    keys = (by,) if isinstance(by, str) else by
    device = recording.devices[-1]
    moment = recording.peak(device)
    expected: dict[tuple, int] = {}
    for row in moment.rows(by):
        words = tuple(row[key] or f"(no {key})" for key in keys)
        expected[words] = expected.get(words, 0) + row["bytes"]
    document = speedscope(recording, tmp_path, device=device, by=by)
    frames = [frame["name"] for frame in document["shared"]["frames"]]
    (profile,) = document["profiles"]
    found: dict[tuple, int] = {}
    for sample, weight in zip(profile["samples"], profile["weights"]):
        words = tuple(frames[number] for number in sample[: len(keys)])
        found[words] = found.get(words, 0) + weight
    assert found == {words: size for words, size in expected.items() if size}
    in_use: dict[tuple, int] = {}
    for stack, values in pprof(recording, tmp_path, device=device, by=by).samples:
        words = tuple(name for name, _, _ in stack[: len(keys)])
        in_use[words] = in_use.get(words, 0) + values[3]
    assert {words: size for words, size in in_use.items() if size} == found


def test_stacks_are_those_of_rows_outermost_first(recording, tmp_path) -> None:
    device = recording.devices[-1]
    moment = recording.peak(device)
    expected: dict[tuple, int] = {}
    for row in moment.rows("stack"):
        if row["stack"] and row["bytes"]:
            path = tuple(
                (f"{f.function} ({os.path.basename(f.file)}:{f.line})", f.file, f.line)
                for f in reversed(row["stack"])
            )
            expected[path] = expected.get(path, 0) + row["bytes"]
    document = speedscope(recording, tmp_path, device=device)
    frames = [
        (frame["name"], frame.get("file"), frame.get("line"))
        for frame in document["shared"]["frames"]
    ]
    (profile,) = document["profiles"]
    found: dict[tuple, int] = {}
    for sample, weight in zip(profile["samples"], profile["weights"]):
        path = tuple(frames[number] for number in sample)
        if path[0][0] != NO_STACK:
            found[path] = found.get(path, 0) + weight
    assert found == expected
    in_pprof = {
        path: values[3]
        for path, values in pprof(recording, tmp_path, device=device).samples
        if values[3] and path[0][0] != NO_STACK
    }
    assert in_pprof == expected


def test_hostile_names_come_through_whole(tmp_path) -> None:
    seen: set[str] = set()
    for seed in range(100, 108):
        recording = sources.synthetic(seed, hostile=True)
        device = recording.devices[-1]
        document = speedscope(recording, tmp_path, device=device, at="end", by="op")
        seen |= {frame["name"] for frame in document["shared"]["frames"]}
        profile = pprof(recording, tmp_path, device=device, at="end", by="op")
        in_pprof = {frame[0] for path, _ in profile.samples for frame in path}
        # pprof also has what is dead, speedscope what is alive
        assert {f["name"] for f in document["shared"]["frames"]} <= in_pprof
    for name in sources.HOSTILE[:8]:
        assert name in seen, "an op of that name"
        assert any(f"{name} (" in text for text in seen), "a function of that name"


def test_a_lone_surrogate_becomes_the_replacement_character(tmp_path) -> None:
    recording = sources.synthetic(1).label(sources.SURROGATE, op="aten")
    device = recording.devices[-1]
    document = speedscope(recording, tmp_path, device=device, at="end", by="label")
    names = {frame["name"] for frame in document["shared"]["frames"]}
    assert "lone � surrogate" in names
    assert "lone � surrogate" in {
        frame[0]
        for path, _ in pprof(recording, tmp_path, device=device, by="label").samples
        for frame in path
    }
    collapsed(recording, tmp_path, device=device, by="label")


def test_several_moments_are_one_profile_each(tmp_path) -> None:
    recording = RECORDINGS["golden" if "golden" in RECORDINGS else "convnet"]
    step = int(recording.steps["number"][0])
    document = speedscope(recording, tmp_path, at=["peak", "end", f"step={step}"])
    names = [profile["name"] for profile in document["profiles"]]
    assert [name.partition(":")[0] for name in names] == [
        "peak of cuda",
        "end of cuda",
        f"end of step {step} of cuda",
    ]
    sums = [sum(profile["weights"]) for profile in document["profiles"]]
    last = recording.at(event=len(recording.events()) - 1)
    assert sums == [
        recording.peak().requested,
        last.requested,
        recording.at(step=step).requested,
    ]


@given(
    seed=st.integers(0, 10_000),
    length=st.integers(0, 120),
    hostile=st.booleans(),
    place=st.floats(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_any_stream_at_any_moment(
    tmp_path_factory, seed: int, length: int, hostile: bool, place: float
) -> None:
    folder = tmp_path_factory.mktemp("any")
    recording = sources.synthetic(seed, length, hostile)
    event = int(place * len(recording.events())) - 1
    for device in recording.devices:
        moment = recording.at(event=event, device=device)
        of = {"device": device, "at": moment, "by": ("module", "category")}
        (profile,) = speedscope(recording, folder, **of)["profiles"]
        assert sum(profile["weights"]) == moment.requested
        assert sum(collapsed(recording, folder, **of).values()) == moment.requested
        samples = pprof(recording, folder, **of).samples
        assert sum(values[3] for _, values in samples) == moment.requested
        assert sum(values[2] for _, values in samples) == len(moment.live())


def test_a_training_run_on_the_cpu(trained, tmp_path) -> None:
    peak = trained.peak()
    lines = collapsed(trained, tmp_path)
    assert sum(lines.values()) == peak.requested > 0
    assert any(re.search(r";trained_on_cpu \(sources\.py:\d+\);", it) for it in lines)
    names = {
        frame["name"]
        for frame in speedscope(trained, tmp_path, by="category")["shared"]["frames"]
    }
    assert {"parameter", "optimizer_state"} <= names
    profile = pprof(trained, tmp_path)
    assert sum(values[3] for _, values in profile.samples) == peak.requested
    wall = trained.info["start_wall_ns"]
    assert wall <= profile.time_ns <= wall + 600_000_000_000


# -- by metric, as torch's --------------------------------------------------------


@pytest.mark.parametrize("metric", [name for name in SORT_NAMES if name != "count"])
def test_stacks_by_metric_are_those_of_key_averages(recording, tmp_path, metric):
    content = written(
        lambda path: recording.export_stacks(path, metric), tmp_path / "a.txt"
    )
    assert check_stacks(content) == []
    expected: dict[str, int] = {}
    for row in recording.key_averages(group_by_stack_n=1000):
        value = getattr(row, metric)
        if row.stack and value > 0:
            line = ";".join(re.sub(BREAKS, "_", frame) for frame in row.stack[::-1])
            expected[line] = expected.get(line, 0) + value
    assert weights(content) == expected


BREAKS = "[ ;\x00-\x1f\x7f\x85\u2028\u2029]"


def test_stacks_have_the_shape_of_torchs(trained, tmp_path) -> None:
    content = written(
        lambda path: trained.export_stacks(path, "self_cpu_memory_usage"),
        tmp_path / "a.txt",
    )
    assert check_stacks(content) == []
    assert re.search(rb"sources\.py\(\d+\):_trained_on_cpu;", content)


@pytest.mark.parametrize("metric", ["self_cuda_time_total", "cpu_time", "colour", ""])
def test_times_are_no_metric_and_it_says_which_there_are(tmp_path, metric) -> None:
    recording = RECORDINGS["convnet"]
    words = "memory, not time.*self_cuda_memory" if "time" in metric else "choose"
    with pytest.raises(ValueError, match=words):
        recording.export_stacks(tmp_path / "a.txt", metric)
    assert os.listdir(tmp_path) == []


# -- nothing to tell, and errors ----------------------------------------------------

EXPORTS = {
    "a.speedscope.json": ("export_speedscope", check_speedscope),
    "a.pb.gz": ("export_pprof", check_pprof),
    "a.collapsedstack.txt": ("export_collapsed", check_collapsed),
    "a.txt": ("export_stacks", check_stacks),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_an_empty_recording_gives_an_empty_valid_file(tmp_path, name) -> None:
    method, check = EXPORTS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        getattr(sources.empty(), method)(tmp_path / name)
    assert check((tmp_path / name).read_bytes()) == []


@pytest.mark.parametrize("name", EXPORTS)
def test_an_unknown_device_gives_an_empty_valid_file_and_a_warning(
    tmp_path, name
) -> None:
    method, check = EXPORTS[name]
    recording = RECORDINGS["convnet"]
    with pytest.warns(UserWarning, match=r"cuda:7 was not recorded; devices here: .*"):
        getattr(recording, method)(tmp_path / name, device="cuda:7")
    assert check((tmp_path / name).read_bytes()) == []
    with pytest.raises(ValueError, match="is not a device"):
        getattr(recording, method)(tmp_path / name, device="gpu")


@pytest.mark.parametrize("method", [method for method, _ in EXPORTS.values()])
def test_a_file_that_cannot_be_written_is_an_os_error_that_names_it(
    tmp_path, method
) -> None:
    export = getattr(RECORDINGS["convnet"], method)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        export(tmp_path / "nowhere" / "a")
    with pytest.raises(IsADirectoryError):
        export(tmp_path)
    assert os.listdir(tmp_path) == []


def test_moments_that_are_none_are_named(tmp_path) -> None:
    recording, to = RECORDINGS["convnet"], tmp_path / "a"
    with pytest.raises(ValueError, match="no step 99 in this recording; steps: 2 to 4"):
        recording.export_pprof(to, at="step=99")
    with pytest.raises(ValueError, match=r"at='middle': peak, end, step:3"):
        recording.export_collapsed(to, at="middle")
    with pytest.raises(TypeError, match=r"at=1\.5"):
        recording.export_speedscope(to, at=[1.5])
    with pytest.raises(ValueError, match="a moment of cpu, not of cuda:0"):
        recording.export_pprof(to, at=recording.peak("cpu"), device="cuda:0")
    with pytest.raises(ValueError, match="by='colour': choose 'category', 'module'"):
        recording.export_pprof(to, by="colour")
    assert os.listdir(tmp_path) == []


def test_what_is_replaced_keeps_its_mode_and_links_stay(tmp_path) -> None:
    target, link = tmp_path / "real.json", tmp_path / "a.speedscope.json"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    RECORDINGS["convnet"].export_speedscope(link)
    assert link.is_symlink()
    assert check_speedscope(target.read_bytes()) == []
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_profile_exports_its_recording(tmp_path) -> None:
    torch = pytest.importorskip("torch")
    with memprof.profile() as prof:
        kept = torch.ones(1000)
        prof.export_collapsed(tmp_path / "inside.txt", at="end")
    prof.export_collapsed(tmp_path / "after.txt", at="end")
    for name in ("inside.txt", "after.txt"):
        content = (tmp_path / name).read_bytes()
        assert check_collapsed(content) == []
        assert sum(weights(content).values()) >= kept.nbytes
    assert len(os.listdir(tmp_path)) == 2


# -- the message classes of others ---------------------------------------------------


def test_googles_own_class_reads_the_profile(tmp_path) -> None:
    """``profile_pb2`` of google-cloud-profiler, made from pprof's own .proto."""
    module = sources.google_profile()
    if module is None:
        pytest.skip("google-cloud-profiler (or protobuf) is not installed")
    import gzip

    for name, recording in RECORDINGS.items():
        path = tmp_path / "a.pb.gz"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            recording.export_pprof(path, at="end", by="module")
        ours, _ = read(path.read_bytes())
        theirs = module.Profile.FromString(gzip.decompress(path.read_bytes()))
        texts = theirs.string_table
        assert [(texts[t.type], texts[t.unit]) for t in theirs.sample_type] == (
            ours.types
        ), name
        places = {place.id: place for place in theirs.location}
        functions = {function.id: function for function in theirs.function}
        found = []
        for sample in theirs.sample:
            path_of = []
            for number in reversed(sample.location_id):
                (line,) = places[number].line
                function = functions[line.function_id]
                path_of.append(
                    (texts[function.name], texts[function.filename], line.line)
                )
            found.append((tuple(path_of), tuple(sample.value)))
        assert found == ours.samples
        assert texts[theirs.default_sample_type] == "inuse_space"
        # Nothing is lost or added when it is written again.
        again = theirs.SerializeToString(deterministic=True)
        assert len(again) == len(gzip.decompress(path.read_bytes()))
