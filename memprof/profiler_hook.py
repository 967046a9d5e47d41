"""A hand on the door of torch.profiler: told before it first starts.

torch.profiler's first start takes CUPTI's only subscription for the rest of the
process, and records no GPU events if it is refused. So whoever holds it must
let go just before. The two functions that start it are wrapped wherever Python
finds them by name.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

NAMES = ("_prepare_profiler", "_enable_profiler")
PLACES = ("torch._C._autograd", "torch.autograd", "torch.autograd.profiler")

Around = Callable[[], AbstractContextManager[None]]


def places() -> list[Any]:
    """Return the modules of torch that know the functions by name."""
    found = []
    for name in PLACES:
        module = sys.modules.get(name)
        if module is None:
            try:
                module = importlib.import_module(name)
            except ImportError:
                continue
        found.append(module)
    return found


class ProfilerHook:
    """Wraps what starts torch.profiler, while installed."""

    def __init__(self, around: Around) -> None:
        """Prepare; nothing is changed.

        Args:
            around: Makes the context in which torch.profiler starts.
        """
        self._around = around
        self._wrapped: dict[str, tuple[Any, Any]] = {}  # name -> original, ours

    @property
    def installed(self) -> bool:
        """Whether torch.profiler cannot start unnoticed."""
        return bool(self._wrapped)

    def install(self) -> bool:
        """Wrap the functions; False: this torch has them elsewhere.

        Then nothing is changed, and torch.profiler would start unnoticed.
        """
        if self._wrapped:
            return True
        modules = places()
        originals = {}
        for name in NAMES:
            known = [getattr(module, name, None) for module in modules]
            if len(modules) < len(PLACES) or not all(
                function is not None and function is known[0] for function in known
            ):
                return False
            originals[name] = known[0]
        for name, original in originals.items():
            ours = self._wrapper(original)
            self._wrapped[name] = (original, ours)
            for module in modules:
                setattr(module, name, ours)
        return True

    def remove(self) -> None:
        """Put the originals back where ours still are."""
        for name, (original, ours) in self._wrapped.items():
            for module in places():
                if getattr(module, name, None) is ours:
                    setattr(module, name, original)
        self._wrapped = {}

    def _wrapper(self, original: Any) -> Any:
        @functools.wraps(original)
        def start(*args: Any, **kwargs: Any) -> Any:
            with self._around():
                return original(*args, **kwargs)

        return start
