"""What share of the bytes at a peak memprof can account for, and what it cannot.

Every block that is alive is put to three questions. Has it a category? If it was
born after the start: which module and which line made it, or caused it to be made
in backward? If it is older: who owns it?
"""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import zoo

import memprof
from memprof import _core
from memprof.moment import Moment, _Columns

STEPS = 3  # recorded; the third has momentum and gradients of two before it
BARE = 3  # trained before a start "at step 3"

SHOWN = 12
"""How many of the blocks that break a share a failure lists."""

# A frame of torch's own that runs a module: nothing below it is outside of one.
_RUNS_A_MODULE = {"_call_impl", "_wrapped_call_impl"}

_FILE = re.compile(r"\.py:\d+$")


class Block(NamedTuple):
    """All that is known of one block."""

    size: int
    address: int
    older: bool  # than the start
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
    stack: tuple[Any, ...]
    forward_stack: tuple[Any, ...]

    @property
    def in_backward(self) -> bool:
        """Whether it was born in backward."""
        return self.phase == "backward"

    @property
    def outside(self) -> bool:
        """Whether its stack proves that no module made it: the training loop did.

        For a block of backward it is the stack of the forward op that counts.
        """
        stack = self.forward_stack if self.in_backward else self.stack
        functions = {frame.function for frame in stack}
        return bool(functions) and not functions & _RUNS_A_MODULE

    @property
    def has_category(self) -> bool:
        """Whether it is known what it is."""
        return self.category != "unknown"

    @property
    def has_module(self) -> bool:
        """Whether its module is known, or that it has none."""
        return bool(self.module) or self.outside

    @property
    def has_line(self) -> bool:
        """Whether a line of a Python file is known that made it or caused it."""
        return bool(_FILE.search(self.line))

    @property
    def has_forward_line(self) -> bool:
        """For a block of backward: whether the forward's line is known."""
        return any(frame.file.endswith(".py") for frame in self.forward_stack)

    @property
    def has_owner(self) -> bool:
        """Whether the module or optimizer that holds it is known by name.

        Scratch of a library is nobody's in the program: the library is named.
        """
        named = bool(self.owner) and bool(self.module)
        return named or self.category == "workspace"

    def __str__(self) -> str:
        words = [f"{self.size:>11,} B", self.category, f"({self.reason})"]
        for name in ("owner", "module", "op", "line", "forward_module", "forward_op"):
            value = getattr(self, name)
            if value:
                words.append(f"{name}={value!r}")
        if self.forward_stack:
            words.append(f"forward_line={_line(self.forward_stack)}")
        age = "older than the start" if self.older else f"step {self.step}"
        words.append(f"{self.phase}, {age}")
        if self.stack:
            words.append("<- " + " <- ".join(_line([f]) for f in self.stack[:6]))
        return "  ".join(words)


def _line(stack: Any) -> str:
    frame = stack[0]
    return f"{frame.function} {frame.file.rpartition('/')[2]}:{frame.line}"


class Strangers:
    """What torch and other tests keep; held here, so that the addresses stay."""

    def __init__(self) -> None:
        things = gc.get_objects()
        self._tensors = [t for t in things if issubclass(type(t), torch.Tensor)]
        self.addresses: set[int] = set()
        for tensor in self._tensors:
            with contextlib.suppress(Exception):  # fake, sparse: no storage
                self.addresses.add(tensor.untyped_storage().data_ptr())


def blocks(moment: Moment) -> list[Block]:
    """Describe every block that is alive at MOMENT."""
    return _describe(moment._recording, moment._index())


def born_in_backward(recording: Any, device: str) -> list[Block]:
    """Describe every life that began in backward, alive at a peak or not."""
    lives = recording.allocations("all")
    mine = lives["device"] == recording.peak(device)._number
    mine &= lives["phase"] == _core.PHASES.index("backward")
    return _describe(recording, np.flatnonzero(mine))


def _describe(recording: Any, index: Any) -> list[Block]:
    rows = recording.allocations("all")[index]
    columns = _Columns(recording, index)
    said: dict[str, list[Any]] = {}
    keys = ("category", "reason", "owner", "module", "op", "line", "phase", "step")
    for key in (*keys, "forward_module"):
        codes, values = columns.part(key)
        said[key] = [values[code] for code in codes.tolist()]
    stacks: dict[int, tuple[Any, ...]] = {}

    def stack(number: int) -> tuple[Any, ...]:
        if number not in stacks:
            stacks[number] = tuple(recording.stack(number))
        return stacks[number]

    return [
        Block(
            size=int(row["size"]),
            address=int(row["address"]),
            # A window's first rows were followed since the start if they have a
            # thread: those of older blocks do not.
            older=bool(row["born_event"] < 0 and row["thread"] == 0),
            forward_op=recording.op(row["forward_op"]),
            stack=stack(int(row["stack"])),
            forward_stack=stack(int(row["forward_stack"])),
            **{key: values[i] for key, values in said.items()},
        )
        for i, row in enumerate(rows)
    ]


