"""Labels: rules of the user that name blocks after the fact.

A rule is a label and regular expressions; those it has must all be found
(``re.search``) in a block's module, op, region or stack.  The first rule that
matches names the block; what none names has the label ``""``.  Expressions meet
each different text once, however many blocks have it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memprof.devices import device_name
from memprof.groups import dense_codes, exact_sums
from memprof.moment import _Columns
from memprof.rows import CPU, Ints, Rows
from memprof.warn import warn

if TYPE_CHECKING:
    from memprof.recording import Recording

PATTERNS = ("module", "op", "stack", "region")


class Rule(NamedTuple):
    """One rule; None: that may be anything."""

    label: str
    module: str | None = None
    op: str | None = None
    stack: str | None = None
    region: str | None = None
    device: str | None = None

    def to_dict(self) -> dict[str, str]:
        """Return what is set, ready for JSON."""
        return {
            key: value for key, value in self._asdict().items() if value is not None
        }


def rule(label: str, device: str | None, **patterns: str | None) -> Rule:
    """Make a rule of what the user gave.

    Raises:
        TypeError: the label or a pattern is no text.
        ValueError: the label is empty, there is no pattern, or one is no regular
            expression; names it.
    """
    if not isinstance(label, str):
        raise TypeError(f"a label is a text, not {label!r}")
    if not label:
        raise ValueError('a label must not be empty: "" is what no rule names')
    given = {key: value for key, value in patterns.items() if value is not None}
    if not given:
        choices = ", ".join(f"{key}=" for key in PATTERNS)
        raise ValueError(f"label {label!r} needs at least one of {choices}")
    for key, pattern in given.items():
        if not isinstance(pattern, str):
            raise TypeError(f"{key}= is a regular expression as text, not {pattern!r}")
        try:
            re.compile(pattern)
        except re.error as problem:
            raise ValueError(
                f"label {label!r}: {key}={pattern!r} is no regular expression: "
                f"{problem}"
            ) from None
    return Rule(label, device=device, **given)


def stored(info: dict[str, Any]) -> tuple[Rule, ...]:
    """Return the rules that a file's info tells; warns of what is none."""
    entries = info.get("labels")
    if not isinstance(entries, list):
        return ()
    found = []
    for entry in entries:
        try:
            facts = dict(entry)
            found.append(rule(facts.pop("label"), facts.pop("device", None), **facts))
        except (TypeError, ValueError, KeyError) as problem:
            warn(f"the recording has a label that cannot be used, {entry!r}: {problem}")
    return tuple(found)


class Labels:
    """The label of every life of a recording."""

    def __init__(self, recording: Recording, rules: Iterable[Rule]) -> None:
        """Apply RULES to RECORDING's lives."""
        self.rules = tuple(rules)
        lives = recording.allocations("all")
        names = dict.fromkeys(["", *(rule.label for rule in self.rules)])
        self.names: tuple[str, ...] = tuple(names)
        """Every label; ``names[0]`` is ``""``."""
        number = {name: code for code, name in enumerate(self.names)}
        self.codes: NDArray[np.int32] = np.zeros(len(lives), np.int32)
        """Per life the index of its label in ``names``, int32 [n]."""
        self._columns = _Columns(recording, np.arange(len(lives)))
        self._recording = recording
        self._texts: dict[str, tuple[Ints, list[Any]]] = {}
        free = np.ones(len(lives), np.bool_)
        for rule in self.rules:
            hit = free & self._on(lives, rule)
            for key in PATTERNS:
                pattern = getattr(rule, key)
                if pattern is not None:
                    hit &= self._found(key, re.compile(pattern))
            self.codes[hit] = number[rule.label]
            free &= ~hit
        self.codes.flags.writeable = False
        del self._columns, self._recording, self._texts

    def sums(self, index: Ints, size: NDArray[np.uint64]) -> dict[str, int]:
        """Add up SIZE of the lives INDEX by label, every label."""
        sums = exact_sums(self.codes[index].astype(np.int64), size, len(self.names))
        return dict(zip(self.names, sums, strict=True))

    def levels(self, lives: Rows, device: int, events: Ints) -> Ints:
        """Return the requested bytes of each label after EVENTS.

        Args:
            lives: all of the recording.
            device: number of the device.
            events: int64 [n], rising; all at which something changed.

        Returns:
            int64 [n, k], a column for each of ``names``.
        """
        shape = len(events), len(self.names)
        change = np.zeros(shape, np.int64)
        index = np.flatnonzero(lives["device"] == device)
        size = lives["size"][index].astype(np.int64)
        code = self.codes[index]
        for field, sign in (("born_event", 1), ("died_event", -1)):
            event = lives[field][index]
            # -1: alive when the recording began, or when it ended.
            chosen = np.flatnonzero(event >= 0) if sign < 0 else np.arange(len(index))
            row = np.searchsorted(events, event[chosen])
            cell = row * shape[1] + code[chosen]
            sums = np.bincount(cell, size[chosen], shape[0] * shape[1])
            change += sign * sums.reshape(shape).astype(np.int64)
        return np.cumsum(change, axis=0)

    def _on(self, lives: Rows, rule: Rule) -> NDArray[np.bool_]:
        if rule.device is None:
            return np.ones(len(lives), np.bool_)
        numbers = [
            number
            for number in [CPU, *self._recording._core.devices()]
            if device_name(number) == rule.device
        ]
        found: NDArray[np.bool_] = np.isin(lives["device"], numbers)
        return found

    def _found(self, key: str, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """Return which lives have PATTERN in what KEY says of them."""
        if key == "stack":
            return self._found_in_stack(pattern)
        if key not in self._texts:
            self._texts[key] = self._columns.part(key)
        codes, values = self._texts[key]
        return _each(codes, values, lambda text: bool(text and pattern.search(text)))

    def _found_in_stack(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        frames: dict[tuple[int, int, int], bool] = {}
        core = self._recording._core

        def says(stack: int) -> bool:
            if not stack:
                return False
            ids = core.stack_ids(stack - 1)
            unknown = [place for place, key in enumerate(ids) if key not in frames]
            if unknown:
                texts = core.stack(stack - 1)
                for place in unknown:
                    function, file, line = texts[place]
                    text = f"{function} {file}:{line}"
                    frames[ids[place]] = pattern.search(text) is not None
            return any(frames[key] for key in ids)

        # What caused a block of backward is as good as its own stack.
        if "stack" not in self._texts:
            count = core.stacks() + 1
            both = np.concatenate(
                [self._columns._ids("stack"), self._columns._ids("forward_stack")]
            )
            both[both > count] = 0
            codes, stacks = dense_codes(both)
            self._texts["stack"] = codes, stacks.tolist()
        hit = _each(*self._texts["stack"], says)
        own, forward = hit[: len(hit) // 2], hit[len(hit) // 2 :]
        return own | forward


def _each(
    codes: Ints, values: list[Any], test: Callable[[Any], bool]
) -> NDArray[np.bool_]:
    """Ask TEST of each value once; returns its answer per code."""
    if not len(codes):
        return np.zeros(0, np.bool_)
    return np.array([test(value) for value in values], np.bool_)[codes]
