"""Compile what stands in for libraries of NVIDIA's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

FAKE_CUPTI = Path(__file__).resolve().parents[1] / "c" / "fake_cupti.c"
FELLOWS = {FAKE_CUPTI: [FAKE_CUPTI.with_name("fake_activity.c")]}
FAKE_NCCL = Path(__file__).with_name("fake_nccl.c")


def compiled(source: Path, target: Path) -> Path:
    """Make the shared library TARGET of one C file, and those that belong to it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the fake libraries")
    command = [compiler, "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE"]
    sources = [str(file) for file in (source, *FELLOWS.get(source, []))]
    subprocess.run([*command, *sources, "-o", str(target), "-lpthread"], check=True)
    return target
