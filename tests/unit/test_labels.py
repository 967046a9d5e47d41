"""Labels: rules name blocks after the fact, wherever a category may stand."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import pytest
from events import NAMES, Script, random_stream

import memprof
from memprof import _core
from memprof.labels import Rule
from memprof.recording import EVENT_DTYPE, NO_INDEX, Recording

RULES = (
    ("zero", {"module": r"layers\.0"}),
    ("one", {"op": "op[1-4]$"}),
    ("loading", {"region": "load batch"}),
    ("zero", {"module": "head", "op": "op5"}),
    ("host", {"op": "op", "device": "cpu"}),
)


def labelled(recording: Recording) -> Recording:
    for label, patterns in RULES:
        recording = recording.label(label, **patterns)
    return recording


def module_of(recording: Recording, life: np.void) -> str:
    text = recording.op
    if life["module"] != NO_INDEX:
        return text(life["module"])
    if life["forward_module"] != NO_INDEX:
        return text(life["forward_module"])
    if _core.ROLES[life["role"]] in ("none", "input"):
        return ""
    return text(life["owner"]).rpartition(".")[0]


def naive_label(recording: Recording, life: np.void) -> str:
    """Try the rules one by one on one life."""
    for label, patterns in RULES:
        where = "cpu" if life["device"] < 0 else f"cuda:{life['device']}"
        if patterns.get("device", where) != where:
            continue
        texts = {
            "module": module_of(recording, life),
            "op": recording.op(life["op"]),
            "region": recording.op(life["region"]),
        }
        if all(
            re.search(patterns[key], texts[key]) for key in texts if key in patterns
        ):
            return label
    return ""


@pytest.mark.parametrize("seed", range(10))
def test_labels_are_those_of_the_rules_life_by_life(seed: int) -> None:
    recording = labelled(Recording(_core.from_events(random_stream(seed), NAMES)))
    assert recording.label_names == ("", "zero", "one", "loading", "host")
    lives = recording.allocations("all")
    found = [recording.label_names[code] for code in recording.labels("all")]
    assert found == [naive_label(recording, life) for life in lives]
    assert len(set(found)) > 2
    for device in recording.devices:
        mine = recording.labels(device)
        assert (
            mine == recording.labels("all")[recording.allocations(device)["id"]]
        ).all()
        line = recording.timeline(device, by="label")
        assert line.labels == recording.label_names
        by_category = recording.timeline(device, by="category")
        assert (line.events == by_category.events).all()
        assert (line.bytes.sum(axis=1) == by_category.bytes.sum(axis=1)).all()
        for place in range(0, len(line.events), 97):
            moment = recording.at(event=int(line.events[place]), device=device)
            assert list(moment.labels.values()) == line.bytes[place].tolist()
            rows = {row["label"]: row["bytes"] for row in moment.rows("label")}
            assert rows == {
                name: size
                for name, size in moment.labels.items()
                if size or name in rows
            }
            assert sum(rows.values()) == moment.requested
        top = recording.peak(device, label="zero")
        assert top.labels["zero"] == line.bytes[:, 1].max()
        assert recording.peak(device, label="").labels[""] == line.bytes[:, 0].max()


def small() -> Recording:
    run = Script()
    torch = ("forward", "/x/torch/nn/linear.py", 12)
    user = ("attend", "/run/model.py", 7)
    run.write(
        "alloc", device=-1, address=64, size=5, module="a.attn", stack=[torch, user]
    )
    run.write("alloc", device=-1, address=128, size=7, module="a.mlp", stack=[torch])
    run.write("alloc", device=-1, address=192, size=11)
    return Recording(run.core())


def test_stack_patterns_see_every_frame() -> None:
    recording = small()
    for pattern, expected in (
        ("attend", [1, 0, 0]),
        (r"model\.py:7$", [1, 0, 0]),
        (r"^forward /x/torch", [1, 1, 0]),
        ("nowhere", [0, 0, 0]),
    ):
        assert recording.label("x", stack=pattern).labels().tolist() == expected


def test_a_recording_stays_as_it_is_and_the_first_rule_wins() -> None:
    recording = small()
    first = recording.label("attention", module="attn")
    both = first.label("all of a", module="a")
    assert recording.label_names == ("",)
    assert recording.rules == ()
    assert not recording.labels().any()
    assert first.peak().labels == {"": 18, "attention": 5}
    assert both.peak().labels == {"": 11, "attention": 5, "all of a": 7}
    assert both.info["labels"] == [
        {"label": "attention", "module": "attn"},
        {"label": "all of a", "module": "a"},
    ]
    assert recording.info["labels"] == []
    assert both.allocations() is recording.allocations()


def test_several_patterns_must_all_match() -> None:
    recording = small()
    assert recording.label("x", module="a", stack="attend").labels().tolist() == [
        1,
        0,
        0,
    ]


def test_labels_are_in_the_summary() -> None:
    recording = small()
    assert "labels" not in recording.summary().text()
    both = recording.label("attention", module="attn").summary()
    (line,) = [line for line in both.text().splitlines() if "  labels" in line]
    assert line.split() == ["labels", "attention", "22", "%", "unlabelled", "78", "%"]
    assert both.to_dict()["labels"] == {"": 18, "attention": 5}


def test_errors_name_what_is_wrong() -> None:
    recording = small()
    with pytest.raises(ValueError, match=r"'x': module='\(a' is no regular expression"):
        recording.label("x", module="(a")
    with pytest.raises(
        ValueError, match="at least one of module=, op=, stack=, region="
    ):
        recording.label("x")
    with pytest.raises(ValueError, match="must not be empty"):
        recording.label("", module="a")
    with pytest.raises(TypeError, match="op= is a regular expression as text, not 5"):
        recording.label("x", op=5)
    with pytest.raises(ValueError, match="'cuda:3' was not recorded"):
        recording.label("x", op="a", device="cuda:3")
    with pytest.raises(ValueError, match="no label 'y'; choose '', 'x'"):
        recording.label("x", op="a").peak(label="y")
    with pytest.raises(ValueError, match="leave out"):
        recording.label("x", op="a").peak(label="x", of="reserved")


def test_labels_survive_save_and_load(tmp_path) -> None:
    core = _core.from_events(random_stream(4), NAMES)
    core.info = json.dumps({"script": "train.py"})
    plain = Recording(core)
    made = labelled(plain)
    made.save(tmp_path / "made.memprof")
    again = memprof.load(tmp_path / "made.memprof")
    assert again.info["script"] == "train.py"
    assert again.info["labels"] == made.info["labels"]
    assert again.rules == made.rules
    assert again.rules[-1] == Rule("host", op="op", device="cpu")
    assert (again.labels("all") == made.labels("all")).all()
    again.save(tmp_path / "twice.memprof")
    twice = memprof.load(tmp_path / "twice.memprof").label("rest", op="")
    assert [rule.label for rule in twice.rules] == [name for name, _ in RULES] + [
        "rest"
    ]
    plain.save(tmp_path / "plain.memprof")  # nothing of the others' labels
    assert memprof.load(tmp_path / "plain.memprof").rules == ()


def test_labels_of_a_file_that_make_no_sense_are_told() -> None:
    core = _core.from_events(random_stream(1), NAMES)
    core.info = json.dumps(
        {"labels": [{"label": "x", "op": "("}, 7, {"label": "y", "op": "op1"}]}
    )
    recording = Recording(core)
    with pytest.warns(match="has a label that cannot be used"):
        assert [rule.label for rule in recording.rules] == ["y"]


def test_patterns_meet_each_text_once(monkeypatch) -> None:
    count = 500_000
    script = Script()
    names = [script.name(f"layers.{i}.attn") for i in range(100)]
    events = np.zeros(count, EVENT_DTYPE)
    for name in ("op", "module", "stack"):
        events[name] = NO_INDEX
    events["kind"], events["device"], events["size"] = 1, -1, 8
    events["address"] = 64 * np.arange(1, count + 1)
    events["module"] = np.resize(names, count)
    recording = Recording(_core.from_events(events, script.names))
    asked = []

    class Counting:
        def search(self, text: str) -> bool:
            asked.append(text)
            return text.startswith("layers.7")

    monkeypatch.setattr("memprof.labels.re.compile", lambda pattern: Counting())
    begin = time.process_time()
    found = recording.label("x", module="7").labels()
    assert time.process_time() - begin < 5
    assert sorted(asked) == sorted(set(asked))
    assert len(asked) == 100
    assert int(found.sum()) == count // 100 * 11
