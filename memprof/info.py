"""The facts about a run that go with a recording, as JSON.

Keys: ``memprof torch python platform`` (versions), ``argv cwd paths pid host``,
``devices`` and ``current_device``, ``sources`` and the other facts of the
follower (``follow.py``), ``schedule window step_num``, ``torch_counters`` and
``wall`` (Unix time, ns), ``distributed`` (rank and size, if there are any). Sizes
are bytes, times ns.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from memprof import cuda
from memprof._version import __version__

Counters = dict[str, dict[str, int]]


def versions(torch: Any) -> dict[str, Any]:
    """Return who ran, with what."""
    import platform

    return {
        "memprof": __version__,
        "torch": str(torch.__version__),
        "cuda": getattr(torch.version, "cuda", None),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "argv": list(getattr(sys, "argv", ())),
        "cwd": _cwd(),
        "pid": os.getpid(),
        "host": platform.node(),
        "paths": paths(),
    }


def paths() -> dict[str, str]:
    """Return the folders whose frames are not the user's, and where we are."""
    found = {"cwd": _cwd()}
    for name in ("torch", "torchvision", "memprof"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file:
            found[name] = os.path.dirname(os.path.abspath(file))
    return found


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def device_facts(torch: Any, numbers: list[int]) -> dict[str, Any]:
    """Return ``devices`` and ``current_device``.

    Args:
        torch: The module ``torch``.
        numbers: Those that have events; -1: the CPU.
    """
    names = [f"cuda:{number}" for number in numbers if number >= 0]
    return {
        "devices": cuda.facts(torch, names),
        "current_device": cuda.current(torch),
    }


def distributed(torch: Any) -> dict[str, Any]:
    """Return ``distributed``: the place among other processes, if it has one.

    Before torch knows, the environment may: torchrun sets it.
    """
    group = getattr(torch, "distributed", None)
    if group is not None and group.is_available() and group.is_initialized():
        found: dict[str, Any] = {
            "backend": str(group.get_backend()),
            "rank": int(group.get_rank()),
            "world_size": int(group.get_world_size()),
        }
        if "nccl" in found["backend"]:
            version = torch.cuda.nccl.version()
            found["nccl_version"] = ".".join(map(str, version))
        return {"distributed": found}
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if rank.isascii() and rank.isdigit() and size.isascii() and size.isdigit():
        return {"distributed": {"rank": int(rank), "world_size": int(size)}}
    return {}


def torch_counters(start: Counters, begin: Counters, end: Counters) -> dict[str, Any]:
    """Lay torch's own counters beside each other, device by device.

    Args:
        start: When the profile started.
        begin: When the window began.
        end: When the window ended.

    Returns:
        Per device ``start``, ``begin``, ``end`` (see ``cuda.COUNTERS``; empty if
        the device was not in use) and ``peak_rose``: torch's own peak was
        reached while the profile ran, so it is comparable with ours. A peak
        that fell was reset by the program and counts as risen.
    """
    found: dict[str, Any] = {}
    for name, last in end.items():
        first = start.get(name, {})
        key = "requested_peak" if "requested_peak" in last else "allocated_peak"
        found[name] = {
            "start": first,
            "begin": begin.get(name, {}),
            "end": last,
            "peak_rose": last.get(key) != first.get(key),
        }
    return found


def text(facts: dict[str, Any]) -> str:
    """Return FACTS as JSON; what JSON does not know becomes its ``str``."""
    return json.dumps(facts, ensure_ascii=False, default=str)


def parsed(written: str | None) -> dict[str, Any]:
    """Return the facts that ``text`` wrote; none if it cannot be read."""
    try:
        facts = json.loads(written) if written else {}
    except ValueError:
        facts = {}
    return dict(facts) if isinstance(facts, dict) else {}
