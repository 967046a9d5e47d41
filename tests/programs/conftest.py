"""Fixtures of the programs: on a GPU where there is one, else on the CPU."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))

from harness import Program  # noqa: E402


@pytest.fixture(scope="package", autouse=True)
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
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def program(device: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return a fresh ``Program``; nothing of an earlier one is alive."""
    torch.manual_seed(0)
    gc.collect()
    if device == "cuda":
        torch.cuda.init()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
    plugin = request.config.pluginmanager.get_plugin("compare_torch")
    beside = plugin.beside(request.node.name) if plugin is not None else None
    yield Program(device, beside)
