"""What the ids and small numbers in rows mean, as text."""

from __future__ import annotations

from typing import NamedTuple

from memprof import _core
from memprof.rows import NO_INDEX


class Frame(NamedTuple):
    """One line of a Python stack."""

    function: str
    file: str
    line: int


class Texts:
    """The methods of a recording that turn numbers into text."""

    _core: _core.Recording

    def op(self, index: int) -> str:
        """Return the text of an op, region or owner id; ``""`` for none.

        Raises:
            IndexError: there is no such id.
        """
        return "" if index == NO_INDEX else self._core.text(int(index))

    def module(self, index: int) -> str:
        """Return the qualified name behind a module id; ``""`` for none.

        Raises:
            IndexError: there is no such id.
        """
        return self.op(index)

    def owner(self, index: int) -> str:
        """Return the name behind an owner id; ``""`` for none.

        Raises:
            IndexError: there is no such id.
        """
        return self.op(index)

    def region(self, index: int) -> str:
        """Return the name of the ``record_function`` region behind an id.

        Raises:
            IndexError: there is no such id.
        """
        return self.op(index)

    def shape(self, index: int) -> str:
        """Return the tensor behind a shape id, ``float32[64, 128]``; ``""``: none.

        Raises:
            IndexError: there is no such id.
        """
        return self.op(index)

    def kind(self, number: int) -> str:
        """Return the name of an event's ``kind``; see ``memprof.EVENT_KINDS``.

        Raises:
            IndexError: there is no such kind.
        """
        try:
            return _core.EVENT_KINDS[int(number)]
        except KeyError:
            raise IndexError(f"no kind of event has the number {number}") from None

    def stack(self, index: int) -> tuple[Frame, ...]:
        """Return the frames behind a stack id, innermost first; ``()`` for none.

        Raises:
            IndexError: there is no such id.
        """
        if index == NO_INDEX:
            return ()
        return tuple(Frame(*frame) for frame in self._core.stack(int(index)))
