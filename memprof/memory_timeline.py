"""torch's memory timeline: what arguments mean, and which of the files is asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from memprof import _core, output
from memprof.devices import device_name
from memprof.export import Path, target
from memprof.options import choices
from memprof.warn import warn

if TYPE_CHECKING:
    from memprof.recording import Recording

NO_DEVICE = 0x7FFF
"""A device of which nothing is ever recorded."""


def known_device(recording: Recording, device: object) -> int:
    """Return a device's number; ``NO_DEVICE``, with a warning: nothing is known."""
    try:
        number = recording._device(device)
    except ValueError as problem:
        there = choices(recording.devices) or "none"
        warn(f"{problem}" if "here" in str(problem) else f"{problem}; here: {there}")
        return NO_DEVICE
    if number not in recording._core.devices():
        warn("nothing was recorded of any device: the file is empty")
        return NO_DEVICE
    return number


def export_memory_timeline(recording: Recording, path: Path, device: object) -> None:
    """Write a timeline; see ``Exports``."""
    name = os.fsdecode(path)
    to = target(name)
    number = known_device(recording, device)
    if name.endswith(".html"):
        from memprof.reports import html, nothing

        if number == NO_DEVICE:
            output.write_text(to, nothing.page())
        else:
            html.write(recording, to, device_name(number))
        return
    is_raw = name.endswith("raw.json.gz")
    is_gzip = name.endswith(".gz")
    _core.export_timeline(recording._core, number, to, is_raw, is_gzip)
