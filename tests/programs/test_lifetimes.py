"""What comes in and what stays: batches, labels, losses, kept outputs, copies."""

from __future__ import annotations

from typing import Any

import models
import pytest
import torch
from harness import Program, check, i64, line
from models import BATCH, IN, OUT, SCALAR, WEIGHTS, H, Net, X, Y
from torch import nn


def loss_of(model: Any, x: Any) -> Any:
    """Return the loss; its square keeps the model's output for backward."""
    return model(x).square().mean()


def test_batches_of_a_data_loader(program: Program) -> None:
    data = torch.randn(3 * BATCH, IN)
    labels = torch.zeros(3 * BATCH, dtype=torch.int64)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(data, labels), batch_size=BATCH
    )
    model = Net(program.device)
    with program.record() as prof:
        for number, (x, y) in enumerate(loader):  # <loader>
            x = x.to(program.device)  # <to device>
            y = y.to(program.device)  # <labels>
            loss = nn.functional.cross_entropy(model(x), y)
            program.mark(f"forward {number}")
            loss.backward()
            model.zero_grad()
            prof.step()
    place = line("loader" if program.on_cpu else "to device")
    for number in range(3):
        at = program.at(f"forward {number}")
        at.block(X, category="input", reason="input", step=number, line=place)
        (labels,) = [b for b in at.blocks if b.size == i64(BATCH)]
        at_labels = place if program.on_cpu else line("labels")
        check(labels, category="input", step=number, line=at_labels)


class SquaredError(nn.Module):
    """A loss: keeps the difference for its backward."""

    def forward(self, out: Any, target: Any) -> Any:
        return (out - target).square().mean()  # <difference>


def test_loss_module_makes_no_inputs(program: Program) -> None:
    model, criterion = Net(program.device), SquaredError()
    with program.record():
        out = model(torch.randn(BATCH, IN, device=program.device))
        loss = criterion(out, out.detach().roll(1))
        program.mark("forward")
        loss.backward()
    # What a model gave to the loss is an activation still.
    at = program.at("forward")
    at.holds(parameter=WEIGHTS, input=X, activation=[H, Y, Y, SCALAR])
    kept, difference = [b for b in at.blocks if b.size == Y]
    check(kept, module="second", reason="outlived")
    check(difference, module="SquaredError", reason="saved", line=line("difference"))


def test_target_of_a_loss_module(program: Program) -> None:
    model, criterion = Net(program.device), SquaredError()
    with program.record():
        target = torch.randn(BATCH, OUT, device=program.device)
        loss = criterion(model(torch.randn(BATCH, IN, device=program.device)), target)
        program.mark("forward")
        loss.backward()
    # The batch's other half: given to a module from outside, as the input is.
    program.at("forward").holds(
        parameter=WEIGHTS, input=[X, Y], activation=[H, Y, SCALAR]
    )


def test_labels_of_a_batch(program: Program) -> None:
    data = torch.utils.data.TensorDataset(
        torch.randn(BATCH, IN), torch.zeros(BATCH, dtype=torch.int64)
    )
    model = Net(program.device)
    with program.record():
        for x, y in torch.utils.data.DataLoader(data, batch_size=BATCH):
            x, y = x.to(program.device), y.to(program.device)
            nn.functional.cross_entropy(model(x), y).backward()
            program.mark("backward")
    # A batch is its labels, too; torch's profiler calls them inputs by data flow.
    at = program.at("backward")
    (labels,) = [b for b in at.blocks if b.size == i64(BATCH) and b.step >= 0]
    check(labels, category="input")


@pytest.mark.parametrize("detached", [False, True], ids=["graph", "detached"])
def test_outputs_kept_across_steps(program: Program, detached: bool) -> None:
    model = Net(program.device)
    kept: list[Any] = []
    with program.record() as prof:
        for number in range(3):
            out = model(torch.randn(BATCH, IN, device=program.device))
            out.square().mean().backward()
            kept.append(out.detach() if detached else out)
            del out
            model.zero_grad()
            program.mark(f"end {number}")
            prof.step()
    for number in range(3):
        at = program.at(f"end {number}")
        at.holds(parameter=WEIGHTS, activation=[Y] * (number + 1))
        outs = [b for b in at.blocks if b.size == Y]
        assert [b.step for b in outs] == list(range(number + 1))
        assert {b.reason for b in outs} == {"outlived"}
        assert {b.line for b in outs} == {line("out", models.__file__)}


def test_losses_kept_with_their_graphs(program: Program) -> None:
    # A sum over steps whose backward never comes keeps every step's activations.
    model = Net(program.device)
    total: Any = 0
    with program.record() as prof:
        for number in range(3):
            x = torch.randn(BATCH, IN, device=program.device)
            total = total + loss_of(model, x)
            program.mark(f"end {number}")
            prof.step()
    for number in range(3):
        at = program.at(f"end {number}")
        many = number + 1
        at.holds(
            parameter=WEIGHTS, input=[X] * many, activation=[[H, Y] * many, SCALAR]
        )
        assert {b.reason for b in at.blocks if b.size == H} == {"outlived"}
        steps = [b.step for b in at.blocks if b.size == H]
        assert steps == list(range(many))


def test_copy_of_the_weights(program: Program) -> None:
    model = Net(program.device)
    with program.record():
        best = {k: v.clone() for k, v in model.state_dict().items()}  # <best>
        program.mark("copied")
    # No graph, no forward: a copy that the program keeps for itself.
    at = program.at("copied")
    at.holds(parameter=WEIGHTS, unknown=WEIGHTS)
    assert {b.line for b in at.blocks if b.step >= 0} == {line("best")}
    del best
