"""Books: every byte that the process holds of a GPU, at one moment, by owner.

The rows sum to the total that the driver reports, to the byte; what nothing
explains is a row of its own, with its sign, and is never spread over the others.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memprof import _core
from memprof.devices import device_name
from memprof.moment import Moment
from memprof.outside import Outside, gpu, is_async, outside
from memprof.rows import CPU
from memprof.spans import find_step
from memprof.totals import Total, total_of

if TYPE_CHECKING:
    from memprof.recording import Recording

_PINNED = tuple(
    _core.DRIVER_GROUPS.index(name)
    for name in ("host", "host_registered", "host_physical")
)
_MANAGED = _core.DRIVER_GROUPS.index("managed")

LEVELS = {
    "A": "driver ledger, process totals and torch's hooks",
    "B": "process totals and torch's hooks: what is outside of torch is one number",
    "C": "torch's hooks alone: what is outside of torch is not known",
}


class Entry(NamedTuple):
    """One line of the books."""

    key: str
    """``requested, cached, library, pools, rounding, cupti, before, images, outside,
    unexplained``; of the device ``process, other_processes, device_reserved``."""
    name: str
    bytes: int
    note: str = ""


class _Instant(NamedTuple):
    """A moment of a GPU, also of one that torch has never touched."""

    time_ns: int
    event: int
    step: int
    requested: int
    reserved: int


class Pinned(NamedTuple):
    """Host memory that a library has pinned."""

    owner: str
    group: str
    bytes: int
    entries: int
    peak: int


class Books:
    """What one device's total is made of at one moment.

    Attributes:
        device: ``"cuda:0"``.
        time_ns, event, step: of the moment asked for.
        level: ``"A"``, ``"B"`` or ``"C"`` (``LEVELS``), with the reason ``why``.
        sample: the ``Total`` that the rows sum to; None at level C.
        age_ns: how long after the moment it was measured; below 0: before it.
        total: bytes; at level C torch's reserved ones.
        rows: ``Entry``; they sum to ``total``.
        device_rows: ``Entry``; they sum to the device's used bytes, if those are known.
        pinned: ``Pinned`` rows, host memory, in no sum.
        managed: bytes of managed memory, whose pages move, in no sum.
        growth: ``{owner: bytes}`` since the first sample, of what is outside of torch.
    """

    def __init__(self, recording: Recording, device: object, at: object) -> None:
        """Find the sample nearest to the moment and divide it."""
        number = gpu(recording, device)
        moment = _moment(recording, number, at)
        self.device = device_name(number)
        self.time_ns, self.event, self.step = moment.time_ns, moment.event, moment.step
        self.requested, self.reserved = moment.requested, moment.reserved
        parts = outside(recording, number)
        driver = _driver_fact(recording)
        self.level, self.why = _level(recording, parts, driver)
        self.sample: Total | None = None
        self.age_ns: int | None = None
        self.notes: list[str] = []
        self.rows: list[Entry]
        self.device_rows: list[Entry] = []
        self.growth: dict[str, int] = {}
        event = self.event
        if self.level == "C":
            self.total = moment.reserved
            self.rows = [
                Entry("requested", "torch requested", moment.requested),
                Entry(
                    "cached",
                    "torch rounding and cached free",
                    moment.reserved - moment.requested,
                ),
            ]
        else:
            place = _nearest(parts, moment, is_async(recording))
            self.sample = total_of(parts.samples[place])
            self.age_ns = int(parts.samples[place]["time_ns"]) - moment.time_ns
            self.total = int(parts.total[place])
            reserved = int(parts.requested[place] + parts.cached[place])
            # What torch took is the same at the sample: then what it had given out
            # of that is known of the moment itself.
            same = reserved == moment.reserved and not is_async(recording)
            requested = moment.requested if same else int(parts.requested[place])
            torchs = (requested, reserved - requested)
            self.rows = _rows(recording, parts, place, self.level, driver, torchs)
            self.device_rows = _device_rows(self.sample, parts, place)
            self.growth = _growth(parts, place)
            event = int(parts.events[place])
            if not same and not is_async(recording):
                self.notes.append(
                    "torch's reserved bytes changed between the moment and the "
                    f"sample: {moment.reserved} and {reserved}"
                )
        self.pinned, self.managed = _beside(recording, number, event)
        for gap in recording.driver_gaps():
            begin, end = int(gap["begin_event"]), int(gap["end_event"])
            if self.level == "A" and begin <= event:
                reason = recording.op(int(gap["reason"]))
                lasts = "to the end" if end < 0 else f"to event {end}"
                self.notes.append(
                    f"no ledger from event {max(begin, 0)} {lasts} ({reason}): what "
                    "came or went then is unexplained"
                )

    @property
    def unexplained(self) -> int | None:
        """Bytes, signed; None where the books cannot say (levels B and C)."""
        found = [row.bytes for row in self.rows if row.key == "unexplained"]
        return found[0] if found else None

    def to_dict(self) -> dict[str, Any]:
        """Return all of it; sizes in bytes, times in nanoseconds."""
        sample = self.sample
        return {
            "device": self.device,
            "time_ns": self.time_ns,
            "event": self.event,
            "step": self.step,
            "level": self.level,
            "level_text": LEVELS[self.level],
            "why": self.why,
            "total": self.total,
            "method": None if sample is None else sample.method,
            "age_ns": self.age_ns,
            "requested_at_moment": self.requested,
            "reserved_at_moment": self.reserved,
            "rows": [row._asdict() for row in self.rows],
            "device_rows": [row._asdict() for row in self.device_rows],
            "pinned": [row._asdict() for row in self.pinned],
            "managed": self.managed,
            "growth": dict(self.growth),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        """Return the table, plain."""
        from memprof.reports.books import text

        return text(self)

    def __repr__(self) -> str:
        from memprof.reports.units import size_text

        return f"<memprof.Books: {self.device}, {size_text(self.total, 4)}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _moment(recording: Recording, device: int, at: object) -> _Instant:
    """Return the moment that AT names: ``Recording.books`` says which there are."""
    last = recording._core.events_count - 1
    torchs = device in recording._core.devices()
    # Where torch has never been, nothing has a peak: the end is as good.
    if at == "end" or (at == "peak" and not torchs):
        return _instant(recording, device, last, None)
    if at == "peak":
        return _of(recording.peak(device))
    step = None
    if isinstance(at, str):
        kind, found, number = at.partition(":")
        if kind == "step" and found and number.isascii() and number.isdigit():
            step = int(number)
        else:
            raise ValueError(
                f"no moment {at!r}; choose 'peak', 'end', 'step:3' or a step's number"
            )
    elif isinstance(at, (int, np.integer)) and not isinstance(at, bool):
        step = int(at)
    elif isinstance(at, Moment):
        return _instant(recording, device, at.event, at.step)
    if step is None:
        raise TypeError(
            "at must be 'peak', 'end', the number of a step or a Moment, not "
            f"{type(at).__name__}"
        )
    event = int(find_step(recording, step)["end_event"])
    return _instant(recording, device, event, step)


def _of(moment: Moment) -> _Instant:
    step = -1 if moment.step is None else moment.step
    return _Instant(
        moment.time_ns, moment.event, step, moment.requested, moment.reserved
    )


def _instant(
    recording: Recording, device: int, event: int, step: int | None
) -> _Instant:
    """Return the state of DEVICE after EVENT."""
    if device in recording._core.devices():
        found = _of(recording.at(event=event, device=device))
        return found if step is None else found._replace(step=step)
    times = recording._times()
    start = recording._core.start_ns
    time_ns = int(times[event]) if 0 <= event < len(times) else start
    return _Instant(time_ns, event, -1 if step is None else step, 0, 0)


def _driver_fact(recording: Recording) -> dict[str, Any]:
    sources = recording.info.get("sources")
    fact = sources.get("driver") if isinstance(sources, dict) else None
    return fact if isinstance(fact, dict) else {}


def _level(
    recording: Recording, parts: Outside, driver: dict[str, Any]
) -> tuple[str, str]:
    """Return the level and why it is not a better one."""
    if not len(parts.total):
        sources = recording.info.get("sources")
        fact = sources.get("process totals") if isinstance(sources, dict) else None
        why = fact.get("why", "") if isinstance(fact, dict) else ""
        return "C", str(why) or "no process total was measured"
    if driver.get("live") or len(recording.driver_allocations(None)):
        return "A", ""
    return "B", str(driver.get("why") or "the recording has no driver ledger")


def _nearest(parts: Outside, moment: _Instant, blind: bool) -> int:
    """Return the sample of the state at MOMENT, else the nearest in time.

    BLIND: torch's allocator told nothing of that moment.
    """
    time: Any = np.abs(parts.samples["time_ns"] - moment.time_ns)
    same = parts.requested + parts.cached == moment.reserved
    if same.any() and not blind:
        # What torch took is the same, so that is the same state but for others'.
        time = np.where(same, time, np.iinfo(np.int64).max)
    return int(np.argmin(time))


def _rows(
    recording: Recording,
    parts: Outside,
    place: int,
    level: str,
    driver: dict[str, Any],
    torchs: tuple[int, int],
) -> list[Entry]:
    pool = " (its cudaMallocAsync pool)" if is_async(recording) else ""
    rows = [
        Entry("requested", f"torch requested{pool}", torchs[0]),
        Entry("cached", "torch rounding and cached free", torchs[1]),
    ]
    if level == "B":
        rest = int(parts.outside[place])
        return [*rows, Entry("outside", "outside torch", rest, "not divided")]
    held = [
        Entry("library", owner, int(parts.libraries[place, k]))
        for k, owner in enumerate(parts.owners)
    ]
    rows += sorted((row for row in held if row.bytes), key=lambda row: -row.bytes)
    if parts.pools[place]:
        rows.append(
            Entry(
                "pools",
                "stream-ordered pool",
                int(parts.pools[place]),
                "cudaMallocAsync of others than torch",
            )
        )
    if parts.rounding[place]:
        rows.append(
            Entry(
                "rounding",
                "driver rounding",
                int(parts.rounding[place]),
                "pieces of 2 MiB",
            )
        )
    before = int(parts.before[place])
    own = min(max(int((driver.get("own_bytes") or {}).get(_name(parts), 0)), 0), before)
    if own:
        rows.append(Entry("cupti", "memprof itself (CUPTI)", own, "measured"))
    what = "CUDA context" if parts.with_context else "CUDA context, modules"
    note = "" if parts.with_context else "and all that was there before the ledger"
    rows.append(Entry("before", what, before - own, note))
    rows.append(
        Entry(
            "images",
            "code loaded since, first used",
            int(parts.images[place]),
            "what else came within a second of it",
        )
    )
    rows.append(Entry("unexplained", "unexplained", int(parts.unexplained[place])))
    return rows


def _name(parts: Outside) -> str:
    return device_name(int(parts.samples["device"][0]))


def _device_rows(sample: Total, parts: Outside, place: int) -> list[Entry]:
    """Divide what the device has in use among processes."""
    used = sample.device_used_bytes
    if used is None:
        return []
    kept = sample.device_reserved_bytes
    rows = []
    if parts.of_process:
        mine = int(parts.total[place])
        rows.append(Entry("process", "this process", mine, sample.method))
        others = used - mine - (kept or 0)
        note = "" if kept is not None else "and what the driver reserves"
        rows.append(Entry("other_processes", "other processes", others, note))
    else:
        rows.append(
            Entry("process", "all processes", used - (kept or 0), sample.device_method)
        )
    if kept is not None:
        rows.append(Entry("device_reserved", "reserved by driver and firmware", kept))
    return rows


def _growth(parts: Outside, place: int) -> dict[str, int]:
    """Return how what is outside of torch grew since the first sample, by owner."""
    found = {
        owner: int(parts.libraries[place, k] - parts.libraries[0, k])
        for k, owner in enumerate(parts.owners)
    }
    for name, column in (
        ("stream-ordered pool", parts.pools),
        ("driver rounding", parts.rounding),
        ("code loaded", parts.images),
        ("unexplained", parts.unexplained),
    ):
        found[name] = int(column[place] - column[0])
    grown = sorted(found.items(), key=lambda item: -abs(item[1]))
    return {owner: amount for owner, amount in grown if amount}


def _beside(recording: Recording, device: int, event: int) -> tuple[list[Pinned], int]:
    """Return the pinned host memory and the managed bytes after EVENT."""
    accounts = recording.driver_accounts(event)
    managed = (accounts["group"] == _MANAGED) & (accounts["device"] == device)
    pinned = np.isin(accounts["group"], _PINNED) | (accounts["device"] == CPU)
    rows = [
        Pinned(
            recording.owner(int(row["owner"])) or "unknown",
            _core.DRIVER_GROUPS[int(row["group"])],
            int(row["bytes"]),
            int(row["count"]),
            int(row["peak"]),
        )
        for row in accounts[pinned]
        if row["bytes"]
    ]
    rows.sort(key=lambda row: -row.bytes)
    return rows, int(accounts["bytes"][managed].sum())
