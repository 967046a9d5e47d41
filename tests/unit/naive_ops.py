"""The operator table, the slow and simple way: every call keeps all its events.

Beside ``naive.py``, whose lives say what each event allocated and freed.  Shares
nothing with ``csrc/op_table.c`` but the words of ``csrc/op_table.h``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from events import BACKWARD_OP, KIND
from naive import Naive

from memprof.recording import NO_INDEX

OUTSIDE = ("outside", None, ())


@dataclass
class Call:
    """One call, with all that happened in it."""

    key: tuple[str, Any, tuple]
    name: int
    top: bool
    nested: bool  # in a call of the same row
    same: bool  # called by an op of the same name: no call of its own
    changes: list[tuple[int, int, bool]] = field(default_factory=list)
    # (device, +allocated or -freed, in this call itself); 0 is a touch


def blank() -> dict[str, int]:
    return dict.fromkeys(
        (
            "self_allocated",
            "self_freed",
            "self_peak",
            "allocated",
            "freed",
            "peak",
            "calls",
        ),
        0,
    )


def naive_ops(
    events: np.ndarray, stack_of: Any = None
) -> dict[tuple[str, Any, tuple], dict[str, Any]]:
    """Return what the table must say, by (kind, name, frames).

    Args:
        events: EVENT_DTYPE [n].
        stack_of: stack id -> the frames that divide a name; None: nothing does.
    """
    lives = Naive().replay(events).lives
    alloc, frees = KIND["alloc"], (KIND["free_requested"], KIND["free_completed"])
    changed = defaultdict(list)  # event -> (device, change)
    for life in lives:
        if life["died_event"] >= 0 and life["died_event"] != life["born_event"]:
            changed[life["died_event"]].append((life["device"], -life["size"]))
    for life in lives:
        born = life["born_event"]
        if born >= 0 and events["kind"][born] == alloc:
            changed[born].append((life["device"], life["size"]))
    everything: list[Call] = []
    outside = Call(OUTSIDE, NO_INDEX, True, False, False)
    open_calls: dict[int, list[Call]] = defaultdict(list)
    for number, event in enumerate(events):
        kind, thread, name = int(event["kind"]), event["thread"], int(event["op"])
        stack = open_calls[thread]
        if kind in (KIND["op_begin"], KIND["region_begin"]):
            call = made(kind, event, name, stack, stack_of)
            stack.append(call)
            everything.append(call)
        elif kind in (KIND["op_end"], KIND["region_end"]):
            regions = kind == KIND["region_end"]
            found = [
                place
                for place, call in enumerate(stack)
                if call.name == name and (call.key[0] == "region") == regions
            ]
            if found and regions:
                del stack[found[-1]]
            elif found:
                place = found[-1]
                stack[place:] = [c for c in stack[place:] if c.key[0] == "region"]
        elif kind == alloc or kind in frees:
            around = stack or [outside]
            for device, change in changed[number]:
                for call in around:
                    call.changes.append((device, change, call is around[-1]))
    table: dict[tuple[str, Any, tuple], dict[str, Any]] = {}
    for call in [outside, *everything]:
        if call.changes:
            add(table, call)
    if OUTSIDE in table:
        table[OUTSIDE]["calls"] = 0
        for sums in table[OUTSIDE]["devices"].values():
            sums["calls"] = 0
    return table


def made(kind: int, event: Any, name: int, stack: list[Call], stack_of: Any) -> Call:
    """Return the call that an event begins."""
    outer = stack[-1] if stack else None
    backward = bool(event["flags"] & BACKWARD_OP)
    region = kind == KIND["region_begin"]
    frames = ()
    if stack_of is not None and event["stack"] != NO_INDEX:
        frames = stack_of(int(event["stack"]))
    key = ("region" if region else "backward" if backward else "op", name, frames)
    same = (
        not region
        and not backward
        and outer is not None
        and outer.name == name
        and outer.key[0] != "region"
    )
    if same:
        key = outer.key
    return Call(key, name, not stack, any(c.key == key for c in stack), same)


def add(table: dict, call: Call) -> None:
    """Add a call to its row."""
    row = table.setdefault(
        call.key, {"calls": 0, "top": False, "devices": defaultdict(blank)}
    )
    row["calls"] += not call.same
    row["top"] |= call.top
    for device in {device for device, _, _ in call.changes}:
        sums = row["devices"][device]
        sums["calls"] += not call.same
        own = [c for d, c, is_own in call.changes if d == device and is_own]
        whole = [c for d, c, _ in call.changes if d == device]
        parts = [("self_", own)] if call.nested else [("self_", own), ("", whole)]
        for prefix, changes in parts:
            sums[prefix + "allocated"] += sum(c for c in changes if c > 0)
            sums[prefix + "freed"] -= sum(c for c in changes if c < 0)
            levels = np.cumsum([0, *changes])
            sums[prefix + "peak"] = max(sums[prefix + "peak"], int(levels.max()))
