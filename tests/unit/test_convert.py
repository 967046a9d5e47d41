"""``memprof convert``: the suffix picks the format, and bad use is told."""

from __future__ import annotations

import gzip
import json
import os
import warnings
from pathlib import Path

import pytest
from events import NAMES, random_stream

from memprof import _core
from memprof.cli import main
from memprof.commands import convert
from memprof.recording import Recording, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.memprof"
    events = random_stream(5, length=2000, gpus=2)
    Recording(_core.from_events(events, NAMES)).save(path)
    return path


OURS = {
    "a.speedscope.json": "export_speedscope",
    "a.pb.gz": "export_pprof",
    "a.collapsedstack.txt": "export_collapsed",
    "a.csv": "export_csv",
    "a.pftrace": "export_perfetto",
    "b.memprof": "save",
}


@pytest.mark.parametrize("name", OURS)
def test_a_file_is_what_the_method_writes(file, tmp_path, capsys, name) -> None:
    out = tmp_path / name
    assert main(["convert", str(file), str(out)]) == 0
    there = tmp_path / f"expected-{name}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        getattr(load(file), OURS[name])(there)
    assert out.read_bytes() == there.read_bytes()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"memprof: wrote {out}: ")
    assert printed.err.count("\n") == 1


def test_options_reach_the_method(file, tmp_path, capsys) -> None:
    recording = load(file)
    out, expected = tmp_path / "a.speedscope.json", tmp_path / "b.speedscope.json"
    words = ["--device", "cuda:1", "--at", "end", "--at", "step=1", "--by", "category"]
    assert main(["convert", str(file), str(out), *words]) == 0
    recording.export_speedscope(expected, device=1, at=["end", "step=1"], by="category")
    assert out.read_bytes() == expected.read_bytes()
    out = tmp_path / "a.csv"
    assert main(["convert", str(file), str(out), "--table", "events"]) == 0
    assert out.read_text().startswith("event,time_ns,kind,")
    assert main(["convert", str(file), str(tmp_path / "all"), "--to", "csv"]) == 0
    assert len(os.listdir(tmp_path / "all")) == 4
    out = tmp_path / "small"
    assert main(["convert", str(file), str(out), "--to", "pprof", "--at", "end"]) == 0
    assert gzip.decompress(out.read_bytes())
    full = tmp_path / "full.pftrace"
    assert main(["convert", str(file), str(full), "--full", "--device", "0"]) == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.pt.trace.json", "chrome"),
        ("a.pt.trace.json.gz", "chrome"),
        ("a.trace.json.gz", "chrome"),
        ("trace.pftrace", "perfetto"),
        ("a.raw.json.gz", "raw"),
        ("a.timeline.json", "timeline"),
        ("a.timeline.json.gz", "timeline"),
        ("a.speedscope.json", "speedscope"),
        ("a.trace.speedscope.json", "speedscope"),
        ("a.pickle", "snapshot"),
        ("a.pb.gz", "pprof"),
        ("a.collapsedstack.txt", "collapsed"),
        ("a.html", "html"),
        ("a.memprof", "memprof"),
        ("a.parquet", "parquet"),
        ("folder.html/a.csv", "csv"),
    ],
)
def test_the_longest_suffix_that_fits_counts(name, expected) -> None:
    assert convert.chosen(name, None).name == expected
    assert convert.chosen(name, expected).name == expected


def test_every_suffix_and_word_is_one_of_one_format() -> None:
    suffixes = [s for format in convert.FORMATS for s in format.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    for format in convert.FORMATS:
        for suffix in format.suffixes:
            assert convert.of_suffix(f"x{suffix}") is format
            assert suffix in convert.known()
        assert f"({format.name})" in convert.known()


@pytest.mark.parametrize(
    ("name", "to", "words"),
    [
        ("-", None, "text and JSON only.*--to.*speedscope"),
        ("-", "pprof", "text and JSON only"),
        ("a", None, "no format has this name.*pftrace"),
        ("a.txt", None, "no format has this name"),
        ("a.json", None, "which JSON.*--to chrome"),
        ("a.json.gz", None, "which JSON"),
        ("a.pickle", "chrome", "the name of a MemoryViz snapshot, not of chrome"),
        ("a.json.gz", "raw", r"must end in \.raw\.json\.gz"),
        ("a.json", "html", r"must end in \.html"),
        ("raw.json.gz", "timeline", "not the name of a timeline"),
    ],
)
def test_names_that_mean_no_format_are_bad_usage(
    file, tmp_path, capsys, name, to, words
) -> None:
    with pytest.raises(ValueError, match=words):
        convert.chosen(name, to)
    out = name if name == "-" else str(tmp_path / name)
    with pytest.raises(SystemExit) as ended:
        main(["convert", str(file), out, *(["--to", to] if to else [])])
    assert ended.value.code == 2
    assert "usage: " in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["run.memprof"]


@pytest.mark.parametrize(
    "words",
    [
        ["a.pb.gz", "--at", "noon"],
        ["a.pb.gz", "--at", "peak", "--at", "end"],
        ["a.pb.gz", "--table", "events"],
        ["a.csv", "--device", "0"],
        ["a.pftrace", "--at", "end"],
        ["a.pb.gz", "--device", "gpu"],
        ["a.json", "--to", "yaml"],
    ],
)
def test_options_that_mean_nothing_are_bad_usage(file, tmp_path, capsys, words) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["convert", str(file), str(tmp_path / words[0]), *words[1:]])
    assert ended.value.code == 2
    assert words[-2] in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["run.memprof"]


