"""Text on a terminal: the same signs, with emphasis where that is wanted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import IO, Any

MIN_WIDTH = 80


def terminal_width(stream: Any) -> int | None:
    """Return the columns of the terminal that STREAM is; None: it is none."""
    try:
        if stream.isatty():
            return shutil.get_terminal_size((MIN_WIDTH, 24)).columns
    except (AttributeError, ValueError):  # no stream, or a closed one
        pass
    return None


def write(
    text: str,
    stream: IO[str],
    *,
    plain: bool = False,
    emphasis: Sequence[tuple[str, str]] = (),
) -> None:
    """Write TEXT to STREAM.

    With rich installed, a terminal gets it with emphasis; the text is the same.
    PLAIN, ``NO_COLOR`` or a stream that is no terminal turn that off.

    Args:
        text: whole lines.
        stream: where to.
        plain: no emphasis.
        emphasis: (regular expression, style of rich), in order.

    Raises:
        OSError: the stream does.
    """
    if emphasis and not plain and stream.isatty() and not os.environ.get("NO_COLOR"):
        try:
            from rich.console import Console
            from rich.text import Text
        except ImportError:
            pass
        else:
            styled = Text(text, end="")
            for pattern, style in emphasis:
                styled.highlight_regex(pattern, style)
            Console(file=stream, soft_wrap=True).print(styled, end="")
            return
    stream.write(text)
