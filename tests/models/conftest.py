"""Fixtures of the real models; says which of them cannot be built here."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Iterator

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None

# What is trained here is torch's.
collect_ignore_glob = [] if HAS_TORCH else ["test_*.py"]


def pytest_report_collectionfinish() -> list[str]:
    """Say it where the models are not collected."""
    return [] if HAS_TORCH else ["tests/models not run: no torch"]


@pytest.fixture
def device() -> str:
    """Where the models are trained."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what takes a ``name`` with every model; ``named`` skips the missing."""
    if "name" in metafunc.fixturenames:
        import zoo

        metafunc.parametrize("name", zoo.ZOO)


@pytest.fixture(autouse=True)
def named(request: pytest.FixtureRequest) -> None:
    """Say which model cannot be built here, and why."""
    if "name" in request.fixturenames:
        import zoo

        why = zoo.missing(request.getfixturevalue("name"))
        if why:
            pytest.skip(why)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """One thread, a known seed, and nothing of an earlier model."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small models: threads would wait for each other
    torch.manual_seed(0)
    gc.collect()
    yield
    torch.set_num_threads(threads)
    # pytest keeps the last failure, and with it a model that the next would meet.
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
