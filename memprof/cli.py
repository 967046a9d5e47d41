"""The command line: ``memprof VERB ...`` and ``python -m memprof VERB ...``.

Exit codes: 0 done; 1 the command could not be carried out, and standard error
has one sentence that says why; 2 the command was not understood, and standard
error has its usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from memprof._version import __version__

DONE, FAILED = 0, 1  # 2, usage: argparse ends the process with it


def parser() -> argparse.ArgumentParser:
    """Build the parser of all verbs."""
    from memprof.commands import COMMANDS

    top = argparse.ArgumentParser(
        prog="memprof", description="A memory profiler for PyTorch."
    )
    top.add_argument(
        "-V", "--version", action="version", version=f"memprof {__version__}"
    )
    verbs = top.add_subparsers(metavar="VERB", required=True)
    for command in COMMANDS:
        verb = verbs.add_parser(
            command.NAME, help=command.HELP, description=command.HELP
        )
        command.add_arguments(verb)
        verb.set_defaults(run=command.run)
    return top


def _sentence(error: BaseException) -> str:
    """Return one line that says what went wrong."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: the words after the program's name; None: of this process.

    Returns:
        The exit code.

    Raises:
        SystemExit: with the code, for ``--help``, ``--version`` and bad usage.
    """
    from memprof._core import Error

    args = parser().parse_args(arguments)
    if sys.stdout is None:  # closed before we began
        print("memprof: error: standard output is closed", file=sys.stderr)
        return FAILED
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, less) has seen enough.  Nothing must be flushed into
        # the closed pipe when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (OSError, Error, ValueError, MemoryError) as error:
        print(f"memprof: error: {_sentence(error)}", file=sys.stderr)
        return FAILED
    return code
