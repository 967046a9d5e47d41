"""Perfetto track events: decoded on their own, every reference followed.

The field numbers are those of Perfetto's protos; a field that we do not write is an
error, so that a slip in a number is seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wire import WireError, double, fields, message, signed

PACKET = {8: 0, 10: 0, 11: 2, 12: 2, 13: 0, 60: 2}
TRACK = {1: 0, 2: 2, 5: 0, 8: 2, 11: 0, 12: 0, 14: 2}
COUNTER = {3: 0, 7: 2}
EVENT = {3: 0, 4: 2, 9: 0, 10: 0, 11: 0, 30: 0, 47: 1, 48: 1, 56: 0, 57: 1}
ARG = {1: 0, 4: 0, 6: 2}
INTERNED = {1: 2, 2: 2, 3: 2, 5: 2, 6: 2, 7: 2, 18: 2}
TEXT = {1: 0, 2: 2}
FRAME = {1: 0, 2: 0, 5: 0, 6: 0}
CALLSTACK = {1: 0, 2: 0}
BEGIN, END, INSTANT, SAMPLE = 1, 2, 3, 4
SIZE_BYTES, EXPLICIT = 3, 3


@dataclass
class Track:
    """A track and what happens on it."""

    uuid: int
    name: str
    parent: int
    rank: int
    explicit: bool
    counter: dict[str, Any] | None
    description: str
    events: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Reader:
    """The state of a sequence of packets."""

    wrong: list[str] = field(default_factory=list)
    tracks: dict[int, Track] = field(default_factory=dict)
    interned: dict[int, dict[int, Any]] = field(
        default_factory=lambda: {number: {} for number in INTERNED}
    )
    packets: int = 0

    def say(self, what: str) -> None:
        """Note what is wrong with the current packet."""
        self.wrong.append(f"packet {self.packets}: {what}")

    def known(self, kind: int, iid: int) -> Any:
        """Return what an interned id stands for."""
        if iid not in self.interned[kind]:
            self.say(f"id {iid} of kind {kind} is not defined before its use")
            return None
        return self.interned[kind][iid]


def one(found: dict[int, list[Any]], number: int, default: Any = 0) -> Any:
    """Return a field that is there at most once."""
    values = found[number]
    if len(values) > 1:
        raise WireError(f"field {number} is there {len(values)} times")
    return values[0] if values else default


def check_pftrace(content: bytes) -> list[str]:
    """Return what is wrong with a file, nothing if it is right."""
    return read(content)[1]


def read(content: bytes) -> tuple[dict[int, Track], list[str]]:
    """Return the tracks by uuid, and what is wrong with the file."""
    reader = Reader()
    try:
        for number, kind, packet in fields(content):
            if (number, kind) != (1, 2):
                raise WireError(f"field {number} beside the packets")
            _packet(reader, packet)  # type: ignore[arg-type]
            reader.packets += 1
    except (WireError, UnicodeDecodeError) as error:
        reader.say(str(error))
        return reader.tracks, reader.wrong
    for track in reader.tracks.values():
        reader.wrong += [f"track {track.name!r}: {what}" for what in _track(track)]
    _flows(reader)
    _sums(reader)
    return reader.tracks, reader.wrong


def _packet(reader: Reader, content: bytes) -> None:
    found: dict[int, list[Any]] = message(content, PACKET)
    if one(found, 10) != 1:
        reader.say(f"sequence {one(found, 10)}")
    flags = one(found, 13)
    if flags != (3 if reader.packets == 0 else 2):
        reader.say(f"flags {flags}")
    for part in found[12]:
        _interned(reader, part)
    if len(found[11]) + len(found[60]) != 1:
        reader.say("it is neither a track nor an event, or both")
    for part in found[60]:
        _descriptor(reader, part)
    for part in found[11]:
        if not found[8]:
            reader.say("an event has no time")
        _event(reader, part, signed(one(found, 8)))


def _interned(reader: Reader, content: bytes) -> None:
    # In order, as a frame must come before its stack.
    for number, _, part in fields(content):
        if number not in INTERNED:
            raise WireError(f"interned field {number}")
        if number == 6:
            row: dict[int, list[Any]] = message(part, FRAME)  # type: ignore[arg-type]
            function = reader.known(5, one(row, 2))
            file = reader.known(18, one(row, 5)) if row[5] else ""
            value: Any = (function, file, one(row, 6))
        elif number == 7:
            row = message(part, CALLSTACK)  # type: ignore[arg-type]
            value = tuple(reader.known(6, iid) for iid in row[2])
            if not value:
                reader.say("a callstack is empty")
        else:
            row = message(part, TEXT)  # type: ignore[arg-type]
            value = one(row, 2, b"").decode("utf-8")
        iid = one(row, 1)
        if iid == 0 or iid in reader.interned[number]:
            reader.say(f"id {iid} of kind {number} is 0 or there already")
        reader.interned[number][iid] = value


def _descriptor(reader: Reader, content: bytes) -> None:
    found: dict[int, list[Any]] = message(content, TRACK)
    uuid, parent = one(found, 1), one(found, 5)
    if uuid == 0 or uuid in reader.tracks:
        reader.say(f"track {uuid} is 0 or there already")
    if parent:
        above = reader.tracks.get(parent)
        if above is None:
            reader.say(f"the parent {parent} is not there before its child")
        elif not above.explicit:
            reader.say(f"the order of the children of {above.name!r} is not told")
    elif reader.tracks:
        reader.say("a second track without a parent")
    counter = None
    if found[8]:
        told: dict[int, list[Any]] = message(one(found, 8), COUNTER)
        counter = {"unit": one(told, 3), "share": one(told, 7, b"").decode("utf-8")}
        if counter != {"unit": SIZE_BYTES, "share": "bytes"}:
            reader.say(f"the counter is {counter}")
    reader.tracks[uuid] = Track(
        uuid,
        one(found, 2, b"").decode("utf-8"),
        parent,
        signed(one(found, 12)),
        one(found, 11) == EXPLICIT,
        counter,
        one(found, 14, b"").decode("utf-8"),
    )


def _event(reader: Reader, content: bytes, time: int) -> None:
    found: dict[int, list[Any]] = message(content, EVENT)
    track = reader.tracks.get(one(found, 11))
    if track is None:
        reader.say(f"there is no track {one(found, 11)}")
        return
    event: dict[str, Any] = {"time": time, "type": one(found, 9)}
    if found[30]:
        event["value"] = signed(one(found, 30))
    if found[10]:
        event["name"] = reader.known(2, one(found, 10))
    if found[3]:
        event["category"] = reader.known(1, one(found, 3))
    event["args"] = {}
    for part in found[4]:
        arg: dict[int, list[Any]] = message(part, ARG)
        name = reader.known(3, one(arg, 1))
        if len(arg[4]) + len(arg[6]) != 1 or name in event["args"]:
            reader.say(f"argument {name!r} has no one value")
            continue
        event["args"][name] = signed(arg[4][0]) if arg[4] else arg[6][0].decode("utf-8")
    for key, number in (("flow", 47), ("flow_ends", 48)):
        if found[number]:
            event[key] = int.from_bytes(one(found, number), "little")
    if found[56]:
        event["stack"] = reader.known(7, one(found, 56))
    if found[57]:
        event["weight"] = double(one(found, 57))
    if ("stack" in event) != ("weight" in event):
        reader.say("a stack without a weight, or a weight without a stack")
    track.events.append(event)


def _track(track: Track) -> list[str]:
    """Return what is wrong on one track."""
    wrong = []
    times = [event["time"] for event in track.events]
    if times != sorted(times):
        wrong.append("times fall")
    if track.explicit and track.events:
        wrong.append("a group has events")
    if track.counter is not None:
        if {event["type"] for event in track.events} - {SAMPLE}:
            wrong.append("a counter has other events than samples")
        if any(event.get("value", -1) < 0 for event in track.events):
            wrong.append("a sample is below 0, or has no value")
        if not track.events:
            wrong.append("a counter has no sample")
        return wrong
    depth = 0
    weighted = set()
    for event in track.events:
        if event["type"] == BEGIN:
            depth += 1
        elif event["type"] == END:
            depth -= 1
            if depth < 0:
                wrong.append("an end without a begin")
        elif event["type"] != INSTANT:
            wrong.append(f"an event of type {event['type']}")
        if event["type"] != END:
            weighted.add("weight" in event)
            if not event.get("name") or not event.get("category"):
                wrong.append("a begin has no name or category")
        elif "weight" in event or event["args"]:
            wrong.append("an end has a weight or arguments")
    if depth > 0:
        wrong.append(f"{depth} begins have no end")
    if len(weighted) > 1:
        wrong.append("some events have weights and some have none")
    return wrong


def _flows(reader: Reader) -> None:
    begins: list[int] = []
    ends: list[int] = []
    for track in reader.tracks.values():
        begins += [event["flow"] for event in track.events if "flow" in event]
        ends += [event["flow_ends"] for event in track.events if "flow_ends" in event]
    for name, flows in (("begins", begins), ("ends", ends)):
        if len(set(flows)) != len(flows):
            reader.wrong.append(f"an arrow {name} twice")
    if set(begins) != set(ends):
        reader.wrong.append("arrows have no begin or no end")


def _sums(reader: Reader) -> None:
    """Check that the categories of a device sum to what is allocated, always."""
    groups: dict[int, list[Track]] = {}
    for track in reader.tracks.values():
        groups.setdefault(track.parent, []).append(track)
    for siblings in groups.values():
        ranks = {}
        for track in siblings:
            if ranks.setdefault(track.rank, track.name) != track.name:
                reader.wrong.append(f"two names have the rank {track.rank}")
        level: dict[str, int] = {}
        changes: dict[int, dict[str, int]] = {}
        for track in siblings:
            if track.counter is not None:
                for event in track.events:
                    # The last one of a time stays.
                    changes.setdefault(event["time"], {})[track.name] = event["value"]
        for time in sorted(changes):
            level.update(changes[time])
            parts = sum(v for name, v in level.items() if name.startswith("cat/"))
            if parts != level.get("allocated"):
                reader.wrong.append(
                    f"at {time} the categories sum to {parts}, not "
                    f"{level.get('allocated')}"
                )
                break
