"""Optimizers: their state, their scratch, and models that have several."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import Program, State, bf16, check, f32, line
from models import BATCH, HIDDEN, IN, SCALAR, W1, WEIGHTS, H, Net, Scale, X
from torch import nn

N = 1009
SIZE = f32(N)


def train_scale(program: Program, optimizer: Any, model: Any, number: int) -> None:
    """One step of a ``Scale``; after it only parameters and state are there."""
    model(torch.ones(N, device=program.device)).sum().backward()
    program.mark(f"backward {number}")
    optimizer.step()  # <step>
    program.mark(f"step {number}")
    optimizer.zero_grad()


def large_state(at: State) -> set[str]:
    """Return the owners of state as large as the weight."""
    kind = ("optimizer_state", SIZE)
    return {b.owner for b in at.blocks if (b.category, b.size) == kind}


def test_sgd_momentum(program: Program) -> None:
    model = Net(program.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    with program.record():
        for number in range(2):
            x = torch.randn(BATCH, IN, device=program.device)
            model(x).square().mean().backward()
            del x
            program.mark(f"backward {number}")
            optimizer.step()  # <momentum step>
            optimizer.zero_grad()
            program.mark(f"end {number}")
    program.at("backward 0").holds(parameter=WEIGHTS, gradient=WEIGHTS)
    for moment in ("end 0", "end 1"):
        program.at(moment).holds(parameter=WEIGHTS, optimizer_state=WEIGHTS)
    program.at("backward 1").holds(
        parameter=WEIGHTS, gradient=WEIGHTS, optimizer_state=WEIGHTS
    )
    at = program.at("end 1")
    (state,) = [b for b in at.blocks if (b.size, b.phase) == (W1, "optimizer")]
    check(state, reason="optimizer state", owner="momentum_buffer of first.weight")
    check(state, line=line("momentum step"), op="aten::clone")
    # No module ran: the owner's name says whose it is.
    check(state, module="first")


@pytest.mark.parametrize("kind", ["single", "foreach", "fused"])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_adam(program: Program, name: str, kind: str) -> None:
    model = Scale(N, program.device)
    optimizer = getattr(torch.optim, name)(
        model.parameters(), lr=0.1, foreach=kind == "foreach", fused=kind == "fused"
    )
    with program.record():
        for number in range(3):
            train_scale(program, optimizer, model, number)
    # The number of steps is kept on the host unless the step is fused.
    step = [SCALAR] if kind == "fused" else program.host(SCALAR)
    state = [SIZE, SIZE, *step]
    program.at("backward 0").holds(parameter=SIZE, gradient=SIZE)
    program.at("step 0").holds(parameter=SIZE, gradient=SIZE, optimizer_state=state)
    program.at("backward 2").holds(parameter=SIZE, gradient=SIZE, optimizer_state=state)
    at = program.at("step 2")
    at.holds(parameter=SIZE, gradient=SIZE, optimizer_state=state)
    assert large_state(at) == {"exp_avg of weight", "exp_avg_sq of weight"}
    if step:
        at.block(SCALAR, owner="step of weight")

    # exp_avg_sq's root, and for a single tensor a second one: root / correction.
    scratch = {"single": 2, "foreach": 1, "fused": 0}[kind]
    lives = [b for b in program.lives(SIZE) if b.category == "temporary"]
    assert len(lives) == 3 * scratch
    for block in lives:
        check(block, reason="optimizer scratch", line=line("step"), phase="optimizer")
    if scratch:
        program.peak(phase="optimizer").holds(
            parameter=SIZE,
            gradient=SIZE,
            optimizer_state=state,
            # On the CPU the divisor of the last division, as double and float.
            temporary=[[SIZE] * scratch, program.host(8, SCALAR)],
        )


def test_optimizer_made_late(program: Program) -> None:
    model = Net(program.device)
    with program.record():
        x = torch.randn(BATCH, IN, device=program.device)
        model(x).square().mean().backward()
        del x
        optimizer = torch.optim.Adagrad(model.parameters(), foreach=False)
        program.mark("made")
        optimizer.step()
        program.mark("step")
    steps = program.host([SCALAR] * 4)
    for moment in ("made", "step"):  # Adagrad has its sums from the start
        program.at(moment).holds(
            parameter=WEIGHTS, gradient=WEIGHTS, optimizer_state=[WEIGHTS, steps]
        )


def test_loss_made_in_a_closure(program: Program) -> None:
    model = Scale(N, program.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.rand(N, device=program.device)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        program.mark("closure")
        loss.backward()
        return loss

    with program.record():
        optimizer.step(closure)
    # As without a closure: the product waits for the square's backward.
    program.at("closure").holds(parameter=SIZE, input=SIZE, activation=[SIZE, SCALAR])


def test_lbfgs_with_a_closure(program: Program) -> None:
    model = Scale(N, program.device)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=1)
    x = torch.rand(N, device=program.device)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        program.mark(f"closure {len(program_marks)}")
        program_marks.append(0)
        loss.backward()
        return loss

    program_marks: list[int] = []
    with program.record():
        for number in range(2):
            optimizer.step(closure)
            program.mark(f"step {number}")
    # A closure's modules are modules: weight * x is kept for the square, and the
    # optimizer has nothing yet.
    at = program.at("closure 0")
    sizes = {b.category: b.size for b in at.blocks if b.size == SIZE}
    assert sizes == dict.fromkeys(("parameter", "input", "activation"), SIZE)
    at = program.at("step 0")
    # d, the direction, and prev_flat_grad; al and the others are numbers.
    assert at.moment.categories["parameter"] == SIZE
    assert at.moment.categories["gradient"] == SIZE
    assert large_state(at) == {"d of weight", "prev_flat_grad of weight"}
    at = program.at("step 1")
    # A first pair for the approximation: the step taken and the change of slope.
    assert large_state(at) == {
        "d of weight",
        "prev_flat_grad of weight",
        "old_dirs.0 of weight",
        "old_stps.0 of weight",
    }


class Generator(nn.Module):
    """Makes a sample of noise."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.body = Scale(N, device)
        self.spare = Scale(2003, device)  # so this is the larger model

    def forward(self, z: Any) -> Any:
        return self.body(z)


