"""What all checks share: strict JSON, one gzip member."""

from __future__ import annotations

import json
import zlib
from typing import Any


def strict_json(content: bytes) -> Any:
    """Parse JSON as the strictest reader would.

    Raises:
        ValueError: it is not ASCII, has NaN or Infinity, a key twice, or is no JSON.
    """

    def constant(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            raise ValueError("a key is there twice")
        return found

    text = content.decode("ascii")
    return json.loads(text, parse_constant=constant, object_pairs_hook=pairs)


def gunzip(content: bytes) -> tuple[bytes, list[str]]:
    """Return what one gzip member holds, and what is wrong with the member."""
    wrong = []
    if content[:3] != b"\x1f\x8b\x08":
        return b"", ["it is no gzip file"]
    if content[3] != 0:
        wrong.append("the gzip header has a name or more")
    if content[4:8] != b"\0\0\0\0":
        wrong.append("the gzip header has a time")
    unpacker = zlib.decompressobj(31)
    try:
        plain = unpacker.decompress(content)
    except zlib.error as error:
        return b"", [*wrong, f"gzip: {error}"]
    if not unpacker.eof:
        wrong.append("the gzip member is cut")
    if unpacker.unused_data:
        wrong.append("there is something behind the gzip member")
    return plain, wrong
