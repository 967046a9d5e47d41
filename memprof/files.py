"""Files that will be written: what is wrong with a path is said in a sentence."""

from __future__ import annotations

import os


def check_folder(path: str | os.PathLike[str], what: str = "") -> None:
    """Check that PATH is the name of a file in a folder that is there.

    Args:
        path: the file.
        what: goes before the path in the message, ``"path="`` say.

    Raises:
        OSError: it is not; names the path and what is missing.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        raise IsADirectoryError(f"{what}{path!r} is a folder")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{what}{path!r}: there is no folder {folder}")


def check_writable(path: str | os.PathLike[str], what: str = "") -> None:
    """Check that PATH can be opened for writing; see ``check_folder``.

    Raises:
        OSError: it cannot; names the path and what is missing.
    """
    check_folder(path, what)
    path = os.fspath(path)
    folder = os.path.dirname(os.path.abspath(path))
    target = path if os.path.exists(path) else folder
    if not os.access(target, os.W_OK):
        raise PermissionError(f"{what}{path!r} cannot be written")
