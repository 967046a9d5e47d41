"""Train every model in deterministic mode and say what came of it, as JSON.

    python unchanged.py without
    python unchanged.py with         # everything that memprof can follow is on

A process each: what one leaves behind cannot help the other. The answers must be
equal: losses and gradients to the last bit, and which tensors are alive when.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import sys
import weakref
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import zoo

import memprof

STEPS = 3


def digest(tensor: Any) -> str:
    """Return a digest of the bits of TENSOR."""
    data = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(data, digest_size=8).hexdigest()


class Watch:
    """Weak references to what every module of a model returned."""

    def __init__(self, model: Any) -> None:
        self._seen: list[tuple[str, weakref.ref[Any]]] = []
        self._handles = [
            module.register_forward_hook(self._of(name))
            for name, module in model.named_modules()
        ]

    def _of(self, name: str) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor):
                self._seen.append((name, weakref.ref(output)))

        return hook

    def alive(self) -> dict[str, bool]:
        """Return whether the last output of each module lives."""
        return {name: ref() is not None for name, ref in self._seen}

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()


def train(name: str, device: str, followed: bool) -> dict[str, Any]:
    """Train the model NAME; return what must not depend on FOLLOWED."""
    torch.manual_seed(0)
    said: dict[str, Any] = {"losses": [], "gradients": [], "alive": []}
    profile: Any = contextlib.nullcontext()
    if followed:
        profile = memprof.profile(
            activities=[
                getattr(memprof.ProfilerActivity, kind)
                for kind in ("CPU", "CUDA")[: 1 + (device == "cuda")]
            ],
            record_shapes=True,
            with_stack=True,
            with_modules=True,
        )
    training = zoo.ZOO[name].build(device)
    model, optimizer = training.model, training.optimizer
    with profile:
        for _ in range(STEPS):
            watch = Watch(model)
            zero_grad = optimizer.zero_grad
            optimizer.zero_grad = lambda: None  # to look at the gradients first
            loss = training.step()
            del optimizer.zero_grad
            said["losses"].append(digest(loss))
            said["gradients"].append(
                {
                    name: digest(parameter.grad)
                    for name, parameter in model.named_parameters()
                    if parameter.grad is not None
                }
            )
            # Without the garbage collector: a cycle would be found.
            said["alive"].append(watch.alive())
            zero_grad()
            watch.remove()
            if followed:
                profile.step()
    said["weights"] = {name: digest(p) for name, p in model.state_dict().items()}
    if followed:
        assert profile.recording.info["dropped"] == 0
        assert len(profile.recording.allocations("all")) > 100
    return said


def main() -> None:
    """Train all models that can be built here."""
    followed = {"with": True, "without": False}[sys.argv[1]]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    gc.disable()
    names = [name for name in zoo.ZOO if not zoo.missing(name)]
    print(json.dumps({name: train(name, device, followed) for name in names}))


if __name__ == "__main__":
    main()
