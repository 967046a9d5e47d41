"""The HTML report of a failed test, as far as memprof can write one."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memprof.recording import Recording

_MODULE = "memprof.reports.html"
_LONGEST = 255


def why_not() -> str:
    """Return why no report can be written; ``""``: it can."""
    if importlib.util.find_spec(_MODULE) is not None:
        return ""
    from memprof.recording import Recording

    if hasattr(Recording, "report"):
        return ""
    return f"needs {_MODULE}, which this memprof has not"


def write(recording: Recording, folder: Path, node: str) -> Path:
    """Write the report of a test; returns its file.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(node, ".html")
    asked: Any = getattr(recording, "report", None)
    if asked is None:
        asked = importlib.import_module(_MODULE).write
        asked(recording, path)
    else:
        asked(path)
    return path


def file_name(node: str, suffix: str) -> str:
    """Return a file's name for a node id: ``/`` and ``::`` become ``-``.

    What is too long for a file system is cut, with a digest of the whole id.
    """
    name = re.sub(r"::|[/\\]", "-", node)
    name = "".join(sign if sign.isprintable() else "_" for sign in name) + suffix
    encoded = name.encode()
    if len(encoded) <= _LONGEST:
        return name
    digest = hashlib.sha256(node.encode()).hexdigest()[:16]
    kept = encoded[: _LONGEST - len(digest) - len(suffix) - 1].decode(errors="ignore")
    return f"{kept}-{digest}{suffix}"
