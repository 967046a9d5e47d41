"""Warnings that point at the user's line, however deep memprof is."""

from __future__ import annotations

import os
import sys
import warnings

_HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


def warn(text: str) -> None:
    """Warn, on account of the innermost line outside of memprof."""
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
        level += 1
    warnings.warn(text, stacklevel=level)


def _is_ours(file: str) -> bool:
    return os.path.abspath(file).startswith(_HERE)
