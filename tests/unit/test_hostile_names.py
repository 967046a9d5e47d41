"""Names are other people's: no text of ours lets one of them command a terminal."""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from types import SimpleNamespace

import pytest
from events import KIND, rows

import memprof
from memprof import _core, launched, torch_import
from memprof.alive import Why
from memprof.careful import sentence
from memprof.cli import main
from memprof.commands import emit
from memprof.errors import MemprofError, ShimError
from memprof.integrations import baselines, cells
from memprof.recording import Recording
from memprof.reports.units import told
from memprof.warn import warn

BAD = "op\x1b[31mred\n\r\x9b2J\u202e"
SHOWN = r"op\x1b[31mred\n\r\x9b2J\u202e"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    place = {"device": 0, "thread": 1, "module": 0, "op": 0}
    events = []
    for step in range(4):
        now = step * 100
        events += [
            {"kind": KIND["step"], "size": step, "time_ns": now, "thread": 1},
            {"kind": KIND["op_begin"], "time_ns": now + 1, **place},
            {"kind": KIND["alloc"], "address": 512 * (step + 1), "size": 999 + step,
             "time_ns": now + 2, "stack": 0, **place},
            {"kind": KIND["op_end"], "time_ns": now + 3, **place},
        ]  # fmt: skip
    stack = [(BAD, f"/{BAD}.py", 7)]
    core = _core.from_events(rows(events), [BAD], [stack])
    device = {"name": BAD, "total_bytes": 1 << 30}
    core.info = json.dumps({"argv": [f"{BAD}.py"], "devices": {"cuda:0": device}})
    path = tmp_path_factory.mktemp("bad") / "bad.memprof"
    Recording(core).save(path)
    return path


def check(text: str) -> None:
    assert text.strip()
    bad = [line for line in text.split("\n") if not line.isprintable()]
    assert bad == []


@pytest.mark.parametrize(
    "words",
    [
        ["summary"],
        ["table"],
        ["table", "--by", "category,module,op,line,function"],
        ["tree", "--by", "module,op,stack"],
        ["timeline"],
        ["info"],
        ["check", "--peak", "1B"],
    ],
    ids=" ".join,
)
def test_every_verb_writes_escapes(file, capsys, words):
    main([words[0], str(file), *words[1:]])
    said = capsys.readouterr()
    check(said.out + said.err)


def test_what_a_query_finds_and_what_two_runs_differ_in(file, capsys):
    assert main(["query", str(file), "size>1B"]) == 0
    out = capsys.readouterr().out
    assert SHOWN in out
    check(out.replace("\t", " "))
    main(["diff", str(file), str(file)])
    check(capsys.readouterr().out)


def test_the_table_of_ops(file):
    averages = memprof.load(file).key_averages(group_by_stack_n=2)
    text = averages.table(max_name_column_width=200)
    assert SHOWN in text
    check(text)
    check(str(memprof.load(file).key_averages()))


def test_who_holds_a_block():
    check(str(Why(512, 4, (f"{BAD} local 'x'",))))


def test_files_with_such_names_are_told_of(file, tmp_path, capsys):
    """What verbs, argparse among them, say of a file, an option, a word."""
    bad = tmp_path / f"{BAD}.memprof"
    bad.write_bytes(file.read_bytes())
    folder = tmp_path / BAD
    for words in (
        ["summary", str(folder / "none")],
        ["summary", str(bad), "-o", str(tmp_path / f"{BAD}.txt")],
        ["convert", str(bad), str(tmp_path / f"{BAD}.csv")],
        ["trim", str(bad), str(tmp_path / f"{BAD}.trimmed.memprof"), "--steps", "1"],
        ["trim", str(bad), str(bad), "--steps", "1"],
        ["report", str(bad), "-o", str(tmp_path / f"{BAD}.html")],
        ["info", str(bad), "-v"],
        ["diff", str(bad), str(file)],
    ):
        main(words)
        said = capsys.readouterr()
        check(said.out + said.err)
    for words in (["summary", f"--{BAD}"], [BAD], ["tree", str(bad), "--by", BAD]):
        with pytest.raises(SystemExit):
            main(words)
        check(capsys.readouterr().err)


def test_what_is_warned_of_and_raised():
    with pytest.warns(UserWarning, match="of op") as said:
        warn(f"of {BAD}")
    check(str(said[0].message))
    for kind in (MemprofError, ShimError):
        error = kind(f"of {BAD}\n\tand more")
        assert str(error).splitlines()[-1] == "\tand more"
        check(str(error).replace("\t", ""))
        assert error.args == (f"of {BAD}\n\tand more",)
    check(sentence(RuntimeError(BAD)))
    check(sentence(OSError(2, BAD)))


def test_what_a_run_says(capsys):
    launched.say(f"recording to {BAD}")
    check(capsys.readouterr().err)


def test_what_a_recordings_timeline_calls_itself(file):
    recording = memprof.load(file)
    timeline = recording.timeline("cuda:0")._replace(labels=(BAD,))
    check(repr(timeline))


def test_what_a_cell_leaves_behind(file):
    check(cells.survivors(memprof.load(file)))


def test_baselines_are_read_before_they_are_committed():
    tests = {f"test[{BAD}\ud800]": {"at": BAD, "peak": 7}, "test[\u00e4]": {}}
    text = baselines.written({"env": {"device": BAD}}, tests)
    check(text)
    assert "test[\u00e4]" in text  # what can be seen is
    assert json.loads(text)["tests"] == tests


def test_a_message_keeps_its_lines():
    assert told("a\tb\nc") == "a\tb\nc"
    for number in {*range(0xA0)} - {*range(0x20, 0x7F), 9, 10}:
        assert told(f"a\t{chr(number)}\n").isascii()
        assert len(told(f"a\t{chr(number)}\n")) > 4, number
    assert told(f"a\n\t{BAD[:7]}\n") == "a\n\top\\x1b[31m\n"


def test_what_a_run_cannot_do(capsys):
    def fails(torch):
        raise RuntimeError(BAD)

    torch_import._call(fails, None)
    check(capsys.readouterr().err)


def test_a_terminal_that_waits(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(emit, "PROGRESS_AFTER", 0.01)
    with emit.working(argparse.Namespace(), f"reading {BAD}"):
        until = time.monotonic() + 10
        while not terminal.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
    assert SHOWN in terminal.getvalue()
    check(terminal.getvalue().replace("\r", ""))


def test_why_a_test_failed_and_what_its_summary_says():
    from memprof.integrations import board, runner

    failed = []
    outcome = SimpleNamespace(force_exception=failed.append)
    runner.fail(outcome, f"memprof: peak\n  compared with: {BAD}")
    check(failed[0].msg)
    lines: list[str] = []
    ours = board.Board.__new__(board.Board)
    ours.settings = SimpleNamespace(top=3, everything=False, compare=None)
    ours._facts, ours._written = {f"test[{BAD}]": {"notes": [BAD]}}, [BAD]
    ours.pytest_terminal_summary(
        SimpleNamespace(section=lines.append, write_line=lines.append)
    )
    assert len(lines) == 3
    for line in lines:
        check(line)
