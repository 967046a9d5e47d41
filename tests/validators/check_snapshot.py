"""Is it a snapshot that MemoryViz shows?  ``check_snapshot(bytes) -> list[str]``.

The page's own script is in no torch wheel, so what it does with a snapshot is
modelled here: how it folds frees, walks back from the final state, joins mapped
segments, and what makes it throw (docs/formats/snapshot.md).
"""

from __future__ import annotations

import pickle
import pickletools
from typing import Any

_OPCODES = """
PROTO FRAME MARK STOP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT
SHORT_BINUNICODE BINUNICODE EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2
TUPLE3 APPEND APPENDS SETITEM SETITEMS MEMOIZE BINPUT BINGET LONG_BINPUT LONG_BINGET
"""
ALLOWED = set(_OPCODES.split())
BATCH = 1000
INTS = 1 << 53
PIXELS = 10  # colours, and so categories
BLOCK_ACTIONS = ("alloc", "free_requested", "free_completed")
SEGMENT_ACTIONS = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")
STATES = ("active_allocated", "active_pending_free", "inactive")


def check_snapshot(data: bytes) -> list[str]:
    """Return what is wrong with a snapshot; [] if nothing is."""
    wrong = check_opcodes(data)
    if wrong:
        return wrong
    snapshot = pickle.loads(data)  # plain values: the opcodes were looked at
    wrong += check_shape(snapshot)
    if wrong:
        return wrong
    wrong += check_categories(snapshot)
    for device, trace in enumerate(snapshot["device_traces"]):
        segments = [s for s in snapshot["segments"] if s["device"] == device]
        wrong += [f"device {device}: {text}" for text in check_device(segments, trace)]
    return wrong


# -- the pickle -----------------------------------------------------------------


def check_opcodes(data: bytes) -> list[str]:
    """Return what the page's reader of pickles would stumble over."""
    wrong: list[str] = []
    depth, marks, end = 0, [], 0
    for opcode, argument, at in pickletools.genops(data):
        name = opcode.name
        end = at + 1
        if name not in ALLOWED:
            wrong.append(f"opcode {name} at {at}")
        if name == "PROTO" and argument != 4:
            wrong.append(f"protocol {argument}")
        if isinstance(argument, int) and name in ("BININT", "LONG1"):
            if not -INTS < argument < INTS:
                wrong.append(f"{argument} at {at} is 2^53 or more")
        if name == "MARK":
            marks.append(depth)
        elif name in ("APPENDS", "SETITEMS"):
            items = depth - marks.pop()
            depth -= items
            items //= 1 if name == "APPENDS" else 2
            if items > BATCH:
                wrong.append(f"a batch of {items} at {at}")
        elif name == "TUPLE":
            depth = marks.pop() + 1
        elif name in ("APPEND", "SETITEM"):
            depth -= 1 if name == "APPEND" else 2
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            depth += 1 - int(name[-1])
        elif name not in ("PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"):
            depth += 1
    if depth != 1 or marks:
        wrong.append(f"{depth} values and {len(marks)} marks at the end")
    if end != len(data):
        wrong.append(f"{len(data) - end} bytes behind the end")
    return wrong


# -- the shape ------------------------------------------------------------------


def is_int(value: Any) -> bool:
    """Whether it is an int and no bool."""
    return type(value) is int


def check_shape(snapshot: Any) -> list[str]:
    """Return which keys are missing or hold what they must not."""
    wrong: list[str] = []
    for key, kind in (
        ("segments", list),
        ("device_traces", list),
        ("allocator_settings", dict),
        ("external_annotations", list),
    ):
        if not isinstance(snapshot.get(key), kind):
            wrong.append(f"{key} is no {kind.__name__}")
    if wrong:
        return wrong
    seen: dict[tuple[Any, ...], int] = {}
    for segment in snapshot["segments"]:
        wrong += check_segment(segment, len(snapshot["device_traces"]), seen)
    for trace in snapshot["device_traces"]:
        for entry in trace:
            wrong += check_entry(entry, seen)
    for note in snapshot["external_annotations"]:
        if set(note) != {"name", "stage", "device", "time_us"}:
            wrong.append(f"an annotation has the keys {sorted(note)}")
        elif note["stage"] not in ("START", "END") or not is_int(note["time_us"]):
            wrong.append(f"an annotation is {note}")
    return wrong


