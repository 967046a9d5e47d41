"""key_averages() beside torch.profiler's own, for the same program on the CPU."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.profiler import ProfilerActivity  # noqa: E402

import memprof  # noqa: E402
from memprof.averages import OUTSIDE  # noqa: E402

ENGINE = "autograd::engine::evaluate_function: "
ROWS, IN, HIDDEN, OUT = 11, 101, 53, 7


def program() -> Callable[[], None]:
    """Return a step that trains, and after it leaves nothing of its own behind."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(IN, HIDDEN),
        nn.ReLU(),
        nn.LayerNorm(HIDDEN),
        nn.Dropout(0.3),
        nn.Linear(HIDDEN, OUT),
    )
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(ROWS, IN), torch.randint(OUT, (ROWS,))

    def step() -> None:
        with memprof.record_function("forward pass"):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch.cat([x, x]).sort(dim=1)
            torch.arange(101)

    return step


def both(run: Callable[[], None]) -> tuple[Any, Any]:
    """Return torch.profiler's rows and ours, of one run each."""
    run()  # what stays for ever is made here
    gc.collect()
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU], profile_memory=True
    ) as theirs:
        run()
    gc.collect()
    with memprof.profile() as ours:
        run()
    return theirs.key_averages(), ours.key_averages(device="cpu")


def by_name(rows: Any, attribute: str) -> Counter[str]:
    """Sum an attribute; torch's row of the engine's frame goes to its node."""
    sums: Counter[str] = Counter()
    for row in rows:
        sums[row.key.removeprefix(ENGINE)] += getattr(row, attribute)
    return sums


@pytest.fixture(scope="module")
def training() -> tuple[Any, Any]:
    return both(program())


def test_self_memory_of_every_op_is_torchs(training) -> None:
    theirs, ours = (by_name(rows, "self_cpu_memory_usage") for rows in training)
    # What happens in no op has a row of its own in both.
    assert theirs.pop("[memory]") == ours.pop(OUTSIDE) < 0
    compared = {name for name, amount in theirs.items() if amount}
    assert {name: ours[name] for name in compared} == {
        name: theirs[name] for name in compared
    }
    assert {name for name, amount in ours.items() if amount} == compared
    assert len(compared) > 20
    assert {"aten::addmm", "AddmmBackward0", "forward pass", "aten::sqrt"} <= compared


def test_memory_of_whole_calls_is_torchs_but_where_torch_counts_twice(training) -> None:
    """torch adds a call that is inside a call of its name; here it counts once."""
    theirs, ours = (by_name(rows, "cpu_memory_usage") for rows in training)
    theirs.pop("[memory]")
    ours.pop(OUTSIDE)
    nodes = {row.key for row in training[1] if row.kind == "backward"}
    assert theirs.pop("aten::arange") == 2 * ours.pop("aten::arange") == 2 * 2 * 808
    for name in nodes:  # torch's rows are the engine's frame and the node in it
        ours.pop(name)
        theirs.pop(name)
    assert len(nodes) > 5
    assert {name: amount for name, amount in ours.items() if amount} == {
        name: amount for name, amount in theirs.items() if amount
    }


def test_calls_are_those_that_touched_memory(training) -> None:
    theirs, ours = (by_name(rows, "count") for rows in training)
    for name in ("aten::addmm", "aten::sort", "aten::sqrt", "aten::threshold_backward"):
        assert ours[name] == theirs[name] > 0, name
    assert "aten::t" in theirs  # a view
    assert "aten::t" not in ours
    assert ours["forward pass"] == 1
    kinds = {row.key: row.kind for row in training[1]}
    assert kinds["forward pass"] == "region"
    assert kinds["AddmmBackward0"] == "backward"
    assert kinds["aten::addmm"] == "op"


def test_an_op_that_only_frees_counts_for_what_is_around_it() -> None:
    """torch knows of the op: here it is recorded when it first allocates."""

    def run() -> None:
        torch.empty(50).set_()

    theirs, ours = (by_name(rows, "self_cpu_memory_usage") for rows in both(run))
    assert theirs["aten::set_"] == -200
    assert "aten::set_" not in ours
    assert ours[OUTSIDE] == -200


def test_peak_above_entry_is_what_an_op_needs_beside_its_result() -> None:
    def run() -> None:
        x = torch.ones(1000)
        with memprof.record_function("three"):
            y = x + x  # 4000
            z = y * x  # 8000: the peak
            del y
            w = z.sum()  # 4004
        del z, w

    _, rows = both(run)
    (three,) = (row for row in rows if row.key == "three")
    assert three.peak_above_entry_bytes == 8000
    assert (three.alloc_bytes, three.freed_bytes) == (8004, 4000)
    assert (three.self_alloc_bytes, three.self_freed_bytes) == (0, 4000)
    assert three.self_peak_above_entry_bytes == 0


def test_self_sums_to_all_events_of_a_run(training) -> None:
    """The sum over all rows is that over all events; frees by block."""
    with memprof.profile() as prof:
        program()()
    events = prof.events("cpu")
    sizes: dict[int, int] = {}
    made = gone = 0
    for event in events[np.isin(events["kind"], [1, 3, 49])]:
        if event["kind"] == 3:
            gone += sizes.pop(int(event["address"]), 0)
            continue
        sizes[int(event["address"])] = int(event["size"])
        made += int(event["size"]) if event["kind"] == 1 else 0
    rows = prof.key_averages(device="cpu")
    assert sum(row.self_alloc_bytes for row in rows) == made > 0
    assert sum(row.self_freed_bytes for row in rows) == gone > 0


def test_lines_of_the_program_divide_an_op() -> None:
    with memprof.profile() as prof:
        for _ in range(3):
            a = torch.ones(100)
        b = torch.ones(100)
        during = prof.key_averages(group_by_stack_n=1)  # while it runs
    del a, b
    ones = [row for row in during if row.key == "aten::ones"]
    assert [row.count for row in ones] == [3, 1]
    assert all(Path(row.stack[0].split("(")[0]).samefile(__file__) for row in ones)
    assert ones[0].stack != ones[1].stack
    whole = prof.key_averages()
    assert [row.count for row in whole if row.key == "aten::ones"] == [4]
    assert Path(__file__).name in prof.key_averages(group_by_stack_n=1).table()


def test_a_saved_recording_has_the_same_table(tmp_path: Path) -> None:
    with memprof.profile() as prof:
        program()()
    prof.save(tmp_path / "run.memprof")
    loaded = memprof.load(tmp_path / "run.memprof")
    for frames in (0, 2):
        again = loaded.key_averages(group_by_stack_n=frames)
        assert again.to_dicts() == prof.key_averages(False, frames).to_dicts()
        assert again.table() == prof.key_averages(False, frames).table()


def test_shapes_are_refused_also_if_they_were_asked_for() -> None:
    with memprof.profile(record_shapes=True) as prof:
        torch.ones(3)
    with pytest.raises(memprof.MemprofError, match="record_shapes"):
        prof.key_averages(group_by_input_shape=True)
