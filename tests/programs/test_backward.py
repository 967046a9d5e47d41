"""Backward: what it holds, what is recomputed, and which forward caused it."""

from __future__ import annotations

import threading
from typing import Any

import models
import pytest
import torch
from harness import Program, check, f32, i64, line, one_of
from models import BATCH, IN, SCALAR, WEIGHTS, H, Net, Scale, X, Y
from torch import nn
from torch.utils.checkpoint import checkpoint

N = 1009
SIZE = f32(N)


class Widen(nn.Module):
    """Adds EXTRA zeros and takes the sine, for which the padded is kept.

    Each layer of a stack of these has a size of its own.
    """

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, x: Any) -> Any:
        wide = nn.functional.pad(x, (0, self.extra))  # <pad>
        return wide.sin()  # <sin>


class Checkpointed(nn.Module):
    """Runs its body under a checkpoint."""

    def __init__(self, *body: nn.Module, reentrant: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        self.reentrant = reentrant

    def forward(self, x: Any) -> Any:
        return checkpoint(self.body, x, use_reentrant=self.reentrant)


def generator_state(program: Program) -> list[int]:
    """What a checkpoint keeps beside its input, to repeat random numbers.

    The states of a GPU's generators are on the host, too.
    """
    return program.host(torch.get_rng_state().nbytes)


class Marks(nn.Module):
    """Marks its backward, in the middle of a model."""

    def __init__(self, program: Program, name: str) -> None:
        super().__init__()
        self.say = lambda _: program.mark(name)

    def forward(self, x: Any) -> Any:
        x = x.view_as(x)
        x.register_hook(self.say)
        return x


def test_chain_without_checkpoint(program: Program) -> None:
    model = nn.Sequential(Widen(10), Widen(20), Widen(40))
    with program.record():
        x = torch.ones(N, device=program.device, requires_grad=True)
        loss = model(x).sum()
        program.mark("forward")
        loss.backward()
    padded = [f32(N + 10), f32(N + 30), f32(N + 70)]
    # The sines are free when they are padded; the padded are kept.
    at = program.at("forward")
    at.holds(input=SIZE, activation=[padded, SCALAR])
    for number, size in enumerate(padded):
        at.block(size, module=str(number), reason="saved", line=line("pad"))


def test_backward_of_each_layer(program: Program) -> None:
    model = nn.Sequential(Widen(10), Widen(20), Widen(40))
    with program.record():
        x = torch.ones(N, device=program.device, requires_grad=True)
        model(x).sum().backward()
    # A sine's backward takes the cosine of the padded, which is gone with the node,
    # and multiplies; a pad's backward gives what was before the pad. The last sine's
    # gradient is the sum's: one number, expanded.
    for number, size in enumerate([f32(N + 10), f32(N + 30), f32(N + 70)]):
        born = [b for b in program.lives(size) if b.phase == "backward"]
        if number < 2:
            above = born.pop(0)
            check(above, category="autograd_detail", forward_module=str(number + 1))
            check(above, forward_op="aten::pad", line=line("pad"))
        cosine, product = born
        check(cosine, op="aten::cos", category="temporary", reason="in op")
        check(product, op="aten::mul", category="autograd_detail")
        for block in (cosine, product):
            check(block, forward_module=str(number), forward_op="aten::sin")
            check(block, module=str(number), line=line("sin"))
    (gradient,) = [b for b in program.lives(SIZE) if b.phase == "backward"]
    check(gradient, forward_module="0", line=line("pad"))


def test_checkpoint(program: Program) -> None:
    model = Checkpointed(Widen(10), Marks(program, "recomputed"), Widen(20))
    with program.record():
        x = torch.ones(N, device=program.device, requires_grad=True)
        out = model(x)
        program.mark("forward")
        out.sum().backward()
    # Forward keeps the result alone.
    at = program.at("forward")
    at.holds(input=SIZE, activation=[f32(N + 30), generator_state(program)])
    # Marks' hook runs in backward, when the second layer is done: the first one's
    # padded input is there again, and the gradient of its sine.
    at = program.at("recomputed")
    again = [b for b in at.blocks if b.reason == "recomputed"]
    assert f32(N + 10) in [b.size for b in again]
    for block in again:
        check(block, category="activation", phase="backward")
    first = next(b for b in again if b.size == f32(N + 10))
    check(first, module="body.0", line=line("pad"))


def test_reentrant_checkpoint(program: Program) -> None:
    model = Checkpointed(Widen(10), Widen(20), reentrant=True)
    with program.record():
        x = torch.ones(N, device=program.device, requires_grad=True)
        out = model(x)
        program.mark("forward")
        out.sum().backward()
    # It runs forward without grad, but that result waits for a backward.
    at = program.at("forward")
    at.holds(input=SIZE, activation=[f32(N + 30), generator_state(program)])


@pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
def test_all_that_is_recomputed(program: Program, reentrant: bool) -> None:
    model = Checkpointed(Widen(10), Widen(20), reentrant=reentrant)
    with program.record():
        x = torch.ones(N, device=program.device, requires_grad=True)
        model(x).sum().backward()
    # Both layers' padded are needed; the first one's sine is padded and goes, as in
    # the forward: there it is an activation, so it is one here. Reentrant or not,
    # that all this happens inside one backward node is torch's affair.
    for size, module, ops in (
        (f32(N + 10), "body.0", {"aten::constant_pad_nd", "aten::sin"}),
        (f32(N + 30), "body.1", {"aten::constant_pad_nd"}),
    ):
        again = [b for b in program.lives(size) if b.reason == "recomputed"]
        assert {b.op for b in again} >= ops
        for block in again:
            check(block, category="activation", module=module)


def test_nested_checkpoints(program: Program) -> None:
    inner = Checkpointed(Widen(20), Marks(program, "inner"))
    model = Checkpointed(Widen(10), inner, Widen(40))
    with program.record():
        x = torch.ones(N, device=program.device, requires_grad=True)
        out = model(x)
        program.mark("forward")
        out.sum().backward()
        program.mark("end")
    at = program.at("forward")
    states = generator_state(program) * 2
    at.holds(input=SIZE, activation=[f32(N + 70), states])
    at = program.at("inner")
    again = {b.size: b.module for b in at.blocks if b.reason == "recomputed"}
    # The outer recomputation gives the first layer's; the last one's is used up.
    assert again.get(f32(N + 10)) == "body.0"
    assert f32(N + 70) not in again
    at = program.at("end")
    # x.grad is judged elsewhere.
    assert sorted(b.size for b in at.blocks) == [SIZE, SIZE, f32(N + 70)]


def test_checkpoint_without_input_gradients(program: Program) -> None:
    model = Checkpointed(Net(program.device))
    with program.record():
        x = torch.randn(BATCH, IN, device=program.device)
        loss = model(x).square().mean()
        program.mark("forward")
        loss.backward()
        program.mark("end")
    program.at("forward").holds(
        parameter=WEIGHTS, input=X, activation=[Y, SCALAR, generator_state(program)]
    )
    at = program.at("end")
    at.holds(parameter=WEIGHTS, input=X, gradient=WEIGHTS, activation=SCALAR)
    # The ReLU's result is made a second time, for backward.
    kept = [b for b in program.lives(H) if b.op == "aten::clamp_min"]
    assert [b.reason for b in kept] == ["outlived", "recomputed"]
    for block in kept:
        check(block, category="activation", module="body.0")
    gradient = [b for b in at.blocks if b.category == "gradient"]
    owners = {b.owner: b.forward_module for b in gradient}
    assert owners == {
        "body.0.first.weight": "body.0.first",
        "body.0.first.bias": "body.0.first",
        "body.0.second.weight": "body.0.second",
        "body.0.second.bias": "body.0.second",
    }


def test_double_backward(program: Program) -> None:
    model = Scale(N, program.device)
    (weight,) = model.parameters()
    with program.record():
        x = torch.rand(N, device=program.device)
        loss = model(x).square().sum()
        (slope,) = torch.autograd.grad(loss, weight, create_graph=True)
        program.mark("slope")
        penalty = slope.square().sum()
        penalty.backward()
        program.mark("end")
    # 2 (x w) x. The first graph keeps the product x w for the square. The slope's
    # graph keeps x and, of what it was multiplied with, d loss / d loss: one number.
    at = program.at("slope")
    at.holds(
        parameter=SIZE,
        input=SIZE,
        activation=[SIZE, SCALAR],
        autograd_detail=[SIZE, SCALAR],
    )
    check(one_of(at, SIZE, "activation"), module="Scale", phase="forward")
    slope_block = one_of(at, SIZE, "autograd_detail")
    check(slope_block, reason="in backward", forward_module="Scale")
    # The second backward uses up the slope's graph and goes round the square of the
    # first: the loss, alive, keeps the product.
    program.at("end").holds(
        parameter=SIZE,
        input=SIZE,
        gradient=SIZE,
        activation=[SIZE, SCALAR, SCALAR],
        autograd_detail=SIZE,
    )


def test_two_backwards_through_one_graph(program: Program) -> None:
    model = Net(program.device)
    with program.record():
        x = torch.randn(BATCH, IN, device=program.device)
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        program.mark("first")
        loss.backward()
        program.mark("second")
    program.at("first").holds(
        parameter=WEIGHTS, gradient=WEIGHTS, input=X, activation=[H, Y, SCALAR]
    )
    program.at("second").holds(
        parameter=WEIGHTS, gradient=WEIGHTS, input=X, activation=SCALAR
    )
    kept = [b for b in program.lives(H) if b.reason == "saved"]
    assert len(kept) == 1


class Doubled(torch.autograd.Function):
    """Saves twice its argument the proper way."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        double = x * 2  # <double>
        ctx.save_for_backward(double)
        return double.sum()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (double,) = ctx.saved_tensors
        return grad * double  # <grad of double>


class Attribute(torch.autograd.Function):
    """Keeps twice its argument as an attribute: it lives as long as the graph."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.double = x * 2
        return ctx.double.sum()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * ctx.double


@pytest.mark.parametrize("function", [Doubled, Attribute])
def test_custom_function(program: Program, function: Any) -> None:
    weight = nn.Parameter(torch.ones(N, device=program.device))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with program.record():
        loss = function.apply(weight)
        program.mark("forward")
        loss.backward()
        program.mark("backward")
        del loss
        program.mark("end")
    at = program.at("forward")
    at.holds(parameter=SIZE, activation=[SIZE, SCALAR])
    kept = [SIZE] if function is Attribute else []
    program.at("backward").holds(
        parameter=SIZE, gradient=SIZE, activation=[kept, SCALAR]
    )
    program.at("end").holds(parameter=SIZE, gradient=SIZE)
    del optimizer


def test_custom_function_saves(program: Program) -> None:
    weight = nn.Parameter(torch.ones(N, device=program.device))
    with program.record():
        Doubled.apply(weight).backward()
    double, gradient = program.lives(SIZE)[1:]
    check(double, category="activation", reason="saved", line=line("double"))
    check(gradient, line=line("grad of double"))


def test_custom_functions_backward_has_its_own_line(program: Program) -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(N, device=program.device))
    with program.record():
        Doubled.apply(model.weight).backward()
        program.mark("end")
    at = program.at("end")
    (gradient,) = [b for b in at.blocks if b.category == "gradient"]
    # Backward runs the user's code: that line says more than the forward's.
    check(gradient, owner="weight", line=line("grad of double"), op="aten::mul")


