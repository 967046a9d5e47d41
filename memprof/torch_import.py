"""Told when torch has been imported, by whoever imports it.

Stands alone: ``start/sitecustomize.py`` loads this file by its name in every
Python that a recorded program starts, torch in it or not, so nothing else of
memprof is imported before torch is there.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

_IMPORTER = "<frozen importlib._bootstrap_external>"
_waiting: list[Callable[[Any], object]] = []

# As Python found it: the program may clear it before torch comes.
_environ = dict(os.environ)


class _Finder:
    """Finds torch as the others do, and calls who waits when it is imported."""

    def __init__(self) -> None:
        self._looking = False
        self.has_found = False

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> ModuleSpec | None:
        """See ``importlib.abc.MetaPathFinder``."""
        if name != "torch" or self._looking:
            return None
        self._looking = True
        try:
            spec = _spec_by_others(self, name, path, target)
        finally:
            self._looking = False
        if spec is not None:
            self.has_found = True  # if its import fails, that speaks for itself
            try:
                _wrap(spec.loader)
            except Exception:  # an odd loader: torch comes all the same
                pass
        return spec

    def invalidate_caches(self) -> None:
        """See ``importlib.abc.MetaPathFinder``."""


_finder = _Finder()


def _spec_by_others(
    finder: _Finder, name: str, path: Any, target: Any
) -> ModuleSpec | None:
    for other in list(sys.meta_path):
        find = getattr(other, "find_spec", None)
        if other is not finder and find is not None:
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                return spec
    return None


def _wrap(loader: Any) -> None:
    """Let LOADER tell of the next module that it has executed, which is torch."""
    original = loader.exec_module
    own = vars(loader).get("exec_module")

    def exec_module(module: Any) -> None:
        if own is None:
            del loader.exec_module
        else:
            loader.exec_module = own
        original(module)  # what it raises leaves us waiting for the next try
        if _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
        waiting = list(_waiting)
        _waiting.clear()
        for callback in waiting:
            _call(callback, module)

    # A frame of the importer's: tracebacks out of an import leave those out.
    exec_module.__code__ = exec_module.__code__.replace(co_filename=_IMPORTER)
    loader.exec_module = exec_module


def _call(callback: Callable[[Any], object], torch: Any) -> None:
    try:
        callback(torch)
    except Exception as problem:  # never the program's trouble
        if sys.stderr is not None:
            text = _shown(f"{type(problem).__name__}: {problem}")
            print(f"memprof: nothing is recorded: {text}", file=sys.stderr)


def _shown(text: str) -> str:
    """Do ``memprof.reports.units.one_line``, which may not be there."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def when_torch_comes(callback: Callable[[Any], object]) -> None:
    """Have CALLBACK called with the module ``torch``, now or once it is imported.

    What it raises is told on standard error.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        _call(callback, torch)
        return
    _waiting.append(callback)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def forget(callback: Callable[[Any], object]) -> None:
    """Have CALLBACK called no longer."""
    if callback in _waiting:
        _waiting.remove(callback)


def tell_at_exit() -> None:
    """Have the user told if the program ends without torch: there is no recording."""
    # What the plan says is looked for in its JSON: no module is loaded for that.
    plan = _environ.get("MEMPROF_RUN", "")
    if f'"pid": {os.getpid()},' in plan and '"quiet": false,' in plan:
        atexit.register(_tell_at_exit, os.getpid())


def _tell_at_exit(pid: int) -> None:
    silent = _finder.has_found or os.getpid() != pid or sys.stderr is None
    if record in _waiting and not silent:
        try:
            print("memprof: no recording: no torch was imported", file=sys.stderr)
        except (OSError, ValueError):  # closed
            pass


def record(torch: Any) -> None:
    """torch is there: load this file's memprof, wherever it lies, and record."""
    if "memprof" not in sys.modules:
        folder = os.path.dirname(os.path.abspath(__file__))
        spec = importlib.util.spec_from_file_location(
            "memprof",
            os.path.join(folder, "__init__.py"),
            submodule_search_locations=[folder],
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["memprof"] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules["memprof"]
            raise
    from memprof.launched import start

    start(torch, _environ)
