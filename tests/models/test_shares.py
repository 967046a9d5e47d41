"""At the peak of real models: what every byte is, who made it, who owns it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import zoo
from shares import Recorded, Shares, Strangers, born_in_backward, record

import memprof

LEAST = 0.99

STARTS = ("before", "step 0", "step 3")


@pytest.mark.parametrize("scheduled", [False, True], ids=["all", "window"])
@pytest.mark.parametrize("start", STARTS)
def test_shares(name: str, device: str, start: str, scheduled: bool) -> None:
    recorded = record(name, device, start, scheduled)
    found = recorded.shares(device)
    print(f"\n{name}, {device}, start {start}, scheduled {scheduled}:")
    for moment, answers in found.items():
        print(f"  {moment}: {answers}")
    for answers in found.values():
        answers.require(LEAST)
    found["peak"].has_older(start != "before")
    names_are_right(recorded.training, found["optimizer"])


def names_are_right(training: Any, answers: Shares) -> None:
    """What the owners are called is what the model and the optimizer say.

    Alive at the optimizer's peak: all parameters, buffers, gradients and state. The
    bytes of each name are those that torch counts for it, and a gradient's module is
    the one whose backward made it.
    """
    held: dict[str, Counter[str]] = {}
    for block in answers.blocks:
        kind = block.reason if block.category == "parameter" else block.category
        held.setdefault(kind, Counter())[block.owner] += block.size
    model, optimizer = training.model, training.optimizer
    parameters = dict(model.named_parameters())
    expected = Counter({name: _bytes(p) for name, p in parameters.items()})
    assert held["a module's parameter"] == expected
    buffers = Counter({name: _bytes(b) for name, b in model.named_buffers()})
    assert held.get("a module's buffer", Counter()) == buffers
    assert held["gradient"] == expected
    state = Counter(
        {
            f"{key} of {name}": _bytes(value)
            for name, parameter in parameters.items()
            for key, value in optimizer.state[parameter].items()
            if torch.is_tensor(value) and value.device == parameter.device
        }
    )
    assert held["optimizer_state"] == state
    # A tied weight's gradient is of two modules.
    tied = {name for name, p in parameters.items() if _places(model, p) > 1}
    wrong = [
        block
        for block in answers.blocks
        if block.category == "gradient"
        and block.owner not in tied
        and block.module != block.owner.rpartition(".")[0]
    ]
    listing = "\n".join(str(block) for block in wrong[:8])
    assert not wrong, f"{len(wrong)} gradients of a module not their own:\n{listing}"


def _bytes(tensor: Any) -> int:
    return int(tensor.untyped_storage().nbytes())


def _places(model: Any, parameter: Any) -> int:
    """Return how many modules have PARAMETER."""
    return sum(
        own is parameter
        for module in model.modules()
        for own in module.parameters(recurse=False)
    )


def test_all_of_backward_knows_its_forward(name: str, device: str) -> None:
    """Whatever backward makes, at a peak or not: the forward's line, and its module.

    A GPU's backward runs on a thread without Python: there is no other line.
    """
    recorded = record(name, device, "step 0", False)
    lives = born_in_backward(recorded.recording, device)
    total = sum(life.size for life in lives)
    assert total > 1_000_000
    lacking = [b for b in lives if not (b.has_forward_line and b.has_module)]
    listing = "\n".join(str(b) for b in sorted(lacking, key=lambda b: -b.size)[:12])
    assert sum(b.size for b in lacking) <= 0.001 * total, listing
    # Not just any module: a part of the model but for what its own forward makes.
    root = type(recorded.training.model).__name__
    views = [b for b in lives if b.forward_op in ("aten::unbind", "aten::relu_")]
    assert name.startswith(("faster", "llama")) or views
    assert all(b.forward_module != root for b in views)


def test_model_made_beside_a_known_one(device: str) -> None:
    """Its first forward, too, has the names of its modules, not of their classes."""
    strangers = Strangers()
    other = torch.nn.Linear(3, 3).to(device)
    with memprof.profile() as prof:
        training = zoo.ZOO["gpt"].build(device)
        training.step()
    names = {f"GPT/{name}" for name, _ in training.model.named_modules() if name}
    names |= {"GPT", "Linear", ""}
    recorded = Recorded(prof.recording, training, strangers)
    answers = recorded.shares(device)["forward"]
    answers.require(LEAST)
    made = {block.module for block in answers.blocks if not block.older}
    assert made <= names
    assert made > {"GPT/blocks.0.mlp.up", "GPT/blocks.5.attention.qkv", "GPT/norm"}
    older = [b for b in answers.blocks if b.older and b.category != "workspace"]
    assert {block.owner for block in older} == {"weight", "bias"}
    del other
