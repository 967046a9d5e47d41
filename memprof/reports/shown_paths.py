"""Paths of source files as a page shows them: it may be passed on to others."""

from __future__ import annotations

import hashlib
import os
import re

from memprof.options import choices

PATHS = ("relative", "full", "hash")

# Someone's home folder, whoever recorded.
_HOME = re.compile(r"^(?:/(?:var/)?home/[^/]+|/Users/[^/]+|/root)/")
_PYTHON = re.compile(r"^.*/(?=python3\.\d+/)")


def check_paths(paths: str) -> None:
    """Check an argument ``paths``.

    Raises:
        ValueError: it is none of ``PATHS``.
    """
    if paths not in PATHS:
        raise ValueError(f"paths={paths!r}: choose {choices(PATHS)}")


def shown_path(file: str, paths: str) -> str:
    """Return FILE as it may be shown.

    Args:
        file: a path, absolute or already relative to the run or site-packages.
        paths: ``"relative"``: no folder above a package, and no home folder;
            ``"full"``: as it is; ``"hash"``: a digest that only tells files apart.

    >>> shown_path("/home/ann/secret/net/train.py", "relative")
    'net/train.py'
    >>> shown_path("/usr/lib/python3.11/threading.py", "relative")
    'python3.11/threading.py'
    """
    if paths == "full" or not file:
        return file
    if paths == "hash":
        digest = hashlib.blake2s(os.fsencode(file), digest_size=6).hexdigest()
        return f"file-{digest}"
    if not file.startswith(("/", "~")) and not re.match(r"^[A-Za-z]:[\\/]", file):
        return re.sub(r"^(?:\.\./)+", "", file)
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in file:
            return file.rpartition(folder)[2]
    python = _PYTHON.sub("", file)
    if python != file:
        return python
    parts = _HOME.sub("", file).replace("\\", "/").split("/")
    return "/".join(parts[-2:])


def shown_place(place: str, paths: str) -> str:
    """Return ``file:line`` with its file as ``shown_path`` shows it."""
    file, colon, line = place.rpartition(":")
    if not colon or not line.isdigit():
        return place
    return f"{shown_path(file, paths)}:{line}"
