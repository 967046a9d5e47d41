"""``python -m memprof.shim``: compile the torch shim, or show which is used."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from memprof.reports.units import told
from memprof.shim.build import build_shim, command, compiler, sources
from memprof.shim.find import cached_path, shipped_path
from memprof.shim.stamp import ShimUnavailable, TorchBuild


def _torch_build() -> TorchBuild:
    try:
        import torch
    except ImportError as problem:
        raise ShimUnavailable(f"torch cannot be imported: {problem}") from problem
    return TorchBuild.of(torch)


def _build(into: Path | None) -> None:
    """Compile for the torch that is installed, and print the file's path."""
    build = _torch_build()
    target = into / f"{build.stem}.so" if into else cached_path(build)
    build_shim(build, target)
    print(target)


def _told(find: Callable[[], object]) -> str:
    """What FIND finds, or why it does not."""
    try:
        return str(find())
    except ShimUnavailable as problem:
        return f"none: {problem}"


def _file(path: Path) -> str:
    return f"{path}" if path.is_file() else f"{path} (not there)"


def _info() -> None:
    """Print what is looked for, where, and what is there."""
    build = _torch_build()
    rows = {
        "torch": f"{build}, {build.root}",
        "stamp": build.stamp or "plain release",
        "MEMPROF_SHIM": os.environ.get("MEMPROF_SHIM") or "not set",
        "package": _file(shipped_path(build)),
        "cache": _told(lambda: _file(cached_path(build))),
        "source": _told(lambda: sources().folder),
        "compiler": _told(lambda: shlex.join(compiler())),
        "command": _told(lambda: shlex.join(command(build, Path("SHIM.so"), []))),
    }
    for name, value in rows.items():
        print(told(f"{name:14}{value}"))


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m memprof.shim", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("build", help="compile for the torch that is installed")
    build.add_argument(
        "--into",
        type=Path,
        metavar="DIR",
        help="write torch-VERSION.so there instead of the user's cache",
    )
    verbs.add_parser("info", help="show which shim is used here, and why")
    arguments = parser.parse_args()
    try:
        if arguments.verb == "build":
            _build(arguments.into)
        else:
            _info()
    except ShimUnavailable as problem:
        print(told(f"memprof.shim: {problem}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
