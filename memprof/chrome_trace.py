"""Chrome traces: what stands around the events, which the core writes."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from memprof import _core
from memprof._version import __version__
from memprof.errors import MemprofError
from memprof.export import Path, target
from memprof.json_stream import whole
from memprof.rows import CPU, Ints
from memprof.warn import warn

if TYPE_CHECKING:
    from memprof.recording import Recording

WARN_BYTES = 250 << 20
"""chrome://tracing stops near 256 MB, TensorBoard's plugin near 500."""
MAX_BYTES = 1 << 30
OURS = (b'"memprof CPU memory"', b'"memprof GPU ')
"""What stands in every trace that we wrote: the names of processes."""


def plain(value: Any) -> Any:
    """Return VALUE with texts that are characters only: no lone surrogates."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, dict):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and value - value != 0:  # infinite, or no number
        return None
    return value


def device_properties(info: dict[str, Any], devices: list[int]) -> list[dict[str, Any]]:
    """Return what Kineto tells of GPUs, at the place of their number.

    TensorBoard's plugin looks devices up by number, the CPU as -1: the list is
    never empty.
    """
    found = []
    for number in range(max([*devices, CPU]) + 1):
        facts = info["device_facts"].get(f"cuda:{number}")
        facts = facts if isinstance(facts, dict) else {}
        major, _, minor = str(facts.get("capability", "")).partition(".")
        properties: dict[str, Any] = {
            "id": number,
            "name": str(facts.get("name", f"cuda:{number}")),
        }
        if _whole(facts.get("total_bytes")) > 0:  # the plugin divides by it
            properties["totalGlobalMem"] = facts["total_bytes"]
        if major.isdigit() and minor.isdigit():
            properties.update(computeMajor=int(major), computeMinor=int(minor))
        found.append(properties)
    return found or [{"id": 0, "name": "cpu"}]


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def distributed(info: dict[str, Any]) -> dict[str, Any]:
    """Return the place of the process among others; rank 0 of 1: it is alone."""
    facts = info.get("distributed")
    facts = facts if isinstance(facts, dict) else {}
    found: dict[str, Any] = {
        "backend": str(facts.get("backend", "")),
        "rank": max(_whole(facts.get("rank")), 0),
        "world_size": max(_whole(facts.get("world_size")), 1),
    }
    if facts.get("nccl_version"):
        found["nccl_version"] = str(facts["nccl_version"])
    return found


def our_facts(recording: Recording, full: bool) -> dict[str, Any]:
    """Return the ``metadata`` of a trace: flat, of numbers and texts."""
    facts: dict[str, Any] = {
        "memprof_version": __version__,
        "dropped_events": recording._core.dropped,
        "memory_events": "all" if full else "largest",
    }
    devices = recording._core.devices()
    if devices:
        moment = recording.peak()
        unknown = moment.categories.get("unknown", 0)
        facts["peak_device"] = moment.device
        facts["peak_bytes"] = moment.requested
        facts["unknown_share"] = round(unknown / max(moment.requested, 1), 6)
    return facts


def head(recording: Recording, info: dict[str, Any], base_ns: int, full: bool) -> bytes:
    """Return what stands before the events, as Kineto orders it."""
    parts: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": device_properties(info, recording._core.devices()),
        "trace_id": str(info.get("trace_id", "")),
        "profile_memory": 1,
        "with_stack": 1,
        "with_modules": 1,
        "record_shapes": int(bool(info.get("record_shapes"))),
        "with_flops": 0,
        "host_name": str(info.get("host", "")),
        "metadata": our_facts(recording, full),
    }
    around = {"displayTimeUnit", "baseTimeNanoseconds", "traceEvents", "traceName"}
    given = info.get("metadata")
    for key, value in given.items() if isinstance(given, dict) else ():
        taken = key in parts or key in around or key in ("distributedInfo", "rank")
        parts[f"user.{key}" if taken else key] = value
    lines = [f"{_text(key)}: {_text(value)}" for key, value in plain(parts).items()]
    # HTA looks for the first `"rank":`, white space, digits: hence no other
    # text above has a space behind a colon.
    lines.append(
        '"distributedInfo": ' + json.dumps(plain(distributed(info)), allow_nan=False)
    )
    lines.append('"displayTimeUnit": "ms"')
    lines.append(f'"baseTimeNanoseconds": {base_ns}')
    return ("{" + ",\n".join(lines) + ',\n"traceEvents": [\n').encode("ascii")


def _text(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"), default=str)


def tail(path: str, end_ns: int) -> bytes:
    """Return what stands behind the events."""
    micros = f"{max(end_ns, 0) // 1000}.{max(end_ns, 0) % 1000:03}"
    return (
        '{"ph":"i","s":"g","name":"Record Window End","pid":"","tid":"",'
        f'"ts":{micros}}}\n],"traceName": {_text(plain(path))}}}\n'
    ).encode("ascii")


def read_trace(path: Path) -> bytearray:
    """Return the text of a trace, compressed or not.

    Raises:
        OSError: It cannot be read.
        MemprofError: It is compressed, and damaged.
    """
    try:
        return whole(os.fsdecode(path))
    except MemprofError as problem:
        raise MemprofError(f"merge={os.fspath(path)!r}: {problem}") from problem


def stretches(rows: Any, labels: Any) -> bytes:
    """Return rows of steps or phases as the core takes them: int64 [n, 5]."""
    found = np.empty((len(rows), 5), np.int64)
    found[:, 0] = labels
    for column, name in enumerate(("start_ns", "end_ns", "begin_event", "end_event")):
        found[:, column + 1] = rows[name]
    return found.tobytes()


def phase_numbers(names: Any) -> Ints:
    """Return the numbers of phases: indexes into ``PHASES``."""
    found = np.zeros(len(names), np.int64)
    for number, name in enumerate(_core.PHASES):
        found[names == name] = number
    return found


def export_chrome_trace(
    recording: Recording,
    path: Path,
    *,
    merge: Path | None = None,
    full: bool = False,
    stacked: bool = False,
    force: bool = False,
) -> None:
    """Write a trace; see ``Exports``."""
    name = os.fsdecode(path)
    to = target(name)
    core, info = recording._core, recording.info
    if not core.devices():
        warn("nothing was recorded of any device: the trace has no memory in it")
    paths = info.get("paths")
    folders = [
        folder
        for name_of, folder in (paths.items() if isinstance(paths, dict) else ())
        if isinstance(folder, str) and folder and name_of != "cwd"
    ]
    pid, times = info.get("pid"), recording._times()
    before: bytes | memoryview
    after: bytes | memoryview
    if merge is None:
        # What is told of the state at the start may have been read before it.
        early = max(core.start_ns - int(times[0]), 0) if len(times) else 0
        base_ns = core.start_wall_ns - early
        last = int(times[-1]) - core.start_ns if len(times) else 0
        end_ns = last + early + 1000
        before, after = head(recording, info, base_ns, full), tail(name, end_ns)
        comma_before, comma_after, memory = False, True, True
    else:
        text = read_trace(merge)
        try:
            place, comma_before, comma_after, base_ns, had = _core.trace_place(text)
        except ValueError as problem:
            raise MemprofError(f"merge={os.fspath(merge)!r}: {problem}") from None
        view = memoryview(text)
        before, after, memory = view[:place], view[place:], not had
        if any(text.find(words) >= 0 for words in OURS):
            warn(
                f"merge={os.fspath(merge)!r}: memprof's rows are in it already, and "
                "are now twice: merge into the trace as torch.profiler wrote it"
            )
    phases = recording.phases
    try:
        written, *_left_out = _core.export_chrome(
            recording=core,
            path=to,
            gzip=name.endswith(".gz"),
            head=before,
            tail=after,
            comma_before=comma_before,
            comma_after=comma_after,
            host=merge is None,
            memory=memory,
            full=full,
            stacked=stacked,
            pid=pid if isinstance(pid, int) and 0 < pid < 2**32 else 1,
            pid_name=b"python",
            base_ns=base_ns,
            max_bytes=0 if force else MAX_BYTES,
            steps=stretches(recording.steps, recording.steps["number"]),
            phases=stretches(phases, phase_numbers(phases["name"])),
            libraries=tuple(os.fsencode(os.path.join(f, "")) for f in folders),
        )
    except _core.Error as problem:
        if "budget" not in str(problem):
            raise
        raise MemprofError(
            f"{name!r} would be larger than 1 GiB, which no viewer opens; leave "
            "full=True away, record fewer steps, or say force=True"
        ) from None
    if written > WARN_BYTES:
        warn(
            f"{name!r} is {written >> 20} MiB of JSON; chrome://tracing stops near "
            "256 MB, TensorBoard near 500: Perfetto opens it"
        )