class Judge(nn.Module):
    """Judges a sample."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.body = Scale(N, device)

    def forward(self, x: Any) -> Any:
        return self.body(x).sum()


def test_two_models_and_two_optimizers(program: Program) -> None:
    generator, judge = Generator(program.device), Judge(program.device)
    spare = f32(2003)
    first = torch.optim.SGD(generator.parameters(), lr=0.1, momentum=0.9)
    second = torch.optim.Adam(judge.parameters(), lr=0.1)
    with program.record():
        z = torch.randn(N, device=program.device)
        fake = generator(z)
        program.mark("fake")
        score = judge(fake.detach())
        score.backward()
        second.step()
        second.zero_grad()
        program.mark("judge trained")
        score = judge(fake)
        program.mark("score")
        score.backward()
        first.step()
        program.mark("generator trained")
    parameters = [SIZE, spare, SIZE]
    state = [SIZE, SIZE, *program.host(SCALAR)]
    # A model's result that goes into another is no input: it waits for backward.
    at = program.at("fake")
    at.holds(parameter=parameters, input=SIZE, activation=SIZE)
    (made,) = [b for b in at.blocks if b.category == "activation"]
    check(made, module="body", reason="outlived")  # `fake` itself is kept
    program.at("judge trained").holds(
        parameter=parameters,
        input=SIZE,
        activation=[SIZE, SCALAR],
        optimizer_state=state,
    )
    at = program.at("generator trained")
    at.holds(
        parameter=parameters,
        input=SIZE,
        gradient=[SIZE, SIZE],
        activation=[SIZE, SCALAR],
        optimizer_state=[*state, SIZE],
    )


def test_two_models_are_told_apart(program: Program) -> None:
    generator, judge = Generator(program.device), Judge(program.device)
    optimizer = torch.optim.Adam(judge.parameters(), lr=0.1)
    with program.record():
        judge(torch.randn(N, device=program.device)).backward()
        optimizer.step()
        program.mark("end")
    at = program.at("end")
    owners = {(b.category, b.owner, b.module) for b in at.blocks if b.size == SIZE}
    assert owners >= {
        ("parameter", "body.weight", "body"),
        ("parameter", "Judge/body.weight", "Judge/body"),
        ("gradient", "Judge/body.weight", "Judge/body"),
        ("optimizer_state", "exp_avg of Judge/body.weight", "Judge/body"),
        ("optimizer_state", "exp_avg_sq of Judge/body.weight", "Judge/body"),
    }
    del generator


class Lora(nn.Module):
    """A frozen layer and a trained detour of rank 3."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.base = nn.Linear(IN, HIDDEN, device=device).requires_grad_(False)
        self.down = nn.Linear(IN, 3, bias=False, device=device)
        self.up = nn.Linear(3, HIDDEN, bias=False, device=device)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x))  # <lora>


