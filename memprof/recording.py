"""The recording: what happened to memory, as NumPy arrays and answers.

``load(path)`` reads a file; a profile hands out the same object.  Everything
here is a view of the C core's rows (``csrc/event.h``, ``csrc/life.h``):
arrays share its memory and are read-only.

Sizes are bytes, times nanoseconds on one monotonic clock, devices texts such as
``"cuda:0"`` and ``"cpu"``.  Events are numbered from 0 in the order in which
they happened; event -1 is the state when the recording began.
"""

from __future__ import annotations

import json
import operator
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from memprof import _core, files
from memprof.absent import without
from memprof.devices import device_name, parse_device, recorded_device
from memprof.driver_facts import DriverFacts
from memprof.export import Exports
from memprof.info import parsed
from memprof.labelled import Labelled
from memprof.module_facts import ModuleFacts
from memprof.moment import Moment
from memprof.outputs import Outputs
from memprof.pages import Pages
from memprof.peaks import highest, level
from memprof.rows import (
    ALLOCATION_DTYPE,
    CPU,
    DRIVER_ACCOUNT_DTYPE,
    DRIVER_DTYPE,
    DRIVER_GAP_DTYPE,
    EVENT_DTYPE,
    KERNEL_DTYPE,
    NO_INDEX,
    PHASES_DTYPE,
    STEP_DTYPE,
    STEPS_DTYPE,
    TOTAL_DTYPE,
    Ints,
    Rows,
    as_rows,
)
from memprof.spans import find_phases, find_step, find_steps, step_rows, stretches
from memprof.texts import Frame, Texts
from memprof.timeline import Samples, Timeline, sampled, timeline

if TYPE_CHECKING:
    from memprof.averages import OperatorAverages
    from memprof.labels import Labels, Rule
    from memprof.models import Models
    from memprof.modstats import Tree
    from memprof.reports.text import Summary

__all__ = [
    "ALLOCATION_DTYPE",
    "CATEGORIES",
    "CPU",
    "DRIVER_ACCOUNT_DTYPE",
    "DRIVER_DTYPE",
    "DRIVER_GAP_DTYPE",
    "DRIVER_GROUPS",
    "EVENT_DTYPE",
    "GPU_KINDS",
    "KERNEL_DTYPE",
    "NO_INDEX",
    "PHASES",
    "PHASES_DTYPE",
    "REASONS",
    "ROLES",
    "STEPS_DTYPE",
    "STEP_DTYPE",
    "TOTAL_CAUSES",
    "TOTAL_DTYPE",
    "TOTAL_MEMORIES",
    "TOTAL_METHODS",
    "TOTAL_WHYS",
    "Frame",
    "Ints",
    "Recording",
    "Rows",
    "Timeline",
    "device_name",
    "load",
    "parse_device",
]

# What the small numbers of rows index.
PHASES = _core.PHASES
CATEGORIES = _core.CATEGORIES
REASONS = _core.REASONS
ROLES = _core.ROLES
DRIVER_GROUPS = _core.DRIVER_GROUPS
GPU_KINDS = _core.GPU_KINDS
TOTAL_METHODS = _core.TOTAL_METHODS
TOTAL_WHYS = _core.TOTAL_WHYS
TOTAL_CAUSES = _core.TOTAL_CAUSES
TOTAL_MEMORIES = _core.TOTAL_MEMORIES


