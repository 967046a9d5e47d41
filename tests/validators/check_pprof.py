"""pprof's profile.proto, gzipped: decoded on its own, indices followed."""

from __future__ import annotations

from typing import Any, NamedTuple

from common import gunzip
from wire import WireError, message, packed, signed

PROFILE = {1: 2, 2: 2, 4: 2, 5: 2, 6: 2, 9: 0, 13: 2, 14: 0}
VALUE_TYPE = {1: 0, 2: 0}
SAMPLE = {1: 2, 2: 2}
LOCATION = {1: 0, 4: 2}
LINE = {1: 0, 2: 0}
FUNCTION = {1: 0, 2: 0, 4: 0, 5: 0}
TYPES = [
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
]


class Profile(NamedTuple):
    """What a file says: stacks root first, as (name, file, line)."""

    types: list[tuple[str, str]]
    samples: list[tuple[tuple[tuple[str, str, int], ...], tuple[int, ...]]]
    default: str
    time_ns: int
    comments: list[str]


def check_pprof(content: bytes) -> list[str]:
    """Return what is wrong with a file, nothing if it is right."""
    return read(content)[1]


def read(content: bytes) -> tuple[Profile | None, list[str]]:
    """Return what a file says, and what is wrong with it."""
    plain, wrong = gunzip(content)
    if wrong:
        return None, wrong
    try:
        return _profile(plain, wrong), wrong
    except (WireError, UnicodeDecodeError) as error:
        return None, [*wrong, str(error)]


def _one(found: dict[int, list[Any]], number: int) -> int:
    values = found[number]
    if len(values) > 1:
        raise WireError(f"field {number} is there {len(values)} times")
    return values[0] if values else 0


def _profile(plain: bytes, wrong: list[str]) -> Profile:
    found: dict[int, list[Any]] = message(plain, PROFILE)
    texts = [text.decode("utf-8") for text in found[6]]
    if not texts or texts[0] != "":
        wrong.append("string 0 is not the empty one")
    if len(set(texts)) != len(texts):
        wrong.append("a string is there twice")

    def text(index: int) -> str:
        if not 0 <= index < len(texts):
            wrong.append(f"there is no string {index}")
            return ""
        return texts[index]

    types = []
    for part in found[1]:
        kind = message(part, VALUE_TYPE)
        types.append((text(_one(kind, 1)), text(_one(kind, 2))))
    if types != TYPES:
        wrong.append(f"the types are {types}")
    functions: dict[int, tuple[str, str, int]] = {}
    for part in found[5]:
        function = message(part, FUNCTION)
        number = _one(function, 1)
        if not 1 <= number < 2**31 or number in functions:
            wrong.append(f"function id {number}")
        shown = text(_one(function, 2)), text(_one(function, 4)), _one(function, 5)
        if not shown[0]:
            wrong.append(f"function {number} has no name")
        functions[number] = shown
    if len(set(functions.values())) != len(functions):
        wrong.append("two functions of one name, file and line")
    locations: dict[int, tuple[str, str, int]] = {}
    for part in found[4]:
        location = message(part, LOCATION)
        number = _one(location, 1)
        if not 1 <= number < 2**31 or number in locations:
            wrong.append(f"location id {number}")
        if len(location[4]) != 1:
            wrong.append(f"location {number} has {len(location[4])} lines")
            continue
        line = message(location[4][0], LINE)  # type: ignore[arg-type]
        known = functions.get(_one(line, 1))
        if known is None:
            wrong.append(f"location {number} has no function")
            continue
        if known[2] != _one(line, 2):
            wrong.append(f"location {number} is not on its function's line")
        locations[number] = known
    samples = []
    for part in found[2]:
        sample: dict[int, list[Any]] = message(part, SAMPLE)
        ids = [i for chunk in sample[1] for i in packed(chunk)]
        values = tuple(signed(v) for chunk in sample[2] for v in packed(chunk))
        if len(values) != len(types):
            wrong.append(f"a sample has {len(values)} values, not {len(types)}")
        if any(value < 0 for value in values):
            wrong.append("a sample has a negative value")
        if not ids or any(number not in locations for number in ids):
            wrong.append("a sample has no location, or one that is none")
            continue
        samples.append((tuple(locations[number] for number in ids[::-1]), values))
    default = text(_one(found, 14))
    if default not in [kind for kind, _ in types]:
        wrong.append(f"the default type is {default!r}")
    comments = [text(index) for chunk in found[13] for index in packed(chunk)]
    return Profile(types, samples, default, _one(found, 9), comments)