def test_dense_embedding(program: Program) -> None:
    model = nn.Embedding(97, 13, device=program.device)
    table, rows = f32(97, 13), f32(5, 13)
    with program.record():
        index = torch.tensor([3, 1, 4, 1, 5], device=program.device)
        out = model(index)
        loss = out.square().sum()
        program.mark("forward")
        del out
        loss.backward()
        program.mark("backward")
    program.at("forward").holds(
        parameter=table, input=i64(5), activation=[rows, SCALAR]
    )
    program.at("backward").holds(
        parameter=table, input=i64(5), gradient=table, activation=SCALAR
    )


def test_sparse_embedding(program: Program) -> None:
    model = nn.Embedding(97, 13, sparse=True, device=program.device)
    table, rows = f32(97, 13), f32(5, 13)
    with program.record():
        index = torch.tensor([3, 1, 4, 1, 5], device=program.device)
        out = model(index)
        loss = out.square().sum()
        del out
        loss.backward()
        program.mark("backward")
    # The gradient is the five rows; which rows, the index says.
    program.at("backward").holds(
        parameter=table, input=i64(5), gradient=rows, activation=SCALAR
    )


def test_functional_grad(program: Program) -> None:
    weight = torch.ones(N, device=program.device)
    x = torch.rand(N, device=program.device)

    def loss(weight: Any) -> Any:
        product = weight * x  # <product>
        return product.square().sum()

    with program.record():
        slope = torch.func.grad(loss)(weight)
        program.mark("end")
    at = program.at("end")
    # Nobody said that these were parameters: they are tensors of before. The
    # result is a tensor that a backward made.
    at.holds(unknown=[SIZE, SIZE], autograd_detail=SIZE)
    (made,) = [b for b in at.blocks if b.category == "autograd_detail"]
    check(made, line=line("product"), forward_op="aten::mul")
    del slope


