"""The recording: what happened to memory, as NumPy arrays and answers.

``load(path)`` reads a file; a profile hands out the same object.  Everything
here is a view of the C core's rows (``csrc/event.h``, ``csrc/life.h``):
arrays share its memory and are read-only.

Sizes are bytes, times nanoseconds on one monotonic clock, devices texts such as
``"cuda:0"`` and ``"cpu"``.  Events are numbered from 0 in the order in which
they happened; event -1 is the state when the recording began.
"""

from __future__ import annotations

import copy
import json
import operator
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memprof import _core, files
from memprof.absent import without
from memprof.errors import MemprofError
from memprof.moment import Moment
from memprof.rows import (
    ALLOCATION_DTYPE,
    CPU,
    EVENT_DTYPE,
    NO_INDEX,
    PHASES_DTYPE,
    STEP_DTYPE,
    STEPS_DTYPE,
    Ints,
    Rows,
)

if TYPE_CHECKING:
    from memprof.averages import OperatorAverages
    from memprof.labels import Labels, Rule
    from memprof.modstats import Tree
    from memprof.reports.modules import ModuleTable
    from memprof.reports.text import Summary

__all__ = [
    "ALLOCATION_DTYPE",
    "CATEGORIES",
    "CPU",
    "EVENT_DTYPE",
    "NO_INDEX",
    "PHASES",
    "PHASES_DTYPE",
    "REASONS",
    "ROLES",
    "STEPS_DTYPE",
    "STEP_DTYPE",
    "Frame",
    "Ints",
    "Recording",
    "Rows",
    "Timeline",
    "device_name",
    "load",
    "parse_device",
]

# Numbers of csrc/event.h that a question here depends on.
_ALLOC = 1
_FREE_COMPLETED = 3
_LAST_THREAD_KIND = 23  # optimizer_end
# alloc ... oom, and the begin of an op, module, region, optimizer.
_TELLS_PHASE = np.zeros(256, np.bool_)
_TELLS_PHASE[[1, 2, 3, 4, 5, 6, 7, 8, 16, 18, 20, 22]] = True

# What the small numbers of rows index.
PHASES = _core.PHASES
CATEGORIES = _core.CATEGORIES
REASONS = _core.REASONS
ROLES = _core.ROLES

# Columns of the core's timeline of totals.
TOTALS = ("requested", "active", "reserved")


class Frame(NamedTuple):
    """One line of a Python stack."""

    function: str
    file: str
    line: int


class Timeline(NamedTuple):
    """Bytes over time.

    ``bytes[i]`` holds after event ``events[i]`` and until the next sample; the
    first sample is the state when the recording began (event -1).
    """

    times_ns: Ints
    """int64 [n], nanoseconds."""
    bytes: Ints
    """int64 [n, k], bytes."""
    labels: tuple[str, ...]
    """k texts."""
    events: Ints
    """int64 [n], event numbers."""

    def __repr__(self) -> str:
        spent = int(self.times_ns[-1]) - int(self.times_ns[0]) if len(self.bytes) else 0
        columns = len(self.labels)
        what = ", ".join(self.labels) if columns <= 3 else f"{columns} columns"
        return (
            f"<memprof.Timeline: {len(self.bytes)} samples over {spent / 1e9:.3f} s, "
            f"{what}>"
        )


class Samples(NamedTuple):
    """What the core's timeline gives: event [n], time_ns [n], bytes [n, k]."""

    event: Ints
    time_ns: Ints
    bytes: Ints


def device_name(number: int) -> str:
    """Return the text for a device number: ``cpu``, ``cuda:0``."""
    return "cpu" if number == CPU else f"cuda:{number}"


def parse_device(device: object) -> int | None:
    """Return the number that a device argument means.

    Args:
        device: an int (CUDA index), ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"1"``
            or a ``torch.device``.

    Returns:
        The CUDA index, -1 for the CPU, or None for ``"cuda"``: whichever CUDA
        device is meant.

    Raises:
        ValueError: it is none of these.
    """
    if not isinstance(device, (bool, float)):
        try:
            index = operator.index(device)  # type: ignore[arg-type]
        except TypeError:
            text = str(device).strip().lower()
            if text in ("cpu", "cpu:0"):
                return CPU
            if text == "cuda":
                return None
            digits = text.removeprefix("cuda:")
            if digits.isascii() and digits.isdigit():
                return int(digits)
        else:
            if index >= 0:
                return index
    raise ValueError(
        f"{device!r} is not a device; write 'cpu', 'cuda', 'cuda:0' or an index"
    )


