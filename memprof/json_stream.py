"""JSON of any length, an item at a time, in bounded memory.

Reads a JSON object or list whose long part is one list: the items of that list
come one by one, everything else whole. What is cut or damaged ends the reading;
what came before it stays good.
"""

from __future__ import annotations

import codecs
import json
import os
import zlib
from collections.abc import Iterator
from typing import IO, Any

from memprof.errors import MemprofError

CHUNK = 1 << 20
MOST_VALUE = 16 << 20
"""Characters that one value may have."""

LEAST_LIMIT = 1 << 30
MOST_RATIO = 300
"""A gzip file may yield 1 GiB, or that many times its size."""

_SPACE = " \t\n\r"


class Cut(Exception):
    """The text ends, or cannot be read on; says where and why."""


class Text:
    """A file's text, as far as it was asked for.

    Attributes:
        bytes_read: Bytes, decompressed, that were taken from the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open PATH, which may be compressed.

        Raises:
            OSError: it cannot be read.
        """
        self._file: IO[bytes] = open(path, "rb")  # noqa: SIM115 - closed by close()
        try:
            zipped = self._file.read(2) == b"\x1f\x8b"
            self._file.seek(0)
            size = os.fstat(self._file.fileno()).st_size
        except BaseException:
            self._file.close()
            raise
        self._zip = zlib.decompressobj(31) if zipped else None
        self._limit = max(LEAST_LIMIT, MOST_RATIO * size) if zipped else None
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._scan = json.JSONDecoder(strict=False).raw_decode
        self.text = ""
        self.at = 0
        self.bytes_read = 0
        self._ended = False
        self._why = "the file ends"

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _piece(self) -> bytes:
        """Return the next bytes, decompressed; b"" at the end or at damage."""
        if self._zip is None:
            return self._file.read(CHUNK)
        while True:
            packed = self._zip.unconsumed_tail
            if not packed:
                packed = self._zip.unused_data if self._zip.eof else b""
                packed = packed or self._file.read(CHUNK)
                if not packed:
                    return b""
                if self._zip.eof:  # another member follows
                    self._zip = zlib.decompressobj(31)
            try:
                piece = self._zip.decompress(packed, CHUNK)
            except zlib.error as error:
                self._why = f"the file does not decompress: {error}"
                return b""
            if piece:
                return piece

    def _more(self) -> bool:
        """Append the next piece; False at the end."""
        if self._ended:
            return False
        piece = self._piece()
        self.bytes_read += len(piece)
        if self._limit is not None and self.bytes_read > self._limit:
            raise MemprofError(
                f"the file decompresses to more than {MOST_RATIO} times its size"
            )
        self._ended = not piece
        self.text = self.text[self.at :] + self._decode(piece, final=not piece)
        self.at = 0
        return True

    def cut(self, what: str | None = None) -> Cut:
        """Return the exception that says what is wrong here."""
        before = self.bytes_read - len(self.text) + self.at
        return Cut(f"about byte {before}: {what or self._why}")

    def peek(self) -> str:
        """Return the next character that is no space; "" at the end."""
        while True:
            while self.at < len(self.text):
                if self.text[self.at] not in _SPACE:
                    return self.text[self.at]
                self.at += 1
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
        self.peek()
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
                except ValueError as error:
                    if self._ended:
                        raise self.cut(str(error)) from None
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
