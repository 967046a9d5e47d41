"""The command line: ``memprof VERB ...`` and ``python -m memprof VERB ...``.

What all verbs have in common is here and in three files of ``memprof.commands``:
``exits`` (the exit codes), ``flags`` (the flags) and ``emit`` (what is written where).
"""

from __future__ import annotations

import argparse
import difflib
import io
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from memprof._version import __version__
from memprof.commands.exits import DONE, FAILED, INTERRUPTED, USAGE
from memprof.reports.units import told

WRAPPED, RAW = argparse.HelpFormatter, argparse.RawDescriptionHelpFormatter


class Parser(argparse.ArgumentParser):
    """A parser whose errors end with what would have been right."""

    example = ""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, with the usage before it and an example after it."""
        self.print_usage(sys.stderr)
        line = f"{self.prog}: error: {told(message)}\n"
        if self.example:
            line += f"example: {self.example}\n"
        self.exit(USAGE, line)


class Top(Parser):
    """The parser of all verbs."""

    verbs: dict[str, Parser]
    """Name or alias -> the verb's parser."""


def parser() -> Top:
    """Build the parser of all verbs."""
    from memprof.commands import COMMANDS

    top = Top(
        prog="memprof",
        description="A memory profiler for PyTorch.",
        epilog="memprof VERB --help has the flags of a verb, and an example. "
        "Exit codes: 0 done, 1 error, 2 usage, 3 a limit or baseline was exceeded, "
        "4 no verdict, because the input is incomplete.",
    )
    top.example = "memprof summary run.memprof"
    top.add_argument(
        "-V", "--version", action="version", version=f"memprof {__version__}"
    )
    verbs: Any = top.add_subparsers(metavar="VERB", required=True, parser_class=Parser)
    for command in COMMANDS:
        more = getattr(command, "MORE", "")
        verb = verbs.add_parser(
            command.NAME,
            aliases=getattr(command, "ALIASES", ()),
            help=command.HELP,
            description=command.HELP,
            epilog=f"example: {command.EXAMPLE}{more}",
            formatter_class=RAW if more else WRAPPED,
        )
        verb.example = command.EXAMPLE
        command.add_arguments(verb)
        verb.set_defaults(run=command.run, parser=verb, usage_error=verb.error)
    top.verbs = verbs.choices
    return top


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean X?"``, or nothing if none of KNOWN is like WORD."""
    found = difflib.get_close_matches(word, list(known), 1, 0.6)
    return f"; did you mean {found[0]}?" if found else ""


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the words of a command line.

    Raises:
        SystemExit: with the code, for ``--help``, ``--version`` and bad usage.
    """
    top = parser()
    # argparse would list all verbs, and say nothing of the one that was meant.
    verb = next((word for word in arguments if not word.startswith("-")), None)
    if verb is not None and verb not in top.verbs and arguments[0] == verb:
        more = nearest(verb, top.verbs) or "; memprof --help lists the verbs"
        top.error(f"there is no verb {verb!r}{more}")
    args, strange = top.parse_known_args(arguments)
    strange = _late_words(args, strange)
    if strange:
        flags = [text for one in args.parser._actions for text in one.option_strings]
        first = strange[0].partition("=")[0]
        if not first.startswith("-"):
            args.parser.error(f"one word too many: {strange[0]!r}")
        more = nearest(first, flags) or f"; {args.parser.prog} --help lists them"
        args.parser.error(f"there is no flag {first}{more}")
    return args


def _late_words(args: argparse.Namespace, strange: list[str]) -> list[str]:
    """Give words behind flags to what may take any, or none.

    argparse leaves such an argument empty unless its word directly follows the words
    before it: ``trim IN --steps 3 OUT``.

    Returns:
        The words that are still nobody's.
    """
    left = []
    for word in strange:
        action = next(
            (
                one
                for one in args.parser._actions
                if one.nargs in ("?", "*") and not one.option_strings
                if one.nargs == "*" or getattr(args, one.dest) is None
            ),
            None,
        )
        if action is None or word.startswith("-"):
            left.append(word)
            continue
        try:
            value = word if action.type is None else action.type(word)
        except argparse.ArgumentTypeError as problem:
            args.parser.error(f"argument {action.metavar}: {problem}")
        if action.nargs == "*":
            value = [*getattr(args, action.dest), value]
        setattr(args, action.dest, value)
    return left


def sentence(error: BaseException) -> str:
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
        The exit code, one of ``commands.exits``; of ``run`` the program's.

    Raises:
        SystemExit: with the code, for ``--help``, ``--version`` and bad usage.
    """
    if sys.stderr is None:  # print and argparse would take standard output
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    args = parsed(sys.argv[1:] if arguments is None else list(arguments))
    if sys.stdout is None:  # closed before we began
        print("memprof: error: standard output is closed", file=sys.stderr)
        return FAILED
    from memprof._core import Error

    # Names of files and ops may hold what no encoding has.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, less) has seen enough.  Nothing must be flushed into
        # the closed pipe when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        print("memprof: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (OSError, Error, ValueError, MemoryError) as error:
        if getattr(args, "verbose", False):
            import traceback

            traceback.print_exc()
        print(f"memprof: error: {told(sentence(error))}", file=sys.stderr)
        return FAILED
    return code
