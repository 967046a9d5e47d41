"""Steps of a program that was not written for memprof: who marks them.

Optimizers or profiles of the program's own. Where several alternate (a GAN's
two optimizers) a step ends when the first of them comes round again, so that it
holds one of each.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any


class Round:
    """Calls MARK at the first step of a round, and at the first of the next."""

    def __init__(self, mark: Callable[[], object]) -> None:
        """Begin before the first round."""
        self._mark = mark
        self._pid = os.getpid()
        self._seen: set[int] = set()

    def stepped(self, who: object) -> None:
        """WHO has made a step."""
        if os.getpid() != self._pid:  # a forked child: the parent's are counted
            return
        if self._seen and id(who) not in self._seen:
            self._seen.add(id(who))
            return
        self._seen = {id(who)}
        self._mark()


def follow_optimizers(mark: Callable[[], object]) -> Callable[[], None]:
    """Call MARK after a step of an optimizer, once a round.

    Returns:
        What ends that.
    """
    turns = Round(mark)
    # torch.optim deletes this name from itself.
    optimizer = importlib.import_module("torch.optim.optimizer")

    def stepped(who: Any, arguments: Any, keywords: Any) -> None:
        turns.stepped(who)

    end: Callable[[], None] = optimizer.register_optimizer_step_post_hook(
        stepped
    ).remove
    return end


def follow_profiles(mark: Callable[[], object], but: Any) -> Callable[[], None]:
    """Call MARK when the program tells a profile of its own of the next step.

    Args:
        mark: Called after it.
        but: The profile whose steps MARK makes.

    Returns:
        What ends that.
    """
    turns = Round(mark)
    torch_profiler = importlib.import_module("torch.profiler")
    ours = importlib.import_module("memprof.profiler").profile
    ends = [_after_step(cls, turns, but) for cls in (torch_profiler.profile, ours)]

    def end() -> None:
        for one in ends:
            one()

    return end


def _after_step(cls: Any, turns: Round, but: Any) -> Callable[[], None]:
    original = cls.step

    @functools.wraps(original)
    def step(self: Any, *arguments: Any, **keywords: Any) -> Any:
        result = original(self, *arguments, **keywords)
        if self is not but:
            turns.stepped(self)
        return result

    cls.step = step

    def end() -> None:
        if cls.step is step:
            cls.step = original

    return end
