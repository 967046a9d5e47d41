"""What a profile needs from whoever follows memory for it."""

from __future__ import annotations

from typing import Any, Protocol

from memprof import _core


class Follower(Protocol):
    """Follows every block from ``start`` to ``stop``; windows are recorded."""

    def start(self, step: int) -> None:
        """Begin to follow, in step STEP.

        Raises:
            MemprofError: It cannot be done; names what is missing. Nothing of
                it is left behind then.
        """

    def step(self, number: int) -> None:
        """Step NUMBER begins."""

    def window_begin(self, path: str | None) -> None:
        """Record from here on, into the file PATH too if one is given.

        Raises:
            OSError: PATH cannot be created. No window is open then.
        """

    def window_describe(self, info: str) -> None:
        """Put INFO, JSON, into the open window's file, lest it be never closed."""

    def window_end(self) -> _core.Recording:
        """Return what the window held; a streamed file is left open."""

    def flush(self) -> None:
        """Put what was recorded so far into the open window's file, if it can."""

    def snapshot(self) -> _core.Recording:
        """Return a copy of what the open window holds so far."""

    def counters(self, device: int) -> dict[str, dict[str, int]]:
        """Return what is counted of DEVICE (-1: the CPU) since the start.

        Raises:
            MemprofError: This follower counts at the end only.
        """

    def stop(self) -> None:
        """Follow no longer; every hook that nobody else needs is gone."""

    def facts(self) -> dict[str, Any]:
        """Return what the recording's info says of the sources.

        ``sources`` (name -> ``{"live": bool, "why": text}``), ``shim``,
        ``seeded``, ``own`` (bytes, events, dropped), ``own_tensors`` (the class
        of the model for the names of its own tensors) and ``followed_steps``.
        """


def source(why: str | None = None) -> dict[str, Any]:
    """Return the fact that a source is live, or why it is not."""
    return {"live": why is None, "why": why or ""}