def test_the_input_is_never_overwritten(file, tmp_path, capsys) -> None:
    before = file.read_bytes()
    link = tmp_path / "link.memprof"
    link.symlink_to(file)
    hard = tmp_path / "hard.memprof"
    os.link(file, hard)
    for out in (file, link, hard):
        assert main(["convert", str(file), str(out)]) == 1
        assert "the output is the input" in capsys.readouterr().err
    odd = tmp_path / "run.speedscope.json"
    odd.write_bytes(before)
    assert main(["convert", str(odd), str(odd)]) == 1
    assert odd.read_bytes() == file.read_bytes() == before


def test_what_cannot_be_done_is_one_sentence(file, tmp_path, capsys) -> None:
    assert main(["convert", str(tmp_path / "none"), str(tmp_path / "a.pb.gz")]) == 1
    assert "No such file" in capsys.readouterr().err
    out = str(tmp_path / "a.pb.gz")
    assert main(["convert", str(file), out, "--at", "step=9999"]) == 1
    assert "no step 9999" in capsys.readouterr().err
    assert main(["convert", str(file), out, "--by", "colour"]) == 1
    assert "by='colour'" in capsys.readouterr().err
    assert main(["convert", str(file), str(tmp_path / "no" / "a.pb.gz")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["convert", "-", out])
    assert os.listdir(tmp_path) == ["run.memprof"]


def test_a_warning_is_one_line_on_standard_error(file, tmp_path, capsys) -> None:
    out = tmp_path / "a.speedscope.json"
    assert main(["convert", str(file), str(out), "--device", "7"]) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("memprof: warning: cuda:7 was not recorded")
    assert second.startswith(f"memprof: wrote {out}: flame graph, ")
    assert json.loads(out.read_text())["profiles"][0]["weights"] == []


def test_a_cut_recording_gives_what_is_whole(file, tmp_path, capsys) -> None:
    file.write_bytes(file.read_bytes()[:-40])
    assert main(["convert", str(file), str(tmp_path / "a.pb.gz")]) == 0
    assert "is cut; this is what is whole" in capsys.readouterr().err


@pytest.mark.parametrize("format", convert.FORMATS, ids=lambda format: format.name)
def test_every_method_is_there_or_said_not_to_be(
    file, tmp_path, capsys, format
) -> None:
    """Formats whose method this tree has are written; others are an error."""
    if format.name == "parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    for suffix in format.suffixes:
        out = tmp_path / f"x{suffix}"
        code = main(["convert", str(file), str(out)])
        if hasattr(Recording, format.method):
            assert code == 0
            assert out.stat().st_size > 0
        else:
            assert code == 1
            assert f"cannot write {format.name}" in capsys.readouterr().err


def test_what_is_there_stays_unless_forced(file, tmp_path, capsys) -> None:
    out = tmp_path / "a.pb.gz"
    out.write_bytes(b"mine")
    assert main(["convert", str(file), str(out)]) == 1
    assert f"{out} is there already; -f/--force" in capsys.readouterr().err
    assert out.read_bytes() == b"mine"
    assert main(["convert", str(file), str(out), "-f"]) == 0
    assert gzip.decompress(out.read_bytes())
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "steps.csv").write_text("mine")
    (folder / "kept.txt").write_text("mine")
    words = ["convert", str(file), "-o", str(folder), "--to", "csv"]
    assert main(words) == 1
    assert "steps.csv is there already" in capsys.readouterr().err
    assert sorted(os.listdir(folder)) == ["kept.txt", "steps.csv"]
    assert main([*words, "--force"]) == 0
    assert len(os.listdir(folder)) == 5


def test_out_is_a_word_or_a_flag(file, tmp_path, capsys) -> None:
    assert main(["convert", str(file), "-o", str(tmp_path / "a.pb.gz"), "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    for words in ([], [str(tmp_path / "b.csv"), "-o", str(tmp_path / "c.csv")]):
        with pytest.raises(SystemExit) as ended:
            main(["convert", str(file), *words])
        assert ended.value.code == 2
        assert "output" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["a.pb.gz", "run.memprof"]


@pytest.mark.parametrize("format", convert.ON_STDOUT)
def test_standard_output_gets_what_a_file_would(file, tmp_path, capsys, format) -> None:
    suffix = convert.BY_NAME[format].suffixes[0]
    out = tmp_path / f"a{suffix}"
    assert main(["convert", str(file), str(out), "-q"]) == 0
    assert main(["convert", str(file), "-", "--to", format, "-q"]) == 0
    found, expected = capsys.readouterr().out, out.read_text()
    if format == "chrome":  # its last word is the file that it was written to
        found, expected = (t.rpartition('"traceName"')[0] for t in (found, expected))
    assert found == expected


def test_too_large_speaks_of_the_flag(file, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("memprof.snapshots.TOO_LARGE", 10)
    out = tmp_path / "a.pickle"
    assert main(["convert", str(file), str(out)]) == 1
    assert capsys.readouterr().err.endswith("or write it with --large\n")
    assert main(["convert", str(file), str(out), "--large"]) == 0
    assert main(["trim", str(file), str(tmp_path / "b.pickle"), "--largest", "9"]) == 1
    assert "--large" in capsys.readouterr().err


def test_what_was_written_as_json(file, tmp_path, capsys) -> None:
    out = tmp_path / "a.pb.gz"
    assert main(["convert", str(file), str(out), "--json", "-q"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["schema"] == "memprof.convert/1"
    assert (facts["file"], facts["format"]) == (str(out), "pprof")
