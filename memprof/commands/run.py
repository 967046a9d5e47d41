"""``memprof run SCRIPT``: record an unchanged program."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from memprof import files, launch
from memprof.commands import flags
from memprof.limits import size

NAME = "run"
HELP = "run a program, unchanged, and record it"
EXAMPLE = 'memprof run -q -c "import torch; torch.ones(1000)"'

MORE = """
  memprof run train.py --epochs 1
  memprof run -o before.memprof --steps optimizer -m package.train

The recording is written while the program runs: one that was killed leaves what
it had recorded. Exit code, signals and tracebacks are the program's own.
"""


def _budget(word: str) -> int:
    """Return a number of bytes above 0.

    Raises:
        argparse.ArgumentTypeError: It is none, with the reason.
    """
    try:
        amount = size(int(word) if word.isdigit() else word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if amount <= 0:
        raise argparse.ArgumentTypeError("must be more than 0 bytes")
    return amount


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``run`` takes."""
    parser.usage = (
        "memprof run [options] SCRIPT ARGS...\n"
        "       memprof run [options] -m MODULE ARGS...\n"
        "       memprof run [options] -c CODE ARGS..."
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="F",
        help="the recording; default: memprof-<script>.<pid>.memprof, here. With RANK "
        "set, .rank<k> goes before the suffix; a child process has its .<pid> there",
    )
    parser.add_argument(
        "-f", "--force", action="store_true", help="replace a file that is there"
    )
    parser.add_argument(
        "--steps",
        choices=launch.STEPS,
        default="program",
        help="where a step begins: where the program says so to a profile of its own "
        "(default), after each step of its optimizer, or nowhere",
    )
    parser.add_argument(
        "--children",
        choices=launch.CHILDREN,
        default="new",
        help="which child processes are recorded, each to a file of its own: every new "
        "Python that allocates a tensor (default), also those that multiprocessing "
        "forks, or none",
    )
    parser.add_argument(
        "--no-ops", action="store_true", help="leave out ops, the most expensive source"
    )
    parser.add_argument(
        "--no-stacks", action="store_true", help="leave out Python stacks"
    )
    parser.add_argument(
        "--no-modules", action="store_true", help="leave out names of modules"
    )
    parser.add_argument(
        "--shapes", action="store_true", help="record shapes of large tensors"
    )
    parser.add_argument(
        "--cupti",
        choices=("auto", "on", "off"),
        default="auto",
        help="whether to hear the driver's memory calls; default: auto",
    )
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="record what runs on GPUs too: kernels, copies, sets",
    )
    parser.add_argument(
        "--event-budget",
        type=_budget,
        metavar="SIZE",
        help="memory for events, 64 bytes each, behind which the recording ends; "
        "default: 2GiB",
    )
    program = parser.add_mutually_exclusive_group()
    program.add_argument(
        "-m",
        dest="module",
        metavar="MODULE",
        nargs=argparse.REMAINDER,
        help="run a module, as python -m does; all that follows is the program's",
    )
    program.add_argument(
        "-c",
        dest="code",
        metavar="CODE",
        nargs=argparse.REMAINDER,
        help="run code, as python -c does; all that follows is the program's",
    )
    parser.add_argument(
        "script",
        metavar="SCRIPT",
        nargs=argparse.REMAINDER,
        help="the program, as python takes it; all that follows is the program's",
    )
    flags.add(
        parser,
        output=None,
        device=None,
        json=None,
        plain=False,
        quiet="say nothing but what fails",
    )
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Become the program; returns only if that cannot be.

    Raises:
        OSError, MemprofError: with a sentence for the user.
    """
    program = _program(args)
    if args.kernels and args.cupti == "off":
        args.usage_error("--kernels needs CUPTI, which --cupti off forbids")
    launch.check(program)
    plan = launch.Plan(
        pid=os.getpid(),
        cwd=os.getcwd(),
        output=_output(args),
        name=program.name,
        steps=args.steps,
        children=args.children,
        quiet=args.quiet,
        verbose=args.verbose,
        options=_options(args),
        began=time.time(),
    )
    launch.become(program, plan)
    raise AssertionError("a process cannot outlive what replaced it")


def _program(args: argparse.Namespace) -> launch.Program:
    """Return what to run; bad usage ends the process."""
    for how, words in (("-m", args.module), ("-c", args.code)):
        if words is not None:
            words = [*words, *args.script]
            if not words:
                args.usage_error(f"{how} needs what to run")
            return launch.Program(how, words[0], words[1:])
    words = args.script
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        args.usage_error("give a script to run, or -m MODULE, or -c CODE")
    return launch.Program("", words[0], words[1:])


def _output(args: argparse.Namespace) -> str | None:
    """Return the whole path of ``-o``.

    Raises:
        OSError, MemprofError: It cannot be written, or is there already.
    """
    if args.output is None:
        if not os.access(os.getcwd(), os.W_OK):
            raise PermissionError(
                f"the folder {os.getcwd()} cannot be written; -o names a file elsewhere"
            )
        return None
    path = os.path.abspath(launch.with_rank(args.output, os.environ))
    files.check_regular(path, "-o ")
    files.check_writable(path, "-o ")
    if os.path.exists(path) and not args.force:
        raise FileExistsError(f"{path} is there already; --force replaces it")
    return path


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``memprof.profile``."""
    options: dict[str, Any] = {
        "with_ops": not args.no_ops,
        "with_stack": not args.no_stacks,
        "with_modules": not args.no_modules,
        "record_shapes": args.shapes,
        "cupti": args.cupti,
        "with_kernels": args.kernels,
    }
    if args.event_budget is not None:
        options["event_budget"] = args.event_budget
    return options
