"""Other people's objects: what one of them raises costs that one alone.

The search for owners meets every module, optimizer and tensor of the process,
half-made and odd ones too. Whatever they raise must not reach the program, nor
keep the others from being found.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from memprof.reports.units import told
from memprof.warn import warn

Thing = TypeVar("Thing")
Result = TypeVar("Result")

_told: set[str] = set()


def tell(text: str, once: str = "") -> None:
    """Warn once of what ONCE names (else of TEXT).

    Raises nothing, even where a filter makes errors of warnings: what is told
    here must not end a start or a stop half-way.
    """
    if (once or text) in _told:
        return
    _told.add(once or text)
    _warn_or_print(text)


def _warn_or_print(text: str) -> None:
    try:
        warn(text)
    except Warning:
        if sys.stderr is not None:
            print(told(text), file=sys.stderr)


def pass_over(thing: object, problem: BaseException) -> None:
    """Say once for each class that an object of it was left out."""
    name = class_name(thing)
    tell(
        f"memprof passes over an object of class {name} in its search for owners: "
        f"{sentence(problem)}",
        once=f"class {name}",
    )


def gathered(
    look: Callable[[Thing], Iterable[Result]], things: Iterable[Thing]
) -> list[Result]:
    """Return all that LOOK finds in THINGS, but for those that raise."""
    found: list[Result] = []
    for thing in things:
        try:
            found += look(thing)
        except Exception as problem:
            pass_over(thing, problem)
    return found


def each(act: Callable[[Thing], object], things: Iterable[Thing]) -> None:
    """Call ACT for all THINGS, also behind one that raises."""
    for thing in things:
        try:
            act(thing)
        except Exception as problem:
            pass_over(thing, problem)


def class_name(thing: object) -> str:
    """Return the name of a thing's class, whatever its metaclass says."""
    name: str = type.__dict__["__name__"].__get__(type(thing))
    return name


def key_text(key: Any) -> str:
    """Return a key of a table as text, without running code of others."""
    if type(key) is str:
        return key
    if type(key) in (int, bool, float, bytes, type(None)):
        return str(key)
    return f"<{class_name(key)}>"


def sentence(problem: BaseException) -> str:
    """Return class and text of an exception, whose ``str`` may raise."""
    try:
        text = told(str(problem))
    except Exception:
        return class_name(problem)
    return f"{class_name(problem)}: {text}" if text else class_name(problem)


def attempt(what: str, call: Callable[..., object], *args: object) -> None:
    """Call, and turn a failure into a warning: the program goes on.

    Raises nothing, even where a filter makes errors of warnings.
    """
    try:
        call(*args)
    except Exception as problem:
        _warn_or_print(
            f"memprof: {what} failed ({sentence(problem)}); the program goes on"
        )
