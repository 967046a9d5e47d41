"""What a page holds of one device: columns of lives, events and segments.

Events are numbered anew: only those at which memory of the device changed count,
and the page's event ``i`` stands for the state from it until event ``i + 1``.
What says where and why a block was made is its *site*: a row of ids, the same for
all blocks that came the same way, so a block is six numbers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from memprof import _core
from memprof.devices import device_name
from memprof.ends import End, _Fact, _Teller, ends
from memprof.groups import dense_codes
from memprof.moment import _Columns, places
from memprof.reports.columns import Column, column
from memprof.reports.page_fold import Chosen, by_site, choose, deltas
from memprof.reports.shown_paths import shown_path, shown_place
from memprof.rows import NO_INDEX, Ints, Rows

if TYPE_CHECKING:
    from memprof.recording import Recording

ALIVE = 0xFFFFFFFF
"""A death that was not seen."""

SEEDED, MAPPED = 1, 2
"""Of a segment: it was there before; it is pages of an expandable one."""

MANY_OPS = 1_500_000
"""So many ops are followed to find what blocks were saved for; more take long."""

COARSE = 1_500  # columns of the first picture

_ALLOC, _OOM = 1, 8
_MAP, _SEED, _PENDING = 6, 48, 8
_SEGMENT_BORN, _SEGMENT_DIED = (4, _MAP, _SEED), (5, 7)
_OP_BEGIN, _OP_END = 16, 17
_IN_OP = 0x20

# Fields of a life that its site's texts depend on.
_SITE_FIELDS = (
    *("stack", "forward_stack", "module", "forward_module", "op", "owner", "role"),
    *("phase", "shape", "region", "stream", "pool", "reason", "thread"),
)
# What the page groups by; ``thread`` is a number.
_TEXT_KEYS = ("module", "op", "line", "function", "owner", "shape", "region", "label")


class Names:
    """Texts, frames and stacks behind small numbers, shared by all devices."""

    def __init__(self, recording: Recording, paths: str) -> None:
        """Begin with the empty text as number 0 and no stack as number 0."""
        self._recording = recording
        self._paths = paths
        self._places = places(recording)
        self.texts: list[str] = [""]
        self._text: dict[str, int] = {"": 0}
        self.frames: list[tuple[int, int, int]] = []  # function, file, line
        self._frame: dict[tuple[int, int, int], int] = {}
        self.nodes: list[tuple[int, int]] = [(0, 0)]  # parent, frame
        self._node: dict[tuple[int, int], int] = {}
        self._stacks: dict[int, int] = {}
        self._files: dict[str, tuple[int, int]] = {}
        self.libraries: list[int] = []  # frames that are torch's or memprof's
        self.sources: list[tuple[str, int]] = []  # of frames, where they lie

    def text(self, text: str) -> int:
        """Return the number of a text."""
        number = self._text.get(text)
        if number is None:
            number = self._text[text] = len(self.texts)
            self.texts.append(text)
        return number

    def place(self, place: str) -> int:
        """Return the number of ``file:line``, as it may be shown."""
        return self.text(shown_place(place, self._paths))

    def stack(self, stack: int) -> int:
        """Return the trie node of a stack id's innermost frame."""
        found = self._stacks.get(stack)
        if found is None:
            found = 0
            for function, file, line in reversed(self._recording._core.stack(stack)):
                found = self._child(found, self._frame_of(function, file, line))
            self._stacks[stack] = found
        return found

    def _frame_of(self, function: str, file: str, line: int) -> int:
        if file not in self._files:
            whole = file if self._paths != "relative" else self._places.shown(file)
            shown = self.text(shown_path(whole, self._paths))
            self._files[file] = shown, int(self._places.is_library(file))
        number, library = self._files[file]
        key = self.text(function), number, line
        found = self._frame.get(key)
        if found is None:
            found = self._frame[key] = len(self.frames)
            self.frames.append(key)
            self.libraries.append(library)
            self.sources.append((file, line))
        return found

    def _child(self, parent: int, frame: int) -> int:
        key = parent, frame
        node = self._node.get(key)
        if node is None:
            node = self._node[key] = len(self.nodes)
            self.nodes.append(key)
        return node


