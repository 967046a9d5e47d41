"""memprof changes nothing: no bit of a result, no life of a graph, no hook left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import zoo

import memprof

HERE = Path(__file__).parent


def _run(how: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(HERE / "unchanged.py"), how],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def runs() -> tuple[Any, Any]:
    """What all models gave without memprof, and with it."""
    return _run("without"), _run("with")


def test_bits_and_lives(runs: tuple[Any, Any], name: str) -> None:
    without, followed = (run[name] for run in runs)
    # The comparison means something: bits differ from step to step.
    assert len(set(without["losses"])) == len(without["losses"]) == 3
    assert all(len(gradients) > 10 for gradients in without["gradients"])
    assert without["gradients"][0] != without["gradients"][1]
    assert followed["losses"] == without["losses"]
    assert followed["gradients"] == without["gradients"]
    assert followed["weights"] == without["weights"]
    # The same tensors live on after a step: no graph is kept alive.
    assert followed["alive"] == without["alive"]
    assert all(len(outputs) > 10 for outputs in without["alive"])
    assert not any(any(outputs.values()) for outputs in without["alive"])


def hooks_of(thing: Any, name: str) -> dict[str, int]:
    """Return the tables of hooks in THING's namespace that hold something."""
    found = {}
    for key, table in vars(thing).items():
        if "hook" in key and isinstance(table, (dict, list, set)) and table:
            found[f"{name}.{key}"] = len(table)
    return found


def all_hooks(training: Any) -> dict[str, int]:
    """Return all tables of hooks of a model, its tensors, its optimizer and torch."""
    found: dict[str, int] = {}
    # An empty table of a tensor is one, too; but beside other threads it may not
    # be taken away.
    alone = len(sys._current_frames()) == 1
    for name, module in training.model.named_modules():
        found |= hooks_of(module, name)
    model = training.model
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        for key in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            table = getattr(tensor, key, None)
            if table or (alone and table is not None):
                found[f"{name}.{key}"] = len(table)
    found |= hooks_of(training.optimizer, "optimizer")
    torch_modules: tuple[ModuleType, ...] = (
        torch.nn.modules.module,
        sys.modules["torch.optim.optimizer"],
        torch.autograd.graph,
    )
    for module in torch_modules:
        found |= hooks_of(module, module.__name__)
    return found


@pytest.mark.parametrize("start", ["before", "after"])
def test_no_hook_is_left(name: str, device: str, start: str) -> None:
    """Neither on what was there at the start nor on what came later."""
    training = zoo.ZOO[name].build(device) if start == "after" else None
    expected = all_hooks(training) if training else {}
    with memprof.profile():
        if training is None:
            training = zoo.ZOO[name].build(device)
        training.step()
        inside = all_hooks(training)
    if start == "before":
        expected = all_hooks(zoo.ZOO[name].build(device))
    assert len(inside) > len(expected)  # they were looked for where they hang
    assert all_hooks(training) == expected
