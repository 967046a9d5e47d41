"""What a figure hangs on: the key of baselines, and the facts beside it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

# Of a GPU's name: whose it is and what its memory is made of says nothing more.
_LEFT_OUT = re.compile(
    r"nvidia|geforce|tesla|graphics|device|hbm\d*e?|pcie|sxm\d*|nvl|gddr\d*x?"
)


def device_slug(name: str, total_bytes: int) -> str:
    """Return a GPU as part of a key.

    >>> device_slug("NVIDIA H100 80GB HBM3", 85_000_000_000)
    'cuda-h100-80gb'
    >>> device_slug("NVIDIA GeForce RTX 4090", 25_393_692_672)
    'cuda-rtx-4090-24gb'
    """
    words = [
        word
        for word in re.split(r"[^a-z0-9]+", name.lower())
        if word and not _LEFT_OUT.fullmatch(word)
    ]
    if not any(re.fullmatch(r"\d+gb", word) for word in words):
        words.append(f"{round(total_bytes / (1 << 30))}gb")
    return "-".join(["cuda", *words])


def allocator(torch: Any, device: str) -> str:
    """Return which of torch's allocators a device has."""
    if device == "cpu":
        return "native"
    backend = str(getattr(torch.cuda, "get_allocator_backend", lambda: "native")())
    if backend == "native" and "expandable_segments:true" in conf().lower():
        return "expandable"
    return re.sub(r"[^a-z0-9]+", "", backend.lower())


def conf() -> str:
    """Return the settings of torch's allocator."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if os.environ.get(name):
            return "".join(os.environ[name].split())
    return ""


def key_and_facts(torch: Any, device: str) -> tuple[str, dict[str, Any]]:
    """Return the key of a device's baselines, and what is worth knowing beside it.

    Args:
        torch: the module.
        device: ``"cpu"`` or ``"cuda:0"``.
    """
    version = str(torch.__version__).partition("+")[0]
    major, minor = [*version.split("."), "0"][:2]
    facts: dict[str, Any] = {
        "device": "cpu",
        "torch": version,
        "python": platform.python_version(),
    }
    slug = "cpu"
    if device == "cpu":
        facts["threads"] = int(torch.get_num_threads())
    else:
        properties = torch.cuda.get_device_properties(int(device.partition(":")[2]))
        slug = device_slug(str(properties.name), int(properties.total_memory))
        facts.update(
            device=str(properties.name),
            cuda=getattr(torch.version, "cuda", None) or "",
            driver=_driver(),
            alloc_conf=conf(),
        )
    return f"{slug}_torch{major}.{minor}_{allocator(torch, device)}", facts


@lru_cache(maxsize=1)
def _driver() -> str:
    """Return the version of NVIDIA's driver; ``""``: not known."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else ""


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Say what else is different between two environments of one key."""
    said = []
    for name, digits in (("torch", 3), ("cuda", 2), ("driver", 1), ("python", 2),
                         ("threads", 1), ("alloc_conf", 0)):  # fmt: skip
        old, new = str(before.get(name, "")), str(now.get(name, ""))
        if digits:
            old, new = (".".join(text.split(".")[:digits]) for text in (old, new))
        if old != new and old and new:
            said.append(f"{name} {old} > {new}")
    return said


@lru_cache(maxsize=4)
def commit(folder: str) -> str:
    """Return the short hash of the commit that is checked out; ``""``: none.

    With changes that are not committed it ends in ``+``.
    """

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", folder, *words],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        return done.stdout.strip()

    try:
        found = git("rev-parse", "--short", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return ""
    return found + "+" * bool(changed)