def check_segment(
    segment: dict[str, Any], devices: int, seen: dict[tuple[Any, ...], int]
) -> list[str]:
    """Return what is wrong with a segment of the end; rules 4 and 5."""
    wrong: list[str] = []
    ints = "device address total_size allocated_size active_size requested_size stream"
    for key in ints.split():
        if not is_int(segment.get(key)):
            wrong.append(f"a segment's {key} is {segment.get(key)!r}")
    if wrong:
        return wrong
    if not 0 <= segment["device"] < devices:
        wrong.append(f"a segment is of device {segment['device']}")
    if segment["segment_type"] not in ("large", "small"):
        wrong.append(f"segment_type {segment['segment_type']!r}")
    if not isinstance(segment["is_expandable"], bool):
        wrong.append("is_expandable is no bool")
    pool = segment["segment_pool_id"]
    if not (isinstance(pool, tuple) and len(pool) == 2 and all(map(is_int, pool))):
        wrong.append(f"segment_pool_id {pool!r}")
    wrong += check_frames(segment["frames"], seen)
    at, sums = segment["address"], dict.fromkeys(STATES, 0)
    requested = 0
    for block in segment["blocks"]:
        if block["state"] not in STATES:
            wrong.append(f"state {block['state']!r}")
            continue
        if block["address"] != at:
            wrong.append(f"a block at {block['address']}, but sizes lead to {at}")
        if not (is_int(block["size"]) and is_int(block["requested_size"])):
            wrong.append("a block without sizes: totals are NaN")
            continue
        wrong += check_frames(block["frames"], seen)
        wrong += check_metadata(block.get("user_metadata", {}))
        sums[block["state"]] += block["size"]
        requested += block["requested_size"]
        at += block["size"]
    if at != segment["address"] + segment["total_size"]:
        wrong.append(f"blocks end at {at}, not with their segment")
    active = sums["active_allocated"] + sums["active_pending_free"]
    told = tuple(segment[f"{n}_size"] for n in ("allocated", "active", "requested"))
    if told != (sums["active_allocated"], active, requested):
        wrong.append(f"the sizes of a segment are {told}")
    return wrong


def check_entry(entry: dict[str, Any], seen: dict[tuple[Any, ...], int]) -> list[str]:
    """Return what is wrong with an entry of a trace; rule 5."""
    wrong: list[str] = []
    action = entry.get("action")
    if action not in (*BLOCK_ACTIONS, *SEGMENT_ACTIONS, "oom", "snapshot"):
        wrong.append(f"action {action!r}")
    needed = ["stream", "time_us", "size"]
    needed.append("device_free" if action == "oom" else "addr")
    for key in needed:
        if not is_int(entry.get(key)) or entry[key] < 0:
            wrong.append(f"{action}: {key} is {entry.get(key)!r}")
    wrong += check_frames(entry.get("frames"), seen)
    wrong += check_metadata(entry.get("user_metadata", {}))
    lines = entry.get("forward_frames", [])
    if not all(isinstance(line, str) for line in lines):
        wrong.append("forward_frames are no texts")
    return wrong


