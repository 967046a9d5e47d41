"""Protocol buffers as bytes: a decoder that knows no message, only the wire."""

from __future__ import annotations

import struct
from collections.abc import Iterator

Field = tuple[int, int, "int | bytes"]
"""Number, wire type (0 varint, 1 eight bytes, 2 bytes, 5 four bytes), value."""


class WireError(ValueError):
    """The bytes are no message."""


def varint(content: bytes, at: int) -> tuple[int, int]:
    """Return the number at AT and where it ends."""
    value = shift = 0
    while True:
        if at >= len(content):
            raise WireError(f"a number is cut at byte {at}")
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            break
        shift += 7
        if shift > 63:
            raise WireError(f"a number of more than ten bytes before byte {at}")
    if value >= 2**64:
        raise WireError(f"a number above 64 bits before byte {at}")
    return value, at


def fields(content: bytes) -> Iterator[Field]:
    """Give the fields of a message in order."""
    at = 0
    while at < len(content):
        key, at = varint(content, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise WireError(f"field 0 before byte {at}")
        value: int | bytes
        if kind == 0:
            value, at = varint(content, at)
        elif kind in (1, 2, 5):
            length = {1: 8, 5: 4}.get(kind)
            if length is None:
                length, at = varint(content, at)
            if at + length > len(content):
                raise WireError(f"field {number} is cut at byte {at}")
            value = content[at : at + length]
            at += length
        else:
            raise WireError(f"field {number} has the wire type {kind}")
        yield number, kind, value


def message(content: bytes, known: dict[int, int]) -> dict[int, list[int | bytes]]:
    """Return the fields of a message by number.

    Args:
        content: the message.
        known: wire type by number; 2 for a field of numbers: packed.

    Raises:
        WireError: another field is there, or one of another type.
    """
    found: dict[int, list[int | bytes]] = {number: [] for number in known}
    for number, kind, value in fields(content):
        if number not in known:
            raise WireError(f"field {number} is not known")
        if kind != known[number]:
            raise WireError(f"field {number} has the wire type {kind}")
        found[number].append(value)
    return found


def packed(content: bytes) -> list[int]:
    """Return the numbers of a packed field."""
    values, at = [], 0
    while at < len(content):
        value, at = varint(content, at)
        values.append(value)
    return values


def signed(value: int) -> int:
    """Return an int64 that was written as a varint."""
    return value - 2**64 if value >= 2**63 else value


def double(content: bytes) -> float:
    """Return the number in eight bytes."""
    number: float = struct.unpack("<d", content)[0]
    return number
