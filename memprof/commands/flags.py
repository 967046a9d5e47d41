"""The flags that all verbs share; each is added here, so it means the same.

A verb's ``add_arguments`` calls ``add`` once. What has no meaning for a verb is left
out of it: a flag that would do nothing is bad usage, not silence.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from memprof._version import __version__
from memprof.commands import words

DEVICE = "0, cuda:0 or cpu; default: the GPU in use, else the CPU"
TEXT_OUTPUT = "write to F instead of standard output (-, the default)"


def add(
    parser: argparse.ArgumentParser,
    *,
    output: str | None = TEXT_OUTPUT,
    device: str | None = DEVICE,
    json: str | None = "write the facts as JSON",
    plain: bool = True,
) -> None:
    """Add ``-o -f -q -v -V --device --json --plain``.

    They set ``output`` (a ``Path``; None: not given), ``force``, ``quiet``,
    ``verbose``, ``device``, ``json`` and ``plain``, which ``commands.emit`` obeys.

    Args:
        parser: of the verb.
        output: the help of ``-o``; None: it writes no file, so ``-f`` goes too.
        device: the help of ``--device``; None: it is about no device.
        json: the help of ``--json``; None: it says nothing that would be data.
        plain: whether it writes text.
    """
    group = parser.add_argument_group("common flags")
    if output is not None:
        group.add_argument("-o", "--output", type=Path, metavar="F", help=output)
        group.add_argument(
            "-f", "--force", action="store_true", help="replace a file that is there"
        )
    if device is not None:
        group.add_argument("--device", type=words.device, metavar="DEVICE", help=device)
    if json is not None:
        group.add_argument("--json", action="store_true", help=json)
    if plain:
        group.add_argument(
            "--plain",
            action="store_true",
            help="no emphasis, whatever the terminal; so does NO_COLOR",
        )
    group.add_argument(
        "-q", "--quiet", action="store_true", help="no notes, warnings and progress"
    )
    group.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="say what takes how long, and where an error comes from",
    )
    group.add_argument(
        "-V", "--version", action="version", version=f"memprof {__version__}"
    )
