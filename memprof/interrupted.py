"""Work at exit that leaves an interrupted program interrupted.

A program that an uncaught KeyboardInterrupt ends dies by SIGINT: Python notes the
exception and kills itself last of all. But it notes only the last code that was
run from a text, and at exit that may be ours (each ``NamedTuple`` evaluates one
when its module is imported), after which the program would exit with 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


def was_interrupted() -> bool:
    """Whether an uncaught KeyboardInterrupt has ended the program itself.

    And not what it ran in a console, say, which leaves the same traces.
    """
    trace: TracebackType | None = getattr(sys, "last_traceback", None)
    kind = getattr(sys, "last_type", None)
    return (
        kind is KeyboardInterrupt
        and trace is not None
        and trace.tb_frame.f_back is None
    )


@contextmanager
def kept() -> Iterator[None]:
    """Let Python's note of an interrupt survive the body."""
    interrupted = was_interrupted()
    try:
        yield
    finally:
        if interrupted:
            try:
                exec("raise KeyboardInterrupt", {})
            except KeyboardInterrupt:
                pass
