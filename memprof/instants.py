"""The moments that exports show, as their arguments name them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

from memprof.devices import device_name, parse_device
from memprof.moment import Moment
from memprof.options import choices
from memprof.warn import warn

if TYPE_CHECKING:
    from memprof.recording import Recording

At: TypeAlias = "str | int | Moment"

_STEP = re.compile(r"step[=:](-?\d+)|(\d+)")
_EVENT = re.compile(r"event[=:](-?\d+)")
_CLOCK = re.compile(r"time=(-?\d+)")
_SINCE = re.compile(r"t=(\d+(?:\.\d*)?|\.\d+)(s|ms|us|ns)")
_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

WORDS = "peak, end, step:3 (its end), t=1.2s (after the start) or event:5"
"""The words for a moment, for messages; also ``time=`` and ns on the clock."""


def is_moment(word: str) -> bool:
    """Return whether WORD is written as a moment is, whatever was recorded."""
    return word in ("peak", "end") or any(
        pattern.fullmatch(word) for pattern in (_STEP, _EVENT, _CLOCK, _SINCE)
    )


def step_of(word: str) -> int | None:
    """Return the number of the step that WORD means; None: it means no step."""
    found = _STEP.fullmatch(word)
    return int(found[1] or found[2]) if found else None


def device_number(recording: Recording, device: object, path: object) -> int | None:
    """Return the number of the device that an export is about.

    None: it was not recorded, which is told in a warning, not an error: an
    export must not end a training run.

    Raises:
        ValueError: DEVICE is no device at all.
    """
    try:
        return recording._device(device)
    except ValueError:
        asked = parse_device(device)
    name = "cuda" if asked is None else device_name(asked)
    there = choices(recording.devices) or "none"
    warn(f"{name} was not recorded; devices here: {there}. {path} has no data")
    return None


def moment(recording: Recording, at: At, device: int) -> Moment:
    """Return the moment that AT means.

    Args:
        recording: what to ask.
        at: ``"peak"``, ``"end"``, ``"step:3"`` or ``"step=3"`` (the end of step
            3; also the number alone), ``"t=1.2s"`` (after the start; ms, us and ns
            too), ``"event:5"``, ``"time=..."`` (ns on the recording's clock), or a
            ``Moment``.
        device: number of the device.

    Raises:
        ValueError: AT means no moment of this recording.
        TypeError: it is of no such type.
    """
    where = device_name(device)
    if isinstance(at, Moment):
        if at.device != where:
            raise ValueError(
                f"at= is a moment of {at.device}, not of {where}: give device= too"
            )
        return at
    if isinstance(at, int) and not isinstance(at, bool):
        return recording.at(step=at, device=where)
    if not isinstance(at, str):
        raise TypeError(f"at={at!r}: {WORDS}, or a Moment")
    if not recording.devices:
        return recording.at(event=-1)  # nothing was recorded: "cpu" is no device here
    if at == "peak":
        return recording.peak(where)
    if at == "end":
        last = recording._core.events_count - 1
        return recording.at(event=last, device=where)
    if found := _STEP.fullmatch(at):
        return recording.at(step=int(found[1] or found[2]), device=where)
    if found := _EVENT.fullmatch(at):
        return recording.at(event=int(found[1]), device=where)
    if found := _CLOCK.fullmatch(at):
        return recording.at(time_ns=int(found[1]), device=where)
    if found := _SINCE.fullmatch(at):
        since = round(Fraction(found[1]) * _UNIT_NS[found[2]])
        start = int(recording._core.start_ns)
        return recording.at(time_ns=start + since, device=where)
    raise ValueError(f"at={at!r}: {WORDS}")


def moments(
    recording: Recording, at: At | Sequence[At], device: int
) -> list[tuple[str, Moment]]:
    """Return the moments that AT means, each with a name."""
    many = [at] if isinstance(at, (str, int, Moment)) else list(at)
    found = []
    for one in many:
        where = moment(recording, one, device)
        if isinstance(one, Moment):
            name = "moment"
        elif isinstance(one, int):
            name = f"end of step {one}"
        else:
            name = one.replace("step:", "step=").replace("step=", "end of step ")
            name = name.replace("=", " ").replace("event:", "event ")
        found.append((f"{name} of {where.device}", where))
    return found