def check_frames(frames: Any, seen: dict[tuple[Any, ...], int]) -> list[str]:
    """Return what is wrong with a stack; equal frames must be one dict."""
    if not isinstance(frames, list):
        return [f"frames are {type(frames).__name__}"]
    wrong: list[str] = []
    for frame in frames:
        if not isinstance(frame, dict) or not (
            isinstance(frame.get("filename"), str)
            and isinstance(frame.get("name"), str)
            and is_int(frame.get("line"))
        ):
            wrong.append(f"a frame is {frame!r}")
            continue
        key = (frame["filename"], frame["line"], frame["name"])
        if seen.setdefault(key, id(frame)) != id(frame):
            wrong.append(f"the frame {key} is there twice")
    return wrong


def check_metadata(metadata: Any) -> list[str]:
    """Return what is wrong with user_metadata: a text, or flat."""
    if isinstance(metadata, str):
        return []
    if not isinstance(metadata, dict):
        return [f"user_metadata is {type(metadata).__name__}"]
    plain = (str, int, float, bool, type(None))
    return [
        f"user_metadata[{key!r}] is {type(value).__name__}"
        for key, value in metadata.items()
        if not (isinstance(key, str) and isinstance(value, plain))
    ]


# -- what the page makes of it ---------------------------------------------------


