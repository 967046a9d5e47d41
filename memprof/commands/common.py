"""Flags that ``run``, ``info``, ``doctor`` and ``selftest`` share."""

from __future__ import annotations

import argparse

from memprof._version import __version__


def add(parser: argparse.ArgumentParser, quiet: str, *, json: bool = True) -> None:
    """Add ``-q -v -V`` and, unless JSON is false, ``--json``.

    Args:
        parser: Of the verb.
        quiet: The help of ``-q``.
        json: Whether what the verb says can be data.
    """
    group = parser.add_argument_group("common flags")
    if json:
        group.add_argument(
            "--json", action="store_true", help="write the facts as JSON"
        )
    group.add_argument("-q", "--quiet", action="store_true", help=quiet)
    group.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="say where an error comes from",
    )
    group.add_argument(
        "-V", "--version", action="version", version=f"memprof {__version__}"
    )


def examples(parser: argparse.ArgumentParser, first: str, more: str = "") -> None:
    """Let the help end with an example, and with MORE as it stands."""
    parser.epilog = f"example: {first}\n{more}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
