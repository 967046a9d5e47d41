"""Recordings that exports are checked on: golden, random, hostile and empty ones."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from events import NAMES, random_stream, rows

import memprof
from memprof import _core
from memprof.recording import NO_INDEX, Recording

GOLDEN = Path(__file__).parents[1] / "golden"

HOSTILE = (
    'quo"te\\back',
    "nul\0nul",
    "new\nline\rtab\t;semi colon",
    "\u202eright to left\u202c \u05d0\u05d1",
    "emoji \U0001f9e8\U0001f469\u200d\U0001f680",
    "</script><!-- & ' -->",
    "x" * 70_000,
    "\x1b[31m\x7f\x85\u2028\u2029",
    "=cmd|' /C calc'!A0,comma",
    "é́ composed",
    " ",
)
"""Names that break writers which trust names."""

SURROGATE = "lone \ud800 surrogate"


def names(hostile: bool) -> list[str]:
    """Return texts for the ids of ``random_stream``, as many and all different."""
    if not hostile:
        return list(NAMES)
    found = []
    for number, name in enumerate(NAMES):
        word = HOSTILE[number % len(HOSTILE)]
        found.append(word if number < len(HOSTILE) else f"{word}{name}")
    return found


def stacks(chance: random.Random, hostile: bool) -> list[tuple]:
    """Return some stacks, innermost first, that share outer frames."""
    texts = [*HOSTILE, SURROGATE] if hostile else ["main", "train", "forward", "call"]
    made: list[tuple] = []
    for _ in range(12):
        outer = chance.choice([(), *made])
        frame = (chance.choice(texts), f"/run/{chance.choice(texts)}.py")
        made.append(((*frame, chance.randrange(4)), *outer))
    return made


def synthetic(
    seed: int, length: int = 400, hostile: bool = False, gpus: int | None = None
) -> Recording:
    """Return a random recording; two of three births have a Python stack."""
    chance = random.Random(seed)
    events = random_stream(seed, length, gpus)
    words, frames = names(hostile), stacks(chance, hostile)
    empty = _core.from_events(rows([]), words, frames)
    known = np.array([*range(empty.stacks()), *[NO_INDEX] * (empty.stacks() // 2)])
    memory = (events["kind"] == 1) | (events["kind"] == 16) | (events["kind"] == 49)
    picked = np.random.default_rng(seed).choice(known, len(events))
    events["stack"] = np.where(memory, picked, NO_INDEX)
    return Recording(_core.from_events(events, words, frames))


def golden() -> Iterator[tuple[str, Recording]]:
    """Give what GPUs recorded."""
    for path in sorted(GOLDEN.glob("*.memprof")):
        yield path.stem, memprof.load(path)


def empty() -> Recording:
    """Return a recording without events."""
    return Recording(_core.from_events(rows([])))


def all_of_them() -> Iterator[tuple[str, Recording]]:
    """Give recordings of every kind, with a name each."""
    yield from golden()
    for seed in range(8):
        yield f"random {seed}", synthetic(seed)
        yield f"hostile {seed}", synthetic(seed + 100, hostile=True)


def trained_on_cpu() -> Recording:
    """Record three steps of a small model on the CPU."""
    import torch

    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    )
    optimizer = torch.optim.Adam(model.parameters())
    with memprof.profile() as prof:
        for _ in range(3):
            loss = model(torch.randn(32, 64)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    return prof.recording


def google_profile() -> Any:
    """Return google-cloud-profiler's ``profile_pb2``; None: it is not here.

    Its package cannot be imported whole without the client for Google's cloud.
    """
    found = importlib.util.find_spec("googlecloudprofiler")
    if found is None or importlib.util.find_spec("google.protobuf") is None:
        return None
    (folder,) = found.submodule_search_locations or [""]
    spec = importlib.util.spec_from_file_location(
        "memprof_test_profile_pb2", Path(folder, "profile_pb2.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
