"""Find the shim that fits the torch in use, or compile it once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memprof.reports.units import told
from memprof.shim.build import build_shim, digest
from memprof.shim.elf import why_not_whole
from memprof.shim.stamp import ShimUnavailable, TorchBuild


def shipped_path(build: TorchBuild) -> Path:
    """Return where a memprof wheel carries the shim of this torch."""
    return Path(__file__).resolve().parent / f"{build.stem}.so"


def cache_dir() -> Path:
    """Return the user's folder for compiled shims.

    Raises:
        ShimUnavailable: If the user has no home.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        raise ShimUnavailable(
            f"no cache folder for the torch shim: {base!r} is not absolute"
            " (set XDG_CACHE_HOME, or MEMPROF_SHIM to a compiled shim)"
        )
    return Path(base) / "memprof"


def cached_path(build: TorchBuild) -> Path:
    """Return where this memprof's shim of this torch is kept once compiled."""
    return cache_dir() / f"{build.stem}-{digest(build)}.so"


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one process at a time compile PATH: a launcher may start eight."""
    lock = path.with_suffix(".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as problem:
        raise ShimUnavailable(
            f"cannot keep the compiled torch shim in {path.parent}: {problem}"
            " (set XDG_CACHE_HOME, or MEMPROF_SHIM to a compiled shim)"
        ) from problem
    try:
        # File systems without locks: each process compiles its own copy, and
        # the last to finish wins.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _is_whole(path: Path) -> bool:
    """Whether a library lies there; one that was cut is compiled anew."""
    return path.is_file() and not why_not_whole(path)


def existing_shim(torch: Any) -> Path | None:
    """Return the shim for this torch if it is there already; see ``find_shim``.

    Raises:
        ShimUnavailable: MEMPROF_SHIM names none, or this torch can have none.
    """
    named = os.environ.get("MEMPROF_SHIM")
    if named:
        if not os.path.isfile(named):
            raise ShimUnavailable(f"MEMPROF_SHIM={named}: there is no such file")
        return Path(named).absolute()
    build = TorchBuild.of(torch)
    shipped = shipped_path(build)
    if shipped.is_file():
        return shipped
    cached = cached_path(build)
    return cached if _is_whole(cached) else None


def find_shim(torch: Any) -> Path:
    """Return the shim for this torch, compiling it if there is none yet.

    The order: the file that MEMPROF_SHIM names, the package, the user's cache,
    a compilation into that cache. Whether the file really fits is for the
    loader to say, which compares the stamps.

    Args:
        torch: The imported module ``torch``.

    Raises:
        ShimUnavailable: If there is none and none could be compiled; the
            caller falls back to torch's own memory history.
    """
    there = existing_shim(torch)
    if there is not None:
        return there
    build = TorchBuild.of(torch)
    cached = cached_path(build)
    with _alone(cached):
        if not _is_whole(cached):
            print(
                told(
                    f"memprof: compiling its shim for torch {build.version} (once,"
                    f" some 10 s) into {cached}"
                ),
                file=sys.stderr,
            )
            build_shim(build, cached)
    return cached
