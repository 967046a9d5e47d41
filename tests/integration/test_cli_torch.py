"""Every verb on what a real run recorded, on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import memprof  # noqa: E402
from memprof.cli import main  # noqa: E402
from memprof.gate import recorded_key  # noqa: E402
from memprof.integrations.environment import key_and_facts  # noqa: E402


def train(path: Path, width: int = 256) -> Path:
    """Record three steps of a small model."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 8)
    )
    optimizer = torch.optim.Adam(model.parameters())
    with memprof.profile(record_shapes=True) as prof:
        for _ in range(3):
            model(torch.randn(128, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    prof.save(path)
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return train(folder / "a.memprof"), train(folder / "b.memprof", width=2048)


def facts(capsys, *words: object) -> dict:
    assert main([*map(str, words), "--json", "-q"]) == 0
    found: dict = json.loads(capsys.readouterr().out)
    return found


def test_views_agree_with_each_other(runs, capsys):
    run = runs[0]
    peak = memprof.load(run).peak().requested
    summary = facts(capsys, "summary", run)
    table = facts(capsys, "table", run, "--by", "category,line")
    tree = facts(capsys, "tree", run, "--by", "module,op")
    timeline = facts(capsys, "timeline", run)
    query = facts(capsys, "query", run, "alive:peak")
    assert summary["peak"]["requested_bytes"] == peak > 0
    assert sum(row["bytes"] for row in table["rows"]) == peak
    assert tree["root"]["bytes"] == peak
    assert timeline["peak_bytes"] == peak
    assert query["bytes"] == query["alive_bytes"] == peak
    assert timeline["steps"] == 3
    assert {"forward", "backward", "optimizer"} <= set(timeline["parts"][1]["phases"])
    lines = {row["line"] for row in table["rows"] if row["category"] == "activation"}
    assert any("test_cli_torch.py" in line for line in lines)


def test_the_same_verbs_as_text(runs, capsys):
    run, other = runs
    for words in (
        ["summary", run],
        ["table", run, "--at", "step:1", "--by", "module,shape"],
        ["tree", run, "--by", "stack"],
        ["timeline", run],
        ["diff", run, other],
        ["query", run, "cat:activation size>1KiB"],
        ["check", run, "--peak", "1GiB"],
    ):
        assert main([*map(str, words)]) == 0
        assert len(capsys.readouterr().out.splitlines()) > 2, words


def test_a_wider_model_is_told_by_gates(runs, capsys, tmp_path):
    run, other = runs
    assert main(["diff", str(run), str(other), "--fail", "peak:5%"]) == 3
    assert main(["check", str(other), "--baseline", str(run)]) == 3
    out = capsys.readouterr().out
    assert "test_cli_torch.py" in out
    assert "what made the peak grow" in out
    kept = str(tmp_path / "memprof_baselines")
    assert main(["check", str(run), "--baseline", kept, "--update-baseline"]) == 0
    assert main(["check", str(run), "--baseline", kept]) == 0
    assert main(["check", str(other), "--baseline", kept]) == 3


def test_the_key_is_that_of_the_plugin(runs):
    recording = memprof.load(runs[0])
    assert recorded_key(recording, -1)[0] == key_and_facts(torch, "cpu")[0]


def test_files(runs, tmp_path, capsys):
    run, other = map(str, runs)
    page, part = tmp_path / "r.html", tmp_path / "part.memprof"
    assert main(["report", run, "-o", str(page), "--compare", other]) == 0
    assert page.read_text().startswith("<!doctype html>")
    assert main(["trim", run, str(part), "--steps", "1"]) == 0
    assert memprof.load(part).steps["number"].tolist() == [1]
    assert main(["convert", run, "-", "--to", "collapsed", "-q"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]  # the first is the report's
    peak = memprof.load(run).peak().requested
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == peak
