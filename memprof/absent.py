"""What torch.profiler has and memprof has not: said by name, with what to use."""

from __future__ import annotations

from typing import Any

INSTEAD = {
    "events_averages": "key_averages() has the sums by op",
}
"""Names and what to use; the methods are those of a profile and a recording."""


def sentence(owner: str, name: str) -> str:
    """Return what is said to who asks OWNER for NAME."""
    return f"{owner} has no {name} yet; {INSTEAD[name]}"


def without(thing: Any, name: str) -> Any:
    """Serve as ``__getattr__`` of THING, which has no attribute NAME.

    Raises:
        AttributeError: always; also the one that a property of that name raised.
    """
    if name in INSTEAD:
        raise AttributeError(sentence(f"memprof's {type(thing).__name__}", name))
    return object.__getattribute__(thing, name)
