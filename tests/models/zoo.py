"""Real models, each with the training loop that people write around it.

On a GPU they have the size that people train, on the CPU one that takes seconds.
A model comes from torchvision, transformers or ``examples``; what is here is how
to build it, with random weights, and one step of its training.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

EXAMPLES = Path(__file__).parents[2] / "examples"


class Training:
    """A model, its optimizer, and one step of both."""

    def __init__(
        self, model: Any, optimizer: Any, step: Callable[[Any, Any], Any]
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._step = step

    def step(self) -> Any:
        """Train one step as everybody does; returns the loss."""
        return self._step(self.model, self.optimizer)


class Zoo(NamedTuple):
    """How to build one model."""

    build: Callable[[str], Training]
    needs: str  # the package it comes from


# ---- ResNet-50 ----------------------------------------------------------------


def resnet50(device: str) -> Training:
    """Return an image classifier, trained by SGD with momentum."""
    from torchvision.models import resnet50

    batch, side = (32, 224) if device == "cuda" else (2, 64)
    model = resnet50(weights=None).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(model: Any, optimizer: Any) -> Any:
        x = torch.randn(batch, 3, side, side).to(device)
        y = torch.randint(1000, (batch,)).to(device)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Training(model, optimizer, step)


# ---- GPT ----------------------------------------------------------------------


def _gpt(device: str, checkpointing: bool) -> Training:
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    from train_gpt import GPT

    if device == "cuda":
        batch, length, dim, layers, heads, vocab = 8, 1024, 768, 12, 12, 32768
    else:
        batch, length, dim, layers, heads, vocab = 4, 64, 64, 6, 4, 512
    model = GPT(vocab, length, dim, layers, heads, checkpointing).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(model: Any, optimizer: Any) -> Any:
        tokens = torch.randint(vocab, (batch, length + 1)).to(device)
        x, y = tokens[:, :-1], tokens[:, 1:]
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Training(model, optimizer, step)


def gpt(device: str) -> Training:
    """Return a causal language model, trained by AdamW with clipped gradients."""
    return _gpt(device, False)


def gpt_checkpointed(device: str) -> Training:
    """Return the same with every block recomputed in backward."""
    return _gpt(device, True)


# ---- detection ----------------------------------------------------------------


def detector(device: str) -> Training:
    """Return Faster R-CNN, whose losses are made inside of it."""
    from torchvision.models.detection import fasterrcnn_resnet50_fpn

    if device == "cuda":
        batch, side, options = 2, 800, {}
    else:
        batch, side = 2, 64
        options = {
            "min_size": side,
            "max_size": side,
            "rpn_pre_nms_top_n_train": 100,
            "rpn_post_nms_top_n_train": 50,
            "box_batch_size_per_image": 32,
        }
    model = fasterrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=21, **options
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step(model: Any, optimizer: Any) -> Any:
        images = [torch.rand(3, side, side).to(device) for _ in range(batch)]
        corner = torch.rand(batch, 5, 2) * side / 2
        extent = side / 8 + torch.rand(batch, 5, 2) * side / 4
        boxes = torch.cat([corner, corner + extent], 2)
        targets = [
            {
                "boxes": boxes[i].to(device),
                "labels": torch.randint(1, 21, (5,)).to(device),
            }
            for i in range(batch)
        ]
        losses = model(images, targets)
        loss = sum(losses.values())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Training(model, optimizer, step)


# ---- a decoder of Hugging Face --------------------------------------------------


def llama(device: str) -> Training:
    """Return a decoder of transformers, built from a config, with its own loss."""
    from transformers import LlamaConfig, LlamaForCausalLM

    if device == "cuda":
        batch, length = 4, 1024
        size = {
            "vocab_size": 32000,
            "hidden_size": 1024,
            "intermediate_size": 2816,
            "num_hidden_layers": 12,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
        }
    else:
        batch, length = 4, 64
        size = {
            "vocab_size": 512,
            "hidden_size": 64,
            "intermediate_size": 176,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        }
    model = LlamaForCausalLM(LlamaConfig(**size, max_position_embeddings=length))
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(model: Any, optimizer: Any) -> Any:
        tokens = torch.randint(size["vocab_size"], (batch, length)).to(device)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Training(model, optimizer, step)


ZOO = {
    "resnet50": Zoo(resnet50, "torchvision"),
    "gpt": Zoo(gpt, "torch"),
    "gpt, checkpointed": Zoo(gpt_checkpointed, "torch"),
    "faster r-cnn": Zoo(detector, "torchvision"),
    "llama": Zoo(llama, "transformers"),
}


def missing(name: str) -> str:
    """Return why the model NAME cannot be built here; ``""``: it can."""
    needs = ZOO[name].needs
    if importlib.util.find_spec(needs) is None:
        return f"{name} not built: no {needs} beside this torch"
    return ""
