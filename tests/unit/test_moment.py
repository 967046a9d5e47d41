"""Moment.rows: every division sums to what is alive, and says whose it is."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from events import NAMES, Script, random_stream, rows
from naive import Naive

from memprof import _core
from memprof.moment import KEYS, owner_module
from memprof.recording import Frame, Recording

TORCH = "/env/lib/python3.12/site-packages/torch"
PATHS = {"torch": TORCH, "cwd": "/run"}
TRAIN = ("main", "/run/train.py", 7)
MODEL = ("forward", "/run/model.py", 12)
LINEAR = ("forward", f"{TORCH}/nn/modules/linear.py", 120)
ENGINE = ("_engine_run_backward", f"{TORCH}/autograd/graph.py", 829)


def table(script: Script, by: object, **arguments: object) -> list[dict]:
    moment = Recording(script.core(paths=PATHS)).at(event=len(script.events) - 1)
    found = moment.rows(by, **arguments)
    assert sum(row["bytes"] for row in found) == moment.requested
    return found


def one(by: str, **fields: object) -> object:
    """Return the value of key BY for a single allocation."""
    script = Script()
    script.write("alloc", device=-1, address=64, size=5, **fields)
    (row,) = table(script, by)
    return row[by]


@pytest.mark.parametrize("seed", range(20))
def test_every_key_sums_to_requested_and_counts_blocks(seed: int) -> None:
    events = random_stream(seed)
    recording = Recording(_core.from_events(events, NAMES))
    naive = Naive().replay(events)
    last = len(events) - 1
    for name in recording.devices:
        moment = recording.at(event=last, device=name)
        device = -1 if name == "cpu" else int(name[5:])
        alive = naive.live_at(last, device)
        choices = [(key,) for key in KEYS] + list(itertools.combinations(KEYS, 2))[::7]
        for by in choices:
            for limit in (None, 0, 1, 3):
                found = moment.rows(by, limit)
                assert sum(row["bytes"] for row in found) == moment.requested
                assert sum(row["count"] for row in found) == len(alive)
                if limit is not None:
                    assert len(found) <= limit + 1
        by_step = {row["step"]: row["bytes"] for row in moment.rows("step")}
        expected: dict[int, int] = {}
        for life in alive:
            step = life["born_step"]
            expected[step] = expected.get(step, 0) + life["size"]
        assert by_step == expected
        by_thread = {row["thread"]: row["count"] for row in moment.rows("thread")}
        assert sum(by_thread.values()) == len(alive)


def test_rows_are_sorted_and_a_cut_is_one_row() -> None:
    script = Script()
    for index in range(10):
        script.write(
            "alloc", device=-1, address=64 * index, size=index, op=f"op{index}"
        )
    found = table(script, ("op", "category"), limit=3)
    assert [row["bytes"] for row in found] == [9, 8, 7, 21]
    assert found[0] == {"bytes": 9, "count": 1, "op": "op9", "category": "unknown"}
    assert found[-1] == {
        "bytes": 21,
        "count": 7,
        "op": "other",
        "category": "other",
        "rest": True,
        "rows": 7,
    }
    assert table(script, "op", limit=10) == table(script, "op")


def test_bad_keys_and_limits() -> None:
    script = Script()
    script.write("alloc", device=-1, address=64, size=5)
    with pytest.raises(ValueError, match="'colour'; choose category, module, op, line"):
        table(script, ("op", "colour"))
    with pytest.raises(ValueError, match="choose category"):
        table(script, ())
    with pytest.raises(ValueError, match="limit must be 0 or more"):
        table(script, "op", limit=-1)


def test_line_is_the_innermost_frame_of_the_user() -> None:
    assert one("line", stack=(LINEAR, MODEL, TRAIN)) == "model.py:12"
    assert one("function", stack=(LINEAR, MODEL, TRAIN)) == "forward"
    assert one("file", stack=(LINEAR, MODEL, TRAIN)) == "model.py"
    assert one("stack", stack=(LINEAR, TRAIN)) == (Frame(*LINEAR), Frame(*TRAIN))


def test_line_without_a_frame_of_the_user() -> None:
    assert one("line", stack=(LINEAR,)) == "torch/nn/modules/linear.py:120"
    assert one("line") == ""
    assert one("stack") == ()


def test_other_libraries_are_the_users_choice() -> None:
    elsewhere = ("step", "/env/lib/python3.12/site-packages/other/loop.py", 5)
    assert one("line", stack=(LINEAR, elsewhere, TRAIN)) == "other/loop.py:5"
    vision = ("forward", "/env/lib/python3.12/site-packages/torchvision/x.py", 5)
    script = Script()
    script.write("alloc", device=-1, size=5, stack=(LINEAR, vision, TRAIN))
    core = script.core(paths={**PATHS, "torchvision": vision[1].removesuffix("/x.py")})
    (row,) = Recording(core).at(event=0).rows("line")
    assert row["line"] == "train.py:7"


def test_an_environment_inside_of_the_project_is_shown_as_any_other() -> None:
    root = PATHS["cwd"]
    inside = ("step", f"{root}/.venv/lib/python3.12/site-packages/other/loop.py", 5)
    assert one("line", stack=(LINEAR, inside, TRAIN)) == "other/loop.py:5"


def test_without_known_folders_the_usual_ones_are_the_library() -> None:
    script = Script()
    script.write("alloc", device=-1, size=5, stack=(LINEAR, MODEL))
    (row,) = Recording(script.core()).at(event=0).rows("line")
    assert row["line"] == "/run/model.py:12"


def backward(stack: object, forward_stack: bool = True) -> Script:
    """One block born in the backward of a linear layer."""
    script = Script()
    at = {"stack": (LINEAR, MODEL, TRAIN)} if forward_stack else {}
    where = {"op": "aten::linear", "module": "layers.0"}
    script.write("op_begin", address=5, stream=1, phase=1, **where, **at)
    script.write("op_end", phase=1, **where)
    node = {"op": "LinearBackward0", "phase": 2}
    script.write("op_begin", address=5, size=1, stream=1, flags=16, **node)
    script.write("alloc", device=-1, address=64, size=5, stack=stack, **node)
    return script


def test_backward_has_the_line_and_module_of_its_forward() -> None:
    by = ("line", "module", "forward_module", "op")
    for stack in (None, (ENGINE, TRAIN)):
        (row,) = table(backward(stack), by)
        assert row["line"] == "model.py:12"
        assert row["module"] == row["forward_module"] == "layers.0"
        assert row["op"] == "LinearBackward0"


def test_code_of_the_user_that_runs_in_backward_is_its_line() -> None:
    custom = ("backward", "/run/custom.py", 30)
    (row,) = table(backward((custom, ENGINE, TRAIN)), "line")
    assert row["line"] == "custom.py:30"


def test_backward_of_an_unknown_forward_says_where_it_began() -> None:
    script = backward((ENGINE, TRAIN), forward_stack=False)
    (row,) = table(script, "line")
    assert row["line"] == "train.py:7"


def test_a_block_without_a_stack_has_its_owners_name() -> None:
    script = Script()
    script.write("alloc", device=-1, address=64, size=5)
    script.write("role", device=-1, address=64, size=1, op="layers.0.attn.weight")
    (row,) = table(script, ("line", "where", "module", "owner", "category", "reason"))
    assert row["where"] == row["owner"] == "layers.0.attn.weight"
    assert row["line"] == ""
    assert row["module"] == "layers.0.attn"
    assert row["category"] == "parameter"
    assert row["reason"] == "a module's parameter"


@pytest.mark.parametrize(
    ("owner", "module"),
    [
        ("layers.0.attn.weight", "layers.0.attn"),
        ("weight", ""),
        ("layers.0.weight.grad", "layers.0"),
        ("exp_avg of layers.0.weight", "layers.0"),
        ("parameter 3 of SGD", ""),
        ("Critic/weight.grad", "Critic"),
        ("exp_avg of Critic/layers.0.weight", "Critic/layers.0"),
    ],
)
def test_owner_module(owner: str, module: str) -> None:
    assert owner_module(owner) == module


def test_a_models_own_tensors_have_its_class_for_a_module() -> None:
    script = Script()
    for index, name in enumerate(("weight", "exp_avg of weight", "parameter 3 of SGD")):
        script.write("alloc", device=-1, address=64 + index, size=9 - index)
        script.write("role", device=-1, address=64 + index, size=1, op=name)
    core = script.core(own_tensors={"weight": "Linear"})
    moment = Recording(core).at(event=len(script.events) - 1)
    modules = [row["module"] for row in moment.rows(("module", "owner"))]
    assert modules == ["Linear", "Linear", ""]


# Owner, role and module of what three models hold; "w/2" is a parameter's name.
HELD = (
    ("weight", "parameter", "Net"),
    ("weight.grad", "gradient", "Net"),
    ("exp_avg of weight", "optimizer_state", "Net"),
    ("mean", "buffer", "Net"),
    ("w/2", "parameter", "Net"),
    ("fc.weight", "parameter", "fc"),
    ("Net#2/weight", "parameter", "Net#2"),
    ("Net#2/weight.grad", "gradient", "Net#2"),
    ("exp_avg of Net#2/weight", "optimizer_state", "Net#2"),
    ("Critic/fc.weight", "parameter", "Critic/fc"),
    ("parameter 3 of SGD", "parameter", ""),
)


@pytest.mark.parametrize("told", [True, False])
def test_a_models_own_tensors_are_where_module_stats_has_them(told: bool) -> None:
    """Also in a recording that has no list of a model's own tensors."""
    held = [row for row in HELD if told or row[0] != "w/2"]
    script = Script()
    for model in ("Net", "Net#2", "Critic"):
        script.write("module_begin", module=model, stream=1)
        script.write("module_end", module=model, stream=1)
    for index, (owner, role, _) in enumerate(held):
        where = {"device": -1, "address": 64 * (index + 1)}
        script.write("alloc", size=1 << index, **where)
        script.write("role", size=_core.ROLES.index(role), op=owner, **where)
    models = ["Net", "Net#2", "Critic"]
    recording = Recording(script.core(**({"models": models} if told else {})))
    found = recording.at(event=len(script.events) - 1).rows(("owner", "module"))
    expected = {owner: module for owner, _, module in held}
    assert {row["owner"]: row["module"] for row in found} == expected

    # The models' own bytes, told apart by the bits of their sizes.
    stats = {row["name"]: row for row in recording.module_stats("cpu")}
    inside = {"Net": ("Net", "fc"), "Net#2": ("Net#2",), "Critic": ("Critic/fc",)}
    fields = ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes")
    for model, modules in inside.items():
        sizes = [1 << i for i, row in enumerate(held) if row[2] in modules]
        assert sum(int(stats[model][field]) for field in fields) == sum(sizes)

    # "parameter 3 of SGD" is no module's.
    labelled = recording.label("own", module=r"^Net(#2)?$")
    named = labelled.labels("cpu").astype(bool).tolist()
    assert named == [module in ("Net", "Net#2") for _, _, module in held]


