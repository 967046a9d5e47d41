"""``memprof selftest``: made-up data with known numbers, and what fails is told."""

from __future__ import annotations

import json
import shlex
import sys

import numpy as np
import pytest

from memprof import made_up, selftest
from memprof.cli import main
from memprof.commands import selftest as verb
from memprof.recording import Recording


@pytest.fixture
def no_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.parametrize("allocations", [0, 1, 40, 2000])
def test_the_made_up_numbers_are_those_of_a_naive_replay(allocations):
    made = made_up.recording(allocations)
    live: dict[int, int] = {}
    highest = born = 0
    for event in made.recording.events():
        kind = int(event["kind"])
        if kind == 1:
            assert int(event["address"]) not in live
            live[int(event["address"])] = int(event["size"])
            born += 1
        elif kind == 2:
            assert live.pop(int(event["address"])) == int(event["size"])
        highest = max(highest, sum(live.values()))
    assert (highest, born) == (made.peak, made.allocations)
    assert len(live) == made_up.PARAMETERS
    info = made.recording.info
    assert not any(info["defects"].values())
    assert made.recording.steps["number"].tolist() == list(range(made_up.STEPS))
    peak = made.recording.peak("cuda:0")
    owned = made_up.PARAMETERS * made_up.PARAMETER_BYTES
    assert peak.categories["parameter"] == owned
    assert np.isin(["layers.0"], [row["module"] for row in peak.rows(by=("module",))])


def test_every_step_is_told_and_the_example_of_the_help_works(no_torch, capsys):
    assert main(shlex.split(verb.EXAMPLE)[1:]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = ["core", "file", "summary", *(name for name, _ in selftest.EXPORTS)]
    names += ["report", "recording"]
    assert [line[10:26].strip() for line in lines] == names
    states = [line[:8].strip() for line in lines]
    assert states == ["ok"] * (len(names) - 1) + ["left out"]
    with pytest.raises(SystemExit):
        main(["selftest", "--help"])
    assert verb.EXAMPLE in capsys.readouterr().out


def test_a_step_that_fails_is_told_and_the_others_go_on(no_torch, capsys, monkeypatch):
    def cut(self: Recording, path: object, table: object = None) -> None:
        with open(path, "w") as file:  # type: ignore[call-overload]
            file.write("bytes\n1\n")

    def full(self: Recording, path: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Recording, "export_csv", cut)
    monkeypatch.setattr(Recording, "export_collapsed", full)
    assert main(["selftest", "--json", "--allocs", "100"]) == 1
    out, err = capsys.readouterr()
    facts = json.loads(out)
    assert not facts["ok"]
    states = {step["name"]: (step["state"], step["text"]) for step in facts["steps"]}
    assert states["csv"] == ("failed", "its lines: 2, and it must be 100")
    assert "No space left" in states["collapsed stacks"][1]
    assert states["report"][0] == "ok"
    assert err == "memprof: error: not everything works here\n"
    assert facts["schema"] == "memprof.selftest/1"
    assert main(["selftest", "-q", "-v", "--allocs", "100"]) == 1
    out, err = capsys.readouterr()
    assert [line[10:26].strip() for line in out.splitlines()] == [
        "csv",
        "collapsed stacks",
    ]
    assert err.count("Traceback") == 2


def test_the_report_is_kept_if_asked_and_replaces_nothing(no_torch, capsys, tmp_path):
    html = tmp_path / "made up.html"
    assert main(["selftest", "--allocs", "50", "--html", str(html)]) == 0
    assert html.read_bytes()[:9].lower() == b"<!doctype"
    assert str(html) in capsys.readouterr().out
    html.write_text("mine")
    assert main(["selftest", "--allocs", "50", "--html", str(html)]) == 1
    assert "--force" in capsys.readouterr().err
    assert html.read_text() == "mine"
    assert main(["selftest", "--allocs", "50", "--html", str(html), "--force"]) == 0
    assert html.read_text() != "mine"
