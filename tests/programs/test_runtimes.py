"""Programs that torch runs differently: autocast, compile, DDP, offload, graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import pytest
import torch
import torch.distributed as dist
from harness import Program, bf16, check, f32, line
from models import BATCH, HIDDEN, IN, OUT, SCALAR, W1, W2, WEIGHTS, H, Net, Scale, X, Y
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

N = 1009
SIZE = f32(N)


def test_autocast(program: Program) -> None:
    model = Net(program.device)
    with program.record():
        x = torch.randn(BATCH, IN, device=program.device)
        with torch.autocast(program.device, torch.bfloat16):
            out = model(x)
            program.mark("inside")
        loss = out.float().square().mean()
        program.mark("forward")
        loss.backward()
        program.mark("backward")
    # Inside, autocast has a half-size copy of each weight and bias. Backward needs
    # the halved input, the ReLU's result, and second's weight for its gradient.
    halves = [bf16(IN, HIDDEN), bf16(HIDDEN), bf16(HIDDEN, OUT), bf16(OUT)]
    x_half, h_half, y_half = bf16(BATCH, IN), bf16(BATCH, HIDDEN), bf16(BATCH, OUT)
    at = program.at("inside")
    at.holds(parameter=WEIGHTS, input=X, activation=[halves, x_half, h_half, y_half])
    at.block(halves[0], module="first", line=line("hidden", models.__file__))
    at.block(h_half, module="Net", reason="saved")
    at = program.at("forward")
    at.holds(
        parameter=WEIGHTS,
        input=X,
        activation=[halves[2], x_half, h_half, y_half, Y, SCALAR],
    )
    # Gradients have their parameters' type again.
    program.at("backward").holds(
        parameter=WEIGHTS, input=X, gradient=WEIGHTS, activation=[y_half, SCALAR]
    )


def test_bfloat16_model(program: Program) -> None:
    model = Scale(N, program.device).to(torch.bfloat16)
    half = bf16(N)
    with program.record():
        x = torch.ones(N, device=program.device, dtype=torch.bfloat16)
        model(x).float().square().sum().backward()
        program.mark("backward")
    program.at("backward").holds(parameter=half, input=half, gradient=half)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(program: Program, backend: str) -> None:
    torch._dynamo.reset()
    model = Net(program.device)
    compiled = torch.compile(model, backend=backend)
    x = torch.randn(BATCH, IN, device=program.device)
    compiled(x).square().mean().backward()
    model.zero_grad()
    with program.record():
        loss = compiled(x).square().mean()
        program.mark("forward")
        loss.backward()
        program.mark("backward")
    torch._dynamo.reset()
    # As uncompiled: what an op of the graph makes for backward is an activation.
    at = program.at("forward")
    at.holds(parameter=WEIGHTS, input=X, activation=[H, Y, SCALAR])
    at.block(W1, owner="_orig_mod.first.weight")  # its name in named_parameters
    at = program.at("backward")
    at.holds(parameter=WEIGHTS, input=X, gradient=WEIGHTS, activation=SCALAR)


@pytest.mark.parametrize(
    "backend",
    ["eager", "aot_eager"],
)
def test_compiled_says_saved_and_where(program: Program, backend: str) -> None:
    torch._dynamo.reset()
    model = Net(program.device)
    compiled = torch.compile(model, backend=backend)
    x = torch.randn(BATCH, IN, device=program.device)
    compiled(x).square().mean().backward()
    with program.record():
        loss = compiled(x).square().mean()
        program.mark("forward")
        loss.backward()
    torch._dynamo.reset()
    at = program.at("forward")
    # The graph's ops have no module of their own: the compiled one's is right.
    at.block(H, category="activation", reason="saved", module="_orig_mod")
    at.block(Y, category="activation", reason="saved")


def test_offload_that_copies(program: Program) -> None:
    # What an offload does, without the trip: pack copies, unpack copies back.
    class Copies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = Scale(N, program.device)

        def forward(self, x: Any) -> Any:
            with saved_tensors_hooks(pack, unpack):
                product = self.scale(x)
                return product.repeat(2).sin().sum()

    def pack(tensor: Any) -> Any:
        return tensor.clone()  # <pack>

    def unpack(tensor: Any) -> Any:
        return tensor.clone()  # <unpack>

    model = Copies()
    with program.record():
        loss = model(torch.rand(N, device=program.device))
        program.mark("forward")
        loss.backward()
        program.mark("backward")
    # The sine's argument and the input were packed; both are let go themselves. The
    # copies are what is saved.
    at = program.at("forward")
    at.holds(parameter=SIZE, activation=[2 * SIZE, SIZE, SCALAR])
    packed = [b for b in at.blocks if b.category == "activation" and b.size > SCALAR]
    assert {b.size: b.module for b in packed} == {2 * SIZE: "Copies", SIZE: "scale"}
    assert {b.line for b in packed} == {line("pack")}
    program.at("backward").holds(parameter=SIZE, gradient=SIZE, activation=SCALAR)


def test_packed_copies_are_saved(program: Program) -> None:
    with program.record():
        x = torch.ones(N, device=program.device, requires_grad=True)
        with saved_tensors_hooks(torch.clone, torch.clone):
            loss = x.sin().sum()
        program.mark("forward")
        loss.backward()
    at = program.at("forward")
    (packed,) = [b for b in at.blocks if b.category == "activation" and b.size == SIZE]
    check(packed, reason="saved")


def test_offload_to_the_cpu(program: Program) -> None:
    model = Net(program.device)
    with program.record() as prof:
        x = torch.randn(BATCH, IN, device=program.device)
        with save_on_cpu(pin_memory=False):
            loss = model(x).square().mean()
        program.mark("forward")
        loss.backward()
        program.mark("backward")
    # On the CPU there is nothing to move. From a GPU the input, the ReLU's result
    # (for its own backward and the second layer's: two copies), the second weight
    # and the output go to the host.
    kept = [H, Y] if program.on_cpu else []
    at = program.at("forward")
    at.holds(parameter=WEIGHTS, input=X, activation=[kept, SCALAR])
    if not program.on_cpu:
        event = at.moment.event
        host = prof.at(event=event, device="cpu")
        assert host.categories["activation"] == X + 2 * H + W2 + Y
    program.at("backward").holds(
        parameter=WEIGHTS, input=X, gradient=WEIGHTS, activation=SCALAR
    )


@pytest.fixture
def one_rank(tmp_path: Path) -> Any:
    """A process group of one."""
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


def test_ddp_with_gradients_in_buckets(program: Program, one_rank: Any) -> None:
    net = Net(program.device)
    with program.record() as prof:
        model = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(3):
            x = torch.randn(BATCH, IN, device=program.device)
            model(x).square().mean().backward()
            program.mark(f"backward {number}")
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    # All gradients are slices of one bucket.
    at = program.at("backward 2")
    bucket = sum(WEIGHTS)
    assert at.moment.categories["gradient"] == bucket
    assert at.moment.categories["parameter"] == sum(WEIGHTS)
    at.block(bucket, category="gradient", reason="gradient")


def test_ddp_with_buckets_beside(program: Program, one_rank: Any) -> None:
    net = Net(program.device)
    with program.record():
        model = nn.parallel.DistributedDataParallel(net)  # <ddp>
        x = torch.randn(BATCH, IN, device=program.device)
        model(x).square().mean().backward()
        program.mark("backward")
    # A second copy of all gradients, for the reduction: gradient is what a user
    # looks for, who can save it with gradient_as_bucket_view=True.
    at = program.at("backward")
    at.block(sum(WEIGHTS), category="gradient", line=line("ddp"))
    assert at.moment.categories["gradient"] == 2 * sum(WEIGHTS)


def test_ddp_names(program: Program, one_rank: Any) -> None:
    net = Net(program.device)
    model = nn.parallel.DistributedDataParallel(net)
    with program.record():
        loss = model(torch.randn(BATCH, IN, device=program.device)).square().mean()
        program.mark("forward")
        loss.backward()
    at = program.at("forward")
    at.block(W1, category="parameter", owner="module.first.weight")
    at.block(H, category="activation", module="module", reason="saved")
    at.block(X, category="input")


def test_fsdp(program: Program, one_rank: Any) -> None:
    if program.device == "cuda":
        pytest.skip("gloo has no reduce-scatter on a GPU; nccl is another program")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(program.device, (1,))
    model = Net(program.device)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    with program.record() as prof:
        for number in range(3):
            x = torch.randn(BATCH, IN, device=program.device)
            model(x).square().mean().backward()
            del x
            optimizer.step()
            program.mark(f"step {number}")
            optimizer.zero_grad()
            prof.step()
    for number in range(3):
        at = program.at(f"step {number}")
        assert at.moment.categories["parameter"] == sum(WEIGHTS)
        state = [b.size for b in at.blocks if b.category == "optimizer_state"]
        assert sorted(state) == sorted(WEIGHTS * 2 + [SCALAR] * 4)
        owners = {b.owner for b in at.blocks if b.size == W1}
        assert {"exp_avg of first.weight", "exp_avg_sq of first.weight"} <= owners


def test_fsdp_gradients(program: Program, one_rank: Any) -> None:
    if program.device == "cuda":
        pytest.skip("gloo has no reduce-scatter on a GPU; nccl is another program")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(program.device, (1,))
    model = Net(program.device)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with program.record() as prof:
        for number in range(3):
            x = torch.randn(BATCH, IN, device=program.device)
            model(x).square().mean().backward()
            del x
            optimizer.step()
            program.mark(f"step {number}")
            optimizer.zero_grad()
            prof.step()
    # One block, the result of the reduction; each gradient is a piece of it.
    for number in range(3):
        at = program.at(f"step {number}")
        # The 4 bytes are the mesh: the number of its one rank.
        at.holds(parameter=WEIGHTS, gradient=sum(WEIGHTS), unknown=SCALAR)


@pytest.mark.gpu
def test_cuda_graph(program: Program) -> None:
    model = Scale(N, program.device)
    x = torch.rand(N, device=program.device)
    for _ in range(3):
        model(x)
    graph = torch.cuda.CUDAGraph()
    with program.record():
        with torch.cuda.graph(graph), torch.no_grad():
            out = model(x)
        program.mark("captured")
        graph.replay()
        program.mark("replayed")
    # A replay allocates nothing; the capture's output stays in the graph's pool.
    for moment in ("captured", "replayed"):
        at = program.at(moment)
        (made,) = [b for b in at.blocks if b.category == "activation"]
        check(made, size=SIZE, module="Scale", reason="kept output")
        assert at.moment.categories["parameter"] == SIZE
    del out
