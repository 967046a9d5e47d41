"""Stored runs: ``.memprof/<key>/0001_<commit>.json``, this machine's own history."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from memprof.integrations.baselines import written
from memprof.output import write_text

FOLDER = ".memprof"
_FILE = re.compile(r"(\d{4,})_(.+)\.json")


def is_name(text: str) -> bool:
    """Whether a run may be stored under that name."""
    return re.fullmatch(r"[A-Za-z0-9._-]+", text) is not None


def stored(root: Path, key: str | None = None) -> list[Path]:
    """Return the files of runs, oldest first.

    Args:
        root: the root of the tests.
        key: of which environment; None: of all.
    """
    files = [
        path
        for path in (root / FOLDER).glob(f"{key or '*'}/*.json")
        if _FILE.fullmatch(path.name)
    ]
    return sorted(files, key=lambda path: (_number(path), path.name))


def _number(path: Path) -> int:
    found = _FILE.fullmatch(path.name)
    return int(found[1]) if found else -1


def find(root: Path, key: str | None, which: str) -> Path | None:
    """Return the file of a run.

    Args:
        root: the root of the tests.
        key: of which environment; None: any.
        which: its number or its name; ``""``: the last one.
    """
    fitting = [
        path
        for path in stored(root, key)
        if not which
        or path.stem.partition("_")[2] == which
        or (which.isdecimal() and _number(path) == int(which))
    ]
    return fitting[-1] if fitting else None


def why_none(root: Path, which: str) -> str:
    """Return why there is no such run; ``""``: there is."""
    if find(root, None, which) is not None:
        return ""
    there = [path.stem for path in stored(root)]
    what = f"no stored run {which!r}" if which else "no stored run"
    shown = f"; there are: {', '.join(there[-9:])}" if there else ""
    return f"{what} in {root / FOLDER}{shown} (pytest --memprof-autosave stores one)"


def load(path: Path) -> dict[str, Any]:
    """Return a run: ``env``, and ``tests`` by node id, their figures and ``rows``.

    Raises:
        ValueError: it is none.
        OSError: it cannot be read.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or not isinstance(found.get("tests"), dict):
        raise ValueError(f"{path} is no stored run of memprof")
    return found


def save(
    root: Path, key: str, name: str, env: dict[str, Any], tests: dict[str, Any]
) -> Path:
    """Store a run under the next number; returns its file.

    Raises:
        OSError: it cannot be written.
    """
    folder = root / FOLDER / key
    folder.mkdir(parents=True, exist_ok=True)
    ignored = root / FOLDER / ".gitignore"
    if not ignored.exists():
        write_text(ignored, "*\n")
    last = max((_number(path) for path in stored(root, key)), default=0)
    path = folder / f"{last + 1:04d}_{name}.json"
    write_text(path, written({"env": env}, tests))
    return path
