"""The parts of ``memprof run`` that need no program: names, environment, rounds."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from memprof import launch, launched
from memprof.launch import Plan, Program
from memprof.step_marks import Round


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train"),
        ("/a/b/train.v2.py", "train.v2"),
        ("/a/package/__main__.py", "package"),
        ("folder", "folder"),
        ("-c", "command"),
        ("-", "stdin"),
        ("", "python"),
        ("a b;c.py", "a-b-c"),
        ("..py", "run"),
        ("x" * 300 + ".py", "x" * 200),
        ("ä" * 300 + ".py", "ä" * 100),
    ],
)
def test_a_script_names_its_recording(script, name):
    assert launch.script_name(script) == name


def test_files_of_the_program_of_its_ranks_and_of_its_children():
    plan = Plan(pid=7, cwd="/w", output=None, name="train")
    assert launch.file_of(plan, {}, 7, "train.py") == "/w/memprof-train.7.memprof"
    ranked = launch.file_of(plan, {"RANK": "2"}, 9, "/x/eval.py")
    assert ranked == "/w/memprof-eval.rank2.9.memprof"
    named = plan._replace(output="/o/run.memprof")
    assert launch.file_of(named, {"RANK": "2"}, 7, "x") == "/o/run.memprof"
    assert launch.file_of(named, {"RANK": "2"}, 9, "x") == "/o/run.rank2.9.memprof"
    assert launch.file_of(named, {}, 9, "x") == "/o/run.9.memprof"
    assert launch.with_rank("a/run.memprof", {"RANK": "0"}) == "a/run.rank0.memprof"
    assert launch.with_rank("a/run.memprof", {"RANK": "first"}) == "a/run.memprof"


def test_the_environment_carries_the_plan_and_keeps_the_users_path():
    plan = Plan(1, "/w", None, "x", options={"with_ops": False})
    user = os.pathsep.join(["/mine", str(launch.FOLDER), "", "/yours"])
    made = launch.environment(plan, {"PYTHONPATH": user, "HOME": "/h"})
    expected = os.pathsep.join([str(launch.FOLDER), "/mine", "/yours"])
    assert made["PYTHONPATH"] == expected
    assert made["HOME"] == "/h"
    assert launch.plan_of(made) == plan
    assert launch.environment(plan, {})["PYTHONPATH"] == str(launch.FOLDER)


@pytest.mark.parametrize("text", ["", "7", "[]", "{}", '{"pid": 1, "new": 2}', "{"])
def test_a_plan_that_is_none_of_ours_is_none(text):
    assert launch.plan_of({launch.VARIABLE: text}) is None


def test_which_processes_record(monkeypatch):
    pid = os.getpid()
    for plan, wants in (
        (Plan(pid, "/w", None, "x", children="none"), True),
        (Plan(pid + 1, "/w", None, "x", children="none"), False),
        (Plan(pid + 1, "/w", None, "x", children="new"), True),
    ):
        monkeypatch.setattr(launched, "_found", {launch.VARIABLE: plan.text()})
        assert (launched.wanted() is not None) == wants
    monkeypatch.setattr(launched, "_found", {})
    assert launched.wanted() is None


def test_the_command_line_is_pythons():
    words = Program("-m", "a.b", ["-c", "x"]).words()
    assert words[0] == sys.executable
    assert words[-4:] == ["-m", "a.b", "-c", "x"]
    assert Program("", "train.py", []).words()[-1] == "train.py"
    assert Program("-m", "a.b", []).name == "a.b"
    assert Program("-c", "pass", []).name == "command"


def test_steps_of_one_and_of_two_that_alternate():
    marks = []
    turns = Round(lambda: marks.append(len(marks)))
    one, two, three = object(), object(), object()
    for _ in range(3):
        turns.stepped(one)
    assert len(marks) == 3
    for _ in range(3):
        turns.stepped(one)
        turns.stepped(two)
    assert len(marks) == 6
    # Another takes over: its second step is a round.
    for _ in range(3):
        turns.stepped(three)
    assert len(marks) == 8


def test_what_is_there_keeps_its_name_but_for_what_o_may_replace(tmp_path):
    there = tmp_path / "run.memprof"
    plan = Plan(7, str(tmp_path), None, "x", began=1000.0)
    named = plan._replace(output=str(there))
    assert launch.unused(named, str(there)) == str(there)
    there.write_bytes(b"")
    os.utime(there, (0, 999.0))
    assert launch.unused(named, str(there)) == str(there)  # of before the run
    second = str(tmp_path / "run.2.memprof")
    assert launch.unused(plan, str(there)) == second  # nobody gave leave
    os.utime(there, (0, 1000.0))
    assert launch.unused(named, str(there)) == second  # the run's own
    Path(second).write_bytes(b"")
    assert launch.unused(named, str(there)) == str(tmp_path / "run.3.memprof")
