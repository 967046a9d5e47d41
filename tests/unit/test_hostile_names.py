"""Names are other people's: no text of ours lets one of them command a terminal."""

from __future__ import annotations

import json

import pytest
from events import KIND, rows

import memprof
from memprof import _core
from memprof.alive import Why
from memprof.cli import main
from memprof.recording import Recording

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
