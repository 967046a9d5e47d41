"""Bring a process to rest before memory is measured.

What is garbage must be gone, and what the GPU still works on must be done, or the
measure hangs on when either happens. torch's own peak counters are never touched.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

ALL, YOUNG, NONE = 2, 1, -1


def settle(*, garbage: int = ALL, empty_cache: bool = False) -> None:
    """Collect garbage and wait for the GPUs that are in use.

    Args:
        garbage: generations to collect: ``ALL``, a tenth of a second where torch is
            loaded; ``YOUNG``, what was made lately; or ``NONE``.
        empty_cache: also give torch's cached free memory back to the driver, so that
            reserved bytes do not hang on earlier tests.
    """
    if garbage >= 0:
        gc.collect(garbage)
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    for index in range(cuda.device_count()):
        cuda.synchronize(index)
    if empty_cache:
        cuda.empty_cache()
