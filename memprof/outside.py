"""Outside: what the process holds of a device beyond torch's memory, over time.

At every sample of the process total (``totals.py``) the total is divided into what
is known exactly at that event (torch's segments, what the driver ledger says that
other libraries hold, pools) and the rest. The rest is told by when it came: with
the first sample (the context and all that was there before), when code was loaded
or soon after, or at no such time, which nothing explains. So all parts sum to the
total, and none is spread over the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memprof import _core
from memprof.devices import recorded_device
from memprof.rows import NOT_COUNTED, Ints, Rows
from memprof.timeline import OF_TOTALS, TOTALS

if TYPE_CHECKING:
    from memprof.recording import Recording

GRANULE = 2 << 20
"""The driver gives device memory out in pieces of this size."""

FIRST_USE_NS = 1_000_000_000
"""For so long after code was loaded what comes is taken for its first use: lazily
loaded kernels, and the local memory of all processors for the hungriest."""

_UNKNOWN = -2
"""The device of what the ledger could not place."""

_GROUPS = _core.DRIVER_GROUPS
COUNTED = tuple(_GROUPS.index(name) for name in ("device", "physical", "array"))
"""Groups whose bytes are the device's; of the others none are, or a pool's."""

_MARK = next(n for n, name in _core.EVENT_KINDS.items() if name == "driver_mark")
_IMAGES = tuple(
    number
    for number, name in _core.DRIVER_MARKS.items()
    if name in ("image_loaded", "image_unloaded", "limit_set", "graph_made")
)
_CONTEXTS = tuple(
    number for number, name in _core.DRIVER_MARKS.items() if name == "context_created"
)


class Outside(NamedTuple):
    """The parts of a device's total at each of n samples; bytes.

    ``requested + cached + libraries.sum(1) + pools + rounding + before + images +
    unexplained == total``, at every sample.
    """

    samples: Rows
    """``TOTAL_DTYPE`` [n]: those that have a figure."""
    events: Ints
    """int64 [n]: the event after which the parts hold; -1: the start."""
    total: Ints
    """int64 [n]: of the process; ``of_process`` False: of all processes."""
    of_process: bool
    requested: Ints
    """int64 [n]: what torch's allocator has given out."""
    cached: Ints
    """int64 [n]: torch's reserved bytes less that: rounding and cached free."""
    owners: tuple[str, ...]
    """k names: who holds memory that is not torch's."""
    libraries: Ints
    """int64 [n, k]: what they hold."""
    pools: Ints
    """int64 [n]: reserved by stream-ordered pools that are not torch's."""
    rounding: Ints
    """int64 [n]: what the driver rounds the libraries' allocations up by."""
    before: Ints
    """int64 [n]: what was there at the first sample and is none of the above."""
    images: Ints
    """int64 [n]: what else came or went when code was loaded, or within FIRST_USE_NS
    of that: the driver takes memory for it when it is first used."""
    unexplained: Ints
    """int64 [n]: what else came or went; signed."""
    with_context: bool
    """The context came after the start: ``before`` is what the context took."""

    @property
    def outside(self) -> Ints:
        """int64 [n]: the total less torch's reserved bytes."""
        return self.total - self.requested - self.cached


def outside(recording: Recording, device: object = None) -> Outside:
    """Divide every sample of a device's total.

    Args:
        recording: what to ask.
        device: an int, ``"cuda:0"`` or a ``torch.device``; None: the GPU in use.

    Raises:
        ValueError: not a device of the recording, or it is the CPU, whose memory no
            driver gives out.
    """
    totals, number = recording._total_rows(), gpu(recording, device)
    samples = totals[totals["device"] == number]
    of_process = bool((samples["process_bytes"] >= 0).any())
    column = "process_bytes" if of_process else "device_used_bytes"
    samples = samples[samples[column] >= 0]
    total = samples[column].astype(np.int64)
    if not of_process:
        total = total - np.maximum(samples["device_reserved_bytes"], 0)
    early = samples["time_ns"] <= recording._core.start_ns
    events: Ints = np.where(early, -1, samples["event"])

    requested, cached, pools = _torch(recording, number, samples, events)
    lives = _of_others(recording, number)
    owners, libraries, rounding = _held(recording, lives, events)
    rest = total - requested - cached - libraries.sum(1) - pools - rounding
    before, images, unexplained, with_context = _told_by_time(
        recording, samples["time_ns"].astype(np.int64), rest
    )
    return Outside(
        samples,
        events,
        total,
        of_process,
        requested,
        cached,
        owners,
        libraries,
        pools,
        rounding,
        before,
        images,
        unexplained,
        with_context,
    )


def gpu(recording: Recording, device: object) -> int:
    """Return the number of a GPU that the recording tells anything of.

    Raises:
        ValueError: there is no such GPU.
    """
    told = (recording._total_rows(), recording.driver_allocations(None))
    known = {int(number) for rows in told for number in np.unique(rows["device"])}
    devices = sorted({*recording._core.devices(), *known} - {_UNKNOWN})
    if not any(number >= 0 for number in devices):
        raise ValueError(
            "the books are those of a GPU; the recording has none: record on a "
            "machine with one"
        )
    number = recorded_device(device, devices, recording._gpu_in_use)
    if number < 0:
        raise ValueError("the books are those of a GPU; the CPU has no driver")
    return number


