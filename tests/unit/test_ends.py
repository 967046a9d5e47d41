"""Moment.why: until what each block was kept, by the op in which it was freed."""

from __future__ import annotations

import pytest
from events import NAMES, Script, random_stream

from memprof import _core
from memprof.ends import WAITING, End, ends
from memprof.recording import Recording
from memprof.rows import NO_INDEX

FORWARD, BACKWARD, OPTIMIZER = 1, 2, 3
GRAD, NODE, IN_OP = 0x01, 0x10, 0x20


def whys(script: Script, event: int, device: str = "cuda:0") -> dict[int, str]:
    """Return address -> why at EVENT."""
    recording = Recording(script.core())
    moment = recording.at(event=event, device=device)
    found = {}
    for row in recording.allocations(device).tolist():
        one = [w for w in moment.why("owner") if w["bytes"] == row[2]]
        if one:
            found[row[1]] = one[0]["why"]
    assert sum(row["bytes"] for row in moment.why()) == moment.active
    return found


def forward_and_backward(script: Script) -> int:
    """Write a layer whose output is saved; returns the event in between."""
    at = {"thread": 7, "device": 0}
    mul = {
        "op": "aten::mul",
        "module": "layer",
        "flags": GRAD | IN_OP,
        "phase": FORWARD,
    }
    script.write("op_begin", address=5, stream=1, **at, **mul)
    here = script.write("alloc", address=512, size=100, **at, **mul)
    script.write("op_end", op="aten::mul", **at)
    back = {"phase": BACKWARD, "flags": NODE | IN_OP, "thread": 9, "device": 0}
    script.write("op_begin", op="MulBackward0", address=5, size=1, **back)
    script.write("op_begin", op="aten::mul", **back | {"flags": IN_OP})
    script.write("op_end", op="aten::mul", thread=9)
    script.write("free_requested", address=512, size=100, **back)
    script.write("op_end", op="MulBackward0", thread=9)
    script.write("free_completed", address=512, size=100, **back)
    return here


def test_saved_until_the_node_that_used_it() -> None:
    script = Script()
    here = forward_and_backward(script)
    assert whys(script, here) == {512: "saved until MulBackward0 (module layer)"}
    recording = Recording(script.core())
    (row,) = recording.allocations("cuda:0")
    (end,) = ends(recording, row["died_event"].reshape(1)).values()
    assert recording.op(end.node) == "MulBackward0"
    assert recording.op(end.op) == "MulBackward0"
    assert recording.module(end.module) == "layer"


def test_waiting_for_a_stream() -> None:
    script = Script()
    forward_and_backward(script)
    freed = len(script.events) - 3
    assert whys(script, freed) == {512: WAITING}
    recording = Recording(script.core())
    moment = recording.at(event=freed, device="cuda:0")
    assert (moment.requested, moment.active) == (0, 100)
    assert moment.rows() == []
    assert whys(script, freed + 2) == {}


def test_kept_by_the_program_or_by_an_op() -> None:
    script = Script()
    at = {"thread": 7, "device": -1}
    script.write("alloc", address=64, size=1, phase=FORWARD, **at)
    script.write("alloc", address=128, size=2, phase=BACKWARD, **at)
    here = script.write("alloc", address=256, size=3, phase=FORWARD, flags=GRAD, **at)
    script.write("free_completed", address=64, phase=OPTIMIZER, **at)
    script.write("op_begin", op="aten::add", phase=FORWARD, flags=IN_OP, **at)
    script.write("free_completed", address=128, phase=FORWARD, flags=IN_OP, **at)
    # Another thread's op has nothing to do with it.
    script.write(
        "op_begin", op="NeverBackward0", flags=NODE, thread=8, address=3, size=1
    )
    script.write("op_end", op="aten::add", **at)
    script.write("op_end", op="aten::of before", **at)
    script.write("alloc", address=64, size=4, phase=FORWARD, **at)
    script.write("free_completed", address=64, phase=0, **at)
    assert whys(script, here, "cpu") == {
        64: "kept by the program, freed in optimizer",
        128: "kept until aten::add in forward",
        256: "alive at the end of the recording: outlived its op with grad mode on",
    }
    later = len(script.events) - 2
    assert whys(script, later, "cpu")[64] == (
        "kept by the program, freed in code outside of any phase"
    )


def test_no_frees_no_ends() -> None:
    recording = Recording(_core.from_events(random_stream(1), NAMES))
    rows = recording.allocations("all")
    assert ends(recording, rows["died_event"][:0]) == {}
    assert End() == (NO_INDEX, NO_INDEX, NO_INDEX)


@pytest.mark.parametrize("seed", range(10))
def test_every_moment_sums_to_active(seed: int) -> None:
    events = random_stream(seed)
    recording = Recording(_core.from_events(events, NAMES))
    for name in recording.devices:
        for event in range(-1, len(events), 97):
            moment = recording.at(event=event, device=name)
            found = moment.why(("category", "op"))
            assert sum(row["bytes"] for row in found) == moment.active
            assert all(row["why"] for row in found)
            waiting = sum(row["bytes"] for row in found if row["why"] == WAITING)
            assert waiting == moment.active - moment.requested
            assert len(moment.why("line", limit=1)) <= 2
    with pytest.raises(ValueError, match="cannot divide by 'colour'"):
        moment.why("colour")
