"""A program under memprof, and what it holds at the moments that it marks.

A program says ``mark("forward")`` where it wants to be looked at; afterwards
``at("forward").holds(parameter=[W, B], activation=[H])`` names every block that
must be alive there, by category and bytes. Nothing else may be. A failure lists
what was not expected, what is missing, and all that is known of each block.

Every tensor of a program has a size of its own, so a size names a tensor.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import memprof
from memprof import _core
from memprof.moment import Moment, _Columns
from memprof.recording import Recording

REGION_BEGIN = 20  # a kind of csrc/event.h
MARK = "mark: "

REASONS = {
    "none": "no evidence",
    "parameter": "a module's parameter",
    "buffer": "a module's buffer",
    "gradient": "a parameter's .grad",
    "optimizer state": "in optimizer.state",
    "input": "an argument of a root module",
    "in op": "born and freed inside its op",
    "optimizer scratch": "optimizer scratch",
    "in backward": "born in backward",
    "saved": "saved for backward",
    "outlived": "outlived its op with grad mode on",
    "recomputed": "recomputed in backward",
    "kept output": "kept output of a forward without grad",
    "workspace": "library scratch that torch holds",
    "before start": "older than the recording, no owner found",
    "forward scratch": "freed in the forward that made it, without grad",
    "outside": "made outside of modules, backward and optimizers",
    "no-grad scratch": "made without grad and freed in its step",
    "workspace's size": "older than the recording, of cuBLAS scratch's size",
    "bucket": "made by DistributedDataParallel for gradients",
    "data loader": "made by a data loader",
    "copied": "copied to the device outside of the model",
    "told": "as the file says that it was read from",
    "untold": "the file that it was read from does not say",
}
"""Our short words for the core's reasons."""

assert set(REASONS.values()) == set(_core.REASONS)

# What torch keeps for cuBLAS on a GPU; no program has a tensor of such a size.
WORKSPACES = {8320 << 10, 32768 << 10, 1024 << 10, 128 << 10}


def f32(*shape: int) -> int:
    """Return the bytes of a float32 tensor of SHAPE."""
    return 4 * prod(shape)


def bf16(*shape: int) -> int:
    """Return the bytes of a bfloat16 tensor of SHAPE."""
    return 2 * prod(shape)


def i64(*shape: int) -> int:
    """Return the bytes of an int64 tensor of SHAPE."""
    return 8 * prod(shape)


def line(tag: str, file: str | None = None) -> str:
    """Return ``file.py:12`` of the one line that ends in ``# <TAG>``.

    Args:
        tag: what the comment says.
        file: where to look; None: in the caller's file.
    """
    path = Path(file or sys._getframe(1).f_code.co_filename)
    found = [
        number
        for number, text in enumerate(path.read_text().splitlines(), 1)
        if text.endswith(f"# <{tag}>")
    ]
    assert len(found) == 1, f"{path.name}: {len(found)} lines end in # <{tag}>"
    return f"{path.name}:{found[0]}"


class Block(NamedTuple):
    """All that a report could say of one block's life."""

    size: int
    category: str
    reason: str
    owner: str
    module: str
    op: str
    line: str
    phase: str
    step: int
    forward_module: str
    forward_op: str
    forward_lines: tuple[str, ...]
    born: int
    died: int

    def __str__(self) -> str:
        words = [f"{self.size:>7} B", self.category, f"({self.reason})"]
        for name in ("owner", "module", "op", "line", "forward_module", "forward_op"):
            value = getattr(self, name)
            if value:
                words.append(f"{name}={value!r}")
        words.append(f"{self.phase}, step {self.step}, events {self.born}..{self.died}")
        return "  ".join(words)