def test_gradients_of_each_sample(program: Program) -> None:
    weight = torch.ones(N, device=program.device)
    batch = torch.rand(3, N, device=program.device)

    def loss(weight: Any, x: Any) -> Any:
        product = weight * x  # <sample>
        return product.square().sum()

    with program.record():
        slopes = torch.func.vmap(torch.func.grad(loss), (None, 0))(weight, batch)
        program.mark("end")
    at = program.at("end")
    size = f32(3, N)
    at.holds(unknown=[SIZE, size], autograd_detail=size)
    del slopes


class Twice(nn.Module):
    """One layer, used twice, on rows and on columns of zeros more."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.scale = Scale(N, device)

    def forward(self, x: Any) -> Any:
        once = self.scale(x)  # <once>
        both = once.expand(3, N)
        return self.scale(both).sum()  # <again>


def test_backward_of_a_module_that_runs_twice(program: Program) -> None:
    model = Twice(program.device)
    with program.record():
        model(torch.rand(N, device=program.device)).backward()
        program.mark("end")
    # The second call's product is three rows, and so are its gradients; the first
    # one's are one row. Which call it was, the stack says.
    wide = [b for b in program.lives(f32(3, N)) if b.phase == "backward"]
    # The weight's, whose rows are added inside the same node; and the one of `both`.
    kinds = sorted((b.category, b.reason) for b in wide)
    assert kinds == [("autograd_detail", "in backward"), ("temporary", "in op")]
    for block in wide:
        check(block, forward_module="scale")
        check(block, forward_op="aten::mul", line=line("scale", models.__file__))
        assert line("again") in block.forward_lines
        assert line("once") not in block.forward_lines
    (gradient,) = [b for b in program.at("end").blocks if b.category == "gradient"]
    check(gradient, size=SIZE, owner="scale.weight", module="scale")


def test_two_threads_train(program: Program) -> None:
    class Left(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Scale(N, program.device)
            self.spare = Scale(2003, program.device)  # the larger model is first

        def forward(self, x: Any) -> Any:
            return self.body(x).sum()

    class Right(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Scale(N, program.device)

        def forward(self, x: Any) -> Any:
            return self.body(x).sum()

    made = Left(), Right()
    turn = threading.Barrier(2)

    def train(model: Any, rows: int) -> None:
        for _ in range(5):
            loss = model(torch.rand(rows, N, device=program.device))
            turn.wait()  # both forwards are done, now both backwards
            loss.backward()
            model.zero_grad()

    with program.record():
        threads = [
            threading.Thread(target=train, args=(model, rows))
            for model, rows in zip(made, (3, 5))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # Before its rows are added the gradient is as wide as the batch.
    for rows, name in ((3, "body"), (5, "Right/body")):
        born = [b for b in program.lives(f32(rows, N)) if b.phase == "backward"]
        assert len(born) == 5
        for block in born:
            check(block, category="temporary", reason="in op", forward_module=name)
            check(block, line=line("scale", models.__file__))
    gradients = [b for b in program.lives(SIZE) if b.category == "gradient"]
    assert (
        sorted(b.owner for b in gradients)
        == ["Right/body.weight"] * 5 + ["body.weight"] * 5
    )
