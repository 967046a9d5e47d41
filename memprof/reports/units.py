"""Numbers as reports write them: IEC units, three digits, parts that sum up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
SPARKS = ".:-=+*#@"

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")  # not tab and newline


def size_text(amount: int, digits: int = 3) -> str:
    """Write bytes in IEC units with DIGITS significant digits.

    >>> size_text(12_713_115_648), size_text(12_713_115_648, 4), size_text(7)
    ('11.8 GiB', '11.84 GiB', '7 B')
    """
    value, unit = float(abs(amount)), 0
    while unit + 1 < len(UNITS):
        places = max(digits - len(str(int(value))), 0)
        if round(value, places if unit else 0) < 1024:
            break
        value, unit = value / 1024, unit + 1
    sign = "-" if amount < 0 else ""
    if unit == 0:
        return f"{amount} B"
    places = max(digits - len(str(int(round(value, digits)))), 0)
    return f"{sign}{value:.{places}f} {UNITS[unit]}"


def count_text(number: int) -> str:
    """Write a count in groups of three digits: ``1 004 212``."""
    return f"{number:,}".replace(",", " ")


def one_line(text: str) -> str:
    """Write a line with what a terminal would obey or hide as escapes.

    Names are other people's: of files, of ops, of modules.

    >>> one_line("lib" + chr(27) + "[31m" + chr(10) + ".so")
    'lib\\x1b[31m\\n.so'
    """
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode()
        for sign in text
    )


def told(text: str) -> str:
    """Write a message as ``one_line`` does, but for the ends of its lines and tabs.

    >>> told("of " + chr(27) + "[31m" + chr(10) + chr(9) + "and more")
    'of \\x1b[31m\n\tand more'
    """
    if text.isascii() and not _CONTROL.search(text):
        return text
    return "\n".join(
        "\t".join(map(one_line, line.split("\t"))) for line in text.split("\n")
    )


def text_of(lines: Iterable[str]) -> str:
    """Return the lines of a report as its text; see ``one_line``."""
    return "\n".join(map(one_line, lines)) + "\n"


def shortened(name: str, width: int) -> str:
    """Write a name in WIDTH characters at most, its middle left out."""
    if len(name) <= width:
        return name
    half = (width - 3) // 2
    return f"{name[: width - 3 - half]}...{name[-half:]}"


def counted(number: int, what: str) -> str:
    """Write ``1 step``, ``3 steps``."""
    return f"{count_text(number)} {what}{'' if number == 1 else 's'}"


def shares(parts: Sequence[int], places: int = 0, *, rest: bool = False) -> list[str]:
    """Write PARTS as percentages of their sum, each rounded: equals read equal.

    Args:
        parts: bytes.
        places: digits behind the point.
        rest: the last part stands for many; it gets what is left of 100.
    """
    total = sum(parts)
    if total <= 0:
        return [f"{0:.{places}f}"] * len(parts)
    scale = 100 * 10**places
    rounded = [(2 * part * scale + total) // (2 * total) for part in parts]
    if rest:
        rounded[-1] = max(scale - sum(rounded[:-1]), 0)
    return [f"{share / 10**places:.{places}f}" for share in rounded]


def sparks(values: Sequence[int], top: int) -> str:
    """Draw VALUES from 0 to TOP, one sign each."""
    if top <= 0:
        return SPARKS[0] * len(values)
    last = len(SPARKS) - 1
    return "".join(SPARKS[min(value * len(SPARKS) // top, last)] for value in values)
