"""A recording of made-up data whose numbers are known before it is analysed.

Steps of one GPU: each allocates all its blocks in a forward and frees them, last
first, in a backward, beside parameters that stay. So the peak is the end of any
forward.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memprof import _core
from memprof.rows import EVENT_DTYPE, NO_INDEX, Rows

if TYPE_CHECKING:
    from memprof.recording import Recording

STEPS = 4
PARAMETERS = 3
PARAMETER_BYTES = 1 << 20
LAYERS = 6

_KIND = {text: number for number, text in _core.EVENT_KINDS.items()}
_OPS = [f"aten::made_up_{name}" for name in ("matmul", "relu", "norm")]
_MODULES = [f"layers.{number}" for number in range(LAYERS)]
_OWNERS = [f"layers.{number}.weight" for number in range(PARAMETERS)]
_NAMES = [*_OPS, *_MODULES, *_OWNERS]
_BASE, _PAGE, _BLOCK = 0x7F00_0000_0000, 2 << 20, 512
_NO_SEQUENCE = 2**64 - 1
_IN_MODULE, _IN_OP = 2, 32
_PER_BLOCK = 5  # events: op_begin alloc op_end, free_requested free_completed


class MadeUp(NamedTuple):
    """A recording, and what must be found in it."""

    recording: Recording
    events: int
    allocations: int
    peak: int
    """Bytes requested at the peak of ``cuda:0``."""
    reserved: int


def recording(allocations: int) -> MadeUp:
    """Make a recording up.

    Args:
        allocations: How many, at least one a step beside the parameters.
    """
    from memprof.recording import Recording

    each = max((allocations - PARAMETERS) // STEPS, 1)
    number = np.arange(each)
    sizes = 64 * (1 + number % 61)  # what is asked for; blocks are of 512 and up
    rooms = -(-sizes // _BLOCK) * _BLOCK
    first = _BASE + PARAMETERS * PARAMETER_BYTES
    blocks = np.zeros(each, EVENT_DTYPE)
    blocks["address"] = first + np.cumsum(rooms) - rooms
    blocks["size"] = sizes
    blocks["op"] = number % len(_OPS)
    layer = number * LAYERS // each
    blocks["module"] = len(_OPS) + layer
    blocks["stack"] = layer
    used = PARAMETERS * PARAMETER_BYTES + int(rooms.sum())
    reserved = -(-used // _PAGE) * _PAGE
    parts = [_begin(reserved)]
    parts += [_step(step, blocks) for step in range(STEPS)]
    events = np.concatenate(parts)
    events["time_ns"] = 1_000 * np.arange(1, len(events) + 1)
    stacks = [[("forward", "made_up_model.py", 10 + k)] for k in range(LAYERS)]
    core = _core.from_events(events.data, _NAMES, stacks)
    core.info = json.dumps(_info())
    return MadeUp(
        Recording(core),
        len(events),
        PARAMETERS + STEPS * each,
        PARAMETERS * PARAMETER_BYTES + int(sizes.sum()),
        reserved,
    )


def _info() -> dict[str, Any]:
    return {
        "argv": ["made-up data"],
        "current_device": 0,
        "devices": {"cuda:0": {"name": "made-up GPU", "total_bytes": 8 << 30}},
    }


def _empty(count: int, kind: str | None = None) -> Rows:
    rows = np.zeros(count, EVENT_DTYPE)
    for name in ("op", "module", "stack"):
        rows[name] = NO_INDEX
    rows["thread"] = 1
    if kind is not None:
        rows["kind"] = _KIND[kind]
    return rows


def _begin(reserved: int) -> Rows:
    """Return the parameters, inside of the one segment."""
    segment = _empty(1, "segment_alloc")
    segment["address"], segment["size"] = _BASE, reserved
    rows = _empty(2 * PARAMETERS)
    rows["kind"][0::2] = _KIND["alloc"]
    rows["kind"][1::2] = _KIND["role"]
    rows["address"] = _BASE + np.repeat(np.arange(PARAMETERS), 2) * PARAMETER_BYTES
    rows["size"][0::2] = PARAMETER_BYTES
    rows["size"][1::2] = _core.ROLES.index("parameter")
    rows["op"][1::2] = len(_OPS) + len(_MODULES) + np.arange(PARAMETERS)
    return np.concatenate([segment, rows])


def _step(step: int, blocks: Rows) -> Rows:
    """Return a step that allocates and frees BLOCKS."""
    count = len(blocks)
    begin = _empty(1, "step")
    begin["size"] = step
    forward = np.repeat(blocks, 3)
    forward["kind"] = np.tile(
        [_KIND["op_begin"], _KIND["alloc"], _KIND["op_end"]], count
    )
    forward["phase"] = _core.PHASES.index("forward")
    forward["op_instance"] = step * count + 1 + np.repeat(np.arange(count), 3)
    forward["flags"] = _IN_MODULE
    forward["flags"][1::3] |= _IN_OP
    forward["address"][0::3] = _NO_SEQUENCE
    forward["address"][2::3] = 0
    forward["size"][0::3] = forward["size"][2::3] = 0
    backward = np.repeat(blocks[::-1], 2)
    backward["kind"] = np.tile(
        [_KIND["free_requested"], _KIND["free_completed"]], count
    )
    backward["phase"] = _core.PHASES.index("backward")
    for name in ("op", "module", "stack"):
        backward[name] = NO_INDEX
    rows = np.concatenate([begin, forward, backward])
    rows["step"], rows["thread"] = step, 1
    return rows
