"""The trace for Perfetto: what a recording shows on which track.

``memprof`` holds a group for each device: counters, steps, phases, modules,
findings, the largest allocations at the peak, and all allocations with their Python
stacks; and one for what ran on each GPU (``perfetto_gpu.py``).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from memprof import _core, pftrace
from memprof._version import __version__
from memprof.devices import device_name
from memprof.files import Path
from memprof.groups import exact_sums
from memprof.instants import device_number
from memprof.module_spans import module_spans
from memprof.moment import Moment, _Columns
from memprof.perfetto_gpu import add_kernels
from memprof.reports.units import size_text
from memprof.rows import CPU, NO_INDEX, Ints
from memprof.stacks import Frames, Stacks
from memprof.timeline import OF_CATEGORIES, OF_TOTALS, TOTALS, Samples, sampled
from memprof.warn import warn

if TYPE_CHECKING:
    from memprof.recording import Recording

BUCKETS = 5_000
"""Stretches of a counter of which first, lowest, highest and last value are kept."""
LARGEST = 200
"""Lives at the peak that get a slice."""
EACH = 20_000
"""Allocations, the largest, that get a mark of their own."""

_OOM = 8  # csrc/event.h
_PREFIX = "memprof."


def write(recording: Recording, path: Path, device: object, full: bool) -> None:
    """Write ``Recording.export_perfetto``."""
    numbers = recording._core.devices()
    only = None
    if device is not None:
        only = device_number(recording, device, path)
        numbers = [number for number in numbers if number == only]
    elif not numbers:
        warn(f"nothing was recorded; {path} has no data")
    document = pftrace.Document()
    top = document.track(
        "memprof", None, "memprof", pftrace.GROUP, description=_about(recording)
    )
    frames = _Frames(recording, document)
    # GPUs first, as they are asked about most.
    for rank, number in enumerate(sorted(numbers, key=lambda n: (n == CPU, n)), 1):
        _Device(recording, document, number, full, frames).add(top, rank)
    if device is None or only is not None:
        add_kernels(recording, document, top, len(numbers) + 1, only)
    document.write(path)


def _about(recording: Recording) -> str:
    info = recording.info
    names = ("memprof", "torch", "host", "pid")
    facts = {name: info[name] for name in names if info.get(name) is not None}
    facts["dropped_events"] = info["dropped"]
    return f"memprof {__version__}, of {json.dumps(facts, default=str)}"


class _Frames:
    """The frames of a recording in a document."""

    def __init__(self, recording: Recording, document: pftrace.Document) -> None:
        self.shown = Frames(recording)
        self._document = document
        self._count = 0

    def add_stack(self, frames: list[int]) -> int:
        """Add a stack of the numbers of ``shown``."""
        for frame in self.shown.shown[self._count :]:
            self._document.frame(*frame)  # in order: the same numbers
            self._count += 1
        return self._document.stack(frames)


class _Device:
    """The part of a trace that is about one device."""

    def __init__(
        self,
        recording: Recording,
        document: pftrace.Document,
        number: int,
        full: bool,
        frames: _Frames,
    ) -> None:
        self._recording = recording
        self._document = document
        self._number = number
        self._full = full
        self._frames = frames
        self._name = device_name(number)
        self._clock = recording._times()
        self._parent = 0
        self._rank = 0
        self._flows = number + 2 << 40  # numbers of arrows are this device's

    def add(self, top: int, rank: int) -> None:
        """Add all tracks of the device."""
        document, name = self._document, self._name
        self._parent = document.track(f"memprof/{name}", top, name, pftrace.GROUP, rank)
        self._counters()
        self._steps()
        self._phases()
        self._modules()
        peak = self._recording.peak(name)
        self._findings(peak)
        shown = self._largest(peak)
        self._allocations(shown)

    def _track(self, name: str, kind: int, path: str = "") -> int:
        self._rank += 1
        where = f"memprof/{self._name}/{path or name}"
        return self._document.track(where, self._parent, name, kind, self._rank)

    def _times(self, events: Ints) -> Ints:
        """Return the times of events; -1: of the beginning."""
        if not len(self._clock):
            return np.full(len(events), self._recording._core.start_ns, np.int64)
        times: Ints = self._clock[np.maximum(events, 0)]
        return times

    def _end(self) -> int:
        return self._recording._time(self._recording._core.events_count - 1)

    # -- counters --------------------------------------------------------------

    def _counters(self) -> None:
        recording, number = self._recording, self._number
        totals = recording._sampled(number, OF_TOTALS)
        # Kept if somebody asked before: the recording does not need it after us.
        cached = recording._samples.get((number, OF_CATEGORIES))
        parts = cached or sampled(recording._core, number, OF_CATEGORIES)
        events = self._sampled_events([totals, parts])
        times = self._times(events)
        end = self._end() + 1_000  # the last value, too, is seen
        # On the CPU all totals are the same.
        shown = TOTALS if number != CPU else TOTALS[:1]
        place = _places(totals, events)
        for column, name in enumerate(shown):
            name = "allocated" if name == "requested" else name
            # A column at a time: all of them are many bytes.
            self._counter(name, times, totals.bytes[place, column], end)
        place = _places(parts, events)
        for column, name in enumerate(_core.CATEGORIES):
            values = parts.bytes[place, column]
            if values.any():
                self._counter(f"cat/{name}", times, values, end)
        for name, at, values in self._beside(totals):
            self._counter(name, self._times(at), values, end)

    def _counter(self, name: str, times: Ints, values: Ints, end: int) -> None:
        """Add one; what does not change is told once, the last until END."""
        track = self._track(name, pftrace.BYTES)
        changed = np.ones(len(values), np.bool_)
        changed[1:] = values[1:] != values[:-1]
        self._document.samples(
            track,
            np.append(times[changed], max(end, int(times[-1]))),
            np.append(values[changed], values[-1]),
        )

    def _beside(self, totals: Samples) -> list[tuple[str, Ints, Ints]]:
        """Return counters that no tracker counts: names, events, bytes.

        What the driver said now and then, what of that is not torch's, and how
        large a stretch torch could give away without asking the driver.
        """
        recording, number = self._recording, self._number
        rows = recording._total_rows()
        rows = rows[rows["device"] == number]
        found = []
        used = rows[rows["device_used_bytes"] >= 0]
        found.append(("device used", used["event"], used["device_used_bytes"]))
        if number != CPU:  # what torch has there may never have been touched
            own = rows[rows["process_bytes"] >= 0]
            place = _places(totals, own["event"])
            reserved = totals.bytes[place, TOTALS.index("reserved")]
            rest = np.maximum(own["process_bytes"] - reserved, 0)
            found.append(("outside torch", own["event"], rest))
            most = 2**62 if self._full else 4 * BUCKETS
            free = _core.free_blocks(recording._core, number, most)
            pairs = np.frombuffer(free, np.int64).reshape(-1, 2)
            found.append(("largest free block", pairs[:, 0], pairs[:, 1]))
        return [(name, at, values) for name, at, values in found if len(at)]

    def _sampled_events(self, samples: list[Samples]) -> Ints:
        """Return the events at which all counters are sampled.

        At every one of them the categories sum to what is allocated.
        """
        # Marks, as events are numbers up to their count; to sort them takes longer.
        marks = np.zeros(self._recording._core.events_count + 1, np.bool_)
        for part in samples:
            if self._full:
                marks[part.event + 1] = True
                continue
            for column in range(part.bytes.shape[1]):
                marks[part.event[_extremes(part.bytes[:, column])] + 1] = True
        found: Ints = np.flatnonzero(marks) - 1
        return found

    # -- steps, phases, modules ------------------------------------------------

    def _steps(self) -> None:
        steps = self._recording.steps
        if not len(steps):
            return
        stats = self._recording.step_stats(self._name)
        place = {int(number): row for row, number in enumerate(stats["number"])}
        rows = [place.get(int(number)) for number in steps["number"]]

        def column(name: str) -> list[int]:
            return [0 if row is None else int(stats[name][row]) for row in rows]

        self._spans(
            "steps",
            steps,
            [f"step {number}" for number in steps["number"].tolist()],
            "step",
            {
                "peak_bytes": column("requested_bytes_peak"),
                "retained_bytes": column("requested_bytes_at_end"),
                "allocated_bytes": column("allocated_total"),
                "peak_reserved_bytes": column("reserved_bytes_peak"),
            },
        )

    def _phases(self) -> None:
        phases = self._recording.phases
        if len(phases):
            self._spans("phases", phases, phases["name"].tolist(), "phase", None)

    def _spans(
        self,
        track: str,
        rows: Any,
        names: list[str],
        category: str,
        columns: dict[str, list[int]] | None,
    ) -> None:
        begin = rows["start_ns"].astype(np.int64)
        end = rows["end_ns"].astype(np.int64)
        end[:-1] = np.minimum(end[:-1], begin[1:])
        self._document.slices(
            self._track(track, pftrace.SLICES),
            begin,
            end,
            [self._document.text(name) for name in names],
            _PREFIX + category,
            columns,
        )

    def _modules(self) -> None:
        threads = module_spans(self._recording, self._number)
        for thread, spans in threads.items():
            name = "modules" if len(threads) == 1 else f"modules, thread {thread}"
            track = self._track(name, pftrace.SLICES, f"modules/{thread}")
            texts = np.array([self._document.text(it) for it in spans.names], np.int64)
            rows = self._document.new_events(len(spans.event))
            rows["time_ns"] = self._times(spans.event)
            rows["track"] = track
            rows["kind"] = np.where(spans.begins, pftrace.BEGIN, pftrace.END)
            rows["name"] = np.where(spans.begins, texts[spans.name], NO_INDEX)
            category = self._document.text(_PREFIX + "module")
            rows["category"] = np.where(spans.begins, category, NO_INDEX)
            self._document.add(rows)

    # -- findings --------------------------------------------------------------

    def _findings(self, peak: Moment) -> None:
        document, recording = self._document, self._recording
        totals = recording._sampled(self._number, OF_TOTALS)
        track = self._track("findings", pftrace.SLICES)
        after = int(np.searchsorted(totals.event, peak.event, "right"))
        until = totals.event[after] if after < len(totals.event) else peak.event
        begin, end = self._times(np.array([peak.event, until], np.int64)).tolist()
        found = [(peak.event, f"peak: {size_text(peak.requested, 4)}", begin, end)]
        events = recording.events()
        failed = np.flatnonzero(
            (events["kind"] == _OOM) & (events["device"] == self._number)
        )
        rows = document.new_events(2 + len(failed))
        rows["track"] = track
        rows["category"] = document.text(_PREFIX + "finding")
        _, name, rows["time_ns"][0], rows["time_ns"][1] = found[0]
        rows["kind"][:2] = pftrace.BEGIN, pftrace.END
        rows["name"][0] = document.text(name)
        rows["category"][1] = NO_INDEX
        sizes = {k: [v] for k, v in peak.categories.items() if v}
        sizes = {"requested_bytes": [peak.requested], **sizes}
        first, width = document.args(sizes, 1)
        rows["args"][0], rows["args_count"][0] = first[0], width
        if len(failed):
            asked = events["size"][failed]
            free = events["address"][failed]
            rows["kind"][2:] = pftrace.INSTANT
            rows["time_ns"][2:] = self._times(failed)
            rows["name"][2:] = [
                document.text(f"out of memory: {size_text(size)} asked")
                for size in asked.tolist()
            ]
            columns = {
                "asked_bytes": np.minimum(asked, 2**63 - 1).astype(np.int64),
                "free_bytes": np.minimum(free, 2**63 - 1).astype(np.int64),
            }
            rows["args"][2:], rows["args_count"][2:] = document.args(
                columns, len(failed)
            )
        order = np.argsort(rows["time_ns"], kind="stable")
        document.add(rows[order])

    # -- allocations -------------------------------------------------------------

    def _largest(self, peak: Moment) -> Ints:
        """Add the largest lives at the peak, a track each; return their ids."""
        document, lives = self._document, self._recording.allocations("all")
        alive = peak._index()
        order = np.argsort(lives["size"][alive], kind="stable")[::-1]
        index = alive[order[:LARGEST]]
        if not len(index):
            return index
        columns = _Columns(self._recording, index)
        words: dict[str, Any] = {"bytes": lives["size"][index].astype(np.int64)}
        for key in ("category", "module", "op", "where", "owner", "phase"):
            codes, values = columns.part(key)
            words[key] = [values[code] for code in codes.tolist()]
        words["step"] = lives["born_step"][index].astype(np.int64)
        begin = self._times(lives["born_event"][index])
        died = lives["died_event"][index]
        end = np.where(died < 0, self._end(), self._times(died))
        # Of one name and parent: the viewer draws them as one track.
        self._rank += 1
        tracks = [
            document.track(
                f"memprof/{self._name}/largest/{place}",
                self._parent,
                "largest allocations",
                pftrace.SLICES,
                self._rank,
            )
            for place in range(len(index))
        ]
        names = [
            document.text(f"{size_text(size)} {owner or module or op or category}")
            for size, owner, module, op, category in zip(
                words["bytes"].tolist(),
                words["owner"],
                words["module"],
                words["op"],
                words["category"],
                strict=True,
            )
        ]
        rows = document.new_events(2 * len(index))
        first, last = rows[::2], rows[1::2]
        rows["track"] = np.repeat(tracks, 2)
        first["kind"], last["kind"] = pftrace.BEGIN, pftrace.END
        first["time_ns"], last["time_ns"] = begin, end
        first["name"] = names
        first["category"] = document.text(_PREFIX + "alloc")
        first["args"], first["args_count"] = document.args(words, len(index))
        seen = lives["born_event"][index] >= 0  # an arrow comes from its birth
        first["flow"] = np.where(seen, self._flows + index, 0)
        first["flow_ends"] = 1
        document.add(rows)
        shown: Ints = index[seen]
        return shown

    def _allocations(self, arrows: Ints) -> None:
        """Add the births with their stacks, weighted by their bytes.

        All that are not among the largest are one mark for each step and stack,
        at the first of them: the weights sum to all that was allocated.
        """
        recording, document = self._recording, self._document
        lives = recording.allocations("all")
        index = np.flatnonzero(
            (lives["device"] == self._number) & (lives["born_event"] >= 0)
        )
        if not len(index):
            return
        size = lives["size"][index]
        single = np.ones(len(index), np.bool_)
        if not self._full and len(index) > EACH:
            single[np.argsort(size, kind="stable")[: len(index) - EACH]] = False
            single |= np.isin(index, arrows)
        stacks = Stacks(recording, index, (), self._frames.shown)
        stack_rows = np.array(
            [self._frames.add_stack(path) for path in stacks.paths], np.int64
        )
        rest = np.flatnonzero(~single)
        step = lives["born_step"][index[rest]].astype(np.int64)
        step -= step.min(initial=0)
        key = step * stacks.count + stacks.group[rest]
        _, member, group = np.unique(key, return_index=True, return_inverse=True)
        sums = exact_sums(group.reshape(-1), size[rest], len(member))
        counts = np.bincount(group.reshape(-1), minlength=len(member))
        alone = np.flatnonzero(single)
        ops, words = _Columns(recording, index[alone]).part("op")
        texts = np.array([document.text(word or "(no op)") for word in words], np.int64)
        sorts, sort = np.unique(counts, return_inverse=True)
        words = [f"{count} smaller allocations" for count in sorts.tolist()]
        many = np.array([document.text(word) for word in words], np.int64)[sort]
        chosen = np.concatenate((alone, rest[member]))
        names = np.concatenate((texts[ops], many))
        weight = np.concatenate(
            (size[alone].astype(np.int64), np.array(sums, np.int64))
        )
        order = np.argsort(chosen, kind="stable")
        chosen, names, weight = chosen[order], names[order], weight[order]
        rows = document.new_events(2 * len(chosen))
        first, last = rows[::2], rows[1::2]
        first["kind"], last["kind"] = pftrace.BEGIN, pftrace.END
        rows["time_ns"] = np.repeat(self._times(lives["born_event"][index[chosen]]), 2)
        rows["track"] = self._track("allocations", pftrace.SLICES)
        first["name"], first["weight"] = names, weight
        first["category"] = document.text(_PREFIX + "alloc")
        first["stack"] = stack_rows[stacks.group[chosen]]
        arrow = np.isin(index[chosen], arrows) & single[chosen]
        first["flow"] = np.where(arrow, self._flows + index[chosen], 0)
        document.add(rows)


def _places(samples: Samples, events: Ints) -> Ints:
    """Return the rows of a timeline that hold after each of some events."""
    found: Ints = np.searchsorted(samples.event, events, "right") - 1
    return np.maximum(found, 0)


def _extremes(values: Ints) -> Ints:
    """Return where stretches of a column have their first, least, most and last."""
    count = len(values)
    if count <= 4 * BUCKETS:
        return np.arange(count)
    width = -(-count // BUCKETS)
    padded = np.full(width * -(-count // width), values[-1], np.int64)
    padded[:count] = values
    table = padded.reshape(-1, width)
    base = np.arange(len(table)) * width
    kept = (base, base + table.argmin(1), base + table.argmax(1), base + width - 1)
    return np.unique(np.minimum(np.concatenate(kept), count - 1))