def is_async(recording: Recording) -> bool:
    """Return whether torch's memory lies in the device's own pool."""
    why = (recording.info.get("sources") or {}).get("cuda allocator") or {}
    return "cudaMallocAsync" in str(why.get("why", ""))


def _torch(
    recording: Recording, device: int, samples: Rows, events: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return torch's requested bytes, its other reserved ones, and foreign pools."""
    pools: Ints = np.maximum(samples["pool_reserved_bytes"], 0).astype(np.int64)
    made: Ints = samples["made_reserved_bytes"].astype(np.int64)
    if is_async(recording):  # the device's own pool is torch's
        used = np.maximum(samples["pool_used_bytes"], 0).astype(np.int64)
        return used, pools - used, made
    levels = recording._sampled(device, OF_TOTALS)
    at = np.maximum(np.searchsorted(levels.event, events, "right") - 1, 0)
    requested: Ints = levels.bytes[at, TOTALS.index("requested")].astype(np.int64)
    reserved: Ints = levels.bytes[at, TOTALS.index("reserved")].astype(np.int64)
    return requested, reserved - requested, pools + made


def _of_others(recording: Recording, device: int) -> Rows:
    """Return the rows of the ledger that are of DEVICE and not torch's."""
    lives = recording.driver_allocations(None)
    mine = (lives["device"] == device) & (lives["is_torch"] == 0)
    mine &= np.isin(lives["group"], COUNTED)
    mine &= (lives["flags"] & NOT_COUNTED) == 0
    found: Rows = lives[mine]
    return found


def _held(
    recording: Recording, lives: Rows, events: Ints
) -> tuple[tuple[str, ...], Ints, Ints]:
    """Return who holds what of LIVES after EVENTS, and what rounding adds."""
    ids, owner = np.unique(lives["owner"], return_inverse=True)
    names = [recording.owner(int(i)) or "unknown" for i in ids]
    owners = tuple(dict.fromkeys(names))
    place = np.array([owners.index(name) for name in names], np.int64)
    shape = (len(events), len(owners))
    held, large, small = (np.zeros(shape, np.int64) for _ in range(3))
    sizes = lives["size"].astype(np.int64)
    is_large = sizes >= GRANULE
    rounded = -(-sizes // GRANULE) * GRANULE
    for k in range(len(owners)):
        mine = place[owner] == k
        held[:, k] = _alive(lives[mine], sizes[mine], events)
        big = mine & is_large
        large[:, k] = _alive(lives[big], (rounded - sizes)[big], events)
        rest = mine & ~is_large
        small[:, k] = _alive(lives[rest], sizes[rest], events)
    # What is smaller than a piece shares pieces with its like.
    slack = -(-small // GRANULE) * GRANULE - small
    rounding: Ints = (large + slack).sum(1)
    return owners, held, rounding


def _alive(lives: Rows, amounts: Ints, events: Ints) -> Ints:
    """Return the sum of AMOUNTS of the LIVES that are held after each of EVENTS."""
    result: Ints = _sum_until(lives["born_event"], amounts, events)
    died = lives["died_event"] >= 0
    ended: Ints = _sum_until(lives["died_event"][died], amounts[died], events)
    return result - ended


def _sum_until(at: NDArray[Any], amounts: Ints, events: Ints) -> Ints:
    order = np.argsort(at, kind="stable")
    sums = np.concatenate(([0], np.cumsum(amounts[order])))
    found: Ints = sums[np.searchsorted(at[order], events, "right")]
    return found


def _told_by_time(
    recording: Recording, times: Ints, rest: Ints
) -> tuple[Ints, Ints, Ints, bool]:
    """Divide REST by when it came: at first, with images, at no such time."""
    before, images = np.zeros_like(rest), np.zeros_like(rest)
    if not len(rest):
        return before, images, np.zeros_like(rest), False
    every = recording.events("all")
    marks = every[every["kind"] == _MARK]
    what = marks["pool"]
    contexts = np.flatnonzero(np.isin(what, _CONTEXTS))
    loads = np.sort(marks["time_ns"][np.isin(what, _IMAGES + _CONTEXTS)])
    before[:] = rest[0]
    steps = np.diff(rest)
    # The last load before an interval's end: in it, or not long before it.
    last = np.searchsorted(loads, times[1:], "right") - 1
    with_loads = np.zeros(len(steps), bool)
    if len(loads):
        since = times[:-1] - loads[np.maximum(last, 0)]
        with_loads = (last >= 0) & (since <= FIRST_USE_NS)
    images[1:] = np.cumsum(np.where(with_loads, steps, 0))
    with_context = bool(len(contexts)) and bool(
        marks["time_ns"][contexts[0]] <= times[0]
    )
    return before, images, rest - before - images, with_context
