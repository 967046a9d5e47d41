"""What all tests share: the marker ``gpu`` and its one reason to skip.

Nothing here imports torch unless a GPU test was collected: the core's tests
run on machines that have none.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# What reads our files, whichever tests export them.
sys.path.append(str(Path(__file__).parent / "validators"))

BROWSERS = {Path(__file__).parent / name for name in ("browser", "consumers")}
GPU_FOLDER = Path(__file__).parent / "gpu"
SKIPPED_GPU = pytest.StashKey[str]()


def why_no_cuda() -> str | None:
    """Return why the GPU tests cannot run here; None: they can."""
    try:
        import torch
    except ImportError as error:
        return f"no torch: {error}"
    if torch.cuda.is_available():
        return None
    return f"torch {torch.__version__} sees no CUDA device"


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Mark all of tests/gpu as ``gpu``, and skip the mark without a device.

    What drives a browser comes last: the driver stays, with threads of its own, and
    beside other threads some of what memprof does is another way.
    """
    items.sort(key=lambda item: not BROWSERS.isdisjoint(item.path.parents))
    gpu_items = []
    for item in items:
        if GPU_FOLDER in item.path.parents:
            item.add_marker(pytest.mark.gpu)
        if item.get_closest_marker("gpu") is not None:
            gpu_items.append(item)
    reason = why_no_cuda() if gpu_items else None
    if reason is not None:
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {reason}"))
        config.stash[SKIPPED_GPU] = f"{len(gpu_items)} GPU tests skipped: {reason}"


def pytest_report_collectionfinish(config: pytest.Config) -> str | list[str]:
    """Say once, in one line, that the GPU tests do not run."""
    return config.stash.get(SKIPPED_GPU, [])
