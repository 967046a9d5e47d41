"""The tools that read our files: which are here, and files for them.

They are not part of memprof's own environment: ``make consumers`` makes one for
them.  A test whose tool is missing skips and says so; with MEMPROF_CONSUMERS=all,
as CI has it, it fails.
"""

from __future__ import annotations

import gzip
import importlib
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

sys.path.append(str(Path(__file__).parents[1] / "unit"))

import memprof

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.memprof"))


def missing(what: str) -> None:
    """Skip, or fail where all must be there."""
    text = f"{what} is not here: `make consumers` runs these tests with it"
    if os.environ.get("MEMPROF_CONSUMERS") == "all":
        pytest.fail(text)
    pytest.skip(text)


def tool(name: str) -> ModuleType:
    """Import a tool's module."""
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        missing(f"{name} ({problem})")
        raise  # never reached


def chromium() -> str:
    """Return the path of a Chromium."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    missing("Chromium")
    raise AssertionError


@pytest.fixture(scope="session")
def recordings() -> dict[str, memprof.Recording]:
    """Return what a GPU recorded, and made-up recordings."""
    from events import NAMES, random_stream

    from memprof import _core

    found = {path.stem: memprof.load(path) for path in GOLDEN}
    for seed in (2, 5):
        events = random_stream(seed, length=400, window=True)
        core = _core.from_events(events, NAMES)
        found[f"random{seed}"] = memprof.Recording(core, None)
    return found


@pytest.fixture(scope="session")
def logs(recordings, tmp_path_factory) -> Path:
    """Return a folder of TensorBoard's, with a run for each recording."""
    folder = tmp_path_factory.mktemp("logs")
    for number, (name, recording) in enumerate(recordings.items()):
        handler = memprof.tensorboard_trace_handler(
            folder / name, worker_name="host_1", use_gzip=number % 2 == 0
        )
        handler(recording)
    return folder


@pytest.fixture(scope="session")
def traces(logs) -> dict[str, Path]:
    """Return the trace of each recording."""
    return {folder.name: next(folder.iterdir()) for folder in logs.iterdir()}


def text_of(path: Path) -> str:
    """Return the text of a trace."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
