"""What ``memprof info`` says of a file: facts, and the same as text."""

from __future__ import annotations

import os
import time
from typing import Any

from memprof.recording import Recording
from memprof.reports.units import count_text, counted, size_text, text_of

_VERSIONS = ("memprof", "torch", "cuda", "python", "platform")
_RUN = ("argv", "cwd", "host", "pid", "distributed", "schedule", "record_shapes")


def facts(recording: Recording, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the facts of a file as plain data.

    ``file`` (path, bytes, kind, finished, damaged_bytes), ``versions`` and
    ``run`` (what was written of them), ``time`` (Unix time of the beginning and
    length, ns), ``counts``, ``defects`` (those above 0), ``devices`` (name -> facts
    and peaks), ``sources`` (name -> live, why), ``own`` (cost of recording, bytes).
    """
    info = recording.info
    size = os.stat(path).st_size
    steps = recording.steps["number"]
    events = int(info["events"])
    times = recording.events()["time_ns"]
    imported = info.get("imported") or {}
    return {
        "file": {
            "path": os.fspath(path),
            "bytes": size,
            "bytes_per_event": round(size / events, 2) if events else None,
            "kind": imported.get("from", "recording"),
            "finished": bool(info["finished"]),
            "damaged_bytes": int(info["damaged_bytes"]),
        },
        "versions": {name: info.get(name) for name in _VERSIONS},
        "run": {name: info[name] for name in _RUN if name in info},
        "time": {
            "begin_unix_ns": int(info["start_wall_ns"]) or None,
            "length_ns": int(times[-1] - times[0]) if len(times) else 0,
        },
        "counts": {
            "events": events,
            "allocations": int(info["allocations"]),
            "steps": len(steps),
            "dropped": int(info["dropped"]),
        },
        "defects": {name: int(n) for name, n in info["defects"].items() if n},
        "devices": {name: _device(recording, info, name) for name in info["devices"]},
        "sources": info.get("sources") or {},
        "own": info.get("own") or {},
        "imported": imported or None,
    }


def _device(recording: Recording, info: dict[str, Any], name: str) -> dict[str, Any]:
    known = (info.get("device_facts") or {}).get(name) or {}
    peak = recording.peak(name)
    return {
        "name": known.get("name"),
        "total_bytes": known.get("total_bytes"),
        "allocations": len(recording.allocations(name)),
        "peak_requested_bytes": int(peak.requested),
    }


def text(found: dict[str, Any]) -> str:
    """Return FACTS as lines."""
    file, counts, run = found["file"], found["counts"], found["run"]
    lines = [f"memprof  {file['path']}"]

    def line(name: str, what: str) -> None:
        lines.append(f"  {name:<9} {what}")

    state = "" if file["finished"] else "; cut: this is what is whole"
    if file["damaged_bytes"]:
        state += f"; {size_text(file['damaged_bytes'])} behind it are damaged"
    each = file["bytes_per_event"]
    per_event = "" if each is None else f", {each} bytes an event"
    line("file", f"{file['kind']}, {size_text(file['bytes'])}{per_event}{state}")
    versions = found["versions"]
    known = [f"{name} {value}" for name, value in versions.items() if value]
    line("versions", "  ".join(known) or "not in the file")
    if run.get("argv"):
        line("program", " ".join(map(str, run["argv"])))
    where = [f"process {run['pid']}"] if "pid" in run else []
    if "host" in run:
        where.append(f"on {run['host']}")
    if run.get("distributed"):
        place = run["distributed"]
        where.append(f"rank {place.get('rank')} of {place.get('world_size')}")
    if where:
        line("process", " ".join(where))
    begin, length = found["time"]["begin_unix_ns"], found["time"]["length_ns"]
    if begin:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begin / 1e9))
        line("time", f"{when}, {length / 1e9:.3g} s")
    line(
        "holds",
        f"{counted(counts['events'], 'event')}, "
        f"{counted(counts['allocations'], 'allocation')}, "
        f"{counted(counts['steps'], 'step')}; {count_text(counts['dropped'])} dropped",
    )
    if found["defects"]:
        line("defects", ", ".join(f"{n} {k}" for k, n in found["defects"].items()))
    for name, device in found["devices"].items():
        parts = [name]
        if device["name"]:
            parts.append(str(device["name"]))
        if device["total_bytes"]:
            parts.append(size_text(device["total_bytes"]))
        parts.append(counted(device["allocations"], "allocation"))
        parts.append(f"peak {size_text(device['peak_requested_bytes'])}")
        line("device", "  ".join(parts))
    for name, source in found["sources"].items():
        why = source.get("why") or "no reason is in the file"
        line("source", f"{name}: {'live' if source.get('live') else why}")
    if found["own"].get("own_bytes") is not None:
        cost = [f"{size_text(found['own']['own_bytes'])} on the host"]
        taken = (found["sources"].get("driver") or {}).get("own_bytes") or {}
        cost += [f"{size_text(n)} on {name} (CUPTI)" for name, n in taken.items()]
        line("own cost", ", ".join(cost))
    return text_of(lines)
