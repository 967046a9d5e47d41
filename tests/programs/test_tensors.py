"""Tensors that share, change or outlive: in-place ops, views, buffers, caches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import Program, check, f32, line
from models import B1, BATCH, HIDDEN, IN, SCALAR, W1, WEIGHTS, H, Net, Scale, X, Y
from torch import nn

N = 1009
SIZE = f32(N)


def test_in_place_relu(program: Program) -> None:
    model = nn.Sequential(
        nn.Linear(IN, HIDDEN), nn.ReLU(inplace=True), nn.Linear(HIDDEN, 7)
    ).to(program.device)
    with program.record():
        x = torch.randn(BATCH, IN, device=program.device)
        loss = model(x).square().mean()
        program.mark("forward")
        loss.backward()
    # The ReLU writes where the first layer wrote: one block, the layer's.
    at = program.at("forward")
    at.holds(parameter=WEIGHTS, input=X, activation=[H, Y, SCALAR])
    at.block(H, module="0", op="aten::addmm", reason="saved")
    forward = [b for b in program.lives(H) if b.phase == "forward"]
    assert len(forward) == 1


def test_in_place_and_out(program: Program) -> None:
    with program.record():
        a = torch.ones(N, device=program.device)  # <a>
        b = torch.empty(2, N, device=program.device)  # <b>
        a.add_(1).mul_(2)
        torch.mul(a, 3, out=b[0])
        program.mark("end")
    # Nobody says what they are for; where they were made is known.
    at = program.at("end")
    at.holds(unknown=[SIZE, 2 * SIZE])
    at.block(SIZE, reason="outside", line=line("a"), op="aten::ones")
    at.block(2 * SIZE, reason="outside", line=line("b"), op="aten::empty")
    assert len(program.lives(SIZE)) == 1


def test_views_keep_their_base(program: Program) -> None:
    class Cut(nn.Module):
        def forward(self, x: Any) -> Any:
            wide = x.repeat(5)  # <wide>
            return wide[:3], wide.view(5, N).t(), wide[:1].expand(1000)

    model = nn.Sequential(Cut())
    with program.record(), torch.no_grad():
        x = torch.ones(N, device=program.device)
        first, second, third = model(x)
        program.mark("three")
        del first, second
        program.mark("one")
        del third
        program.mark("none")
    # One float of it is in use: all of it is alive.
    for moment in ("three", "one"):
        at = program.at(moment)
        at.holds(input=SIZE, activation=5 * SIZE)
        at.block(5 * SIZE, reason="kept output", module="0", line=line("wide"))
    program.at("none").holds(input=SIZE)


def test_view_of_a_parameter(program: Program) -> None:
    model = Scale(N, program.device)
    with program.record():
        part = model.weight[:10]
        turned = model.weight.detach().view(1, N).t()
        program.mark("end")
    program.at("end").holds(parameter=SIZE)
    del part, turned


def test_channels_last(program: Program) -> None:
    model = nn.Conv2d(3, 5, 3, device=program.device)
    weight, bias = f32(5, 3, 3, 3), f32(5)
    with program.record():
        program.mark("start")
        x = torch.ones(2, 3, 11, 13, device=program.device)  # <contiguous>
        y = x.to(memory_format=torch.channels_last)  # <channels last>
        model.to(memory_format=torch.channels_last)  # <converted>
        program.mark("converted")
        with torch.no_grad():
            out = model(y)
        program.mark("forward")
    size = f32(2, 3, 11, 13)
    program.at("start").holds(parameter=[weight, bias])
    at = program.at("forward")
    # The copy went into the model; the original is of no known use.
    at.holds(
        parameter=[weight, bias],
        input=size,
        unknown=size,
        activation=f32(2, 5, 9, 11),
    )
    (given,) = [b for b in at.blocks if b.category == "input"]
    check(given, line=line("channels last"))
    (other,) = [b for b in at.blocks if b.category == "unknown"]
    check(other, line=line("contiguous"))
    at = program.at("converted")
    assert [b.line for b in at.blocks if b.size == weight] == [line("converted")]
    assert [b.owner for b in at.blocks if b.size == weight] == ["weight"]
    del out


def test_buffers_of_batch_norm(program: Program) -> None:
    model = nn.BatchNorm1d(17, device=program.device)
    features, state = f32(17), f32(BATCH, 17)
    # torch's own kernels: what cuDNN keeps beside differs between its versions.
    with torch.backends.cudnn.flags(enabled=False), program.record():
        x = torch.randn(BATCH, 17, device=program.device)
        out = model(x)
        loss = out.square().mean()
        del out
        program.mark("forward")
        loss.backward()
        program.mark("backward")
    # Weight, bias, running mean and variance, batches seen. Kept for backward:
    # the mean and deviation of the batch, and the result, for the square.
    model_sizes = [[features] * 4, 8]
    at = program.at("forward")
    at.holds(
        parameter=model_sizes, input=state, activation=[features, features, state, 4]
    )
    buffers = {b.owner for b in at.blocks if b.reason == "buffer"}
    assert buffers == {"running_mean", "running_var", "num_batches_tracked"}
    saved = [b for b in at.blocks if b.category == "activation" and b.size == features]
    for block in saved:
        check(block, reason="saved", module="BatchNorm1d")
    program.at("backward").holds(
        parameter=model_sizes,
        input=state,
        gradient=[features, features],
        activation=SCALAR,
    )


def test_dropout_keeps_its_mask(program: Program) -> None:
    model = nn.Sequential(Scale(N, program.device), nn.Dropout(0.5))
    # A GPU keeps a bool for each number; the CPU the factor, 0 or 2, as a float.
    mask = SIZE if program.on_cpu else N
    with program.record():
        x = torch.ones(N, device=program.device)
        out = model(x)
        program.mark("train")
        del out
        model.eval()
        out = model(x)
        program.mark("eval")
        del out
    at = program.at("train")
    at.holds(parameter=SIZE, input=SIZE, activation=[mask, SIZE])
    assert [b.module for b in at.blocks if b.category == "activation"] == ["1", "1"]
    # No mask, and no new block either.
    at = program.at("eval")
    at.holds(parameter=SIZE, input=SIZE, activation=SIZE)
    assert [b.module for b in at.blocks if b.category == "activation"] == ["0"]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_forward_without_grad(program: Program, mode: Any) -> None:
    model = Net(program.device)
    with program.record(), mode():
        out = model(torch.randn(BATCH, IN, device=program.device))
        program.mark("end")
        del out
    at = program.at("end")
    at.holds(parameter=WEIGHTS, activation=Y)
    at.block(Y, reason="kept output", module="second")
    # Two on the way, before and after the ReLU.
    hidden = program.lives(H, category="temporary")
    assert [b.reason for b in hidden] == ["forward scratch"] * 2
    at = program.peak()
    at.holds(parameter=WEIGHTS, input=X, temporary=[H, H])


class Attention(nn.Module):
    """A cache that grows by a row of D numbers with each call."""

    D = 211

    def __init__(self, device: str) -> None:
        super().__init__()
        self.scale = Scale(self.D, device)
        self.keys: Any = None

    def forward(self, x: Any) -> Any:
        key = self.scale(x)
        if self.keys is None:
            self.keys = key.clone()
        else:
            self.keys = torch.cat([self.keys, key])  # <cat>
        return self.keys.sum()


def test_last_cache_is_a_kept_output(program: Program) -> None:
    model = Attention(program.device)
    row = f32(Attention.D)
    x = torch.ones(1, Attention.D, device=program.device)
    with program.record() as prof, torch.inference_mode():
        for _ in range(4):
            model(x)
            prof.step()
        program.mark("end")
    at = program.at("end")
    at.holds(parameter=row, input=row, activation=4 * row)
    at.block(
        4 * row, reason="kept output", module="Attention", line=line("cat"), step=3
    )


def test_growing_cache_is_a_kept_output_all_along(program: Program) -> None:
    model = Attention(program.device)
    row = f32(Attention.D)
    x = torch.ones(1, Attention.D, device=program.device)
    with program.record() as prof, torch.inference_mode():
        for number in range(4):
            model(x)
            program.mark(f"end {number}")
            prof.step()
    for number in range(4):
        at = program.at(f"end {number}")
        at.holds(parameter=row, input=row, activation=(number + 1) * row)


def test_cache_made_in_advance(program: Program) -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = Scale(N, program.device)
            keys = torch.zeros(7, N, device=program.device)
            self.register_buffer("keys", keys, persistent=False)
            self.used = 0

        def forward(self, x: Any) -> Any:
            self.keys[self.used] = self.scale(x)
            self.used += 1
            return self.keys[: self.used].sum()

    model = Cache()
    x = torch.ones(N, device=program.device)
    with program.record(), torch.no_grad():
        for number in range(3):
            model(x)
            program.mark(f"end {number}")
    for number in range(3):
        at = program.at(f"end {number}")
        at.holds(parameter=[SIZE, 7 * SIZE], input=SIZE)
        at.block(7 * SIZE, reason="buffer", owner="keys")


def test_output_that_a_module_keeps(program: Program) -> None:
    class Keeper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = Scale(N, program.device)

        def forward(self, x: Any) -> Any:
            out = self.scale(x)
            self.last = out.detach()
            return out.sum()

    model = Keeper()
    with program.record():
        model(torch.rand(N, device=program.device)).backward()
        model.zero_grad()
        program.mark("end")
    # What hangs on the module's attribute has the graph's bytes, not the graph.
    at = program.at("end")
    at.holds(parameter=SIZE, activation=SIZE)
    (kept,) = [b for b in at.blocks if b.category == "activation"]
    check(kept, module="scale", reason="outlived")


def test_features_taken_by_a_hook(program: Program) -> None:
    model = Net(program.device)
    taken: list[Any] = []
    handle = model.first.register_forward_hook(lambda m, a, out: taken.append(out))
    with program.record(), torch.no_grad():
        model(torch.rand(BATCH, IN, device=program.device))
        handle.remove()
        program.mark("end")
    at = program.at("end")
    at.holds(parameter=WEIGHTS, activation=H)
    at.block(H, module="first", reason="kept output", op="aten::addmm")


def test_parameter_replaced_by_data(program: Program) -> None:
    model = nn.Linear(IN, HIDDEN, device=program.device)
    with program.record() as prof:
        model.double()  # <double>
        prof.step()
        program.mark("double")
    at = program.at("double")
    at.holds(parameter=[2 * W1, 2 * B1])
    at.block(2 * W1, owner="weight", line=line("double"), op="aten::to")


def test_tensor_of_before_and_its_death(program: Program) -> None:
    old = torch.ones(N, device=program.device)
    with program.record():
        program.mark("alive")
        del old
        program.mark("dead")
    at = program.at("alive")
    at.holds(unknown=SIZE)
    at.block(SIZE, reason="before start", step=-1, op="", line="")
    program.at("dead").holds()


def test_scratch_inside_one_op(program: Program) -> None:
    model = Scale(N, program.device)
    with program.record():
        x = torch.rand(N, device=program.device)
        std = model(x).cumsum(0).log_softmax(0).sum()
        program.mark("end")
        del std
    # cumsum's result is dropped when log_softmax, which keeps its own, is done.
    at = program.at("end")
    at.holds(parameter=SIZE, input=SIZE, activation=[SIZE, SCALAR])
    (kept,) = [b for b in at.blocks if b.category == "activation" and b.size == SIZE]
    check(kept, op="aten::_log_softmax", module="", reason="outlived")
