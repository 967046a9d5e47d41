"""Compile what stands in for libraries of NVIDIA's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

FAKE_CUPTI = Path(__file__).resolve().parents[1] / "c" / "fake_cupti.c"
FAKE_NCCL = Path(__file__).with_name("fake_nccl.c")


def compiled(source: Path, target: Path) -> Path:
    """Make the shared library TARGET of one C file."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the fake libraries")
    command = [compiler, "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE"]
    subprocess.run([*command, str(source), "-o", str(target), "-lpthread"], check=True)
    return target
