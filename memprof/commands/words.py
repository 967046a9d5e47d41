"""What the words of a command line may be; used as ``type`` of an argument.

A word that is wrong whatever the recording holds is bad usage (exit code 2). One
that is right, but of nothing that was recorded, is an error (exit code 1).
"""

from __future__ import annotations

import argparse

from memprof.devices import parse_device


def device(word: str) -> str:
    """Return a device, as it was written.

    Raises:
        argparse.ArgumentTypeError: it is none, with the reason.
    """
    try:
        parse_device(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return word


def count(word: str) -> int:
    """Return a number of things, 0 or more.

    Raises:
        argparse.ArgumentTypeError: it is none, with the reason.
    """
    try:
        number = int(word)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be a number, 0 or more, not {word!r}")
    return number
