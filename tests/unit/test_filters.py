"""The filter language in Python; that the report's agrees is tests/browser's."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from filter_cases import QUERIES, recordings

from memprof import _core, filters
from memprof.cli import main
from memprof.filters import Filtered, FilterError


@pytest.fixture(scope="module")
def gpu():
    return recordings()["gpu"]


@pytest.fixture(scope="module")
def found(gpu):
    return Filtered(*gpu)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", []),
        ("  a  b\tc ", ["a", "b", "c"]),
        ('"a b" c', ["a b", "c"]),
        ('op:"a b"c -"d e"', ["op:a bc", "-d e"]),
        ('a "open end', ["a", "open end"]),
        ("a\u00a0b\ufeffc", ["a", "b", "c"]),
    ],
)
def test_words(query, words):
    assert filters.words_of(query) == words


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("4096", 4096), ("1k", 1024), ("1KiB", 1024), ("1kb", 1000), ("3b", 3)),
        *((".5m", 2**19), ("2T", 2**41), ("1.5GiB", 1.5 * 2**30), ("1ib", 1)),
    ],
)  # fmt: skip
def test_sizes(text, size):
    assert filters.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "1.2.3", ".", "1 k", "-1", "1kx", "１"])
def test_what_is_no_size(text):
    with pytest.raises(FilterError, match="write 64MiB"):
        filters.parse_size(text)


def test_against_the_rows_themselves(gpu, found):
    """Not by the page's columns, but by what allocations() says."""
    recording, device = gpu
    lives = found.device.lives
    peak = recording.peak(device).event
    category = np.array(_core.CATEGORIES)[lives["category"]]
    phase = np.array(_core.PHASES)[lives["phase"]]
    op = np.array([recording.op(int(i)) for i in lives["op"]])
    died = lives["died_event"]
    alive = (lives["born_event"] <= peak) & ((died < 0) | (died > peak))
    stacks = np.array(
        [
            any(":78" in f"{f.file}:{f.line}" for f in recording.stack(int(i)))
            or any(":78" in f"{f.file}:{f.line}" for f in recording.stack(int(j)))
            for i, j in zip(lives["stack"], lives["forward_stack"], strict=True)
        ]
    )
    step = lives["born_step"]
    for query, expected in {
        "cat:activation": category == "activation",
        "-cat:activation size>4KiB": (category != "activation")
        & (lives["size"] > 4096),
        "phase:forward": phase == "forward",
        "op:aten::mm": np.char.find(op, "aten::mm") >= 0,
        "op:aten::m*": np.char.startswith(op, "aten::m"),
        "alive:peak": alive,
        "step:3": step == 3,
        "step:3-4 phase:back": (step >= 3) & (step <= 4) & (phase == "backward"),
        "stack::78": stacks,
    }.items():
        assert found.mask(query).tolist() == expected.tolist(), query
        assert 0 < expected.sum() < len(lives), query


def test_a_word_and_its_negation_divide_everything(found):
    for query in QUERIES:
        words = filters.words_of(query)
        if len(words) != 1 or words[0].startswith("-") or not words[0]:
            continue
        try:
            one = found.mask(query)
        except FilterError:
            continue
        assert (one ^ found.mask(f"-{query}")).all(), query


def test_alive_cursor_is_the_moment_that_was_asked_for(gpu):
    recording, device = gpu
    at = recording.at(step=3, device=device)
    found = Filtered(recording, device, at.event)
    mask = found.mask("alive:cursor")
    assert int(found.size[mask].sum()) == at.requested
    before = recording.at(event=-1, device=device)
    found = Filtered(recording, device, -1)
    assert int(found.size[found.mask("alive:cursor")].sum()) == before.requested


def test_rows_are_those_of_allocations(gpu, found):
    recording, _ = gpu
    facts = filters.facts(found, "cat:activation", largest=True, limit=7)
    assert len(facts["rows"]) == 7 < facts["count"]
    sizes = [row["bytes"] for row in facts["rows"]]
    assert sizes == sorted(sizes, reverse=True)
    lives = recording.allocations("all")
    for row in facts["rows"]:
        life = lives[row["id"]]
        assert row["bytes"] == life["size"]
        assert row["born_event"] == life["born_event"]
        assert row["op"] == recording.op(int(life["op"]))
        assert row["category"] == "activation"
    mask = found.mask("cat:activation")
    assert facts["bytes"] == found.size[mask].sum()


def test_the_verb_writes_tsv_and_json(gpu, tmp_path, capsys):
    recording, device = gpu
    path = tmp_path / "run.memprof"
    recording.save(path)
    words = ["query", str(path), "--device", device, "cat:activation", "size>64KiB"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(out), delimiter="\t"))
    assert main([*words, "--json", "-q"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["schema"] == "memprof.query/1"
    assert [{k: str(v) for k, v in row.items()} for row in facts["rows"]] == rows
    assert facts["count"] == len(rows) > 0
    assert err.startswith(f"memprof: {len(rows)} allocations, ")
    assert main(["query", str(path), "--limit", "2", "attn", "--sort", "bytes"]) == 0
    assert capsys.readouterr().out.count("\n") == 3
    assert main(["query", str(path), "--", "-cat:activation"]) == 0
    assert "\tactivation\t" not in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["query", str(path), "modul:x"])
    assert ended.value.code == 2
    assert "keys: cat category" in capsys.readouterr().err


def test_tabs_in_names_do_not_break_rows(tmp_path, capsys):
    from events import rows

    from memprof.recording import Recording

    event = {"kind": 1, "device": -1, "size": 64, "address": 64, "op": 0}
    core = _core.from_events(rows([event]), ["a\tb\nc"])
    Recording(core).save(tmp_path / "a.memprof")
    assert main(["query", str(tmp_path / "a.memprof"), "-q"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].split("\t")[lines[0].split("\t").index("op")] == "a\\tb\\nc"


def test_an_empty_recording_has_no_rows(tmp_path, capsys):
    from events import rows

    from memprof.recording import Recording

    Recording(_core.from_events(rows([]), [])).save(tmp_path / "a.memprof")
    for query in ("", "attn", "cat:activation step:3 alive:end size>1", "stack:x"):
        assert main(["query", str(tmp_path / "a.memprof"), query, "-q"]) == 0
        assert capsys.readouterr().out.count("\n") == 1