def test_a_key_that_may_be_other_tells_the_rest_apart() -> None:
    script = Script()
    for phase in range(4):
        script.write(
            "alloc", device=-1, address=64 * phase, size=9 - phase, phase=phase
        )
    found = table(script, "phase", limit=3)
    others = [row for row in found if row["phase"] == "other"]
    assert len(others) == 2
    assert [row.get("rest") for row in others] == [None, True]


def test_repr_says_when() -> None:
    script = Script()
    script.write("seed_block", device=-1, address=64, size=5)
    script.write("alloc", device=-1, address=128, size=5)
    script.write("step", address=7, size=2)
    script.write("window_begin", address=7)
    script.write("alloc", device=-1, address=192, size=5, step=2, phase=1)
    recording = Recording(script.core())
    assert repr(recording.at(event=-1)) == (
        "<memprof.Moment: cpu, before the recording began, 5 bytes requested>"
    )
    assert "cpu, no step, other, 10 bytes" in repr(recording.at(event=1))
    assert "cpu, step 2, forward, 15 bytes" in repr(recording.peak())


def test_numbers_and_regions() -> None:
    script = Script()
    script.write("region_begin", op="load batch")
    script.write("alloc", device=0, address=64, size=5, stream=9, thread=1, phase=1)
    (row,) = table(script, ("region", "thread", "stream", "phase"))
    expected = {"region": "load batch", "thread": 1, "stream": 9, "phase": "forward"}
    assert row == {"bytes": 5, "count": 1, **expected}