class Device:
    """The blocks ``allocs``, ``events`` and ``addr`` of one device."""

    def __init__(
        self,
        recording: Recording,
        number: int,
        names: Names,
        keep: int | None = None,
    ) -> None:
        """Number the events anew and gather the columns.

        Args:
            recording: the recording.
            number: of the device.
            names: texts, frames and stacks.
            keep: so many lives, about, are kept; None: all.
        """
        self.recording, self.number, self.names = recording, number, names
        self.name = device_name(number)
        self.notes: list[str] = []
        lives = recording.allocations(self.name)
        born = lives["born_event"]
        if (np.diff(born) < 0).any():  # seeds may come between births
            lives = lives[np.argsort(born, kind="stable")]
        samples = recording._sampled(number, 0)
        self.fold: Chosen | None = None
        self.folded: Rows = lives[:0]
        if keep is not None:
            peak = recording.peak(self.name).event
            self.fold = choose(recording, lives, samples, peak, keep)
            self.folded = lives[~self.fold.kept]
            lives = lives[self.fold.kept]
        self.lives: Rows = lives
        events = recording.events()
        mine = events["device"] == number
        kind = events["kind"]
        self._segment_events = np.flatnonzero(
            mine & np.isin(kind, (*_SEGMENT_BORN, *_SEGMENT_DIED))
        )
        self.oom_events = np.flatnonzero(mine & (kind == _OOM))
        marked = np.zeros(len(events), np.bool_)
        self._born = self.lives["born_event"].astype(np.int64)
        self._died = self.lives["died_event"].astype(np.int64)
        steady = samples.event[np.flatnonzero(np.diff(samples.bytes[:, 2])) + 1]
        for found in (self._born, self._died, steady, self.oom_events):
            marked[found[found >= 0]] = True
        if self.fold is not None:
            marked[self.fold.marked] = True
        self.event: Ints = np.flatnonzero(marked)
        self._rank = np.cumsum(marked, dtype=np.int64) - 1
        self._reserved = None if number < 0 else (steady, samples)

    def rank(self, events: Any) -> Ints:
        """Return the page's event at each of EVENTS; -1: before the first."""
        asked = np.asarray(events, np.int64)
        if not len(self._rank):
            return np.full(asked.shape, -1, np.int64)
        inside = np.clip(asked, 0, len(self._rank) - 1)
        found: Ints = np.where(asked < 0, -1, self._rank[inside])
        return found

    # -- lives -----------------------------------------------------------------

    def allocs(self) -> list[Column]:
        """Return the columns of lives, and those of sites (``s_...``)."""
        lives, birth = self.lives, self.rank(self._born)
        death = self.rank(self._died)
        died = self._died >= 0
        values, size = np.unique(lives["size"], return_inverse=True)
        site, sites = self._sites()
        fate = self._fates()
        done = lives["completed_event"].astype(np.int64)
        until = np.where(done < 0, ALIVE, self.rank(done))
        waits = np.flatnonzero(died & (until > death))
        return [
            column("birth", birth + 1, enc="dp"),
            column("life", np.where(died, death - birth, ALIVE)),
            column("size", size.reshape(-1)),
            column("cat", lives["category"], "u8"),
            column("site", site),
            *([] if fate is None else [column("fate", fate)]),
            column("sizes", values, "f64"),
            column("wait_alloc", waits, enc="dp"),
            column("wait_until", until[waits]),
            *sites,
        ]

    def _sites(self) -> tuple[Ints, list[Column]]:
        lives, names = self.lives, self.names
        group = np.zeros(len(lives), np.int64)
        for name in _SITE_FIELDS:
            codes, values = dense_codes_of(lives[name])
            if len(values) > 1:
                group, _ = dense_codes(group * len(values) + codes)
        count = int(group.max()) + 1 if len(group) else 0
        member = np.zeros(count, np.int64)
        member[group[::-1]] = np.arange(len(group) - 1, -1, -1)  # the first of each
        rows = lives[member]
        columns = _Columns(self.recording, rows["id"].astype(np.int64))
        found = []
        for key in _TEXT_KEYS:
            codes, texts = columns.part(key)
            number = names.place if key == "line" else names.text
            ids = np.array([number(str(text)) for text in texts], np.int64)
            found.append(column(f"s_{key}", ids[codes] if len(codes) else codes))
        for key in ("stack", "forward_stack"):
            codes, ids = dense_codes_of(rows[key])
            nodes = [0 if i == NO_INDEX else names.stack(i) for i in ids.tolist()]
            nodes_array = np.array(nodes, np.int64)
            found.append(
                column(f"s_{key}", nodes_array[codes] if len(codes) else codes)
            )
        streams, stream = np.unique(rows["stream"], return_inverse=True)
        stream_names = np.array(
            [names.text(str(n)) for n in streams.tolist()], np.int64
        )
        stream = stream.reshape(-1)
        found.append(
            column("s_stream", stream_names[stream] if len(stream) else stream)
        )
        found.append(column("s_pool", rows["pool"]))
        found.append(column("s_thread", rows["thread"]))
        found += [column(f"s_{key}", rows[key], "u8") for key in ("phase", "reason")]
        return group, found

    def _fates(self) -> Ints | None:
        """Return the number of the text that says until when a block was kept."""
        recording, lives = self.recording, self.lives
        kind = recording.events()["kind"]
        ops = int(((kind == _OP_BEGIN) | (kind == _OP_END)).sum())
        if ops > MANY_OPS:
            self.notes.append(
                "what blocks were saved for is left out: the recording has "
                f"{ops} begins and ends of ops, more than {MANY_OPS}"
            )
            return None
        died = self._died[self._died >= 0]
        # Only these were inside of an op: to follow all would take long.
        inside = (recording.events()["flags"][died] & _IN_OP) != 0
        known = ends(recording, died[inside])
        at = np.array(sorted(known), np.int64)
        table = np.array([known[event] for event in at.tolist()], np.int64)
        table = np.concatenate((table.reshape(-1, 3), [[NO_INDEX] * 3]))
        place = np.searchsorted(at, self._died)
        hit = place < len(at)
        hit[hit] = at[place[hit]] == self._died[hit]
        end = table[np.where(hit, place, len(at))]
        fields: list[Any] = [
            lives[n] for n in ("role", "owner", "died_phase", "reason")
        ]
        fields += [lives[n] for n in ("phase", "module", "op", "died_in_op")]
        fields += [lives["flags"] & 4, self._died < 0, *end.T]
        group = np.zeros(len(lives), np.int64)
        for field in fields:
            codes, values = dense_codes_of(field)
            group, _ = dense_codes(group * max(len(values), 1) + codes)
        count = int(group.max()) + 1 if len(group) else 0
        member = np.zeros(count, np.int64)
        member[group] = np.arange(len(group))
        # A moment before everything: nothing has died, no step is the one asked.
        moment: Any = SimpleNamespace(event=-2, step=None, _recording=recording)
        teller = _Teller(moment, {})
        texts = []
        for i in member.tolist():
            row = lives[i]
            fact = _Fact(
                role=int(row["role"]),
                owner=int(row["owner"]),
                died_event=-1 if self._died[i] < 0 else 0,
                died_step=-1,  # of the same step as far as the words go
                died_phase=int(row["died_phase"]),
                reason=int(row["reason"]),
                phase=int(row["phase"]),
                flags=int(row["flags"]),
                module=int(row["module"]),
                op=int(row["op"]),
                died_in_op=int(row["died_in_op"]),
            )
            texts.append(self.names.text(teller.tell(fact, End(*end[i].tolist()))))
        return np.array(texts, np.int64)[group] if len(group) else group

    # -- events ----------------------------------------------------------------

    def events(self) -> list[Column]:
        """Return the columns of events: number, time, reserved bytes.

        ``gap`` is what an event's number is above the one before, ``dt`` the same
        for microseconds; the page keeps gaps, as they are: they are small.
        """
        event = self.event
        times = self.recording._times()[event] if len(event) else event
        start = int(self.recording._core.start_ns)
        us = np.maximum(times - start, 0) // 1000
        found = [
            column("gap", np.diff(event, prepend=0)),
            column("dt", np.diff(us, prepend=0), "f64" if _long(us) else "u32"),
            column("oom", self.rank(self.oom_events)),
        ]
        if self._reserved is not None:
            steady, samples = self._reserved
            level = np.searchsorted(samples.event, steady)
            bytes_ = np.concatenate((samples.bytes[:1, 2], samples.bytes[level, 2]))
            at = np.concatenate(([0], self.rank(steady) + 1))
            found += [
                column("res_event", at, enc="dp"),
                column("res_bytes", bytes_, "f64"),
            ]
        return found

    # -- what is folded --------------------------------------------------------

    def folds(self) -> list[Column]:
        """Return the columns of what folded lives add at the page's events."""
        folded = self.folded
        # The first event of the page that is not before an event.
        first = self.rank(folded["born_event"] - 1) + 1
        last = self.rank(folded["died_event"] - 1) + 1
        return deltas(folded, first, last, len(self.event))

    def told_folds(self, paths: str) -> dict[str, Any] | None:
        """Return what is said of folded lives, for JSON; None: all are kept."""
        if self.fold is None:
            return None
        return {
            "count": len(self.folded),
            "bytes": int(self.folded["size"].sum(dtype=np.uint64)),
            "size": self.fold.size,
            "events": self.fold.events,
            "whole": self.fold.whole,
            "rows": by_site(self.recording, self.folded, paths),
        }

    # -- addresses -------------------------------------------------------------

    def addresses(self) -> tuple[list[Column], dict[str, Any]] | None:
        """Return where lives and segments lie; None: that is not known.

        Address space that torch never took is left out, so that what it took
        lies side by side.  Lives outside of all segments have the number ALIVE.
        """
        if self.number < 0 or not len(self._segment_events):
            return None
        pieces = segment_pieces(self.recording.events()[self._segment_events])
        if not pieces:
            return None
        begins = np.array([piece[0] for piece in pieces], np.uint64)
        sizes = np.array([piece[1] for piece in pieces], np.uint64)
        born = self._segment_events[[piece[2] for piece in pieces]]
        seed = np.array([piece[4] & SEEDED for piece in pieces])
        died_at = [piece[3] for piece in pieces]
        died = np.array(
            [self._segment_events[i] if i >= 0 else -1 for i in died_at], np.int64
        )
        order = np.argsort(begins, kind="stable")
        reach = np.maximum.accumulate((begins + sizes)[order])
        fresh = np.ones(len(order), np.bool_)
        fresh[1:] = begins[order][1:] > reach[:-1]
        first = np.flatnonzero(fresh)
        low = begins[order][first]
        high = reach[np.append(first[1:], len(order)) - 1]
        packed = np.concatenate(([0], np.cumsum(high - low)[:-1])).astype(np.uint64)

        def place(address: Any) -> tuple[Any, Any]:
            stretch = np.searchsorted(low, address, "right").astype(np.int64) - 1
            inside = stretch >= 0
            at = np.maximum(stretch, 0)
            inside &= address < high[at]
            return np.where(inside, packed[at] + (address - low[at]), 0), inside

        where, inside = place(self.lives["address"])
        total = int(np.sum(high - low))
        unit = 512
        while unit > 1 and ((where % unit).any() or (begins % unit).any()):
            unit //= 2
        if total // unit >= ALIVE:
            self.notes.append("addresses are left out: they span too much to draw")
            return None
        segment_at, _ = place(begins)
        streams = [self.names.text(str(piece[5])) for piece in pieces]
        # Seeds, and what was there before the first event, are there from 0 on.
        since = np.where(seed, 0, self.rank(born) + 1)
        columns = [
            column("off", np.where(inside, where // unit, ALIVE)),
            column("seg_off", segment_at // unit),
            column("seg_size", sizes, "f64"),
            column("seg_birth", since),
            column("seg_death", np.where(died < 0, ALIVE, self.rank(died) + 1)),
            column("seg_stream", streams),
            column("seg_mapped", [bool(p[4] & MAPPED) for p in pieces], "u8"),
            column("stretch", np.append(packed, total) // unit),
        ]
        return columns, {"unit": unit, "total": total}

    # -- the first picture -----------------------------------------------------

    def coarse(self) -> list[Column]:
        """Return a coarse picture: of equal times, the state that was highest."""
        samples = self.recording._sampled(self.number, 1)
        total = samples.bytes.sum(axis=1)
        start = int(self.recording._core.start_ns)
        time = np.maximum.accumulate(samples.time_ns) - start
        span = max(int(time[-1]), 1)
        edges = np.searchsorted(time, np.arange(1, COARSE) * span // COARSE)
        starts = np.unique(np.concatenate(([0], edges)))
        starts = starts[starts < len(total)]
        pieces = np.split(total, starts[1:])
        best = starts + np.array([piece.argmax() for piece in pieces], np.int64)
        return [
            column("c_us", np.maximum(time[best], 0) // 1000, "f64"),
            *(
                column(f"c_{index}", samples.bytes[best, index], "f64")
                for index in range(samples.bytes.shape[1])
            ),
        ]

    def meta(self) -> dict[str, Any]:
        """Return what is known of the device, for JSON."""
        recording = self.recording
        steps, phases = recording.steps, recording.phases
        peak = recording.peak(self.name)
        counted = len(recording.events(self.name))
        return {
            "name": self.name,
            "events": len(self.event),
            "recorded_events": counted,
            "allocations": len(self.lives) + len(self.folded),
            "peak": {
                "event": int(self.rank(peak.event)),
                "bytes": peak.requested,
                "active": peak.active,
                "reserved": peak.reserved if self.number >= 0 else None,
                "step": peak.step,
                "phase": peak.phase,
                "module": peak.module,
            },
            "steps": {
                "number": steps["number"].tolist(),
                # The state before a step's first event belongs to it.
                "begin": self.rank(steps["begin_event"]).tolist(),
                "end": self.rank(steps["end_event"]).tolist(),
                "us": _us(recording, steps["start_ns"]),
                "end_us": _us(recording, steps["end_ns"]),
            },
            "phases": {
                "name": [_core.PHASES.index(n) for n in phases["name"].tolist()],
                "us": _us(recording, phases["start_ns"]),
                "end_us": _us(recording, phases["end_ns"]),
            },
        }


def dense_codes_of(values: Any) -> tuple[Ints, Ints]:
    """Number the different VALUES from 0, whatever whole numbers they are."""
    if not len(values):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    values = np.ascontiguousarray(values)  # not one field of wide rows
    low, high = values.min(), values.max()
    if low == high:
        return np.zeros(len(values), np.int64), values[:1]
    if values.dtype == np.uint64 or low < 0:
        found, codes = np.unique(values, return_inverse=True)
        return codes.reshape(-1).astype(np.int64), found
    if values.dtype == np.uint32:
        # Most are small; the largest number stands for none.
        wide = values.astype(np.int64)
        wide = np.where(wide == NO_INDEX, 0, wide + 1)
        codes, found = dense_codes(wide)
        return codes, np.where(found == 0, NO_INDEX, found - 1)
    return dense_codes(values.astype(np.int64))


def segment_pieces(events: Rows) -> list[tuple[int, int, int, int, int, int]]:
    """Replay segment events.

    Args:
        events: SEGMENT_* and SEED_SEGMENT rows of one device, in order.

    Returns:
        Pieces of address space with one birth and one death: address, bytes, row
        of the birth, row of the death (-1: none), ``SEEDED`` or ``MAPPED`` or
        both, stream.
    """
    live: dict[int, tuple[int, int, int, int]] = {}  # address -> size, born, ...
    done: list[tuple[int, int, int, int, int, int]] = []

    def take(low: int, high: int, row: int) -> None:
        for address in [a for a, p in live.items() if a < high and a + p[0] > low]:
            size, born, seed, stream = live.pop(address)
            cut = max(address, low), min(address + size, high)
            if address < cut[0]:
                live[address] = cut[0] - address, born, seed, stream
            if cut[1] < address + size:
                live[cut[1]] = address + size - cut[1], born, seed, stream
            done.append((cut[0], cut[1] - cut[0], born, row, seed, stream))

    names = ("kind", "address", "size", "stream", "flags")
    rows = zip(*(events[name].tolist() for name in names), strict=True)
    for row, (kind, address, size, stream, flags) in enumerate(rows):
        if address in live and live[address][0] == size:  # the common case: whole
            old = live.pop(address)
            done.append((address, size, old[1], row, old[2], old[3]))
        elif len(live) and size:
            take(address, address + size, row)
        if kind in _SEGMENT_BORN and size:
            seeded = SEEDED if kind == _SEED else 0
            mapped = kind == _MAP or (seeded and flags & _PENDING)
            live[address] = size, row, seeded | (MAPPED if mapped else 0), stream
    done += [
        (a, s, born, -1, seed, stream) for a, (s, born, seed, stream) in live.items()
    ]
    return [piece for piece in done if piece[1]]


def _us(recording: Recording, times: Ints) -> list[int]:
    start = int(recording._core.start_ns)
    micros: list[int] = (np.maximum(times - start, 0) // 1000).tolist()
    return micros


def _long(us: Ints) -> bool:
    return bool(len(us)) and int(np.diff(us, prepend=0).max()) >= ALIVE
