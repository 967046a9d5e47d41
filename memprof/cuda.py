"""torch's CUDA allocator: attach to it, and read what it held before.

Everything that may not be there in an older torch is probed for.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from memprof import _core

EVENT = struct.Struct("<QQqQIIIIiIBBhHH")
"""One ``mp_event_t`` of ``csrc/event.h``."""

KINDS = {text: number for number, text in _core.EVENT_KINDS.items()}
NO_INDEX = 0xFFFFFFFF
"""An id without a value."""

PENDING = 0x08
"""MP_FLAG_PENDING: the block's free was requested but is not completed."""

COUNTERS = {
    "allocated": "allocated_bytes.all.current",
    "allocated_peak": "allocated_bytes.all.peak",
    "requested": "requested_bytes.all.current",
    "requested_peak": "requested_bytes.all.peak",
    "active": "active_bytes.all.current",
    "active_peak": "active_bytes.all.peak",
    "reserved": "reserved_bytes.all.current",
    "reserved_peak": "reserved_bytes.all.peak",
    "retries": "num_alloc_retries",
    "ooms": "num_ooms",
}
"""Our names for those counters of ``torch.cuda.memory_stats`` that we keep."""


DRIVER_FILES = ("/dev/nvidiactl", "/dev/nvhost-ctrl-gpu", "/dev/nvmap", "/dev/dxg")
"""Where NVIDIA's driver shows itself: Linux, Tegra twice, WSL."""


class Seed(NamedTuple):
    """The state of the allocator, as events and in numbers."""

    rows: bytes
    held: dict[str, dict[str, int]]
    """``{"cuda:0": {"blocks": n, "bytes": requested bytes}}``."""


def event(
    kind: str,
    address: int,
    size: int,
    *,
    time_ns: int,
    device: int,
    stream: int = 0,
    stack: int = NO_INDEX,
    flags: int = 0,
) -> bytes:
    """Return one event as bytes.

    Args:
        kind: Text of its kind, a key of ``KINDS``.
        address: Of the block or segment, or what ``event.h`` says instead.
        size: Bytes, or what ``event.h`` says instead.
        time_ns: On the monotonic clock.
        device: CUDA index.
        stream: The driver's handle.
        stack: An id of ``_core.intern_stack``.
        flags: MP_FLAG_*.
    """
    none = NO_INDEX
    return EVENT.pack(
        address, size, time_ns, stream, 0, none, none, stack, 0, 0, KINDS[kind], 0,
        device, 0, flags,
    )  # fmt: skip


def why_not(torch: Any) -> str | None:
    """Return why this process has no CUDA memory to follow; None: it may.

    Does not ask ``torch.cuda.is_available()``: that wakes the driver, after
    which a forked child can no longer use it.
    """
    if getattr(torch.version, "cuda", None) is None:
        return f"torch {torch.__version__} is built without CUDA"
    if is_up(torch):
        return None
    count = getattr(torch.cuda, "_device_count_nvml", lambda: -1)()
    if count < 0:  # NVML does not say
        count = any(map(os.path.exists, DRIVER_FILES))
    return None if count else "torch sees no CUDA device"


def is_up(torch: Any) -> bool:
    """Whether CUDA is initialised in this process."""
    return bool(torch.cuda.is_initialized())


def why_blind(torch: Any) -> str | None:
    """Return why torch's allocator would tell nothing; None: it tells."""
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        return "PYTORCH_NO_CUDA_MEMORY_CACHING is set: no allocator to follow"
    backend = getattr(torch.cuda, "get_allocator_backend", lambda: "native")()
    if backend != "native":
        return f"the allocator backend {backend} tells nothing to followers"
    return None


_call_when_up: Callable[[], None] | None = None
_queued_in: int | None = None


def when_up(torch: Any, callback: Callable[[], None]) -> None:
    """Have CALLBACK called when CUDA comes up; a later one replaces it.

    torch's list of such calls only grows, so it gets one of ours a process.
    Exceptions of CALLBACK are dropped: they would make the user's CUDA fail.
    """
    global _call_when_up, _queued_in
    _call_when_up = callback
    if _queued_in == os.getpid():
        return
    _queued_in = os.getpid()
    torch.cuda._lazy_call(_cuda_is_up)


