"""``memprof info``: the facts of golden recordings, of cut and of foreign files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memprof import made_up
from memprof.cli import main
from memprof.commands import info as verb
from memprof.recording import load

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = sorted(path.name for path in GOLDEN.glob("*.memprof"))


def facts(path: Path, capsys: pytest.CaptureFixture) -> dict:
    assert main(["info", str(path), "--json", "-q"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_gpu_recorded(name, capsys):
    path = GOLDEN / name
    recording = load(path)
    found = facts(path, capsys)
    assert found["schema"] == "memprof.info/1"
    assert found["file"]["bytes"] == path.stat().st_size
    assert found["file"]["kind"] == "recording"
    assert found["file"]["finished"]
    assert found["versions"]["torch"].startswith("2.")
    assert found["counts"]["events"] == len(recording.events())
    assert found["counts"]["allocations"] == len(recording.allocations("all"))
    assert found["counts"]["dropped"] == 0
    assert found["devices"]["cuda:0"]["name"] == "NVIDIA H200"
    peak = recording.peak("cuda:0").requested
    assert found["devices"]["cuda:0"]["peak_requested_bytes"] == peak
    assert found["sources"]["cuda allocator"]["live"]
    assert found["own"]["own_bytes"] > 0
    assert main(["info", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"memprof  {path}\n")
    assert "NVIDIA H200" in text
    for source in found["sources"]:
        assert f"  source    {source}: " in text


def test_why_a_source_was_not_live_is_said(tmp_path, capsys):
    recording = made_up.recording(50).recording
    path = tmp_path / "x.memprof"
    core = recording._core
    core.info = json.dumps(
        {"sources": {"ops": {"live": False, "why": "switched off"}}, "torch": "2.14.1"}
    )
    recording.save(path)
    assert main(["info", str(path)]) == 0
    text = capsys.readouterr().out
    assert "  source    ops: switched off\n" in text
    assert "  versions  torch 2.14.1\n" in text


def test_a_cut_file_gives_its_facts(tmp_path, capsys):
    whole = (GOLDEN / "checkpointed.memprof").read_bytes()
    path = tmp_path / "cut.memprof"
    path.write_bytes(whole[: len(whole) - 40])
    found = facts(path, capsys)
    assert not found["file"]["finished"]
    assert main(["info", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "; cut: this is what is whole" in out
    assert err == f"memprof: warning: {path} is cut; this is what is whole\n"


def test_a_snapshot_and_an_empty_recording(tmp_path, capsys):
    made = made_up.recording(50)
    path = tmp_path / "x.pickle"
    made.recording.export_snapshot(path)
    found = facts(path, capsys)
    assert found["file"]["kind"] != "recording"
    assert found["devices"]["cuda:0"]["peak_requested_bytes"] == made.peak
    from memprof import _core
    from memprof.recording import Recording

    Recording(_core.from_events(b"")).save(tmp_path / "empty.memprof")
    found = facts(tmp_path / "empty.memprof", capsys)
    assert found["counts"]["events"] == 0
    assert found["file"]["bytes_per_event"] is None
    assert main(["info", str(tmp_path / "empty.memprof")]) == 0
    assert "versions  not in the file" in capsys.readouterr().out


def test_what_is_no_file(tmp_path, capsys):
    assert main(["info", str(tmp_path / "no.memprof")]) == 1
    assert "no.memprof: No such file" in capsys.readouterr().err


def test_the_example_in_the_help(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        main(["info", "--help"])
    assert verb.EXAMPLE in capsys.readouterr().out
    made_up.recording(50).recording.save(tmp_path / "run.memprof")
    monkeypatch.chdir(tmp_path)
    assert main(verb.EXAMPLE.split()[1:]) == 0
    assert capsys.readouterr().out.startswith("memprof  run.memprof\n")
