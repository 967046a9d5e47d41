"""Why the blocks of a recorded moment were still there: by what each one ended.

A block's own row tells its role and its reason; the op in which it was freed tells
what it was waiting for: a saved tensor goes with the backward node that used it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memprof import _core
from memprof.moment import BACKWARD
from memprof.rows import NO_INDEX, Ints

if TYPE_CHECKING:
    from memprof.moment import Moment
    from memprof.recording import Recording

WAITING = "waiting for a stream: freed by the program, not yet completed"

# Numbers of csrc/event.h.
_OP_BEGIN, _OP_END = 16, 17
_GRAD_MODE, _RECOMPUTE, _BACKWARD_OP = 0x01, 0x04, 0x10
_NO_SEQUENCE = (0, 2**64 - 1)

_HELD_AS = {
    "parameter": "held by a module: parameter {}",
    "buffer": "held by a module: buffer {}",
    "gradient": "held by a parameter: {}",
    "optimizer_state": "held by an optimizer: {}",
}


class End(NamedTuple):
    """Inside of what a block was freed; ids of texts, or NO_INDEX."""

    node: int = NO_INDEX
    """The innermost backward node."""
    module: int = NO_INDEX
    """The module whose forward made that node."""
    op: int = NO_INDEX
    """The outermost op."""


def ends(recording: Recording, events: Ints) -> dict[int, End]:
    """Return what was running on its thread at each of EVENTS (frees).

    Ops are known by their begin and end; those that touched no memory are not in
    the recording, and freed nothing either.
    """
    if not len(events):
        return {}
    last = int(events.max()) + 1
    rows = recording.events()[:last]
    wanted = np.zeros(last, np.bool_)
    wanted[events] = True
    kind = rows["kind"]
    index = np.flatnonzero((kind == _OP_BEGIN) | (kind == _OP_END) | wanted)
    part = rows[index]
    columns = [
        part[name].tolist()
        for name in ("kind", "thread", "op", "flags", "address", "size", "stream")
    ]
    modules = part["module"].tolist()
    open_ops: dict[int, list[tuple[int, int, bool]]] = {}
    forward: dict[tuple[int, int], int] = {}  # thread, sequence number -> module
    found: dict[int, End] = {}
    for i, number, op_kind, thread, op, flags, sequence, size, stream in zip(
        range(len(index)), index.tolist(), *columns, strict=True
    ):
        stack = open_ops.setdefault(thread, [])
        if op_kind == _OP_BEGIN:
            module, is_node = NO_INDEX, bool(flags & _BACKWARD_OP)
            if is_node:
                module = forward.get((size, sequence), NO_INDEX)
            elif flags & _GRAD_MODE and sequence not in _NO_SEQUENCE:
                forward[stream, sequence] = modules[i]
            stack.append((op, module, is_node))
        elif op_kind == _OP_END:
            # An op whose begin was before the window ends without one.
            while stack and any(entry[0] == op for entry in stack):
                if stack.pop()[0] == op:
                    break
        if wanted[number]:
            node = next((entry for entry in reversed(stack) if entry[2]), None)
            if node is not None:
                found[number] = End(node[0], node[1], stack[0][0])
            elif stack:
                found[number] = End(op=stack[0][0])
    return found


def reasons(moment: Moment, index: Ints) -> list[str]:
    """Say of each life of INDEX why it was there at MOMENT."""
    recording = moment._recording
    rows = recording.allocations("all")[index]
    died = rows["died_event"]
    known = ends(recording, died[died > moment.event])
    teller = _Teller(moment, known)
    told: dict[Any, str] = {}
    answer = []
    names = ("role", "owner", "died_event", "died_step", "died_phase", "reason")
    more = ("phase", "flags", "module", "op", "died_in_op")
    for row in zip(*(rows[name].tolist() for name in (*names, *more)), strict=True):
        fact = _Fact(*row)
        end = known.get(fact.died_event, End())
        when = min(fact.died_event - moment.event, 1) if fact.died_event >= 0 else 2
        key = (fact._replace(died_event=max(when, 0)), end)
        if key not in told:
            told[key] = teller.tell(fact, end)
        answer.append(told[key])
    return answer


class _Fact(NamedTuple):
    """Fields of a row that a reason depends on."""

    role: int
    owner: int
    died_event: int
    died_step: int
    died_phase: int
    reason: int
    phase: int
    flags: int
    module: int
    op: int
    died_in_op: int


class _Teller:
    """Puts facts into words."""

    def __init__(self, moment: Moment, known: dict[int, End]) -> None:
        self._moment = moment
        self._text = moment._recording.op

    def tell(self, fact: _Fact, end: End) -> str:
        """Return the one reason: role first, then how it ended."""
        if 0 <= fact.died_event <= self._moment.event:
            return WAITING
        role = _core.ROLES[fact.role]
        owner = self._text(fact.owner)
        if role in _HELD_AS:
            return _HELD_AS[role].format(owner)
        until = self._until(fact, end)
        return f"{owner}, {until}" if role == "input" and owner else until

    def _until(self, fact: _Fact, end: End) -> str:
        if fact.died_event < 0:
            end_of_all = "alive at the end of the recording"
            if _core.ROLES[fact.role] == "input":
                return end_of_all  # its owner says the rest
            return f"{end_of_all}: {_core.REASONS[fact.reason]}"
        if fact.died_in_op:
            return f"temporary of {self._text(fact.op) or 'its op'}"
        phase = _core.PHASES[fact.died_phase]
        when = "code outside of any phase" if phase == "other" else phase
        if fact.died_step != self._moment.step and fact.died_step >= 0:
            when = f"{when} of step {fact.died_step}"
        if end.node != NO_INDEX:
            module = self._text(end.module) or self._text(fact.module)
            where = f" (module {module})" if module else ""
            made = fact.phase != BACKWARD or fact.flags & _RECOMPUTE
            word = "saved until" if made else "passed on until"
            return f"{word} {self._text(end.node)}{where}"
        if end.op != NO_INDEX:
            return f"kept until {self._text(end.op)} in {when}"
        return f"kept by the program, freed in {when}"
