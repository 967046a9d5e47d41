"""Module stats and labels of a genuine run, with sizes worked out by hand."""

from __future__ import annotations

import gc
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import memprof  # noqa: E402

BATCH, WIDE, DEEP = 11, 53, 101
X, HIDDEN = 4 * BATCH * WIDE, 4 * BATCH * DEEP
UP, DOWN = 4 * (WIDE * DEEP + DEEP), 4 * (WIDE * DEEP + WIDE)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDE, DEEP)
        self.act = nn.Sigmoid()
        self.down = nn.Linear(DEEP, WIDE)

    def forward(self, x: Any) -> Any:
        # Kept for backward: up's input x, act's output (also down's input).
        return self.down(self.act(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Any) -> Any:
        for block in (*self.blocks, self.blocks[0]):  # the first one twice
            x = block(x)
        return x.sum()


def test_modules_and_labels_of_a_training_run(tmp_path: Any) -> None:
    gc.collect()
    models = [Net(), Net()]
    optimizers = [torch.optim.SGD(net.parameters(), momentum=0.9) for net in models]
    with memprof.profile() as prof:
        for _ in range(2):
            for net, optimizer in zip(models, optimizers, strict=True):
                net(torch.randn(BATCH, WIDE)).backward()
                optimizer.step()
                optimizer.zero_grad()
            prof.step()
    rows = {row["name"]: row for row in prof.module_stats("cpu")}
    part = ["", ".up", ".act", ".down"]
    net = ["Net", "blocks", *(f"blocks.{i}{name}" for i in (0, 1) for name in part)]
    assert list(rows) == [*net, "Net#2", *(f"Net#2/{name}" for name in net[1:])]
    for prefix in ("", "Net#2/"):
        root = rows["Net#2" if prefix else "Net"]
        first, second = rows[f"{prefix}blocks.0"], rows[f"{prefix}blocks.1"]
        assert root["calls"] == 4 // 2
        # The first block runs twice, and its last output goes with the sum.
        assert first["retained_bytes"] == 2 * HIDDEN + X
        assert second["retained_bytes"] == HIDDEN + X
        assert root["retained_bytes"] == 3 * HIDDEN + 2 * X + 4
        assert first["forward_bytes"] == 2 * 2 * (2 * HIDDEN + X)
        assert second["transient_bytes"] == HIDDEN - X
        assert second["forward_peak_bytes"] == 2 * HIDDEN
        act = rows[f"{prefix}blocks.1.act"]
        assert act["backward_bytes"] == 2 * HIDDEN
        assert act["backward_peak_bytes"] == HIDDEN
        for row, times in ((first, 1), (second, 1), (root, 2)):
            assert row["parameter_bytes"] == times * (UP + DOWN)
            assert row["gradient_bytes"] == times * (UP + DOWN)
            assert row["optimizer_state_bytes"] == times * (UP + DOWN)
    one = {row["name"]: row for row in prof.module_stats("cpu", step=1)}
    assert one["blocks.0"]["forward_bytes"] == rows["blocks.0"]["forward_bytes"] // 2
    assert one["blocks.0"]["retained_bytes"] == rows["blocks.0"]["retained_bytes"]
    assert one["Net"]["calls"] == 1

    labelled = prof.label("act", module=r"\.act$").label(
        "here", stack=rf"forward {__file__}:\d+"
    )
    labelled.save(tmp_path / "run.memprof")
    again = memprof.load(tmp_path / "run.memprof")
    for recording in (labelled, again):
        moment = recording.at(event=int(rows["Net"]["retained_event"]), device="cpu")
        acts = 3 * HIDDEN
        assert moment.labels["act"] == acts
        found = {row["label"]: row["bytes"] for row in moment.rows("label")}
        assert found["here"] == 2 * X + 4
        assert sum(found.values()) == moment.requested
        stats = recording.module_stats("cpu")
        assert (stats == prof.module_stats("cpu")).all()


class Scaled(nn.Module):
    """A model with a parameter and a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDE))
        self.register_buffer("shift", torch.zeros(WIDE))
        self.block = Block()

    def forward(self, x: Any) -> Any:
        return (self.block(x) * self.scale + self.shift).sum()


def test_a_models_own_tensors_are_the_models_in_rows_labels_and_stats() -> None:
    gc.collect()
    models = [Scaled(), Scaled()]
    optimizers = [torch.optim.SGD(net.parameters(), momentum=0.9) for net in models]
    with memprof.profile() as prof:
        for net, optimizer in zip(models, optimizers, strict=True):
            net(torch.randn(BATCH, WIDE)).backward()
            optimizer.step()
    labelled = prof.label("own", module="^Scaled(#2)?$")
    lives = labelled.allocations("cpu")
    own = labelled.labels("cpu") == labelled.label_names.index("own")
    held = {labelled.owner(owner) for owner in lives["owner"][own].tolist()} - {""}
    names = {"scale", "momentum_buffer of scale", "shift"}
    second = {re.sub("(scale|shift)", r"Scaled#2/\1", name) for name in names}
    assert held == names | second
    rows = prof.at(event=len(prof.events()) - 1, device="cpu").rows(("module", "owner"))
    modules = {row["owner"]: row["module"] for row in rows if row["owner"] in held}
    assert modules == {name: "Scaled#2" if "#2" in name else "Scaled" for name in held}
    stats = {row["name"]: row for row in prof.module_stats("cpu")}
    for prefix, root in (("", "Scaled"), ("Scaled#2/", "Scaled#2")):
        block = stats[f"{prefix}block"]
        for field, times in (
            ("parameter_bytes", 2),
            ("gradient_bytes", 1),
            ("optimizer_state_bytes", 1),
        ):
            assert stats[root][field] - block[field] == times * WIDE * 4
