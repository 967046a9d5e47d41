"""``memprof completion SHELL``: a script that completes verbs and flags."""

from __future__ import annotations

import argparse

from memprof.commands import emit, exits, flags
from memprof.completions import SHELLS

NAME = "completion"
HELP = "print a script that lets a shell complete verbs, flags and their values"
EXAMPLE = "memprof completion bash -o memprof.bash"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``completion`` takes."""
    parser.add_argument(
        "shell",
        choices=SHELLS,
        help='whose; for bash: eval "$(memprof completion bash)" in ~/.bashrc; for zsh '
        "a file _memprof in a folder of $fpath; for fish "
        "~/.config/fish/completions/memprof.fish",
    )
    flags.add(parser, device=None, json=None, plain=False)


def run(args: argparse.Namespace) -> int:
    """Print the script.

    Raises:
        OSError, MemprofError: with a sentence for the user.
    """
    from memprof.cli import parser
    from memprof.completions import script

    emit.claim(args)
    emit.result(args, NAME, script(parser(), args.shell))
    return exits.DONE