QUESTIONS: dict[str, tuple[Callable[[Block], bool], Callable[[Block], bool]]] = {
    "category": (lambda b: True, lambda b: b.has_category),
    "module": (lambda b: not b.older, lambda b: b.has_module),
    "line": (lambda b: not b.older, lambda b: b.has_line),
    "forward line": (
        lambda b: not b.older and b.in_backward,
        lambda b: b.has_forward_line,
    ),
    "owner": (lambda b: b.older, lambda b: b.has_owner),
}
"""Which blocks are asked, and what they must know."""


class Shares:
    """The answers at the peak of one recording."""

    def __init__(self, moment: Moment, strangers: Strangers) -> None:
        """Ask every block that is alive at MOMENT, but for the older STRANGERS."""
        self.moment = moment
        found = blocks(moment)
        assert sum(block.size for block in found) == moment.requested
        self.blocks = [
            block
            for block in found
            if not (block.older and block.address in strangers.addresses)
        ]

    def bytes_of(self, question: str) -> tuple[int, int]:
        """Return the bytes that know the answer, and those that were asked."""
        asked, knows = QUESTIONS[question]
        mine = [block for block in self.blocks if asked(block)]
        return sum(b.size for b in mine if knows(b)), sum(b.size for b in mine)

    def share(self, question: str) -> float:
        """Return the share of the bytes asked that know; 1.0 if none was."""
        known, asked = self.bytes_of(question)
        return known / asked if asked else 1.0

    def largest_without(self, question: str) -> list[Block]:
        """Return the largest blocks that do not know."""
        asked, knows = QUESTIONS[question]
        lacking = [b for b in self.blocks if asked(b) and not knows(b)]
        return sorted(lacking, key=lambda block: -block.size)[:SHOWN]

    def has_older(self, expected: bool) -> None:
        """Whether anything is older than the start is as it must be."""
        older = [b for b in self.blocks if b.older and b.category != "workspace"]
        assert bool(older) == expected
        assert any(not block.older for block in self.blocks)

    def require(self, least: float) -> None:
        """Fail unless at least the share LEAST knows the answer to each question."""
        told = []
        for question in QUESTIONS:
            if self.share(question) < least:
                known, asked = self.bytes_of(question)
                told.append(
                    f"{question}: known for {known:,} of {asked:,} B "
                    f"({100 * self.share(question):.3f} %) at {self.moment}; "
                    "the largest that lack it:"
                )
                told += [f"  {block}" for block in self.largest_without(question)]
        if told:
            raise AssertionError("\n".join(told))

    def __str__(self) -> str:
        parts = [f"{self.moment.requested:,} B, {self.moment.phase}"]
        for question in QUESTIONS:
            share, (_, asked) = self.share(question), self.bytes_of(question)
            parts.append(f"{question} {100 * share:.3f} % of {asked:,}")
        outside = sum(b.size for b in self.blocks if not b.older and not b.module)
        parts.append(f"made by no module {outside:,}")
        return "; ".join(parts)


class Recorded(NamedTuple):
    """A training run that was recorded."""

    recording: Any
    training: Any
    strangers: Strangers

    def shares(self, device: str) -> dict[str, Shares]:
        """Return the shares at the peak, ``"peak"``, and at that of each phase."""
        peak = self.recording.peak
        found = {"peak": Shares(peak(device), self.strangers)}
        for phase in ("forward", "backward", "optimizer"):
            found[phase] = Shares(peak(device, phase=phase), self.strangers)
        return found


def record(name: str, device: str, start: str, scheduled: bool) -> Recorded:
    """Train the model NAME under memprof.

    Args:
        name: of ``zoo.ZOO``.
        device: ``"cpu"`` or ``"cuda"``.
        start: ``"before"``: before the model is made; ``"step 0"``: after;
            ``"step 3"``: when it has been trained for three steps.
        scheduled: whether a window of two steps is recorded, or all.
    """
    strangers = Strangers()
    build = zoo.ZOO[name].build
    schedule = memprof.schedule(wait=0, warmup=STEPS - 2, active=2, repeat=1)
    prof = memprof.profile(schedule=schedule if scheduled else None)
    training = None
    if start != "before":
        training = build(device)
    if start == "step 3":
        for _ in range(BARE):
            training.step()
    with prof:
        if training is None:
            training = build(device)
        for _ in range(STEPS):
            training.step()
            prof.step()
    assert prof.recording.info["dropped"] == 0
    return Recorded(prof.recording, training, strangers)