def blocks(recording: Recording, rows: Any) -> list[Block]:
    """Describe ROWS of ``recording.allocations("all")``, one block each."""
    index = rows["id"].astype(np.int64)
    columns = _Columns(recording, index)
    said: dict[str, list[Any]] = {}
    keys = ("category", "reason", "owner", "module", "op", "line", "phase")
    for key in (*keys, "step", "forward_module"):
        codes, values = columns.part(key)
        said[key] = [values[code] for code in codes.tolist()]
    words = {text: word for word, text in REASONS.items()}
    said["reason"] = [words[text] for text in said["reason"]]
    said["line"] = [
        os.path.basename(text) if re.search(r"\.py:\d+$", text) else text
        for text in said["line"]
    ]
    return [
        Block(
            size=int(row["size"]),
            forward_op=recording.op(row["forward_op"]),
            forward_lines=tuple(
                f"{os.path.basename(frame.file)}:{frame.line}"
                for frame in recording.stack(row["forward_stack"])
            ),
            born=int(row["born_event"]),
            died=int(row["died_event"]),
            **{key: values[i] for key, values in said.items()},
        )
        for i, row in enumerate(rows)
    ]


def _flat(sizes: Any) -> list[int]:
    if isinstance(sizes, int):
        return [sizes]
    return [size for item in sizes for size in _flat(item)]


class State:
    """What is alive at one moment of a program."""

    def __init__(self, name: str, moment: Moment, strangers: set[int]) -> None:
        """Describe every block that is alive at MOMENT.

        Left out are blocks older than the recording at the addresses STRANGERS,
        and cuBLAS's workspaces, which some GPUs have and no CPU.
        """
        self.name = name
        self.moment = moment
        self.left_out: Counter[str] = Counter()  # category -> bytes
        self.blocks: list[Block] = []
        rows = moment.live()
        for row, block in zip(rows, blocks(moment._recording, rows), strict=True):
            strange = block.born < 0 and int(row["address"]) in strangers
            workspace = block.category == "workspace" and block.size in WORKSPACES
            if strange or workspace:
                self.left_out[block.category] += block.size
            else:
                self.blocks.append(block)

    def holds(self, **expected: Any) -> None:
        """Exactly these blocks are alive: category -> sizes (nested as you like)."""
        unknown = set(expected) - set(_core.CATEGORIES)
        assert not unknown, f"no such categories: {unknown}"
        wanted = {name: _flat(expected.get(name, [])) for name in _core.CATEGORIES}
        missing = Counter(
            (name, size) for name, sizes in wanted.items() for size in sizes
        )
        surplus = []
        for block in self.blocks:
            if missing[block.category, block.size] > 0:
                missing[block.category, block.size] -= 1
            else:
                surplus.append(block)
        lost = [f"{size:>7} B  {name}" for name, size in sorted(missing.elements())]
        if surplus or lost:
            raise AssertionError(
                "\n".join(
                    [
                        f"at {self.name!r} ({self.moment.device}):",
                        f" unexpected ({len(surplus)}):",
                        *(f"  {block}" for block in surplus),
                        f" missing ({len(lost)}):",
                        *(f"  {text}" for text in lost),
                        " as expected:",
                        *(f"  {b}" for b in self.blocks if b not in surplus),
                    ]
                )
            )
        # The blocks are right, so the sums that a user sees must be.
        sums = {k: sum(sizes) + self.left_out[k] for k, sizes in wanted.items()}
        assert self.moment.categories == sums
        assert self.moment.requested == sum(sums.values())
        parts = self.moment.rows()
        assert sum(part["bytes"] for part in parts) == self.moment.requested

    def block(self, size: int, **facts: Any) -> Block:
        """Return the one block of SIZE that is alive; FACTS must hold of it."""
        found = [block for block in self.blocks if block.size == size]
        listing = "\n".join(f"  {block}" for block in self.blocks)
        assert len(found) == 1, (
            f"at {self.name!r}: {len(found)} blocks of {size} B; alive:\n{listing}"
        )
        check(found[0], **facts)
        return found[0]


def check(block: Block, **facts: Any) -> None:
    """Check facts of a block, as fields of ``Block``."""
    wrong = [
        f"{name} is {getattr(block, name)!r}, not {value!r}"
        for name, value in facts.items()
        if getattr(block, name) != value
    ]
    assert not wrong, "\n ".join([str(block), *wrong])


