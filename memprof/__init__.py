"""memprof: what filled the memory of a PyTorch program, and which line did.

    with memprof.profile() as prof:
        train_step(batch)
    print(prof.summary())

Importing memprof imports neither torch nor NumPy nor the core; the names below
load what they need when they are first used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from memprof._version import __version__
from memprof.schedule import schedule

if TYPE_CHECKING:
    from typing import Any

    from torch.profiler import ProfilerActivity, record_function

    from memprof._core import EVENT_KINDS
    from memprof.alive import Why, why
    from memprof.comparison import Comparison, compare
    from memprof.errors import MemprofError, ShimError
    from memprof.export import tensorboard_trace_handler
    from memprof.moment import Moment
    from memprof.profiler import profile
    from memprof.recording import Frame, Recording, Timeline, load
    from memprof.schedule import ProfilerAction
    from memprof.totals import Total, TotalAt, device_totals

__all__ = [
    "EVENT_KINDS",
    "Comparison",
    "Frame",
    "MemprofError",
    "Moment",
    "ProfilerAction",
    "ProfilerActivity",
    "Recording",
    "ShimError",
    "Timeline",
    "Total",
    "TotalAt",
    "Why",
    "__version__",
    "compare",
    "device_totals",
    "load",
    "profile",
    "record_function",
    "schedule",
    "tensorboard_trace_handler",
    "why",
]


def __getattr__(name: str) -> Any:
    """Load one of the names above when it is first used."""
    from memprof._lazy import find

    return find(name)


def __dir__() -> list[str]:
    """List what is there, loaded or not."""
    return sorted({*globals(), *__all__})


if "MEMPROF_ON_OOM" in os.environ:
    from memprof.oom import arm

    arm()
