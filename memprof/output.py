"""Files that exports write: whole or not at all, and safe texts for them."""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from memprof import files

NAME_MAX = 255
"""Bytes that the name of a file may have."""

_number = itertools.count()
_SURROGATE = re.compile("[\ud800-\udfff]")


@contextmanager
def replacing(path: files.Path) -> Iterator[str]:
    """Give the name of a file to write, which then takes the place of PATH.

    It lies beside the target.  If the body raises it is removed, and what was
    there before stays.  A file that is there keeps its mode, and a link still
    leads to it.

    Raises:
        OSError: PATH cannot be written; names it.
        MemprofError: PATH is no regular file, or a running profile streams to it.
    """
    files.check_writable(path)
    target = files.save_target(path)
    temporary = _beside(target)
    try:
        mode = stat.S_IMODE(os.stat(target).st_mode)
    except FileNotFoundError:
        mode = None
    try:
        if mode is not None:  # what it replaces may be private
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        yield temporary
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException as problem:
        try:
            os.unlink(temporary)
        except FileNotFoundError:
            pass
        if isinstance(problem, OSError) and problem.filename in (None, temporary):
            problem.filename = target  # the name that the user gave
        raise


def _beside(target: str) -> str:
    """Return the name of a file beside TARGET, like no other."""
    folder, name = os.path.split(os.fsencode(target))
    suffix = f".tmp{os.getpid()}.{next(_number)}".encode()
    return os.fsdecode(os.path.join(folder, name[: NAME_MAX - len(suffix)] + suffix))


def write(path: files.Path, content: bytes) -> None:
    """Write CONTENT to PATH, whole or not at all; raises as ``replacing``."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(content)


def write_text(path: files.Path, text: str) -> None:
    """Write TEXT to PATH as UTF-8, whole or not at all; raises as ``replacing``."""
    write(path, text.encode("utf-8", "replace"))


def clean(text: str) -> str:
    """Return TEXT as UTF-8 can hold it: lone surrogates become U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("�", text)