def test_adapters(program: Program) -> None:
    model = Lora(program.device)
    down, up = f32(IN, 3), f32(3, HIDDEN)
    base = [W1, f32(HIDDEN)]
    optimizer = torch.optim.Adam(
        [p for p in model.parameters() if p.requires_grad], foreach=False
    )
    with program.record():
        loss = model(torch.randn(BATCH, IN, device=program.device)).square().mean()
        program.mark("forward")
        loss.backward()
        optimizer.step()
        program.mark("step")
    # Kept: the input for `down`, its 3 numbers a row for `up`, and the sum.
    at = program.at("forward")
    at.holds(parameter=[base, down, up], input=X, activation=[f32(BATCH, 3), H, SCALAR])
    at.block(f32(BATCH, 3), module="down", reason="saved")
    at.block(H, module="Lora", op="aten::add", line=line("lora"))
    program.at("step").holds(
        parameter=[base, down, up],
        gradient=[down, up],
        optimizer_state=[[down, up] * 2, program.host(SCALAR, SCALAR)],
        activation=SCALAR,
    )


def test_masters_in_float32(program: Program) -> None:
    model = Scale(N, program.device).to(torch.bfloat16)
    half = bf16(N)
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1, momentum=0.9)
    with program.record():
        x = torch.ones(N, device=program.device, dtype=torch.bfloat16)
        model(x).sum().backward()
        program.mark("backward")
        for master, parameter in zip(masters, model.parameters()):
            master.grad = parameter.grad.float()  # <master grad>
            parameter.grad = None
        program.mark("copied")
        optimizer.step()
        optimizer.zero_grad()
        program.mark("step")
    # A master is a parameter: it is what the optimizer trains.
    at = program.at("backward")
    at.holds(parameter=[half, SIZE], input=half, gradient=half)
    at.block(SIZE, owner="parameter 0 of SGD")
    at = program.at("copied")
    at.holds(parameter=[half, SIZE], input=half, gradient=SIZE)
    program.at("step").holds(parameter=[half, SIZE], input=half, optimizer_state=SIZE)


def test_gradient_clipping(program: Program) -> None:
    model = Scale(N, program.device)
    with program.record():
        x = torch.ones(N, device=program.device)
        model(x).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        program.mark("clipped")
    # In place: the norm and its like are a few bytes, and gone.
    program.at("clipped").holds(parameter=SIZE, gradient=SIZE, input=SIZE)


def test_average_of_the_weights(program: Program) -> None:
    model = Scale(N, program.device)
    with program.record():
        average = torch.optim.swa_utils.AveragedModel(model)
        average.update_parameters(model)
        program.mark("averaged")
    # The copy's weight is a parameter; how many averages it holds is a buffer, and
    # on the CPU.
    at = program.at("averaged")
    at.holds(parameter=[SIZE, SIZE, *program.host(8)])
    for block in at.blocks:
        if block.size == 8:
            check(block, reason="buffer", owner="AveragedModel/n_averaged")