def test_equal_texts_are_one_row() -> None:
    script = Script()
    for index, frames in enumerate([(LINEAR, MODEL), (MODEL, TRAIN), (MODEL,)]):
        script.write("alloc", device=-1, address=64 * index, size=1, stack=frames)
    assert len(table(script, "line")) == 1
    assert len(table(script, "stack")) == 3


def test_sizes_beyond_what_floats_hold() -> None:
    script = Script()
    for index in range(3):
        script.write("alloc", device=-1, address=64 * index, size=(1 << 53) + 1)
    (row,) = table(script, "op")
    assert row["bytes"] == 3 * ((1 << 53) + 1)


def test_event_and_text_of_the_moment() -> None:
    script = Script()
    script.write("alloc", device=-1, size=5, module="head", op="aten::mm", phase=1)
    peak = Recording(script.core()).peak()
    assert (peak.event, peak.module, peak.op, peak.phase) == (
        0,
        "head",
        "aten::mm",
        "forward",
    )
    start = Recording(script.core()).at(event=-1)
    assert (start.module, start.step, start.phase) == ("", None, "other")


def test_a_million_lives_take_no_time() -> None:
    """Not a benchmark: a step away from the vectorised path is seconds."""
    count = 1_000_000
    script = Script()
    names = [script.name(f"layers.{i}.op") for i in range(500)]
    events = np.repeat(rows([{"kind": 1, "device": -1, "size": 64}]), count)
    events["address"] = np.arange(count) * 64
    events["time_ns"] = np.arange(count)
    events["op"] = np.random.default_rng(1).choice(names, count)
    events["module"] = np.random.default_rng(2).choice(names, count)
    recording = Recording(_core.from_events(events, script.names))
    moment = recording.at(event=count - 1)
    begin = time.process_time()
    found = moment.rows(limit=10)
    spent = time.process_time() - begin
    assert sum(row["bytes"] for row in found) == 64 * count
    assert spent < 3, f"{spent:.2f} s"