def folded(trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the trace as the page has it: a request that is directly followed by
    its completion becomes one ``free``."""
    out: list[dict[str, Any]] = []
    for entry in trace:
        last = out[-1] if out else None
        if (
            entry["action"] == "free_completed"
            and last is not None
            and last["action"] == "free_requested"
            and last["addr"] == entry["addr"]
        ):
            last["action"] = "free"
        else:
            out.append(dict(entry))
    return out


def check_categories(snapshot: dict[str, Any]) -> list[str]:
    """Rule 1: what the page sees must have ``unknown`` if it has anything."""
    seen: list[str] = []
    for trace in snapshot["device_traces"]:
        for entry in folded(trace):
            if entry["action"] in ("alloc", "free_requested", "free"):
                if "category" in entry and entry["category"] not in seen:
                    seen.append(entry["category"])
    if seen and "unknown" not in seen:
        return ["no category is unknown: the page throws"]
    return [f"{len(seen)} categories"] if len(seen) > PIXELS else []


class Segments:
    """The page's list of segments, sorted by address: [address, size, stream]."""

    def __init__(self, segments: list[dict[str, Any]]) -> None:
        self.all = sorted(
            [s["address"], s["total_size"], s["stream"]] for s in segments
        )

    def find(self, address: int) -> bool:
        """Whether there is one for a block."""
        return any(at <= address < at + size for at, size, _ in self.all)

    def add(self, entry: dict[str, Any], merge: bool) -> None:
        """Put one in, joined with its neighbours if it is mapped."""
        new = [entry["addr"], entry["size"], entry["stream"]]
        index = sum(other[0] <= new[0] for other in self.all)
        self.all.insert(index, new)
        if not merge:
            return
        if index + 1 < len(self.all):
            after = self.all[index + 1]
            if new[0] + new[1] == after[0] and new[2] == after[2]:
                new[1] += after[1]
                del self.all[index + 1]
        if index > 0:
            before = self.all[index - 1]
            if before[0] + before[1] == new[0] and before[2] == new[2]:
                before[1] += new[1]
                del self.all[index]

    def take(self, entry: dict[str, Any], merge: bool) -> str | None:
        """Take one out, or pages of one; a text: the page does nonsense."""
        begin, end = entry["addr"], entry["addr"] + entry["size"]
        for index, (at, size, stream) in enumerate(self.all):
            if not merge and at == begin:
                del self.all[index]
                return None if size == entry["size"] else f"{at} has {size} bytes"
            if merge and at <= begin and end <= at + size:
                rest = [
                    [a, b - a, stream]
                    for a, b in ((at, begin), (end, at + size))
                    if b > a
                ]
                self.all[index : index + 1] = rest
                return None
        return f"no segment at {begin}"


def check_device(final: list[dict[str, Any]], trace: list[dict[str, Any]]) -> list[str]:
    """Replay backwards from the final state, then forwards again; rules 2 to 4."""
    wrong: list[str] = []
    segments, blocks = Segments(final), state(final)
    for low, high in zip(segments.all, segments.all[1:], strict=False):
        if low[0] + low[1] > high[0]:
            wrong.append(f"segments at {low[0]} and {high[0]} overlap")
    events = folded(trace)
    for index in range(len(events) - 1, -1, -1):
        wrong += homeless(segments, blocks, f"after entry {index}")
        wrong += undo(segments, blocks, events[index], index)
        if len(wrong) > 20:
            return wrong
    wrong += homeless(segments, blocks, "at the beginning")
    start = {address: list(block) for address, block in blocks.items()}
    for index, event in enumerate(events):
        wrong += redo(segments, blocks, event, index)
    if blocks != state(final):
        wrong.append("going forward does not lead to the final blocks")
    if segments.all != Segments(final).all:
        wrong.append("going forward does not lead to the final segments")
    for address, block in start.items():
        if block[2] and not any(
            e["action"] == "free_completed" and e["addr"] == address for e in events
        ):
            if blocks.get(address) != block:
                wrong.append(f"the pending block {address} never ends")
    return wrong


def state(segments: list[dict[str, Any]]) -> dict[int, list[Any]]:
    """Return the live blocks: address -> [bytes, frames, its free was asked for]."""
    return {
        block["address"]: [
            block["requested_size"],
            block["frames"],
            block["state"] == "active_pending_free",
        ]
        for segment in segments
        for block in segment["blocks"]
        if block["state"] != "inactive"
    }


def homeless(segments: Segments, blocks: dict[int, list[Any]], when: str) -> list[str]:
    """Rule 4: the page looks up the segment of each live block."""
    return [
        f"{when} the block {address} lies in no segment"
        for address in blocks
        if not segments.find(address)
    ]


def undo(
    segments: Segments, blocks: dict[int, list[Any]], event: dict[str, Any], index: int
) -> list[str]:
    """Take back one event."""
    action, address = event["action"], event.get("addr")
    if action in ("oom", "snapshot"):
        return []
    if action in ("segment_alloc", "segment_map"):
        found = segments.take(event, action == "segment_map")
        return [f"entry {index}, undone: {found}"] if found else []
    if action in ("segment_free", "segment_unmap"):
        segments.add(event, action == "segment_unmap")
        return []
    block = blocks.get(address)
    told = [event["size"], event["frames"]]
    if action == "alloc":
        blocks.pop(address, None)
        if block is None or block != [*told, False]:
            return [
                f"entry {index}: the alloc of {address} is {told}, there is {block}"
            ]
    elif action == "free_requested":
        if block is None or block != [*told, True]:
            return [f"entry {index}: the free of {address} is {told}, there is {block}"]
        block[2] = False
    else:  # free, free_completed
        if block is not None:
            return [f"entry {index}: {address} is still there after its {action}"]
        blocks[address] = [*told, action == "free_completed"]
    return []


def redo(
    segments: Segments, blocks: dict[int, list[Any]], event: dict[str, Any], index: int
) -> list[str]:
    """Do one event."""
    action, address = event["action"], event.get("addr")
    if action in ("segment_alloc", "segment_map"):
        segments.add(event, action == "segment_map")
    elif action in ("segment_free", "segment_unmap"):
        found = segments.take(event, action == "segment_unmap")
        return [f"entry {index}: {found}"] if found else []
    elif action == "alloc":
        if address in blocks:
            return [f"entry {index}: {address} is made twice"]
        blocks[address] = [event["size"], event["frames"], False]
    elif action in ("free", "free_requested", "free_completed"):
        block = blocks.get(address)
        if block is None:
            return [f"entry {index}: the {action} of {address}, which is not there"]
        if block[2] != (action == "free_completed"):
            return [f"entry {index}: {action} of {address}, asked for: {block[2]}"]
        if action == "free_requested":
            block[2] = True
        else:
            del blocks[address]
    return []
