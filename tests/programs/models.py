"""The models that several programs share."""

from __future__ import annotations

from typing import Any

import torch
from harness import f32
from torch import nn

# Features and batch: no product of two of them is that of two others.
IN, HIDDEN, OUT, BATCH = 101, 53, 7, 11

W1, B1 = f32(IN, HIDDEN), f32(HIDDEN)
W2, B2 = f32(HIDDEN, OUT), f32(OUT)
WEIGHTS = [W1, B1, W2, B2]
X, H, Y = f32(BATCH, IN), f32(BATCH, HIDDEN), f32(BATCH, OUT)
SCALAR = 4


class Net(nn.Module):
    """Two layers with a ReLU between them.

    For a backward torch keeps the input (for first.weight) and the ReLU's
    result (for the ReLU and for second.weight); what the first layer gives is
    free as soon as the ReLU is done.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.first = nn.Linear(IN, HIDDEN, device=device)
        self.second = nn.Linear(HIDDEN, OUT, device=device)

    def forward(self, x: Any) -> Any:
        hidden = torch.relu(self.first(x))  # <hidden>
        return self.second(hidden)  # <out>


class Scale(nn.Module):
    """Multiplies by a weight, element by element; keeps both for backward."""

    def __init__(self, size: int, device: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, device=device))

    def forward(self, x: Any) -> Any:
        return x * self.weight  # <scale>
