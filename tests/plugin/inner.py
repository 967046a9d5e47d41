"""What tests of the plugin and their fixtures share: inner runs, what they print."""

from __future__ import annotations

import re

import pytest

PLUGIN = "memprof.integrations.pytest_plugin"
OTHERS = {
    "xdist": ("xdist.plugin",),
    "rerun": ("pytest_rerunfailures",),
    "asyncio": ("pytest_asyncio.plugin",),
    "anyio": ("anyio.pytest_plugin",),
    "hypothesis": ("_hypothesis_pytestplugin",),
}
# partial has no frame of its own: rows name the line that calls it.
HEAD = """
import functools, pytest, torch

MIB = 1 << 20
bytes_of = functools.partial(torch.empty, dtype=torch.uint8)
"""


def text_of(result: pytest.RunResult) -> str:
    """Return all that a run printed."""
    return result.stdout.str()


def amounts(text: str) -> list[int]:
    """Return the sizes that the first column of the table below has, in bytes."""
    units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    found = []
    for line in text.splitlines():
        match = re.match(r"^ +([+-]?[\d.]+) (B|KiB|MiB|GiB)  ", line)
        if match:
            found.append(int(float(match[1]) * units[match[2]]))
    return found