def one_of(state: State, size: int, category: str) -> Block:
    """Return the only block of SIZE and CATEGORY."""
    (found,) = [b for b in state.blocks if (b.size, b.category) == (size, category)]
    return found


class Program:
    """Records one program and answers for its marks."""

    def __init__(self, device: str, beside: Any = None) -> None:
        """Run on DEVICE.

        Args:
            device: ``"cpu"`` or ``"cuda"``.
            beside: makes a context manager to record in as well, and is shown
                the marks afterwards (``compare_torch``).
        """
        self.device = device
        self._beside = beside
        # What torch and other tests keep; held here, so their addresses stay.
        things = gc.get_objects()
        self._others = [t for t in things if issubclass(type(t), torch.Tensor)]
        self._strangers: set[int] = set()
        for tensor in self._others:
            with contextlib.suppress(Exception):  # fake, sparse: no storage
                self._strangers.add(tensor.untyped_storage().data_ptr())
        self._prof: Any = None
        self._marks: dict[str, int] = {}

    @property
    def on_cpu(self) -> bool:
        """Whether the program's memory is the CPU's."""
        return self.device == "cpu"

    def host(self, *sizes: Any) -> list[int]:
        """Return SIZES where the CPU is looked at: torch keeps these there."""
        return _flat(sizes) if self.on_cpu else []

    @contextlib.contextmanager
    def record(self, **arguments: Any) -> Iterator[Any]:
        """Record what runs inside."""
        gc.collect()
        self._prof = memprof.profile(**arguments)
        beside = self._beside() if self._beside else contextlib.nullcontext()
        with beside, self._prof:
            yield self._prof
        facts = self.recording.info
        assert facts["dropped"] == 0
        defects = {k: v for k, v in facts["defects"].items() if v}
        # torch's own caches and constants, and tensors older than the start
        # that nobody knows, may die in the run.
        defects.pop("foreign_frees", None)
        assert defects == {}
        self._find_marks()
        if self._beside:
            beside.compare(self)

    def mark(self, name: str) -> None:
        """Remember this moment."""
        with torch.profiler.record_function(MARK + name):
            pass

    def _find_marks(self) -> None:
        events = self.recording.events()
        self._marks = {}
        for number in np.flatnonzero(events["kind"] == REGION_BEGIN).tolist():
            text = self.recording.op(events[number]["op"])
            if text.startswith(MARK):
                name = text.removeprefix(MARK)
                assert name not in self._marks, f"two marks {name!r}"
                self._marks[name] = number

    @property
    def marks(self) -> list[str]:
        """Names of the marks, in order."""
        return list(self._marks)

    @property
    def recording(self) -> Recording:
        """The recording."""
        found: Recording = self._prof.recording
        return found

    def at(self, name: str) -> State:
        """Return what was alive at the mark NAME."""
        assert name in self._marks, f"no mark {name!r}; marks: {self.marks}"
        event = self._marks[name]
        return self._state(name, self.recording.at(event=event, device=self.device))

    def _state(self, name: str, moment: Moment) -> State:
        return State(name, moment, self._strangers)

    def start(self) -> State:
        """Return what was alive when the recording began."""
        return self._state("start", self.recording.at(event=-1, device=self.device))

    def peak(self, **arguments: Any) -> State:
        """Return what was alive at the peak."""
        return self._state("peak", self.recording.peak(self.device, **arguments))

    def lives(self, size: int, **facts: Any) -> list[Block]:
        """Return all lives of SIZE, births in order; FACTS must hold of each."""
        rows = self.recording.allocations("all")
        mine = rows["device"] == (-1 if self.on_cpu else torch.cuda.current_device())
        found = blocks(self.recording, rows[mine & (rows["size"] == size)])
        for block in found:
            check(block, **facts)
        return found

    def life(self, size: int, **facts: Any) -> Block:
        """Return the only life of SIZE; FACTS must hold of it."""
        found = self.lives(size)
        listing = "\n".join(f"  {block}" for block in found)
        assert len(found) == 1, f"{len(found)} lives of {size} B:\n{listing}"
        check(found[0], **facts)
        return found[0]
