"""What the words of a command line may be; used as ``type`` of an argument.

A word that is wrong whatever the recording holds is bad usage (exit code 2). One
that is right, but of nothing that was recorded, is an error (exit code 1).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from memprof import limits
from memprof.devices import parse_device
from memprof.limits import Limit
from memprof.options import choices


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


def moment(word: str) -> str:
    """Return a moment, as it was written.

    Raises:
        argparse.ArgumentTypeError: it is none, with the words there are.
    """
    from memprof.instants import WORDS, is_moment

    if not is_moment(word):
        raise argparse.ArgumentTypeError(f"must be {WORDS}, not {word!r}")
    return word


def keys(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return what takes some of the KNOWN keys, with commas between them."""

    def checked(word: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in word.split(",") if part.strip())
        for part in found:
            if part not in known:
                raise argparse.ArgumentTypeError(
                    f"no key {part!r}; choose {', '.join(known)}"
                )
        if not found:
            raise argparse.ArgumentTypeError(f"no key; choose {', '.join(known)}")
        return tuple(dict.fromkeys(found))

    setattr(checked, "known", tuple(known))  # noqa: B010 - for completion
    return checked


def output(suffixes: tuple[str, ...]) -> Callable[[str], Path]:
    """Return what takes the name of a file that ends in one of SUFFIXES."""

    def checked(word: str) -> Path:
        if not word.lower().endswith(suffixes):
            raise argparse.ArgumentTypeError(
                f"must end in {choices(suffixes)}, not {word!r}"
            )
        return Path(word)

    return checked


def whole_range(word: str) -> tuple[int, int]:
    """Return the first and the last of a range of numbers, ``3:5`` or ``3``.

    Raises:
        argparse.ArgumentTypeError: it is none, with the reason.
    """
    first, colon, last = word.partition(":")
    low = count(first)
    high = count(last) if colon else low
    if high < low:
        raise argparse.ArgumentTypeError(f"{word!r} ends before it begins")
    return low, high


def time_range(word: str) -> tuple[float | None, float | None]:
    """Return the bounds of a time in seconds, ``1.5:2``; None: there is none.

    Raises:
        argparse.ArgumentTypeError: it is none, with the reason.
    """
    first, colon, last = word.partition(":")
    try:
        low = float(first) if first else None
        high = float(last) if last else None
        fine = bool(colon) and all(map(math.isfinite, filter(None, (low, high))))
    except ValueError:
        fine = False
    if not fine or (low is None and high is None):
        raise argparse.ArgumentTypeError(
            f"must be two times in seconds, 1.5:2 say, not {word!r}"
        )
    if low is not None and high is not None and high < low:
        raise argparse.ArgumentTypeError(f"{word!r} ends before it begins")
    return low, high


def one_output(args: argparse.Namespace) -> Path:
    """Return the file that OUT or ``-o`` names: one of them must, and only one.

    Raises:
        SystemExit: with the code of bad usage.
    """
    if args.out is None and args.output is None:
        args.usage_error("there is no output: name it as OUT or with -o OUT")
    if args.out is not None and args.output is not None:
        args.usage_error(f"two outputs, {args.out} and {args.output}: leave one out")
    return Path(args.output if args.out is None else args.out)


def limit(word: str) -> Limit:
    """Return a metric and how far it may rise, ``peak:5%``.

    Raises:
        argparse.ArgumentTypeError: it is none, with the reason.
    """
    try:
        return limits.limit(word)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def add_file(parser: argparse.ArgumentParser) -> None:
    """Add the recording that a verb is about."""
    parser.add_argument("file", type=Path, help="a recording (.memprof)")


def add_limit(parser: argparse.ArgumentParser, default: int, what: str) -> None:
    """Add ``--limit``: how many of WHAT; its help ends with the DEFAULT."""
    parser.add_argument(
        "--limit",
        type=count,
        default=default,
        metavar="N",
        help=f"{what}; default: {default}",
    )


def add_moment(parser: argparse.ArgumentParser) -> None:
    """Add ``--at``."""
    parser.add_argument(
        "--at",
        type=moment,
        default="peak",
        metavar="MOMENT",
        help="peak (default), end, step:3 (its end), t=1.2s (after the start) or "
        "event:5",
    )


def add_form(parser: argparse.ArgumentParser) -> None:
    """Add ``--bytes`` and ``--width``."""
    parser.add_argument(
        "--bytes", action="store_true", help="write exact bytes in the table"
    )
    parser.add_argument(
        "--width",
        type=count,
        metavar="W",
        help="columns, at least 80; default: the terminal's, else all it takes",
    )