def _cuda_is_up() -> None:
    callback = _call_when_up
    if callback is not None:
        try:
            callback()
        except Exception:
            pass


def segments(torch: Any) -> list[dict[str, Any]]:
    """Return ``torch.cuda.memory_snapshot()``, without traces where it can."""
    snapshot = torch.cuda.memory_snapshot
    return list(snapshot(**accepted(snapshot, {"include_traces": False})))


def accepted(function: Callable[..., Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Return those of the keyword arguments WANTED that FUNCTION knows."""
    import inspect

    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):  # it does not say
        return {}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        return wanted
    return {name: value for name, value in wanted.items() if name in known}


def seed(found: list[dict[str, Any]], time_ns: int) -> Seed:
    """Turn the segments of a snapshot into SEED_SEGMENT and SEED_BLOCK events.

    Args:
        found: As ``torch.cuda.memory_snapshot`` gives them.
        time_ns: When that was, on the monotonic clock.
    """
    rows: list[bytes] = []
    held: dict[str, dict[str, int]] = {}
    for segment in found:
        device, stream = int(segment["device"]), int(segment.get("stream", 0))
        address = int(segment["address"])
        rows.append(
            event(
                "seed_segment",
                address,
                int(segment["total_size"]),
                time_ns=time_ns,
                device=device,
                stream=stream,
            )
        )
        sums = held.setdefault(f"cuda:{device}", {"blocks": 0, "bytes": 0})
        for block in segment.get("blocks", ()):
            here = int(block.get("address", address))
            address = here + int(block["size"])
            state = block["state"]
            if state == "inactive":
                continue
            size = int(block.get("requested_size", block["size"]))
            rows.append(
                event(
                    "seed_block",
                    here,
                    size,
                    time_ns=time_ns,
                    device=device,
                    stream=stream,
                    stack=python_stack(block.get("frames") or ()),
                    flags=0 if state == "active_allocated" else PENDING,
                )
            )
            if state == "active_allocated":
                sums["blocks"] += 1
                sums["bytes"] += size
    return Seed(b"".join(rows), held)


def python_stack(frames: Any) -> int:
    """Intern the Python frames of a torch traceback, innermost first.

    Returns:
        A stack id; ``NO_INDEX`` if there is no Python frame.
    """
    chosen = [
        (str(frame["name"]), str(frame["filename"]), int(frame["line"]))
        for frame in frames
        if str(frame["filename"]).endswith((".py", ">"))
    ]
    return _core.intern_stack(chosen) if chosen else NO_INDEX


def counters(torch: Any) -> dict[str, dict[str, int]]:
    """Return torch's own counters of each device in use, bytes; see COUNTERS."""
    if why_not(torch) is not None or not is_up(torch):
        return {}
    found: dict[str, dict[str, int]] = {}
    for index in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(index)
        if stats.get("reserved_bytes.all.peak", 0):
            found[f"cuda:{index}"] = {
                ours: int(stats[theirs])
                for ours, theirs in COUNTERS.items()
                if theirs in stats
            }
    return found


def facts(torch: Any, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return name and total bytes of the CUDA devices among NAMES."""
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        kind, _, index = name.partition(":")
        if kind == "cuda" and index:
            properties = torch.cuda.get_device_properties(int(index))
            found[name] = {
                "name": str(properties.name),
                "total_bytes": int(properties.total_memory),
                "capability": f"{properties.major}.{properties.minor}",
            }
    return found


def current(torch: Any) -> int | None:
    """Return the index of the device in use; None while CUDA is not up."""
    if why_not(torch) is not None or not is_up(torch):
        return None
    return int(torch.cuda.current_device())


def merged_by_time(traces: list[list[tuple[int, bytes]]]) -> Iterator[bytes]:
    """Yield rows of several (time_ns, row) lists in order of time.

    The order inside each list is kept, whatever its times say.
    """
    heads: list[tuple[int, int, int, bytes]] = []
    for number, trace in enumerate(traces):
        latest = -(1 << 63)
        for index, (time_ns, row) in enumerate(trace):
            latest = max(latest, time_ns)
            heads.append((latest, number, index, row))
    heads.sort(key=lambda head: head[:3])
    for head in heads:
        yield head[3]
