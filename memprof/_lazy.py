"""The names of ``memprof`` that are loaded when they are first used."""

from __future__ import annotations

import importlib
from typing import Any

from memprof.absent import INSTEAD, sentence

PLACES = {
    "Comparison": "memprof.comparison",
    "EVENT_KINDS": "memprof._core",
    "Frame": "memprof.recording",
    "MemprofError": "memprof.errors",
    "Moment": "memprof.moment",
    "Recording": "memprof.recording",
    "ShimError": "memprof.errors",
    "Timeline": "memprof.recording",
    "Total": "memprof.totals",
    "TotalAt": "memprof.totals",
    "Why": "memprof.alive",
    "compare": "memprof.comparison",
    "device_totals": "memprof.totals",
    "load": "memprof.recording",
    "load_ipython_extension": "memprof.integrations.jupyter",
    "profile": "memprof.profiler",
    "tensorboard_trace_handler": "memprof.export",
    "why": "memprof.alive",
}

TORCH_ENUMS = ("ProfilerAction", "ProfilerActivity")


def find(name: str) -> Any:
    """Return the attribute NAME of the package ``memprof``.

    ``record_function`` is torch's; the enums are torch's where it is loaded.

    Raises:
        AttributeError: There is no such name, or it needs torch, which cannot
            be imported; says which.
    """
    if name in PLACES:
        return getattr(importlib.import_module(PLACES[name]), name)
    if name in TORCH_ENUMS:
        from memprof.schedule import torch_enum

        return torch_enum(name)
    if name == "record_function":
        try:
            from torch.profiler import record_function
        except ImportError as problem:
            raise AttributeError(
                "memprof.record_function is torch's, and torch cannot be imported: "
                f"{problem}"
            ) from problem
        return record_function
    if name in INSTEAD:
        raise AttributeError(sentence("memprof", name))
    raise AttributeError(f"module 'memprof' has no attribute {name!r}")
