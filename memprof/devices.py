"""Devices: their texts, and which one an argument means."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from memprof.options import choices
from memprof.rows import CPU


def device_name(number: int) -> str:
    """Return the text for a device number: ``cpu``, ``cuda:0``."""
    return "cpu" if number == CPU else f"cuda:{number}"


def parse_device(device: object) -> int | None:
    """Return the number that a device argument means.

    Args:
        device: an int (CUDA index), ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"1"``
            or a ``torch.device``.

    Returns:
        The CUDA index, -1 for the CPU, or None for ``"cuda"``: whichever CUDA
        device is meant.

    Raises:
        ValueError: it is none of these.
    """
    if not isinstance(device, (bool, float)):
        try:
            index = operator.index(device)  # type: ignore[arg-type]
        except TypeError:
            text = str(device).strip().lower()
            if text in ("cpu", "cpu:0"):
                return CPU
            if text == "cuda":
                return None
            digits = text.removeprefix("cuda:")
            if digits.isascii() and digits.isdigit():
                return int(digits)
        else:
            if index >= 0:
                return index
    raise ValueError(
        f"{device!r} is not a device; write 'cpu', 'cuda', 'cuda:0' or an index"
    )


def recorded_device(
    device: object, known: Sequence[int], in_use: Callable[[], object]
) -> int:
    """Return the number of the recorded device that an argument means.

    Args:
        device: as of ``parse_device``; None: the GPU in use, else the CPU.
        known: numbers of the devices that were recorded.
        in_use: gives the index of the GPU in use, None if that is not known.

    Raises:
        ValueError: it was not recorded; names those that were.
    """
    if device is None:
        number = _gpu_in_use(known, in_use)
        return number if number is not None else CPU
    asked = parse_device(device)
    number = _gpu_in_use(known, in_use) if asked is None else asked
    if number is None or (number not in known and (known or number != CPU)):
        raise ValueError(
            f"{str(device)!r} was not recorded; devices here: "
            f"{choices(map(device_name, known)) or 'none'}"
        )
    return number


def _gpu_in_use(known: Sequence[int], in_use: Callable[[], object]) -> int | None:
    """Return the GPU in use if it was recorded, else the first that was."""
    gpus = [number for number in known if number != CPU]
    if not gpus:
        return None
    current = in_use()
    return next((number for number in gpus if number == current), gpus[0])
