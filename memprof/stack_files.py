"""Files of stacks: speedscope, pprof and collapsed lines.

What each insists on stands in ``docs/exports.md``.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from memprof import output
from memprof._version import __version__
from memprof.files import Path
from memprof.groups import dense_codes, exact_sums
from memprof.instants import At, device_number, moment, moments
from memprof.moment import Moment
from memprof.options import choices
from memprof.reports.units import size_text
from memprof.rows import CPU, NO_INDEX, OP_BYTES_DTYPE, OP_DTYPE, Ints, as_rows
from memprof.stacks import Frames, Stacks, checked_by
from memprof.warn import warn

if TYPE_CHECKING:
    from memprof.recording import Recording

SPEEDSCOPE_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
ROOT = "memprof"
"""The outermost frame of collapsed stacks: so every line has a ``;``, by which
readers know the format."""

_BREAKS = re.compile("[;\x00-\x1f\x7f\x85\u2028\u2029]")


def _told_if_empty(path: Path, total: int, where: str) -> None:
    if total == 0:
        warn(f"nothing is alive at the {where}; {path} has no stacks")


# -- speedscope ------------------------------------------------------------------


def speedscope(
    recording: Recording,
    path: Path,
    device: object,
    at: At | Sequence[At],
    by: str | Sequence[str] | None,
) -> None:
    """Write ``Recording.export_speedscope``."""
    keys = checked_by(by)
    number = device_number(recording, device, path)
    shown = Frames(recording)
    profiles = []
    for name, when in [] if number is None else moments(recording, at, number):
        stacks = Stacks(recording, when._index(), keys, shown)
        kept = [(p, w) for p, w in zip(stacks.paths, stacks.bytes(), strict=True) if w]
        kept.sort(key=lambda pair: -pair[1])
        _told_if_empty(path, len(kept), name)
        profiles.append(_profile(f"{name}: {size_text(when.requested)}", kept))
    document = {
        "$schema": SPEEDSCOPE_SCHEMA,
        "shared": {
            "frames": [
                {"name": name, "file": file, "line": line} if file else {"name": name}
                for name, file, line in shown.shown
            ]
        },
        "profiles": profiles or [_profile("no data", [])],
        "name": "memprof",
        "activeProfileIndex": 0,
        "exporter": f"memprof@{__version__}",
    }
    output.write(path, json.dumps(document, separators=(",", ":")).encode("ascii"))


def _profile(name: str, kept: Sequence[tuple[list[int], int]]) -> dict[str, Any]:
    return {
        "type": "sampled",
        "name": name,
        "unit": "bytes",
        "startValue": 0,
        "endValue": sum(weight for _, weight in kept),
        "samples": [path for path, _ in kept],
        "weights": [weight for _, weight in kept],
    }


# -- collapsed stacks ------------------------------------------------------------


def collapsed(
    recording: Recording,
    path: Path,
    device: object,
    at: At,
    by: str | Sequence[str] | None,
) -> None:
    """Write ``Recording.export_collapsed``."""
    keys = checked_by(by)
    number = device_number(recording, device, path)
    lines: dict[str, int] = {}
    if number is not None:
        ((name, when),) = moments(recording, [at], number)
        shown = Frames(recording)
        stacks = Stacks(recording, when._index(), keys, shown)
        words = [_BREAKS.sub("_", frame.name) or "_" for frame in shown.shown]
        for found, weight in zip(stacks.paths, stacks.bytes(), strict=True):
            if weight:
                line = ";".join([ROOT, *(words[frame] for frame in found)])
                lines[line] = lines.get(line, 0) + weight
        _told_if_empty(path, len(lines), name)
    output.write(path, _as_lines(lines))


def _as_lines(lines: dict[str, int]) -> bytes:
    """Return ``stack bytes`` lines, the largest first."""
    ordered = sorted(lines.items(), key=lambda item: (-item[1], item[0]))
    return "".join(f"{line} {weight}\n" for line, weight in ordered).encode("utf-8")


def by_metric(recording: Recording, path: Path, metric: str, device: object) -> None:
    """Write ``Recording.export_stacks``."""
    from memprof.averages import _ACCELERATORS, SORT_NAMES

    names = [name for name in SORT_NAMES if name != "count"]
    asked = _ACCELERATORS.sub("device", metric)
    if asked not in names:
        why = "memprof measures memory, not time; " if "time" in metric else ""
        raise ValueError(f"metric={metric!r}: {why}choose {choices(names)}")
    number = device_number(recording, device, path)
    lines: dict[str, int] = {}
    if number is not None:
        stacks, weights = _of_ops(recording, asked, number)
        shown = Frames(recording, _torch_name)
        paths = shown.paths(stacks)
        words = [_BREAKS.sub("_", it.name).replace(" ", "_") for it in shown.shown]
        for found, weight in zip(paths, weights, strict=True):
            line = ";".join([words[frame] for frame in found])
            lines[line] = lines.get(line, 0) + weight
        if not lines:
            warn(f"no stack has a {metric} above 0; {path} is empty")
    output.write(path, _as_lines(lines))


def _torch_name(function: str, file: str, line: int) -> str:
    return f"{file}({line}): {function}"


def _of_ops(
    recording: Recording, metric: str, device: int
) -> tuple[list[int], list[int]]:
    """Return the stacks of ops and what a column of ``key_averages`` has for each.

    Values above 0 of all ops with that stack are added up.
    """
    core = recording._core
    numbers = core.devices()
    table, cells = core.op_table(2**32 - 1)
    stack = as_rows(table, OP_DTYPE)["stack"]
    sums = as_rows(cells, OP_BYTES_DTYPE).reshape(len(stack), len(numbers))
    own = "self_" if metric.startswith("self_") else ""
    what = metric.removeprefix(own)
    if what.endswith("_memory_usage"):
        on_cpu = what.startswith("cpu")
        places = [i for i, it in enumerate(numbers) if (it == CPU) == on_cpu]
        what = "net_bytes"
    else:
        places = [i for i, it in enumerate(numbers) if it == device]
    plus, minus = {
        "alloc_bytes": ("allocated", ""),
        "freed_bytes": ("freed", ""),
        "net_bytes": ("allocated", "freed"),
        "peak_above_entry_bytes": ("peak", ""),
    }[what]
    values: Ints = np.zeros(len(stack), np.int64)
    for place in places:
        values += sums[own + plus][:, place]
        if minus:
            values -= sums[own + minus][:, place]
    kept = np.flatnonzero((values > 0) & (stack != NO_INDEX))
    group, stacks = dense_codes(stack[kept].astype(np.int64))
    totals = exact_sums(group, values[kept].astype(np.uint64), len(stacks))
    return stacks.tolist(), totals


# -- pprof -----------------------------------------------------------------------

_TYPES = (
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
)


def pprof(
    recording: Recording,
    path: Path,
    device: object,
    at: At,
    by: str | Sequence[str] | None,
) -> None:
    """Write ``Recording.export_pprof``."""
    keys = checked_by(by)
    number = device_number(recording, device, path)
    shown = Frames(recording)
    samples: list[tuple[list[int], tuple[int, ...]]] = []
    comment, time_ns = "no data", recording._core.start_ns
    if number is not None:
        when = moment(recording, at, number)
        samples = _samples(recording, when, keys, shown)
        comment = f"memprof {__version__}: {when!r}"
        time_ns = when.time_ns
        _told_if_empty(path, sum(values[3] for _, values in samples), comment)
    wall = recording._core.start_wall_ns
    clock = wall + time_ns - recording._core.start_ns if wall else 0
    content = _encoded(shown, samples, comment, clock)
    output.write(path, gzip.compress(content, 6, mtime=0))


def _samples(
    recording: Recording, when: Moment, keys: Sequence[str], shown: Frames
) -> list[tuple[list[int], tuple[int, ...]]]:
    """Return the stacks of all lives until a moment, with the values of _TYPES."""
    lives = recording.allocations("all")
    born, died = lives["born_event"], lives["died_event"]
    index: Ints = np.flatnonzero(
        (lives["device"] == when._number) & (born <= when.event)
    )
    died = died[index]
    alive = (died < 0) | (died > when.event)
    seen_born = born[index] >= 0  # the others are older than the recording
    stacks = Stacks(recording, index, keys, shown)
    values = zip(
        stacks.blocks(seen_born),
        stacks.bytes(seen_born),
        stacks.blocks(alive),
        stacks.bytes(alive),
        strict=True,
    )
    return [
        (path, found)
        for path, found in zip(stacks.paths, values, strict=True)
        if any(found)
    ]


def _varint(value: int) -> bytes:
    """Return a number that is not negative as protobuf writes it."""
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _packed(field: int, values: Iterable[int]) -> bytes:
    return _bytes(field, b"".join(map(_varint, values)))


def _encoded(
    shown: Frames,
    samples: Sequence[tuple[list[int], tuple[int, ...]]],
    comment: str,
    time_ns: int,
) -> bytes:
    """Lay out a ``perftools.profiles.Profile``."""
    texts: dict[str, int] = {"": 0}

    def text(words: str) -> int:
        return texts.setdefault(words, len(texts))

    parts = [
        _bytes(1, _number(1, text(kind)) + _number(2, text(unit)))
        for kind, unit in _TYPES
    ]
    places = [_varint(number + 1) for number in range(len(shown.shown))]
    for path, values in samples:
        leaf_first = b"".join([places[frame] for frame in reversed(path)])
        parts.append(_bytes(2, _bytes(1, leaf_first) + _packed(2, values)))
    # A function for each line: readers keep one line for a function.
    functions = []
    for number, (name, file, line) in enumerate(shown.shown, 1):
        lines = _bytes(4, _number(1, number) + _number(2, line))
        parts.append(_bytes(4, _number(1, number) + lines))
        functions.append(
            _bytes(
                5,
                _number(1, number)
                + _number(2, text(name))
                + _number(4, text(file))
                + _number(5, line),
            )
        )
    parts += functions
    about, default = text(comment), text(_TYPES[-1][0])
    parts += [_bytes(6, words.encode("utf-8")) for words in texts]
    parts += [_number(9, max(time_ns, 0)), _packed(13, [about]), _number(14, default)]
    return b"".join(parts)
