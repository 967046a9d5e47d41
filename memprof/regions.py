"""``record_function`` regions, told from Python where ops are not followed.

torch tells of regions by the callback that tells of ops. But while anybody has a
callback, torch makes its lists of callbacks anew at each node of autograd, wanted
or not: a fifth of what memprof costs a launch-bound step without ops. So with
``with_ops=False`` there is none, and the two methods of the context manager are
wrapped instead. Regions that C++ or TorchScript opens are not seen then, and one
whose end waits for a future ends with its block.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from memprof import _core

# The ends first, and let go last: what was told to begin must be told to end.
NAMES = ("__exit__", "__enter__")


class Regions:
    """The wrapped methods, for as long as somebody holds them."""

    def __init__(self) -> None:
        """Prepare; nothing is changed."""
        self._lock = threading.Lock()
        self._holders = 0
        self._wrapped: list[tuple[type, str, Any, Any]] = []

    def acquire(self, torch: Any) -> str:
        """Have regions told, until ``release``; return why that cannot be, or ``""``.

        Args:
            torch: The module ``torch``.
        """
        with self._lock:
            place = getattr(torch.autograd, "profiler", None)
            cls: Any = getattr(place, "record_function", None)
            known = {} if cls is None else vars(cls)
            if not all(callable(known.get(name)) for name in NAMES):
                return f"torch {torch.__version__} enters them another way"
            self._holders += 1
            if self._holders == 1:
                for name, wrap in zip(NAMES, (_leaving, _entering), strict=True):
                    original = cls.__dict__[name]
                    ours = wrap(original)
                    self._wrapped.append((cls, name, original, ours))
                    setattr(cls, name, ours)
            return ""

    def release(self) -> None:
        """Undo one ``acquire``; with the last the originals are back.

        Where somebody has wrapped ours, it stays below theirs and tells nothing.
        """
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                for cls, name, original, ours in reversed(self._wrapped):
                    if cls.__dict__.get(name) is ours:
                        setattr(cls, name, original)
                self._wrapped.clear()


# They keep the originals' names, and TorchScript, which compiles the source that
# inspect finds for a method, follows __wrapped__ to them.


def _entering(original: Any) -> Any:
    begin = _core.region_begin

    @functools.wraps(original)
    def __enter__(self: Any) -> Any:
        entered = original(self)
        begin(self, self.name)
        return entered

    return __enter__


def _leaving(original: Any) -> Any:
    end = _core.region_end

    @functools.wraps(original)
    def __exit__(self: Any, *exception: Any) -> Any:
        end(self)
        return original(self, *exception)

    return __exit__


_regions = Regions()


def the_regions() -> Regions:
    """Return the process's."""
    return _regions
