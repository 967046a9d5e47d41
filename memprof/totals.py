"""Totals: what the driver says that the process and the device hold.

Measured by NVML, else by ``cuMemGetInfo``, and never without saying which:
a number of "all processes" is not one of this process.  Of the CPU it is what
the operating system says.  What could not be had is None (in rows: -1) and
has a reason.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memprof import _core, cuda
from memprof.devices import device_name, parse_device, recorded_device
from memprof.rows import CPU, TOTAL_DTYPE, Ints, Rows, as_rows

if TYPE_CHECKING:
    from memprof.recording import Recording


class Total(NamedTuple):
    """What one device, and this process on it, held at one moment; bytes."""

    device: str
    time_ns: int
    """When measuring began."""
    event: int | None
    """Of the recording; None: it was measured for nobody's recording."""
    step: int | None
    process_bytes: int | None
    """What this process holds on the device; of the CPU: its resident memory."""
    device_used_bytes: int | None
    """Total less free: of all processes, and what is reserved; of the CPU: total
    less available."""
    device_total_bytes: int | None
    device_reserved_bytes: int | None
    """Of the used ones what driver and firmware keep; None: they are not told."""
    pool_reserved_bytes: int | None
    """What the device's default memory pool (``cudaMallocAsync``) has taken from
    it; part of ``process_bytes``."""
    pool_used_bytes: int | None
    method: str
    """How ``process_bytes`` were had; where there are none, the device's."""
    why: str
    """Why there are no ``process_bytes``; ``""``: there are."""
    device_method: str
    device_why: str
    cause: str
    """What made memprof look: ``step, peak, request, window, start, clock`` (nothing
    else had for half a second) or ``asked`` (``device_totals``)."""
    memory: str
    """Where the device's memory is: ``its own``; ``the host's`` (an integrated GPU:
    what the CPU's processes use is part of the used bytes); ``a node of the host``
    (GH200: malloc may sit in it)."""
    cost_ns: int
    """How long measuring took. What changed meanwhile may be in it or not."""
    sample: int
    """Equal for devices that were measured in one go."""
    made_reserved_bytes: int | None = 0
    """As ``pool_reserved_bytes``, of pools that the program made (``cuMemPoolCreate``),
    as far as the driver ledger heard of them."""

    def __str__(self) -> str:
        """Say the figure with its method, or why there is none."""
        from memprof.reports.units import one_line, size_text

        if self.process_bytes is not None:
            said = f"{size_text(self.process_bytes)} ({self.method})"
        elif self.device_used_bytes is not None:
            used = size_text(self.device_used_bytes)
            said = f"{used} ({self.device_method}); {self.why}"
        else:
            said = f"not measured; {self.why}"
        return one_line(f"{self.device}: {said}")


class TotalAt(NamedTuple):
    """The samples around a moment, which is hardly ever one itself."""

    before: Total | None
    """The last one at or before it; None: there is none."""
    after: Total | None
    """The first one after it."""
    age_ns: int | None
    """How long before the moment ``before`` was measured."""
    ahead_ns: int | None
    """How long after it ``after`` was. Below 0: that was begun before the moment
    and done after it."""

    @property
    def nearest(self) -> Total | None:
        """Whichever is nearer in time; of equals the one before."""
        if self.before is None or self.age_ns is None:
            return self.after
        if self.ahead_ns is not None and abs(self.ahead_ns) < abs(self.age_ns):
            return self.after
        return self.before


def device_totals(device: object = None) -> Total:
    """Measure what a device and this process on it hold, now.

    Costs what NVML costs, about a millisecond. Initialises no CUDA and makes no
    context: before the program has used CUDA there is nothing to measure.

    Args:
        device: an int, ``"cuda:0"``, ``"cpu"`` or a ``torch.device``; None: the GPU
            in use, else the CPU.

    Raises:
        ValueError: that is no device. One that CUDA does not show is none either,
            but then the answer says so: CUDA may not be up.
    """
    asked = None if device is None else parse_device(device)
    if asked is None:  # or "cuda": the one in use
        torch = sys.modules.get("torch")
        asked = None if torch is None else cuda.current(torch)
    if asked is None:
        asked = CPU if device is None else 0
    return total_of(as_rows(_core.device_total(asked), TOTAL_DTYPE)[0])


def total_of(row: Any) -> Total:
    """Turn a row of TOTAL_DTYPE into what it means."""
    value = dict(zip(row.dtype.names, row.tolist(), strict=True))
    for name in ("event", "step", *(n for n in value if n.endswith("_bytes"))):
        if value[name] < 0:
            value[name] = None
    value["device"] = device_name(value["device"])
    for name, texts in (
        ("method", _core.TOTAL_METHODS),
        ("device_method", _core.TOTAL_METHODS),
        ("why", _core.TOTAL_WHYS),
        ("device_why", _core.TOTAL_WHYS),
        ("cause", _core.TOTAL_CAUSES),
        ("memory", _core.TOTAL_MEMORIES),
    ):
        value[name] = texts[value[name]]
    return Total(**value)


def totals(recording: Recording, device: object) -> Rows:
    """Return the rows of ``Recording.totals``."""
    rows = recording._total_rows()
    if isinstance(device, str) and device == "all":
        return rows
    known = sorted({*recording._core.devices(), *rows["device"].tolist()})
    number = recorded_device(device, known, recording._gpu_in_use)
    chosen: Rows = rows[rows["device"] == number]
    chosen.flags.writeable = False
    return chosen


def total_at(recording: Recording, device: int, event: int, time_ns: int) -> TotalAt:
    """Return the samples around EVENT, which was at TIME_NS, on DEVICE."""
    rows = recording._total_rows()
    rows = rows[rows["device"] == device]
    # What was measured before the recording is part of the state at its start.
    early = rows["time_ns"] <= recording._core.start_ns
    order: Ints = np.where(early, -1, rows["event"])
    count = int(np.searchsorted(order, event, "right"))
    before = total_of(rows[count - 1]) if count else None
    after = total_of(rows[count]) if count < len(rows) else None
    return TotalAt(
        before,
        after,
        None if before is None else time_ns - before.time_ns,
        None if after is None else after.time_ns - time_ns,
    )


def fact(device: object) -> dict[str, Any]:
    """Say whether the totals of a device can be had now, as ``info`` does.

    Returns:
        ``live``; ``why`` not, or why not those of the process; ``method``.
    """
    total = device_totals(device)
    known = (total.process_bytes, total.device_used_bytes)
    return {
        "live": any(value is not None for value in known),
        "why": total.why,
        "method": total.method,
    }
