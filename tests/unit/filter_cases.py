"""Queries that the report's filter and ``memprof query`` must answer alike.

``test_filters.py`` runs them through Python, ``tests/browser/test_filter.py`` through
the page, on the same recordings.
"""

from __future__ import annotations

import json
from pathlib import Path

from events import NAMES, random_stream, with_shapes

from memprof import _core, load
from memprof.recording import Recording

GOLDEN = Path(__file__).parents[1] / "golden"

ANYWHERE = [
    *("", " ", "attn", "ATTN", "layer", "aten::mm", "mul", "record.py:78", "workspace"),
    *("autograd detail", '"autograd detail"', "-attn", "attn -linear", "l*1", "*attn*"),
    *("nothing-has-this", "-nothing-has-this", "-", '""', "a.b", "(", "[", "+"),
]
KEYS = [
    *("cat:activation", "category:ACTIVATION", "cat:*state", '"cat:optimizer state"'),
    *("module:0.layer", "module:*.layer.linear*", "module:", "-module:*"),
    *("op:aten::mm", "op:mm", "op:*::m*", "line:record.py:78", "file:functional"),
    *("function:step", "owner:weight", "owner:*.bias", "owner:", "region:a"),
    *("shape:float", "label:", "label:mine", "stream:0", "stream:7"),
    *("phase:forward", "phase:back", "-phase:other", "reason:born", "reason:*scratch*"),
    *("pool:0", "pool:1", "pool:00", "pool:*", "stack:record.py", "stack:main"),
    *("stack:*step*", "-stack:record.py:78", 'stack:"main tests"', "CAT:activation"),
]
NUMBERS = [
    *("size>64KiB", "size>=65536", "size<1k", "size<=512", "size=512", "size:4"),
    *("size>0.5MiB", "size<1.5MB", "size>1e3", "size>.5k", "SIZE>1KIB", "size>5."),
    *("size>64kb", "size>1g", "-size>100", "step:2", "step:3-4", "step:4-3", "step:-1"),
    *("step:2 -step:2", "-step:3", "step:0-99"),
]
ALIVE = [
    *(
        "alive:peak",
        "alive:end",
        "alive:cursor",
        "-alive:peak",
        "alive:peak -alive:end",
    ),
    *("alive:peak cat:activation size>1KiB phase:forward -module:2*",),
]
SAVED = ["saved:Backward", "saved:*step*", "-saved:backward"]
WRONG = [
    *("size>much", "size>1.2.3", "size>", "size>=", "size<5zb", "size:-1"),
    *(
        "step:one",
        "step:",
        "step:1-",
        "step:1-2-3",
        "alive:then",
        "alive:",
        "alive:PEAK",
    ),
    *("modul:x", "sizes:3x", "x:y", "-modul:x", "a1:b", "a::b", "weight:", ":x"),
    *("constructor:x", "toString:1", "MODUL:x"),
]
"""Some are errors, some only find nothing: both must think the same."""

QUERIES = [*ANYWHERE, *KEYS, *NUMBERS, *ALIVE, *SAVED, *WRONG]


def recordings() -> dict[str, tuple[Recording, str]]:
    """Return recordings by name, each with the device that is looked into."""
    events = with_shapes(random_stream(5, 1500, 1), 5)
    core = _core.from_events(events, NAMES)
    core.info = json.dumps({"argv": ["train.py"]})
    made = Recording(core).label("mine", op="op1")
    return {
        "gpu": (load(GOLDEN / "checkpointed.memprof"), "cuda:0"),
        "cpu": (load(GOLDEN / "convnet.memprof"), "cpu"),
        "made": (made, "cuda:0"),
    }
