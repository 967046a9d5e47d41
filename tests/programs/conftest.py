"""Fixtures of the programs: on a GPU where there is one, else on the CPU."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None

# Every program here is a program of torch.
collect_ignore_glob = [] if HAS_TORCH else ["test_*.py"]


def pytest_report_collectionfinish() -> list[str]:
    """Say it where the programs are not collected."""
    return [] if HAS_TORCH else ["tests/programs not run: no torch"]


@pytest.fixture(scope="module", autouse=True)
def short_walks() -> Iterator[None]:
    """Keep what torch's modules are made of out of the garbage collector's walks.

    A program looks for what it left behind, and memprof for models, several times
    a test: without half a million objects of torch that takes no time.
    """
    import torch._dynamo
    import torch.distributed.tensor  # noqa: F401

    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def device() -> str:
    """Where the programs run."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def program(device: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return a fresh ``Program``; nothing of an earlier one is alive."""
    import torch
    from harness import Program

    torch.manual_seed(0)
    gc.collect()
    if device == "cuda":
        torch.cuda.init()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
    plugin = request.config.pluginmanager.get_plugin("compare_torch")
    beside = None if plugin is None else plugin.beside(request.node.name)
    yield Program(device, beside)
    # pytest keeps the last failure for a debugger, an expected one, too, and with
    # it a model that the next test would meet.
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
