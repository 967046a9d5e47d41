"""A replay in plain Python: what the tracker must say, the slow and simple way.

Shares nothing with the core but the event's layout.  Written from the words of
``csrc/event.h`` and ``csrc/tracker.h``: dictionaries instead of tables, sets of
pages instead of ranges, searches instead of slots.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from events import (
    BACKWARD_OP,
    CPU,
    DIED_IN_FORWARD,
    FORWARD,
    IN_OP,
    KIND,
    NO_SEQUENCE,
    PAGE,
    PENDING,
    SESSION,
)

from memprof.recording import NO_INDEX

NAME = {number: name for name, number in KIND.items()}
STATS = (
    "requested_bytes",
    "active_bytes",
    "reserved_bytes",
    "allocated_blocks",
    "active_blocks",
    "segments",
)
RANK = {0: 0, 5: 1, 3: 2, 4: 3, 2: 4, 1: 5}  # role -> which wins


class Naive:
    """The whole state after some events; every attribute may be read."""

    def __init__(self) -> None:
        self.lives: list[dict[str, Any]] = []
        self.stats: dict[int, dict[str, dict[str, int]]] = {}
        self.steps: list[dict[str, Any]] = []
        self.open_step: dict[int, dict[str, Any]] = {}
        self.alive: dict[tuple[int, int], dict[str, Any]] = {}  # until completed
        self.segments: dict[int, list[set[int]]] = {}  # of page numbers
        self.ops: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self.regions: dict[int, list[int]] = defaultdict(list)
        # (how many root forwards began, the root that runs or NO_INDEX)
        self.forwards: dict[int, tuple[int, int]] = defaultdict(lambda: (0, NO_INDEX))
        self.op_of: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.spans: list[dict[str, int]] = []  # in order of their end
        self.open_spans: dict[int, list[dict[str, int]]] = defaultdict(list)
        self.step = 0
        self.recorded = 0
        self.now = 0  # index of the event that is applied
        self.defects = dict.fromkeys(
            (
                "unmatched_frees",
                "foreign_frees",
                "replaced_blocks",
                "unmatched_segments",
                "unapplied_events",
            ),
            0,
        )
        # (event, requested, active, reserved) after each event, by device
        self.curve: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)

    def replay(self, events: np.ndarray) -> Naive:
        """Apply all events."""
        for event in events:
            self.apply({name: int(event[name]) for name in events.dtype.names})
        return self

    def apply(self, event: dict[str, int]) -> None:
        """Apply one event."""
        handler = getattr(self, "on_" + NAME[event["kind"]], None)
        if handler is not None:
            handler(event)
        for device, stats in self.stats.items():
            self.curve[device].append(
                (self.now, *(stats[name]["current"] for name in STATS[:3]))
            )
        self.now += 1

    # -- counters

    def touch(self, event: dict[str, int]) -> int:
        """Make sure that the event's device is known; returns it."""
        device = event["device"]
        if device not in self.stats:
            self.stats[device] = {
                name: {"current": 0, "peak": 0, "total": 0} for name in STATS
            }
            self.segments[device] = []
            self.begin_step_row(device, event)
        return device

    def count(self, device: int, name: str, change: int) -> None:
        stat = self.stats[device][name]
        stat["current"] += change
        stat["total"] += max(change, 0)
        stat["peak"] = max(stat["peak"], stat["current"])
        row = self.open_step.get(device)
        if row is not None and f"{name}_peak" in row:
            row[f"{name}_peak"] = max(row[f"{name}_peak"], stat["current"])
        if row is not None and name == "requested_bytes":
            row["requested_bytes_at_end"] = stat["current"]

    # -- blocks

    def on_alloc(self, event: dict[str, int], seeded: bool = False) -> None:
        device = self.touch(event)
        key = (device, event["address"])
        if key in self.alive:
            if seeded:
                return
            lost = self.alive.pop(key)
            if lost["died_event"] < 0:
                self.defects["replaced_blocks"] += 1
            self.finish(lost, event)
        gone = seeded and event["flags"] & PENDING
        born = seeded and not gone
        life = {
            "address": event["address"],
            "size": event["size"],
            "stream": event["stream"],
            "device": device,
            "pool": event["pool"],
            "thread": event["thread"],
            "op": event["op"],
            "module": event["module"],
            "stack": event["stack"],
            "op_instance": event["op_instance"],
            "flags": event["flags"],
            "phase": event["phase"],
            "born_event": -1 if born else self.now,
            "born_ns": -1 if seeded else event["time_ns"],
            "born_step": -1 if seeded else self.step,
            "died_event": self.now if gone else -1,
            "died_ns": event["time_ns"] if gone else -1,
            "died_step": self.step if gone else -1,
            "completed_event": -1,
            "died_phase": 0,
            "died_in_op": 0,
            "role": 0,
            "owner": NO_INDEX,
            "shape": NO_INDEX,
            "shape_bytes": 0,
            "region": NO_INDEX,
            "forward_op": NO_INDEX,
            "forward_module": NO_INDEX,
            "forward_stack": NO_INDEX,
            "forward": 0,
        }
        if not seeded:
            self.add_context(life)
        self.lives.append(life)
        self.alive[key] = life
        self.count(device, "active_bytes", life["size"])
        self.count(device, "active_blocks", 1)
        if not gone:
            self.count(device, "requested_bytes", life["size"])
            self.count(device, "allocated_blocks", 1)
        if not seeded and device in self.open_step:
            self.open_step[device]["allocated_total"] += life["size"]

    def on_seed_block(self, event: dict[str, int]) -> None:
        self.on_alloc(event, seeded=True)

    def add_context(self, life: dict[str, Any]) -> None:
        life["forward"] = self.root_forward(life["thread"])
        regions = self.regions[life["thread"]]
        if regions:
            life["region"] = regions[-1]
        for op in reversed(self.ops[life["thread"]]):
            if known(op["forward"]):
                life["forward_op"], life["forward_module"], life["forward_stack"] = op[
                    "forward"
                ]
                return

    def end(self, life: dict[str, Any], event: dict[str, int]) -> None:
        """The free was asked for."""
        life["died_event"] = self.now
        life["died_ns"] = event["time_ns"]
        life["died_step"] = self.step
        life["died_phase"] = event["phase"]
        life["died_in_op"] = int(
            bool(life["flags"] & event["flags"] & IN_OP)
            and life["thread"] == event["thread"]
            and life["op_instance"] == event["op_instance"]
        )
        in_forward = life["phase"] == event["phase"] == FORWARD
        forwards = (0, self.root_forward(life["thread"]))
        if in_forward and life["born_event"] >= 0 and life["forward"] in forwards:
            life["flags"] |= DIED_IN_FORWARD
        self.count(life["device"], "requested_bytes", -life["size"])
        self.count(life["device"], "allocated_blocks", -1)

    def root_forward(self, thread: int) -> int:
        """Return the number of the root forward that runs; 0: none."""
        count, root = self.forwards[thread]
        return 0 if root == NO_INDEX else count

    def finish(self, life: dict[str, Any], event: dict[str, int]) -> None:
        """The free is done."""
        if life["died_event"] < 0:
            self.end(life, event)
        life["completed_event"] = self.now
        self.count(life["device"], "active_bytes", -life["size"])
        self.count(life["device"], "active_blocks", -1)

    def on_free_requested(self, event: dict[str, int]) -> None:
        life = self.alive.get((event["device"], event["address"]))
        if life is None or life["died_event"] >= 0:
            self.defects["unmatched_frees"] += 1
        else:
            self.end(life, event)

    def on_free_completed(self, event: dict[str, int]) -> None:
        life = self.alive.pop((event["device"], event["address"]), None)
        if life is not None:
            self.finish(life, event)
        elif event["device"] == CPU:
            self.defects["foreign_frees"] += 1

    # -- segments

    def on_segment_alloc(self, event: dict[str, int]) -> None:
        device = self.touch(event)
        if self.take(event) and NAME[event["kind"]] != "seed_segment":
            self.defects["unmatched_segments"] += 1  # a free was never seen
        self.segments[device].append(pages_of(event))
        self.count(device, "reserved_bytes", event["size"])
        self.count(device, "segments", 1)

    on_segment_map = on_segment_alloc
    on_seed_segment = on_segment_alloc

    def on_segment_free(self, event: dict[str, int]) -> None:
        if self.take(event) * PAGE != event["size"]:
            self.defects["unmatched_segments"] += 1

    on_segment_unmap = on_segment_free

    def take(self, event: dict[str, int]) -> int:
        """Forget the event's pages; returns how many were there."""
        device = event["device"]
        before, gone = self.segments[device], pages_of(event)
        after, taken = [], 0
        for pages in before:
            taken += len(pages & gone)
            after += runs(pages - gone)
        self.segments[device] = after
        self.count(device, "reserved_bytes", -taken * PAGE)
        self.count(device, "segments", len(after) - len(before))
        return taken

    # -- what threads do

    def on_op_begin(self, event: dict[str, int]) -> None:
        outer = self.ops[event["thread"]]
        op = {
            "op": event["op"],
            "flags": event["flags"],
            "number": (event["stream"], event["address"]),
            "forward": (NO_INDEX,) * 3,
        }
        sequence = event["address"]
        if sequence != NO_SEQUENCE and event["flags"] & BACKWARD_OP:
            op["forward"] = self.forward_of(event["size"], sequence)
        elif sequence != NO_SEQUENCE and not any(
            op["number"] == other["number"] and not other["flags"] & BACKWARD_OP
            for other in outer
        ):
            # The last outermost op that was called with a number made its node.
            made = (event["op"], event["module"], event["stack"])
            self.op_of[op["number"]] = made
        outer.append(op)

    def forward_of(self, thread: int, sequence: int) -> Any:
        """Return what made a backward node: op, module, stack."""
        if (thread, sequence) in self.op_of:
            return self.op_of[thread, sequence]
        # Else the innermost module whose forward spanned the number.
        spans = [
            span
            for span in self.spans
            if span["thread"] == thread and span["low"] <= sequence < span["high"]
        ]
        still_open = [s for s in self.open_spans[thread] if s["low"] <= sequence]
        found = NO_INDEX
        if spans:
            found = min(spans, key=lambda s: s["high"] - s["low"])["module"]
        elif still_open:
            found = still_open[-1]["module"]
        return NO_INDEX, found, NO_INDEX

    def on_op_end(self, event: dict[str, int]) -> None:
        ops = self.ops[event["thread"]]
        for place in reversed(range(len(ops))):
            op = ops[place]
            if op["op"] == event["op"]:
                del ops[place:]
                if ops and op["flags"] & BACKWARD_OP and known(op["forward"]):
                    ops[-1]["forward"] = op["forward"]  # the engine's frame
                return

    def on_region_begin(self, event: dict[str, int]) -> None:
        self.regions[event["thread"]].append(event["op"])

    def on_region_end(self, event: dict[str, int]) -> None:
        regions = self.regions[event["thread"]]
        if event["op"] in regions:
            last = len(regions) - 1 - regions[::-1].index(event["op"])
            del regions[last]

    def on_module_begin(self, event: dict[str, int]) -> None:
        count, root = self.forwards[event["thread"]]
        if root == NO_INDEX:
            self.forwards[event["thread"]] = count + 1, event["module"]
        self.open_spans[event["stream"]].append(
            {"low": event["address"], "module": event["module"]}
        )

    def on_module_end(self, event: dict[str, int]) -> None:
        count, root = self.forwards[event["thread"]]
        if root == event["module"]:
            self.forwards[event["thread"]] = count, NO_INDEX
        spans = self.open_spans[event["stream"]]
        while spans:
            span = spans.pop()
            if span["module"] == event["module"]:
                span.update(thread=event["stream"], high=event["address"])
                self.spans.append(span)
                return

    # -- what the session says

    def on_role(self, event: dict[str, int]) -> None:
        life = self.alive.get((event["device"], event["address"]))
        if life is not None and RANK[event["size"]] > RANK[life["role"]]:
            life["role"], life["owner"] = event["size"], event["op"]

    def on_shape(self, event: dict[str, int]) -> None:
        life = self.alive.get((event["device"], event["address"]))
        if life is None or life["died_event"] >= 0 or event["size"] > life["size"]:
            return
        in_its_op = bool(life["flags"] & event["flags"] & IN_OP) and (
            (life["thread"], life["op_instance"])
            == (event["thread"], event["op_instance"])
        )
        if (
            life["shape"] == NO_INDEX
            or event["size"] > life["shape_bytes"]
            or (event["size"] == life["shape_bytes"] and in_its_op)
        ):
            life["shape"], life["shape_bytes"] = event["op"], event["size"]

    def on_seed_origin(self, event: dict[str, int]) -> None:
        life = self.alive.get((event["device"], event["address"]))
        if life is not None and life["born_ns"] < 0:
            life["forward_op"] = event["op"]
            life["forward_module"] = event["module"]
            life["forward_stack"] = event["stack"]
            life["region"] = event["op_instance"]

    def begin_step_row(self, device: int, event: dict[str, int]) -> None:
        stats = self.stats[device]
        row = {
            "number": self.step,
            "device": device,
            "recorded": self.recorded,
            "begin_event": self.now,
            "end_event": -1,
            "begin_ns": event["time_ns"],
            "end_ns": -1,
            "requested_bytes_at_end": stats["requested_bytes"]["current"],
            "allocated_total": 0,
        }
        for name in ("requested_bytes", "active_bytes", "reserved_bytes"):
            row[f"{name}_peak"] = stats[name]["current"]
        self.steps.append(row)
        self.open_step[device] = row

    def end_step_rows(self, event: dict[str, int]) -> None:
        for device, row in self.open_step.items():
            row["end_event"] = self.now
            row["end_ns"] = event["time_ns"]
            row["requested_bytes_at_end"] = self.stats[device]["requested_bytes"][
                "current"
            ]
        self.open_step = {}

    def on_step(self, event: dict[str, int]) -> None:
        if event["address"] != SESSION:
            return
        self.end_step_rows(event)
        self.step = event["size"]
        for device in sorted(self.stats):
            self.begin_step_row(device, event)

    def on_window_begin(self, event: dict[str, int]) -> None:
        if event["address"] == SESSION:
            self.recorded = 1
            for row in self.open_step.values():
                row["recorded"] = 1

    def on_window_end(self, event: dict[str, int]) -> None:
        if event["address"] == SESSION:
            self.end_step_rows(event)
            self.recorded = 0

    # -- answers

    def live_at(self, event: int, device: int) -> list[dict[str, Any]]:
        """Return the lives of DEVICE that are alive after EVENT."""
        return [
            life
            for life in self.lives
            if life["device"] == device
            and life["born_event"] <= event
            and (life["died_event"] < 0 or life["died_event"] > event)
        ]


def known(forward: tuple[int, int, int]) -> bool:
    """Return whether an op's forward, or at least its module, is known."""
    op, module, _ = forward
    return op != NO_INDEX or module != NO_INDEX


def pages_of(event: dict[str, int]) -> set[int]:
    """Return the numbers of the pages that a segment's event speaks of."""
    first = event["address"] // PAGE
    return set(range(first, first + event["size"] // PAGE))


def runs(pages: set[int]) -> list[set[int]]:
    """Cut a set of page numbers into stretches without a gap."""
    found: list[set[int]] = []
    for page in sorted(pages):
        if found and page - 1 in found[-1]:
            found[-1].add(page)
        else:
            found.append({page})
    return found