class Recording(Texts, DriverFacts, ModuleFacts, Labelled, Pages, Exports, Outputs):
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
        self._totals: Rows | None = None
        # For memprof.moment: what the ids of this recording mean as text.
        self._places: Any = None
        self._models: Models | None = None
        self._tree: Tree | None = None
        self._rules: tuple[Rule, ...] | None = None  # None: those of the info
        self._labelled: Labels | None = None
        self._lost: dict[str, int] | None = None

    # -- facts about the whole -------------------------------------------------

    @property
    def info(self) -> dict[str, Any]:
        """Facts about the run; a new dict each time.

        Always there: ``events`` and ``allocations`` (how many), ``dropped``
        (events lost because the log was full), ``defects`` (name -> count: what
        did not fit together), ``devices``, ``finished`` (False: the writer was
        killed or the file is cut), ``damaged_bytes`` (behind the last good
        block), ``start_ns`` and ``start_wall_ns`` (monotonic and Unix clock),
        ``labels`` (the rules of ``label``, as dicts), ``driver`` (name -> count:
        what did not fit together in the driver ledger, and its gaps),
        ``kernels_lost`` (why -> count: records of GPU work that are missing).
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
            driver=core.driver_counts(),
            kernels_lost=dict(self._kernels_lost()),
            labels=[rule.to_dict() for rule in self.rules],
        )
        return info

    def _kernels_lost(self) -> dict[str, int]:
        if self._lost is None:  # a walk over all events
            self._lost = self._core.gpu_lost()
        return self._lost

    def _written_info(self) -> dict[str, Any]:
        return parsed(self._core.info)

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
            self._step_rows = find_steps(self)
        return self._step_rows

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
            self._phase_rows = find_phases(self)
        return self._phase_rows

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
        rows = step_rows(self)
        rows = rows[np.isin(rows["number"], self.steps["number"])]
        if not (isinstance(device, str) and device == "all"):
            rows = rows[rows["device"] == self._device(device)]
        rows.flags.writeable = False
        return rows

    def _total_rows(self) -> Rows:
        if self._totals is None:
            self._totals = as_rows(self._core.totals(), TOTAL_DTYPE)
        return self._totals

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
        return timeline(self, device, by)

    def _sampled(self, device: int, kind: int) -> Samples:
        """Return the core's timeline of a device; see ``timeline.sampled``."""
        key = (device, kind)
        if key not in self._samples:
            self._samples[key] = sampled(self._core, device, kind)
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
        samples, column = level(self, number, of, category, label)
        found = highest(samples.event, column, *stretches(self, step, phase))
        return Moment(self, number, found, step=step)

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
            return Moment(
                self, number, int(find_step(self, step)["end_event"]), step=step
            )
        if time_ns is not None:
            found = int(np.searchsorted(self._times(), time_ns, "right")) - 1
            return Moment(self, number, found, time_ns=int(time_ns))
        assert event is not None
        count = self._core.events_count
        event = operator.index(event)
        if not -1 <= event < count:
            raise ValueError(f"no event {event}; events: -1 (the start) to {count - 1}")
        return Moment(self, number, event)

    # -- what answers share -----------------------------------------------------

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of ``label``, in the order in which they are tried."""
        if self._rules is None:
            from memprof.labels import stored

            self._rules = stored(self._written_info())
        return self._rules

    def _labels(self) -> Labels:
        if self._labelled is None:
            from memprof.labels import Labels

            self._labelled = Labels(self, self.rules)
        return self._labelled

    def _known_models(self) -> Models:
        if self._models is None:
            from memprof.models import Models

            self._models = Models(self)
        return self._models

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
        from memprof.averages import OperatorAverages, check_grouping

        check_grouping(
            group_by_input_shape, group_by_overload_name, include_python_functions
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
        self._core.save(target, self._info_text())

    def _info_text(self) -> str:
        """Return the facts that go with a file, labels included."""
        if self._rules is None:
            return self._core.info
        info = self._written_info()
        rules = [rule.to_dict() for rule in self._rules]
        if rules == info.get("labels", []):
            return self._core.info  # equal recordings give equal files
        return json.dumps({**info, "labels": rules})

    def _exported(self) -> Recording:
        return self

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> dict[str, Any]:
        """Show a notebook the summary, as a static table and as JSON."""
        from memprof.integrations.jupyter import bundle

        return bundle(self, self)

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
        return recorded_device(device, self._core.devices(), self._gpu_in_use)

    def _gpu_in_use(self) -> object:
        """Return the index of the GPU that is or was in use; None: not known."""
        if self._current is not None:
            return self._current
        return self._written_info().get("current_device")


def load(path: str | os.PathLike[str]) -> Recording:
    """Read a recording file, or what another tool wrote.

    Besides recordings: memory snapshots of torch and of ``export_snapshot``,
    traces of torch.profiler with ``[memory]`` events, raw memory timelines. They
    are told apart by what is in them; ``info["imported"]`` says what a file could
    not tell (docs/formats/snapshot.md). Nothing in a file is run.

    A file that was cut, or whose writer was killed, gives what is whole;
    ``info["finished"]`` is then False.

    Raises:
        OSError: the file cannot be read.
        MemprofError: it is none of these, is damaged in its header, or was
            written by a newer memprof; says which.
    """
    from memprof.imports import read

    return Recording(read(path))
