"""What both examples ask of their command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch


def at_least(least: int) -> Callable[[str], int]:
    """Return a type of command-line numbers from LEAST on."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is below {least}")
        return int(text)

    return number


def chosen_device(text: str) -> torch.device:
    """Read a device from the command line and see whether it is there."""
    try:
        device = torch.device(text)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise argparse.ArgumentTypeError(f"{text} cannot be used: {reason}") from error
    return device
