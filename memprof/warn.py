"""Warnings that point at the user's line, however deep memprof is."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memprof.reports.units import told

_HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
_heard = threading.local()


@contextmanager
def told_to(listener: Callable[[str], object]) -> Iterator[None]:
    """Let LISTENER have what this thread would warn of in the body.

    For work that the program knows nothing of: its filters are not for us.
    """
    before = getattr(_heard, "listener", None)
    _heard.listener = listener
    try:
        yield
    finally:
        _heard.listener = before


def warn(text: str) -> None:
    """Warn, on account of the innermost line outside of memprof."""
    text = told(text)  # names are other people's
    listener = getattr(_heard, "listener", None)
    if listener is not None:
        listener(text)
        return
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
        level += 1
    warnings.warn(text, stacklevel=level)


def _is_ours(file: str) -> bool:
    return os.path.abspath(file).startswith(_HERE)
