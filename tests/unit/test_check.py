"""``memprof check``: what a build is told, and by which exit code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from events import Script, rows

from memprof import _core, gate, load
from memprof.cli import main
from memprof.recording import Recording

GOLDEN = Path(__file__).parents[1] / "golden"
KEY = "cuda-h200-140gb_torch2.11_native"
KIB = 1 << 10


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(GOLDEN / "checkpointed.memprof", tmp_path / "run.memprof"))


def training(path: Path, *, buffers: int = 1, leak: int = 0, extra: int = 0) -> Path:
    """Write a run of three steps whose peak is BUFFERS of 8 MiB and a little."""
    script = Script()
    at = 1 << 20
    script.write("alloc", device=-1, address=at, size=4096 + extra, op="aten::ones")
    for step in range(3):
        script.write("step", device=-1, address=7, size=step)
        begun = []
        for number in range(buffers):
            at += 16 << 20
            begun.append(at)
            where = {"op": f"aten::empty{number}", "phase": 1, "step": step}
            script.write("alloc", device=-1, address=at, size=8 << 20, **where)
        for address in begun:
            script.write("free_completed", device=-1, address=address, step=step)
        if leak:
            at += 16 << 20
            script.write(
                "alloc", device=-1, address=at, size=leak, op="aten::cat", step=step
            )
    script.write("step", device=-1, address=7, size=3)
    core = _core.from_events(rows(script.events), script.names)
    core.info = json.dumps({"argv": ["fit.py"], "torch": "2.14.1+cpu"})
    Recording(core).save(path)
    return path


def check(*words: object) -> int:
    return main(["check", *map(str, words)])


def facts(capsys) -> dict:
    found: dict = json.loads(capsys.readouterr().out)
    return found


def test_within_and_exceeded(run, capsys):
    assert check(run, "--peak", "70MiB", "--growth", "1KiB/step", "--count", 1026) == 0
    out, err = capsys.readouterr()
    assert "within all limits" in out
    assert err == ""
    assert check(run, "--peak", "69MiB") == 3
    out = capsys.readouterr().out
    assert "! peak 69.7 MiB, limit 69.0 MiB: exceeded" in out
    assert "= +69.7 MiB of +69.7 MiB explained" in out
    assert check(run, "--reserved", "70MiB") == 0
    assert check(run, "--reserved", "69MiB") == 3
    assert check(run, "--count", 1025) == 3


def test_limits_are_exact(run):
    peak = load(run).peak().requested
    assert check(run, "--peak", peak) == 0
    assert check(run, "--peak", peak - 1) == 3


def test_rows_of_a_limit_sum_to_the_peak(run, capsys):
    for limit in (0, 3, 1000):
        assert check(run, "--peak", "1MiB", "--json", "--limit", limit) == 3
        finding = facts(capsys)["findings"][0]
        assert sum(row["delta"] for row in finding["rows"]) == finding["value"]
        assert finding["delta_bytes"] == finding["value"]


def test_growth_names_the_line_that_grew(tmp_path, capsys):
    path = training(tmp_path / "a.memprof", leak=256 * KIB)
    assert check(path, "--growth", "256KiB/step") == 0
    capsys.readouterr()
    assert check(path, "--growth", "255KiB/step", "--json") == 3
    finding = facts(capsys)["findings"][0]
    assert finding["value"] == 256 * KIB
    assert [row["op"] for row in finding["rows"]] == ["aten::cat"]
    assert finding["rows"][0]["delta"] == finding["delta_bytes"] == 512 * KIB


def test_a_doubled_buffer_fails_and_is_named_an_allocator_granule_never(
    tmp_path, capsys
):
    before = training(tmp_path / "before.memprof")
    doubled = training(tmp_path / "doubled.memprof", buffers=2)
    granule = training(tmp_path / "granule.memprof", extra=512)
    for baseline in (before, tmp_path / "kept.json"):
        if baseline is not before:
            assert check(before, "--baseline", baseline, "--update-baseline") == 0
        capsys.readouterr()
        words = ("--baseline", baseline, "--tolerance", "peak:10%")
        assert check(doubled, *words) == 3
        out = capsys.readouterr().out
        assert "aten::empty1" in out
        assert "= +8.00 MiB of +8.00 MiB explained" in out
        assert check(before, *words) == 0
        assert check(granule, *words) == 0
        assert check(granule, "--baseline", baseline, "--tolerance", "peak:0%") == 0
        assert check(granule, "--baseline", baseline, "--tolerance", "peak:0B") == 3
        assert check(granule, "--baseline", baseline) == 0
        assert check(doubled, "--baseline", baseline) == 3
        capsys.readouterr()
        assert check(before, "--baseline", baseline, "--tolerance", "peak:1%") == 0
        assert "below" not in capsys.readouterr().out
    assert check(before, "--baseline", doubled) == 0
    assert "peak is far below its baseline" in capsys.readouterr().out


def test_a_recording_needs_no_suffix_to_be_a_baseline(run, capsys):
    shutil.copy(run, "before")
    assert check(run, "--baseline", "before") == 0
    assert "compared with: before" in capsys.readouterr().out


def test_baselines_are_those_of_the_plugin(run, tmp_path, capsys):
    folder = tmp_path / "memprof_baselines"
    words = ("--baseline", folder, "--update-baseline")
    assert check(run, *words) == 0
    assert "record.py: new, peak 69.7 MiB" in capsys.readouterr().out
    written = json.loads((folder / f"{KEY}.json").read_text())
    assert written["schema"] == 1
    assert written["env"]["device"] == "NVIDIA H200"
    entry = written["tests"]["record.py"]
    recording = load(run)
    assert entry["peak"] == recording.peak().requested
    assert entry["reserved"] == recording.peak(of="reserved").reserved
    assert entry["growth"] == 0
    assert check(run, *words, "--name", "second") == 0
    written = json.loads((folder / f"{KEY}.json").read_text())
    assert set(written["tests"]) == {"record.py", "second"}
    kept = gate.baselines_at(folder, recording, "cuda:0")
    account = kept.account("second")
    assert sum(size for size, _ in account.values()) == entry["peak"]
    assert check(run, "--baseline", folder) == 0
    assert f"compared with: {KEY}" in capsys.readouterr().out
    assert check(run, "--baseline", folder, "--name", "third") == 1
    assert "it has record.py, second (--name)" in capsys.readouterr().err


def test_the_same_run_is_within_its_own_baseline_in_every_metric(run, capsys):
    assert check(run, "--baseline", "b.json", "--update-baseline", "-q") == 0
    for metric in ("peak:0B", "growth:0B/step", "reserved:0B", "count:0"):
        assert check(run, "--baseline", "b.json", "--tolerance", metric) == 0
    capsys.readouterr()
    assert check(run, "--baseline", "b.json", "--tolerance", "outside:1MiB") == 1
    assert "outside was not measured" in capsys.readouterr().err


def test_what_was_then_is_not_stored_is_said(run, tmp_path, capsys):
    before = training(tmp_path / "before.memprof")
    doubled = training(tmp_path / "doubled.memprof", buffers=2)
    assert check(before, "--baseline", "b.json", "--update-baseline") == 0
    Path("b.rows.json").unlink()
    capsys.readouterr()
    assert check(doubled, "--baseline", "b.json", "--json") == 3
    finding = facts(capsys)["findings"][0]
    assert "is not stored" in finding["title"]
    assert sum(row["delta"] for row in finding["rows"]) == finding["value"]


def test_an_update_is_not_written_if_a_limit_is_exceeded(run):
    words = ("--baseline", "b.json", "--update-baseline", "--peak", "1MiB")
    assert check(run, *words) == 3
    assert not Path("b.json").exists()


def test_a_broken_file_of_baselines_is_told(run, capsys):
    Path("b.json").write_text("{")
    assert check(run, "--baseline", "b.json") == 1
    assert "memprof check --update-baseline" in capsys.readouterr().err


def test_no_verdict_on_what_is_incomplete(run, tmp_path, capsys):
    whole = run.read_bytes()
    cut = tmp_path / "cut.memprof"
    cut.write_bytes(whole[:-100])
    assert check(cut, "--peak", "1TiB") == 4
    assert "no verdict: cut.memprof is cut" in capsys.readouterr().out
    assert check(cut, "--peak", "1MiB") == 4  # exceeded, for all we know
    assert check(run, "--baseline", cut) == 4
    assert check(cut, "--baseline", "b.json", "--update-baseline") == 4
    assert not Path("b.json").exists()
    capsys.readouterr()
    assert check(cut, "--peak", "1TiB", "--json", "-q") == 4
    out, err = capsys.readouterr()
    assert json.loads(out)["verdict"] == "none"
    assert err.startswith("memprof: no verdict: ")  # -q does not silence a gate


def test_no_verdict_where_events_were_lost(run, monkeypatch, capsys):
    from memprof.commands import emit

    real = load(run)

    class Core:
        dropped = 7

        def __getattr__(self, name):
            return getattr(real._core, name)

    recording = Recording(Core())
    assert "lost 7 events" in emit.lacks(recording, "run.memprof")[0]
    monkeypatch.setattr("memprof.recording.load", lambda path: recording)
    assert check(run, "--peak", "1TiB") == 4
    assert "larger event_budget" in capsys.readouterr().out


def test_what_a_file_of_another_tool_does_not_say_is_no_zero(run, capsys):
    assert main(["convert", str(run), "a.raw.json.gz", "-q"]) == 0
    assert check("a.raw.json.gz", "--peak", "70MiB") == 0
    assert check("a.raw.json.gz", "--peak", "69MiB") == 3
    capsys.readouterr()
    assert check("a.raw.json.gz", "--reserved", "1MiB") == 1
    assert "reserved is not in the file" in capsys.readouterr().err
    assert main(["timeline", "a.raw.json.gz", "--json", "-q"]) == 0
    parts = json.loads(capsys.readouterr().out)["parts"]
    assert {part["reserved_bytes"] for part in parts} == {None}


@pytest.mark.parametrize(
    ("name", "device", "key"),
    [
        ("checkpointed", "cuda:0", KEY),
        ("expandable", "cuda:0", KEY.replace("native", "expandable")),
        ("checkpointed", "cpu", "cpu_torch2.11_native"),
    ],
)
def test_keys_are_those_of_the_machine_that_recorded(name, device, key):
    recording = load(GOLDEN / f"{name}.memprof")
    found, _ = gate.recorded_key(recording, recording._device(device))
    assert found == key
