"""JSON of any length, an item at a time, in bounded memory.

Reads a JSON object or list whose long part is one list: the items of that list
come one by one, everything else whole. What is cut or damaged ends the reading;
what came before it stays good.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator
from typing import IO, Any

from memprof.errors import MemprofError

CHUNK = 1 << 20
MOST_VALUE = 16 << 20
"""Characters that one value may have."""

LEAST_LIMIT = 64 << 20
MOST_RATIO = 100
"""A gzip file may yield 64 MiB, or that many times its size: traces are packed to a
tenth, and a page of nothing to a thousandth."""
MOST_MEMBERS = 1_000
"""Of a gzip file; what writes JSON writes one."""

_SPACES = re.compile(r"[ \t\n\r]*")


class Cut(Exception):
    """The text ends, or cannot be read on; says where and why."""


class Pieces:
    """A file's bytes, decompressed if need be, a piece at a time.

    Attributes:
        taken: Bytes, decompressed, that were taken.
        damage: Why there is no more, if that is not the end of the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open PATH, which may be compressed.

        Raises:
            OSError: it cannot be read.
            MemprofError: it is a pipe or a device, which may never end.
        """
        name = os.fspath(path)  # no number of an open file
        mode = os.stat(name).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise MemprofError(f"{name!r} is not a regular file")
        self._file: IO[bytes] = open(name, "rb")  # noqa: SIM115 - closed by close()
        try:
            zipped = self._file.read(2) == b"\x1f\x8b"
            self._file.seek(0)
            size = os.fstat(self._file.fileno()).st_size
        except BaseException:
            self._file.close()
            raise
        self._zip = zlib.decompressobj(31) if zipped else None
        self._limit = max(LEAST_LIMIT, MOST_RATIO * size) if zipped else None
        self._members = 1
        self.taken = 0
        self.damage: str | None = None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def take(self) -> bytes:
        """Return the next piece; b"" at the end or at damage.

        Raises:
            MemprofError: the file is far larger than its size says.
        """
        piece = self._read() if self._zip is None else self._unpacked(self._zip)
        self.taken += len(piece)
        if self._limit is not None and self.taken > self._limit:
            raise MemprofError(
                f"{self._file.name!r} decompresses to more than {MOST_RATIO} times "
                "its size"
            )
        return piece

    def _read(self) -> bytes:
        return self._file.read(CHUNK)

    def _unpacked(self, unzip: zlib._Decompress) -> bytes:
        while True:
            packed = unzip.unconsumed_tail
            if not packed:
                packed = unzip.unused_data if unzip.eof else b""
                packed = packed or self._read()
                if not packed:
                    if not unzip.eof:
                        self.damage = "the compressed file is cut"
                    return b""
                if unzip.eof:  # another member follows
                    self._members += 1
                    if self._members > MOST_MEMBERS:
                        self.damage = f"more than {MOST_MEMBERS} gzip members"
                        return b""
                    self._zip = unzip = zlib.decompressobj(31)
            try:
                piece = unzip.decompress(packed, CHUNK)
            except zlib.error as error:
                self.damage = f"the file does not decompress: {error}"
                return b""
            if piece:
                return piece


def whole(path: str | os.PathLike[str]) -> bytearray:
    """Return all of a file, decompressed if need be.

    Raises:
        OSError: it cannot be read.
        MemprofError: it is damaged, or decompresses to far more than its size.
    """
    pieces, found = Pieces(path), bytearray()
    try:
        while piece := pieces.take():
            found += piece
    finally:
        pieces.close()
    if pieces.damage is not None:
        raise MemprofError(pieces.damage)
    return found


class Text:
    """A file's text, as far as it was asked for."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open PATH, which may be compressed; raises as ``Pieces``."""
        self._pieces = Pieces(path)
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._scan = json.JSONDecoder(strict=False).raw_decode
        self.text = ""
        self.at = 0
        self._ended = False

    def close(self) -> None:
        """Close the file."""
        self._pieces.close()

    def _more(self) -> bool:
        """Append the next piece; False at the end."""
        if self._ended:
            return False
        piece = self._pieces.take()
        self._ended = not piece
        self.text = self.text[self.at :] + self._decode(piece, final=not piece)
        self.at = 0
        return True

    def cut(self, what: str | None = None) -> Cut:
        """Return the exception that says what is wrong here."""
        before = self._pieces.taken - len(self.text) + self.at
        why = what or self._pieces.damage or "the file ends"
        return Cut(f"about byte {before}: {why}")

    def peek(self) -> str:
        """Return the next character that is no space; "" at the end."""
        while True:
            space = _SPACES.match(self.text, self.at)
            self.at = space.end() if space is not None else self.at
            if self.at < len(self.text):
                return self.text[self.at]
            if not self._more():
                return ""

    def skip(self, wanted: str) -> str:
        """Go past one of the characters WANTED and return it.

        Raises:
            Cut: another one is there, or none.
        """
        found = self.peek()
        if not found or found not in wanted:
            raise self.cut(f"{found!r} where {wanted!r} should be" if found else None)
        self.at += 1
        return found

    def value(self) -> Any:
        """Return the value that comes next.

        Raises:
            Cut: it is none, or not whole, or longer than MOST_VALUE.
        """
        if not self.peek():
            raise self.cut()
        tried = 0
        while True:
            there = len(self.text) - self.at
            if there > tried or self._ended:
                try:
                    found, end = self._scan(self.text, self.at)
                    # A number may go on in the next piece.
                    if end < len(self.text) or self._ended:
                        self.at = end
                        return found
                except RecursionError:
                    raise self.cut("values are nested too deep") from None
                except json.JSONDecodeError as error:
                    if self._ended:
                        raise self.cut(self._pieces.damage or error.msg) from None
                except ValueError:
                    raise self.cut("a number of too many digits") from None
                tried = 2 * there  # a long value is not scanned each time
            if there > MOST_VALUE:
                raise self.cut(f"a value of more than {MOST_VALUE} characters")
            self._more()


def items(text: Text, key: str, rest: dict[str, Any]) -> Iterator[Any]:
    """Yield the items of the list under KEY, or of the list that the text is.

    Args:
        text: At its beginning.
        key: Of an object; its other values go to REST, by the time the items
            come or afterwards, as they stand.
        rest: Filled.

    Raises:
        Cut: see the module.
    """
    if text.skip("{[") == "[":
        yield from _list(text)
        return
    if text.peek() == "}":
        return
    while True:
        name = text.value()
        text.skip(":")
        if name == key and text.peek() == "[":
            text.skip("[")
            yield from _list(text)
        else:
            rest[str(name)] = text.value()
        if text.skip(",}") == "}":
            return


def _list(text: Text) -> Iterator[Any]:
    """Yield the items up to the bracket, which is gone past."""
    if text.peek() == "]":
        text.skip("]")
        return
    while True:
        yield text.value()
        if text.skip(",]") == "]":
            return
        if text.peek() == "]":  # chrome://tracing takes it, and so do we
            text.skip("]")
            return
