"""A report's file: there whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write TEXT to PATH: beside it first, then renamed.

    A file that is there keeps its mode, and a link still leads to it.

    Raises:
        OSError: it cannot be written; names the path. Nothing half-written is left.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"{os.fspath(path)}: there is no folder {target.parent}"
        )
    if target.is_dir():
        raise IsADirectoryError(f"{os.fspath(path)} is a folder")
    try:
        mode = target.stat().st_mode & 0o7777
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        mode = 0o666 & ~umask
    handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(beside, mode)
        os.replace(beside, target)
    except BaseException:
        os.unlink(beside)
        raise