def as_rows(buffer: Any, dtype: Any) -> NDArray[Any]:
    """View BUFFER, without a copy, as a read-only array of DTYPE."""
    if memoryview(buffer).nbytes == 0:
        array: NDArray[Any] = np.empty(0, dtype)
    else:
        array = np.frombuffer(buffer, dtype)
    array.flags.writeable = False
    return array


class Recording:
    """What a profile recorded; immutable.

    ``device`` arguments take an int, ``"cuda:0"``, ``"cpu"``, ``"cuda"`` or a
    ``torch.device``.  None means the GPU in use, or the CPU where no GPU was
    recorded; in a loaded recording the GPU that was in use.  A device that was
    not recorded is a ``ValueError`` that names those that were.
    """

    def __init__(self, core: _core.Recording, current: int | None = None) -> None:
        """Wrap what the core made.

        Args:
            core: the core's recording; shared, not copied.
            current: index of the CUDA device in use, if there is one.
        """
        self._core = core
        self._current = current
        self._event_rows: Rows | None = None
        self._allocation_rows: Rows | None = None
        self._of_device: dict[int, Rows] = {}
        self._samples: dict[tuple[int, int], Samples] = {}
        self._clock: Ints | None = None
        self._step_rows: Rows | None = None
        self._phase_rows: Rows | None = None
        # For memprof.moment: what the ids of this recording mean as text.
        self._places: Any = None
        self._own: dict[str, str] | None = None
        self._tree: Tree | None = None
        self._rules: tuple[Rule, ...] | None = None  # None: those of the info
        self._labelled: Labels | None = None

    # -- facts about the whole -------------------------------------------------

    @property
    def info(self) -> dict[str, Any]:
        """Facts about the run; a new dict each time.

        Always there: ``events`` and ``allocations`` (how many), ``dropped``
        (events lost because the log was full), ``defects`` (name -> count: what
        did not fit together), ``devices``, ``finished`` (False: the writer was
        killed or the file is cut), ``damaged_bytes`` (behind the last good
        block), ``start_ns`` and ``start_wall_ns`` (monotonic and Unix clock),
        ``labels`` (the rules of ``label``, as dicts).
        The rest is what ``memprof.profile`` wrote: versions, sources, own cost.
        """
        core = self._core
        info = self._written_info()
        # A device's facts (name, memory) are the profile's; names are ours.
        if not isinstance(info.get("device_facts"), dict):
            facts = info.get("devices")
            info["device_facts"] = facts if isinstance(facts, dict) else {}
        info.update(
            events=core.events_count,
            allocations=len(self._allocations()),
            dropped=core.dropped,
            defects=core.defects(),
            devices=self.devices,
            finished=core.finished,
            damaged_bytes=core.damaged_bytes,
            start_ns=core.start_ns,
            start_wall_ns=core.start_wall_ns,
            labels=[rule.to_dict() for rule in self.rules],
        )
        return info

    def _written_info(self) -> dict[str, Any]:
        """Return what was written of the run; nothing if it cannot be read."""
        try:
            parsed = json.loads(self._core.info) if self._core.info else {}
        except ValueError:
            parsed = {}
        return dict(parsed) if isinstance(parsed, dict) else {}

    @property
    def devices(self) -> list[str]:
        """The devices that have events: the CPU first, then GPUs by index."""
        return [device_name(number) for number in self._core.devices()]

    @property
    def steps(self) -> Rows:
        """The recorded steps in order, ``STEPS_DTYPE``.

        ``number, start_ns, end_ns, begin_event, end_event``: from the mark that
        began the step to the one that ended it.  A step that was still open ends
        with the recording; if nothing was allocated in it, it is what follows the
        last ``prof.step()`` and no step.
        """
        if self._step_rows is None:
            self._step_rows = self._find_steps()
        return self._step_rows

    def _find_steps(self) -> Rows:
        raw = self._raw_steps()
        last = max(self._core.events_count - 1, 0)
        is_open = raw["end_event"] < 0
        ends = np.where(is_open, last, raw["end_event"])
        # A device first seen within a step begins its row there.
        numbers, group = np.unique(raw["number"], return_inverse=True)
        rows = np.zeros(len(numbers), STEPS_DTYPE)
        rows["number"] = numbers
        rows["begin_event"] = np.iinfo(np.int64).max
        np.minimum.at(rows["begin_event"], group, raw["begin_event"])
        np.maximum.at(rows["end_event"], group, ends)
        rows.sort(order="begin_event")
        if len(rows) and self._is_tail(rows):
            rows = rows[:-1]
        clock = self._times()
        rows["start_ns"] = clock[rows["begin_event"]]
        rows["end_ns"] = clock[np.minimum(rows["end_event"], last)]
        rows.flags.writeable = False
        return rows

    def _is_tail(self, steps: Rows) -> bool:
        """Return whether the last of STEPS is but the way out of the loop.

        ``prof.step()`` at the end of a loop begins a step that ``stop`` ends.
        It counts if anything was allocated in it, or if there is no other step
        and the program did anything at all.
        """
        begin, end = steps[["begin_event", "end_event"]][-1]
        info = self.info
        if info.get("schedule") is not None and info.get("step_num") != steps[-1][0]:
            return False  # the schedule ended the window, at a prof.step()
        kind = self.events()["kind"][begin : end + 1]
        if len(steps) > 1:
            return not bool((kind == _ALLOC).any())
        return not bool((kind <= _LAST_THREAD_KIND).any())

    def _raw_steps(self) -> Rows:
        """Return the tracker's rows, without what was before the window.

        The tracker begins a row for what a recording finds alive, which is no
        step: it has ``recorded`` 0.  Without a window no row has 1.
        """
        rows: Rows = as_rows(self._core.steps(), STEP_DTYPE)
        recorded = rows["recorded"] != 0
        return rows[recorded] if recorded.any() else rows

    @property
    def phases(self) -> Rows:
        """The runs of forward, backward, optimizer and other, ``PHASES_DTYPE``.

        A run is a stretch of consecutive events of one phase.  Threads that
        never leave ``other`` (data loaders) do not cut it, nor do facts that
        tell nothing of what the program is doing: completed frees, which CUDA
        reports from whichever thread comes next, ends of ops and modules, which
        are half outside, roles and step marks.  A run lasts until the next one
        starts, so runs tile the recording.
        """
        if self._phase_rows is None:
            self._phase_rows = self._find_phases()
        return self._phase_rows

    def _find_phases(self) -> Rows:
        events = self.events()
        kind = events["kind"]
        counted = _TELLS_PHASE[kind]
        counted &= (kind != _FREE_COMPLETED) | (events["device"] == CPU)
        index = np.flatnonzero(counted)
        # First runs of one thread and phase: there are far fewer than events.
        phase = events["phase"][index]
        thread = events["thread"][index]
        first = np.ones(len(index), np.bool_)
        first[1:] = (phase[1:] != phase[:-1]) | (thread[1:] != thread[:-1])
        index, phase, thread = index[first], phase[first], thread[first]
        busy = np.unique(thread[phase != 0])
        if busy.size:
            keep = np.isin(thread, busy)
            index, phase = index[keep], phase[keep]
        if not index.size:
            empty = np.empty(0, PHASES_DTYPE)
            empty.flags.writeable = False
            return empty
        starts = np.concatenate(([0], np.flatnonzero(phase[1:] != phase[:-1]) + 1))
        rows = np.zeros(len(starts), PHASES_DTYPE)
        rows["name"] = np.array(_core.PHASES)[phase[starts]]
        begin = index[starts]
        last = len(events) - 1
        clock = self._times()
        rows["begin_event"] = begin
        rows["end_event"] = np.append(begin[1:] - 1, last)
        rows["start_ns"] = clock[begin]
        rows["end_ns"] = np.append(clock[begin[1:]], clock[last])
        rows.flags.writeable = False
        return rows

    def _times(self) -> Ints:
        """Return time_ns of every event, made never to fall.

        Threads read the clock before they enter the log, so times may be a hair
        out of order; the order of the log is the truth.
        """
        if self._clock is None:
            clock: Ints = np.maximum.accumulate(self.events()["time_ns"])
            clock.flags.writeable = False
            self._clock = clock
        return self._clock

    def _time(self, event: int) -> int:
        """Return the time of EVENT; -1 and an empty recording: the start."""
        if event < 0 or not self._core.events_count:
            return int(self._core.start_ns)
        return int(self._times()[event])

    # -- rows ------------------------------------------------------------------

    def _allocations(self) -> Rows:
        if self._allocation_rows is None:
            self._allocation_rows = as_rows(self._core.allocations(), ALLOCATION_DTYPE)
        return self._allocation_rows

    def events(self, device: object = None) -> Rows:
        """Return every event in order, ``EVENT_DTYPE``, read-only.

        Args:
            device: only the events of that device, which are then a copy; row
                numbers are no longer event numbers.  None: all events.
        """
        if self._event_rows is None:
            self._event_rows = as_rows(self._core.events(), EVENT_DTYPE)
        rows = self._event_rows
        if device is None or (isinstance(device, str) and device == "all"):
            return rows
        number = self._device(device)
        chosen: Rows = rows[rows["device"] == number]
        chosen.flags.writeable = False
        return chosen

    def allocations(self, device: object = None) -> Rows:
        """Return one row a life, ``ALLOCATION_DTYPE``, read-only.

        Births in order, those older than the recording first.

        Args:
            device: whose lives; ``"all"``: every device's, without a copy, and
                ``id`` is then the row's number.
        """
        rows = self._allocations()
        if isinstance(device, str) and device == "all":
            return rows
        number = self._device(device)
        if number not in self._of_device:
            mine = rows["device"] == number
            if mine.all():
                self._of_device[number] = rows
            else:
                chosen = rows[mine]
                chosen.flags.writeable = False
                self._of_device[number] = chosen
        return self._of_device[number]

    def step_stats(self, device: object = None) -> Rows:
        """Return peaks per step, ``STEP_DTYPE``: one row a step and device.

        The steps are those of ``steps``.

        Args:
            device: whose rows; ``"all"``: every device's.
        """
        rows = self._raw_steps()
        rows = rows[np.isin(rows["number"], self.steps["number"])]
        if not (isinstance(device, str) and device == "all"):
            rows = rows[rows["device"] == self._device(device)]
        rows.flags.writeable = False
        return rows

    def timeline(self, device: object = None, by: str = "category") -> Timeline:
        """Return the bytes of a device after every event that changed them.

        Args:
            device: see the class.
            by: ``"category"``: one column a category, which sum to requested;
                ``"label"``: one a label, likewise, that of what has none first;
                ``"total"``: the columns requested, active, reserved.

        Returns:
            ``times_ns`` int64 [n], ``bytes`` int64 [n, k], ``labels`` k texts,
            ``events`` int64 [n].

        Raises:
            ValueError: no such device, or no such BY.
            TypeError: BY is no text.
        """
        kinds = {"total": (0, TOTALS), "category": (1, tuple(_core.CATEGORIES))}
        if not isinstance(by, str):
            raise TypeError(f"by={by!r}: a text, one of {_choices(kinds)}")
        if by == "label":
            return self._label_timeline(self._device(device))
        if by not in kinds:
            choices = _choices([*kinds, "label"])
            raise ValueError(f"no timeline by {by!r}; choose {choices}")
        kind, labels = kinds[by]
        samples = self._sampled(self._device(device), kind)
        return Timeline(samples.time_ns, samples.bytes, labels, samples.event)

    def _label_timeline(self, device: int) -> Timeline:
        samples, found = self._sampled(device, 1), self._labels()
        levels = found.levels(self._allocations(), device, samples.event)
        levels.flags.writeable = False
        return Timeline(samples.time_ns, levels, found.names, samples.event)

    def _sampled(self, device: int, kind: int) -> Samples:
        """Return the core's timeline; one sample of zeros if it has none."""
        key = (device, kind)
        if key not in self._samples:
            columns = len(TOTALS) if kind == 0 else len(_core.CATEGORIES)
            if device in self._core.devices():
                event, time_ns, amount = self._core.timeline(device, kind)
                samples = Samples(
                    as_rows(event, np.int64),
                    as_rows(time_ns, np.int64),
                    as_rows(amount, np.int64).reshape(-1, columns),
                )
            else:
                samples = Samples(
                    np.array([-1], np.int64),
                    np.array([self._core.start_ns], np.int64),
                    np.zeros((1, columns), np.int64),
                )
            self._samples[key] = samples
        return self._samples[key]

    # -- moments ---------------------------------------------------------------

    def peak(
        self,
        device: object = None,
        *,
        of: str = "requested",
        step: int | None = None,
        phase: str | None = None,
        category: str | None = None,
        label: str | None = None,
    ) -> Moment:
        """Return the first moment at which a value was highest.

        Args:
            device: see the class.
            of: ``"requested"`` (what the program asked for), ``"active"`` (the
                same until a free is completed) or ``"reserved"`` (what torch
                took from the driver).
            step: only in that step, its beginning included.
            phase: only in runs of that phase; see ``phases``.
            category: the highest bytes of that category instead of OF.
            label: the highest bytes of that label instead; ``""``: of what no
                rule names.

        Raises:
            ValueError: there is no such device, step, phase, category or label,
                or OF is no such value.
        """
        number = self._device(device)
        if of not in TOTALS:
            raise ValueError(f"no peak of {of!r}; choose {_choices(TOTALS)}")
        if label is not None:
            column = self._label_column(number, label, of, category)
            samples = self._sampled(number, 1)
        elif category is not None:
            if category not in _core.CATEGORIES:
                raise ValueError(
                    f"no category {category!r}; choose {_choices(_core.CATEGORIES)}"
                )
            if of != "requested":
                raise ValueError(
                    f"categories divide the requested bytes, not {of!r}: "
                    "leave out one of `of` and `category`"
                )
            samples = self._sampled(number, 1)
            column = samples.bytes[:, _core.CATEGORIES.index(category)]
        else:
            samples = self._sampled(number, 0)
            column = samples.bytes[:, TOTALS.index(of)]
        begin, end = self._stretches(step, phase)
        best, at = -1, -1
        low = np.maximum(np.searchsorted(samples.event, begin, "right") - 1, 0)
        high = np.searchsorted(samples.event, end, "right")
        for first, last, start in zip(
            low.tolist(), high.tolist(), begin.tolist(), strict=True
        ):
            if last <= first:
                continue
            top = first + int(np.argmax(column[first:last]))
            if int(column[top]) > best:
                # A level carried in from before holds at the stretch's start.
                best, at = int(column[top]), max(int(samples.event[top]), start)
        return Moment(self, number, at, step=step)

    def _label_column(
        self, device: int, label: str, of: str, category: str | None
    ) -> Ints:
        names = self._labels().names
        if label not in names:
            raise ValueError(f"no label {label!r}; choose {_choices(names)}")
        if of != "requested" or category is not None:
            raise ValueError(
                "labels divide the requested bytes: leave out `of` and `category`"
            )
        column: Ints = self._label_timeline(device).bytes[:, names.index(label)]
        return column

    def _stretches(self, step: int | None, phase: str | None) -> tuple[Ints, Ints]:
        """Return first and last event, int64 [n] each, of what is asked for."""
        begin = np.array([-1], np.int64)
        end = np.array([self._core.events_count], np.int64)
        if phase is not None:
            if phase not in _core.PHASES:
                raise ValueError(f"no phase {phase!r}; choose {_choices(_core.PHASES)}")
            runs = self.phases[self.phases["name"] == phase]
            if not len(runs):
                seen = dict.fromkeys(self.phases["name"].tolist())
                raise ValueError(
                    f"nothing was recorded in phase {phase!r}; "
                    f"phases here: {_choices(seen) or 'none'}"
                )
            begin, end = runs["begin_event"], runs["end_event"]
        if step is not None:
            row = self._step(step)
            begin = np.maximum(begin, row["begin_event"])
            end = np.minimum(end, row["end_event"])
            inside = begin <= end
            if not inside.any():
                raise ValueError(f"step {step} has nothing in phase {phase!r}")
            begin, end = begin[inside], end[inside]
        return begin, end

    def _step(self, number: int) -> np.void:
        steps = self.steps
        found = np.flatnonzero(steps["number"] == number)
        if not found.size:
            if not len(steps):
                raise ValueError(
                    f"no step {number!r}: the recording has no steps "
                    "(call prof.step() once an iteration)"
                )
            first, last = int(steps["number"].min()), int(steps["number"].max())
            there = f"{first}" if first == last else f"{first} to {last}"
            raise ValueError(f"no step {number!r} in this recording; steps: {there}")
        row: np.void = steps[found[0]]
        return row

    def at(
        self,
        *,
        time_ns: int | None = None,
        event: int | None = None,
        step: int | None = None,
        device: object = None,
    ) -> Moment:
        """Return the state of a device at one moment.

        Args:
            time_ns: after the last event that was not later; before the first
                event it is the state when the recording began.
            event: after that event; -1: when the recording began.
            step: at the end of that step.
            device: see the class.

        Raises:
            TypeError: not exactly one of TIME_NS, EVENT and STEP was given.
            ValueError: there is no such event, step or device.
        """
        given = [value for value in (time_ns, event, step) if value is not None]
        if len(given) != 1:
            raise TypeError("at() takes exactly one of time_ns=, event= and step=")
        number = self._device(device)
        if step is not None:
            return Moment(self, number, int(self._step(step)["end_event"]), step=step)
        if time_ns is not None:
            found = int(np.searchsorted(self._times(), time_ns, "right")) - 1
            return Moment(self, number, found, time_ns=int(time_ns))
        assert event is not None
        count = self._core.events_count
        event = operator.index(event)
        if not -1 <= event < count:
            raise ValueError(f"no event {event}; events: -1 (the start) to {count - 1}")
        return Moment(self, number, event)

    # -- labels ----------------------------------------------------------------

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of ``label``, in the order in which they are tried."""
        if self._rules is None:
            from memprof.labels import stored

            self._rules = stored(self._written_info())
        return self._rules

    def label(
        self,
        label: str,
        *,
        module: str | None = None,
        op: str | None = None,
        stack: str | None = None,
        region: str | None = None,
        device: object = None,
    ) -> Recording:
        """Return the same recording with one more rule that names blocks.

        It shares the data with this one, which stays as it is.  The patterns are
        regular expressions, found anywhere in a text (``re.search``); if several
        are given, a block must match all.  The first rule that matches names the
        block.

        Args:
            label: the name; several rules may give the same.
            module: in the module of ``Moment.rows``: where the block was born;
                for backward what caused it; else its owner's.
            op: in the name of its op.
            stack: in ``"function file:line"`` of any frame of its stack, or of
                the stack of the forward that caused it.
            region: in its innermost ``record_function`` region.
            device: blocks of that device only; None: of all.

        Raises:
            TypeError: a label or pattern is no text.
            ValueError: the label is empty, there is no pattern, or one is no
                regular expression; or there is no such device.
        """
        from memprof.labels import rule

        where = None if device is None else device_name(self._device(device))
        made = rule(label, where, module=module, op=op, stack=stack, region=region)
        other = copy.copy(self)
        other._rules, other._labelled = (*self.rules, made), None
        return other

    def labels(self, device: object = None) -> NDArray[np.int32]:
        """Return the label of each row of ``allocations(device)``.

        Returns:
            int32 [n]: index into ``label_names``; 0: no rule names it.
        """
        codes = self._labels().codes
        if isinstance(device, str) and device == "all":
            return codes
        chosen: NDArray[np.int32] = codes[self.allocations(device)["id"]]
        chosen.flags.writeable = False
        return chosen

    @property
    def label_names(self) -> tuple[str, ...]:
        """What the numbers of ``labels`` mean; the first is ``""``."""
        return self._labels().names

    def _labels(self) -> Labels:
        if self._labelled is None:
            from memprof.labels import Labels

            self._labelled = Labels(self, self.rules)
        return self._labelled

    # -- modules ---------------------------------------------------------------

    def module_stats(self, device: object = None, step: int | None = None) -> Rows:
        """Return one row a module, ``MODULE_DTYPE`` of ``memprof.modstats``.

        Models in the order in which they first ran, in each its modules in
        execution order (first birth in forward), those around others first.  The
        rows are the same for every device and step.  Library scratch (category
        workspace) is no module's.  A field without ``_self``
        is about the module and all modules inside of it, by name.

        * ``forward_bytes``: all that was born in forward;
        * ``retained_bytes``: born in forward and alive when the forward of its
          model ends: at the end (``retained_event``) at which the model as a
          whole held most, so the rows of a model sum up;
        * ``forward_peak_bytes``: the most that was alive at once, after any of
          its births, of what was born in forward; ``transient_bytes``: how much
          more that is than what is retained;
        * ``backward_bytes``, ``backward_peak_bytes``: the same of what was born
          in backward because of the module, gradients included;
        * ``parameter_bytes`` (buffers included), ``gradient_bytes``,
          ``optimizer_state_bytes``: the most that was alive at once.

        Args:
            device: whose bytes.
            step: births, ends and peaks in that step only; None: in all.

        Raises:
            ValueError: no such device or step.
        """
        from memprof.modstats import Tree, module_stats

        number = self._device(device)
        span = (-1, self._core.events_count)
        if step is not None:
            row = self._step(step)
            span = int(row["begin_event"]), int(row["end_event"])
        if self._tree is None:
            self._tree = Tree(self)
        return module_stats(self, self._tree, number, span)

    def module_table(
        self,
        device: object = None,
        step: int | None = None,
        *,
        depth: int | None = None,
    ) -> ModuleTable:
        """Return ``module_stats`` as a table; ``print`` it.

        Args:
            device: see ``module_stats``.
            step: likewise.
            depth: leave out modules inside of more others than that.
        """
        from memprof.reports.modules import ModuleTable

        return ModuleTable(self, device, step, depth=depth)

    # -- the text behind ids ---------------------------------------------------

    def op(self, index: int) -> str:
        """Return the text of an op, region or owner id; ``""`` for none.

        Raises:
            IndexError: there is no such id.
        """
        return "" if index == NO_INDEX else self._core.text(int(index))

    def module(self, index: int) -> str:
        """Return the qualified name behind a module id; ``""`` for none.

        Raises:
            IndexError: there is no such id.
        """
        return self.op(index)

    def owner(self, index: int) -> str:
        """Return the name behind an owner id; ``""`` for none.

        Raises:
            IndexError: there is no such id.
        """
        return self.op(index)

    def region(self, index: int) -> str:
        """Return the name of the ``record_function`` region behind an id.

        Raises:
            IndexError: there is no such id.
        """
        return self.op(index)

    def shape(self, index: int) -> str:
        """Return the tensor behind a shape id, ``float32[64, 128]``; ``""``: none.

        Raises:
            IndexError: there is no such id.
        """
        return self.op(index)

    def kind(self, number: int) -> str:
        """Return the name of an event's ``kind``; see ``memprof.EVENT_KINDS``.

        Raises:
            IndexError: there is no such kind.
        """
        try:
            return _core.EVENT_KINDS[int(number)]
        except KeyError:
            raise IndexError(f"no kind of event has the number {number}") from None

    def _own_tensors(self) -> dict[str, str]:
        """Return the class of the model for the names of its own tensors."""
        if self._own is None:
            found = self.info.get("own_tensors")
            self._own = found if isinstance(found, dict) else {}
        return self._own

    def stack(self, index: int) -> tuple[Frame, ...]:
        """Return the frames behind a stack id, innermost first; ``()`` for none.

        Raises:
            IndexError: there is no such id.
        """
        if index == NO_INDEX:
            return ()
        return tuple(Frame(*frame) for frame in self._core.stack(int(index)))

    # -- results ---------------------------------------------------------------

    def summary(self, device: object = None, *, limit: int = 12) -> Summary:
        """Return the account of the peak; ``print`` it.

        Args:
            device: see the class.
            limit: rows of the table of holders before the rest is one row.
        """
        from memprof.reports.text import Summary

        return Summary(self, device, limit=limit)

    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
        include_python_functions: bool = False,
        *,
        device: object = None,
    ) -> OperatorAverages:
        """Return memory by op; ``print(rec.key_averages().table(sort_by=...))``.

        As torch.profiler's: one row a name, for ops, backward nodes and
        ``record_function`` regions, with what was allocated and freed in it and
        how high it rose above its beginning, on every device.  An op is
        recorded when it first allocates, so calls that touch no memory are not
        counted, and what an op frees before counts for what is around it.

        Args:
            group_by_input_shape: Not possible: shapes are not recorded.
            group_by_stack_n: Divide each name by that many of the innermost
                Python frames.
            group_by_overload_name: Not possible: overloads are not recorded.
            include_python_functions: Not possible: they are no rows here.
            device: Whose bytes the attributes ``*_bytes`` are; see the class.

        Raises:
            MemprofError: A grouping that is not possible.
            TypeError: GROUP_BY_STACK_N is no number.
            ValueError: It is negative, or there is no such device.
        """
        from memprof.averages import OperatorAverages

        if group_by_input_shape:
            raise MemprofError(
                "group_by_input_shape=True: this recording holds no shapes of "
                "inputs. memprof.profile(record_shapes=True) writes those of "
                "results; group_by_stack_n= tells calls apart by their line"
            )
        if group_by_overload_name:
            raise MemprofError(
                "group_by_overload_name=True: memprof records names of ops "
                "without their overloads"
            )
        if include_python_functions:
            raise MemprofError(
                "include_python_functions=True: Python functions are not recorded "
                "as calls; group_by_stack_n= tells which lines called an op"
            )
        frames = operator.index(group_by_stack_n)
        if frames < 0:
            raise ValueError(f"group_by_stack_n={frames}: a number of frames, or 0")
        return OperatorAverages(self, self._device(device), min(frames, 2**32 - 1))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to PATH, whole or not at all; labels included.

        A file that is there keeps its mode, and a link still leads to it.

        Raises:
            OSError: the file cannot be written; names the path.
            MemprofError: PATH is no regular file (a device, a pipe, a socket),
                or a running profile streams to it.
        """
        files.check_folder(path)
        target = files.save_target(path)
        if self._rules is None:
            self._core.save(target)
            return
        info = self._written_info()
        info["labels"] = [rule.to_dict() for rule in self._rules]
        self._core.save(target, json.dumps(info))

    def __getattr__(self, name: str) -> Any:
        """Say what takes the place of an attribute that only torch has.

        Raises:
            AttributeError: always.
        """
        return without(self, name)

    def __repr__(self) -> str:
        where = ", ".join(self.devices) or "no devices"
        return (
            f"<memprof.Recording: {self._core.events_count} events, "
            f"{len(self.steps)} steps, {where}>"
        )

    # -- devices ---------------------------------------------------------------

    def _device(self, device: object) -> int:
        """Return the number of the device that an argument means.

        Raises:
            ValueError: it was not recorded; names those that were.
        """
        known = self._core.devices()
        if device is None:
            number = self._current_gpu(known)
            return number if number is not None else CPU
        asked = parse_device(device)
        number = self._current_gpu(known) if asked is None else asked
        if number is None or (number not in known and (known or number != CPU)):
            raise ValueError(
                f"{str(device)!r} was not recorded; devices here: "
                f"{_choices(map(device_name, known)) or 'none'}"
            )
        return number

    def _current_gpu(self, known: list[int]) -> int | None:
        """Return the GPU in use if it was recorded, else the first that was."""
        gpus = [number for number in known if number != CPU]
        current = self._current
        if current is None:
            try:
                current = json.loads(self._core.info or "{}").get("current_device")
            except (ValueError, AttributeError):
                current = None
        if current in gpus:
            return current
        return gpus[0] if gpus else None


def _choices(names: Any) -> str:
    """Join NAMES for an error message."""
    return ", ".join(repr(str(name)) for name in names)


def load(path: str | os.PathLike[str]) -> Recording:
    """Read a recording file.

    A file that was cut, or whose writer was killed, gives what is whole;
    ``info["finished"]`` is then False.

    Raises:
        OSError: the file cannot be read.
        memprof.Error: it is no recording, is damaged in its header, or was
            written by a newer memprof; says which.
    """
    return Recording(_core.load(os.fspath(path)))
