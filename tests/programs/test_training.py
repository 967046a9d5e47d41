"""Training runs: where each byte of a plain step goes, and its variations."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import models
import pytest
import torch
from harness import Program, check, f32, i64, line, one_of
from models import (
    B2,
    BATCH,
    HIDDEN,
    IN,
    OUT,
    SCALAR,
    W1,
    W2,
    WEIGHTS,
    H,
    Net,
    Scale,
    X,
    Y,
)
from torch import nn


def loss_of(model: Any, x: Any) -> Any:
    """Return the loss; its square keeps the model's output for backward."""
    return model(x).square().mean()  # <loss>


def test_first_step(program: Program) -> None:
    model = Net(program.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with program.record():
        x = torch.randn(BATCH, IN, device=program.device)  # <input>
        loss = loss_of(model, x)
        program.mark("forward")
        loss.backward()
        program.mark("backward")
        optimizer.step()
        optimizer.zero_grad()
        program.mark("step")
    program.start().holds(parameter=WEIGHTS)
    at = program.at("forward")
    at.holds(parameter=WEIGHTS, input=X, activation=[H, Y, SCALAR])
    at.block(W1, reason="parameter", owner="first.weight", module="first", step=-1)
    at.block(X, reason="input", op="aten::randn", line=line("input"), module="")
    hidden = line("hidden", models.__file__)
    # The op is the innermost: aten::relu is clamp_min inside.
    at.block(H, reason="saved", module="Net", op="aten::clamp_min", line=hidden)
    out = line("out", models.__file__)
    at.block(Y, reason="saved", module="second", op="aten::addmm", line=out)
    at.block(SCALAR, op="aten::mean", module="", line=line("loss"))

    at = program.at("backward")
    at.holds(parameter=WEIGHTS, input=X, gradient=WEIGHTS, activation=SCALAR)
    for size, module, place in ((W1, "first", hidden), (W2, "second", out)):
        gradient = one_of(at, size, "gradient")
        assert gradient.owner == f"{module}.weight"
        assert gradient.module == gradient.forward_module == module
        assert gradient.forward_op == "aten::addmm"
        assert gradient.line == place
    program.at("step").holds(parameter=WEIGHTS, input=X, activation=SCALAR)


def test_later_steps_are_as_the_first(program: Program) -> None:
    model = Net(program.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> None:
        loss = loss_of(model, torch.randn(BATCH, IN, device=program.device))
        program.mark(f"forward {number}")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    with program.record() as prof:
        for number in range(3):
            step(number)
            program.mark(f"end {number}")
            prof.step()
    for number in range(3):
        at = program.at(f"forward {number}")
        # The graph keeps the input, though the program has let it go.
        at.holds(parameter=WEIGHTS, input=X, activation=[H, Y, SCALAR])
        assert {b.step for b in at.blocks} == {-1, number}
        program.at(f"end {number}").holds(parameter=WEIGHTS)


def test_started_in_the_middle_of_a_run(program: Program) -> None:
    model = Net(program.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(BATCH, IN, device=program.device)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()
    with program.record():
        program.mark("begin")
        # Until it is seen to go into a model, x is just some tensor.
        loss = loss_of(model, x)
        program.mark("forward")
    at = program.at("begin")
    at.holds(parameter=WEIGHTS, gradient=WEIGHTS, optimizer_state=WEIGHTS, input=X)
    assert one_of(at, W1, "gradient").owner == "first.weight.grad"
    state = one_of(at, W2, "optimizer_state")
    check(state, owner="momentum_buffer of second.weight", module="second", step=-1)
    program.at("forward").holds(
        parameter=WEIGHTS,
        gradient=WEIGHTS,
        optimizer_state=WEIGHTS,
        input=X,
        activation=[H, Y, SCALAR],
    )
    del loss


def test_started_between_forward_and_backward(program: Program) -> None:
    model = Net(program.device)
    x = torch.randn(BATCH, IN, device=program.device)
    loss = loss_of(model, x)
    with program.record():
        loss.backward()
        program.mark("backward")
    # The graph's own tensors, too, but of what they are there is no evidence.
    program.start().holds(parameter=WEIGHTS, unknown=[X, H, Y, SCALAR])
    at = program.at("backward")
    at.holds(parameter=WEIGHTS, gradient=WEIGHTS, unknown=[X, SCALAR])
    at.block(X, reason="before start", owner="", module="")


def test_model_built_while_recording(program: Program) -> None:
    with program.record():
        model = Net(program.device)  # <build>
        program.mark("built")
        loss_of(model, torch.randn(BATCH, IN, device=program.device)).backward()
        program.mark("backward")
    # What a later forward shows holds for the whole life.
    at = program.at("built")
    at.holds(parameter=WEIGHTS)
    at.block(B2, owner="second.bias", module="second", step=0)
    program.at("backward").holds(parameter=WEIGHTS, gradient=WEIGHTS)


def test_zero_grad_to_zero_keeps_the_gradients(program: Program) -> None:
    model = Net(program.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with program.record():
        for number in range(2):
            loss_of(model, torch.randn(BATCH, IN, device=program.device)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            program.mark(f"end {number}")
    for number in range(2):
        program.at(f"end {number}").holds(parameter=WEIGHTS, gradient=WEIGHTS)
    # The second backward's result is added to the gradient, and goes.
    second = program.lives(W1)[-1]
    check(second, category="autograd_detail", reason="in backward", module="first")
    assert len(program.lives(W1)) == 3
    assert second.died >= 0


def test_gradient_accumulation(program: Program) -> None:
    model = Net(program.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with program.record():
        for number in range(4):
            loss_of(model, torch.randn(BATCH, IN, device=program.device)).backward()
            program.mark(f"micro {number}")
        optimizer.step()
        optimizer.zero_grad()
        program.mark("end")
    for number in range(4):
        program.at(f"micro {number}").holds(parameter=WEIGHTS, gradient=WEIGHTS)
    program.at("end").holds(parameter=WEIGHTS)
    kinds = [b.category for b in program.lives(W1)]
    assert kinds == ["parameter", "gradient"] + 3 * ["autograd_detail"]


def test_frozen_layer(program: Program) -> None:
    model = Net(program.device)
    model.first.requires_grad_(False)
    with program.record():
        loss = loss_of(model, torch.randn(BATCH, IN, device=program.device))
        program.mark("forward")
        loss.backward()
        program.mark("backward")
    # Nothing needs the input: it is free once the first layer is done. The ReLU's
    # result is kept for second.weight alone.
    at = program.at("forward")
    at.holds(parameter=WEIGHTS, activation=[H, Y, SCALAR])
    at.block(H, reason="saved")
    at = program.at("backward")
    at.holds(parameter=WEIGHTS, gradient=[W2, B2], activation=SCALAR)


class Tied(nn.Module):
    """One weight in two layers."""

    def __init__(self, size: int, device: str) -> None:
        super().__init__()
        self.a = nn.Linear(size, size, bias=False, device=device)
        self.b = nn.Linear(size, size, bias=False, device=device)
        self.b.weight = self.a.weight

    def forward(self, x: Any) -> Any:
        x = self.a(x)  # <tied a>
        return self.b(x)  # <tied b>


def test_tied_weights_count_once(program: Program) -> None:
    model = Tied(23, program.device)
    weight, state = f32(23, 23), f32(5, 23)
    with program.record():
        x = torch.randn(5, 23, device=program.device)
        loss = model(x).sum()
        program.mark("forward")
        loss.backward()
        program.mark("backward")
    at = program.at("forward")
    # The sum keeps nothing, so the last output is gone.
    at.holds(parameter=weight, input=state, activation=[state, SCALAR])
    at.block(weight, owner="a.weight")
    at = program.at("backward")
    at.holds(parameter=weight, gradient=weight, input=state, activation=SCALAR)
    first, second, total = program.lives(weight)[1:]
    # b's contribution comes first; both wait until they are added.
    check(first, category="autograd_detail", forward_module="b", line=line("tied b"))
    check(second, category="autograd_detail", forward_module="a", line=line("tied a"))
    check(total, category="gradient", owner="a.weight", module="a", op="aten::add")


def test_sum_of_tied_gradients_has_a_forward(program: Program) -> None:
    model = Tied(23, program.device)
    with program.record():
        model(torch.randn(5, 23, device=program.device)).sum().backward()
    # The engine adds them as soon as a's part is there: a's call is the cause.
    *_, total = program.lives(f32(23, 23))
    check(total, category="gradient", forward_module="a", line=line("tied a"))


@contextlib.contextmanager
def waiting_thread() -> Iterator[None]:
    """Run a thread that waits, as a logger's does."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("beside", [contextlib.nullcontext, waiting_thread])
def test_lazy_modules(program: Program, beside: Any) -> None:
    with beside():
        lazy_modules(program)


def lazy_modules(program: Program) -> None:
    model = nn.Sequential(nn.LazyLinear(HIDDEN), nn.ReLU(), nn.LazyLinear(OUT))
    model.to(program.device)
    with program.record():
        program.mark("empty")
        loss = loss_of(model, torch.randn(BATCH, IN, device=program.device))
        program.mark("forward")
        loss.backward()
        program.mark("backward")
    program.at("empty").holds()
    at = program.at("forward")
    at.holds(parameter=WEIGHTS, input=X, activation=[H, Y, SCALAR])
    at.block(W1, owner="0.weight", module="0")
    at.block(H, module="1")
    at = program.at("backward")
    at.holds(parameter=WEIGHTS, gradient=WEIGHTS, activation=SCALAR)


def test_manual_update(program: Program) -> None:
    model = Scale(1009, program.device)
    size = f32(1009)
    with program.record():
        model(torch.randn(1009, device=program.device)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                update = 0.1 * parameter.grad  # <update>
                program.mark("update")
                parameter -= update
                parameter.grad = None
        del update
        program.mark("end")
    program.at("end").holds(parameter=size)
    # As an optimizer's scratch would be: made and gone without a trace.
    at = program.at("update")
    at.holds(parameter=size, gradient=size, temporary=size)
    check(one_of(at, size, "temporary"), op="aten::mul", line=line("update"))


def test_peak_of_one_layer(program: Program) -> None:
    size = f32(1009)
    model = Scale(1009, program.device)
    with program.record():
        x = torch.randn(1009, device=program.device)
        loss = model(x).sum()
        loss.backward()
    # Forward: x, weight, product, loss. Backward: the product is gone, the
    # gradient is there, and so is d loss / d loss.
    at = program.peak()
    at.holds(
        parameter=size,
        input=size,
        gradient=size,
        activation=SCALAR,
        autograd_detail=SCALAR,
    )
    assert at.moment.phase == "backward"
    assert at.moment.module == "Scale"
    at = program.peak(phase="forward")
    at.holds(parameter=size, input=size, activation=[size, SCALAR])
    assert program.peak(category="gradient").moment.categories["gradient"] == size


def test_training_without_modules(program: Program) -> None:
    weight = torch.ones(1009, device=program.device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, foreach=False)
    size = f32(1009)
    with program.record():
        for number in range(2):
            product = weight * weight  # <functional>
            loss = product.square().sum()
            del product
            program.mark(f"forward {number}")
            loss.backward()
            optimizer.step()
            program.mark(f"step {number}")
            optimizer.zero_grad()
            del loss
    for number in range(2):
        at = program.at(f"forward {number}")
        state = [size] * number
        at.holds(parameter=size, optimizer_state=state, activation=[size, SCALAR])
        product = one_of(at, size, "activation")
        check(product, op="aten::mul", line=line("functional"), reason="saved")
        check(one_of(at, size, "parameter"), owner="parameter 0 of SGD")
        at = program.at(f"step {number}")
        at.holds(parameter=size, gradient=size, optimizer_state=size, activation=SCALAR)


def test_python_number_that_a_graph_keeps(program: Program) -> None:
    weight = nn.Parameter(torch.ones(1009, device=program.device))
    with program.record():
        loss = (weight * 3).sum()
        program.mark("forward")
        loss.backward()
    # The 3 is a tensor of one int64, on the CPU wherever the weight is.
    at = program.at("forward")
    number = [b.category for b in at.blocks if b.size == i64(1)]
    assert number == ["activation" for _ in program.host(i64(1))]


def test_gradient_set_by_hand(program: Program) -> None:
    weight = nn.Parameter(torch.ones(1009, device=program.device))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    size = f32(1009)
    with program.record():
        weight.grad = torch.full((1009,), 0.5, device=program.device)
        optimizer.step()
        program.mark("step")
        optimizer.zero_grad()
    program.at("step").holds(parameter=size, gradient=size)


def test_gradient_of_an_input(program: Program) -> None:
    model = Scale(1009, program.device)
    size = f32(1009)
    with program.record():
        x = torch.randn(1009, device=program.device, requires_grad=True)
        model(x).sum().backward()
        program.mark("backward")
    # x.grad is a .grad as a parameter's is; torch's profiler says so, too.
    program.at("backward").holds(parameter=size, input=size, gradient=[size, size])
    assert len([b for b in program.lives(size) if b.forward_op == "aten::mul"]) == 2


def test_keyword_arguments_are_inputs(program: Program) -> None:
    """As models of Hugging Face are called."""

    class ByName(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(program.device)

        def forward(self, *, x: Any, batch: Any = None) -> Any:
            return self.net(x) + batch["shift"]

    model = ByName()
    with program.record():
        x = torch.randn(BATCH, IN, device=program.device)
        shift = torch.randn(OUT, device=program.device)
        loss = model(x=x, batch={"shift": shift}).sum()
        program.mark("forward")
        del loss
    at = program.at("forward")
    at.block(X, category="input", reason="input", owner="argument of a root module")
    (found,) = [b for b in at.blocks if b.category == "input" and b.size != X]
    assert found.size == f32(OUT)
