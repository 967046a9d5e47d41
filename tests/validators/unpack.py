"""What all validators ask of a file's bytes: the wrapping, and strict JSON."""

from __future__ import annotations

import json
import math
import zlib
from typing import Any


def unpack(data: bytes) -> tuple[bytes, list[str]]:
    """Return what a gzip file holds (else DATA) and what is wrong with it."""
    if not data.startswith(b"\x1f\x8b"):
        return data, []
    wrong = []
    if data[3] != 0 or data[4:8] != bytes(4):
        wrong.append("gzip: flags or mtime are not 0")
    reader = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        text = reader.decompress(data)
    except zlib.error as problem:
        return b"", [f"gzip: {problem}"]
    if not reader.eof:
        wrong.append("gzip: the member is cut")
    if reader.unused_data:
        wrong.append("gzip: something follows the first member")
    return text, wrong


def strict_json(text: bytes) -> tuple[Any, list[str]]:
    """Return the value and what is wrong: not ASCII, a key twice, no number."""
    wrong: list[str] = []
    try:
        characters = text.decode("ascii")
    except UnicodeDecodeError as problem:
        return None, [f"not ASCII: {problem}"]

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            wrong.append(f"a key is there twice: {sorted(k for k, _ in items)}")
        return found

    def no_number(word: str) -> float:
        wrong.append(f"{word} is no JSON")
        return math.nan

    try:
        value = json.loads(
            characters, object_pairs_hook=pairs, parse_constant=no_number
        )
    except ValueError as problem:
        return None, [f"not JSON: {problem}"]
    if "\\ud8" in characters.lower() or "\\ud" in characters.lower():
        wrong += [f"a lone surrogate in {t!r}" for t in _texts(value) if _lone(t)]
    return value, wrong


def _lone(text: str) -> bool:
    return any(0xD800 <= ord(c) < 0xE000 for c in text)


def _texts(value: Any) -> Any:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def is_int(value: Any) -> bool:
    """Whether VALUE is a whole number, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether VALUE is a finite number, and no bool."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value)
