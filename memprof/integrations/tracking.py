"""The fixture ``memprof``: parts of a test, measured where it says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from memprof.integrations.settings import settings_of
from memprof.integrations.settle import settle
from memprof.limits import per_step, size

if TYPE_CHECKING:
    from memprof.integrations.measure import Measure
    from memprof.recording import Recording


class MemoryLimitExceeded(AssertionError):
    """A measured part of a test is above a limit that it asserts."""

    is_memprof = True


class Tracking:
    """What the fixture ``memprof`` is.

    Every other attribute is that of the package, so that a test may take the fixture
    and use ``memprof.profile`` or ``memprof.compare`` all the same.
    """

    def __init__(self, item: pytest.Item, config: pytest.Config) -> None:
        """Measure nothing yet."""
        self._item = item
        self._settings = settings_of(config)
        self._parts: list[Part] = []

    @contextmanager
    def track(
        self,
        steps: int | None = None,
        *,
        warmup: int = 0,
        device: object = None,
        shapes: bool = True,
    ) -> Iterator[Part]:
        """Measure what runs inside of the with statement.

        Args:
            steps: how often ``for step in p`` runs its body, after WARMUP more; who
                calls ``p.step()`` instead need not say.
            warmup: steps that are not counted.
            device: whose memory; None: of the GPU that is used most, else the CPU.
            shapes: record the shapes of tensors.

        Yields:
            A ``Part``; its figures are there after the with statement.
        """
        from memprof.devices import device_name, parse_device
        from memprof.profiler import profile

        named = None
        if device is not None:
            number = parse_device(device)
            named = "cuda" if number is None else device_name(number)
        part = Part(steps, warmup, named, off=self._settings.off)
        if self._settings.off:
            yield part
            return
        prof = profile(record_shapes=shapes)
        settle()
        prof.start()
        part._profile = prof
        try:
            yield part
        finally:
            settle()
            part._profile = None
            prof.stop()
        part._finish(prof.recording, self._settings.root, self._settings.top)
        self._parts.append(part)
        self._report(part)

    def _report(self, part: Part) -> None:
        """Let the summary and JUnit's XML know."""
        facts = self._item.__dict__.setdefault("_memprof", {})
        facts.setdefault("test", self._item.nodeid)
        found = part.figures
        facts.setdefault("parts", []).append(
            {"device": part.device, "figures": found, "instant": part._measure.instant}
        )
        properties = self._item.user_properties
        number = len(self._parts)
        name = "memprof_track" + (f"_{number}" if number > 1 else "")
        properties.append((f"{name}_peak", found["peak"]))

    def close(self) -> None:
        """Let go of the recordings."""
        self._parts.clear()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the package ``memprof``."""
        import memprof

        return getattr(memprof, name)


class Part:
    """One measured part of a test."""

    def __init__(
        self, steps: int | None, warmup: int, device: str | None, *, off: bool
    ) -> None:
        """Measure nothing yet; ``Tracking.track`` does."""
        for name, value in (("steps", steps), ("warmup", warmup)):
            if value is not None and (not isinstance(value, int) or value < 0):
                raise ValueError(f"{name}={value!r}: a whole number, 0 or more")
        self.off = off
        """``--memprof-off``: nothing is measured, all figures are 0."""
        self.steps_done = 0
        self._wanted, self._warmup, self._device = steps, warmup, device
        self._profile: Any = None
        self._found: Measure | None = None
        self._top = 0

    def __iter__(self) -> Iterator[int]:
        """Run the body of a ``for`` warmup + steps times, each a step.

        Raises:
            ValueError: the number of steps was not given.
        """
        if self._wanted is None:
            raise ValueError("for step in p: say how many, memprof.track(steps=3)")
        for number in range(self._warmup + self._wanted):
            yield number
            self.step()

    def step(self) -> None:
        """Say that a step is over."""
        self.steps_done += 1
        if self._profile is not None:
            settle()
            self._profile.step()

    def _finish(self, recording: Recording, root: Any, top: int) -> None:
        from memprof.integrations.measure import Measure

        self._top = top
        self._found = Measure(
            recording, warmup=self._warmup, device=self._device, root=root
        )

    @property
    def _measure(self) -> Measure:
        if self._found is None:
            raise RuntimeError(
                "memprof.track(): there are figures only after the with statement"
            )
        return self._found

    # -- figures -------------------------------------------------------------------

    @property
    def recording(self) -> Recording:
        """The recording; ``memprof.Recording`` has all that can be asked."""
        return self._measure.recording

    @property
    def device(self) -> str:
        """Whose memory the figures are."""
        return "" if self.off else self._measure.device

    @property
    def figures(self) -> dict[str, int]:
        """All figures that were measured, by metric."""
        return {} if self.off else self._measure.figures()

    @property
    def peak(self) -> int:
        """Bytes by which the level rose above that at the start."""
        return 0 if self.off else self._measure.peak

    @property
    def reserved(self) -> int | None:
        """The most that torch had taken from the driver; None: of the CPU."""
        return 0 if self.off else self._measure.reserved

    @property
    def growth(self) -> int | None:
        """Bytes a step that are left over; None: fewer than two steps."""
        return 0 if self.off else self._measure.growth

    @property
    def count(self) -> int:
        """Blocks that were born in the last step."""
        return 0 if self.off else self._measure.count

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to a file; see ``Recording.save``."""
        if not self.off:
            self.recording.save(path)

    def __repr__(self) -> str:
        """Say the peak, if it is known."""
        if self.off:
            return "<memprof part of a test: not measured (--memprof-off)>"
        if self._found is None:
            return "<memprof part of a test: running>"
        from memprof.reports.units import size_text

        return f"<memprof part of a test: peak {size_text(self.peak)} on {self.device}>"

    # -- limits --------------------------------------------------------------------

    def assert_peak_below(self, limit: str | int) -> None:
        """Fail the test if the peak is not below LIMIT; says what it is made of.

        Args:
            limit: ``"1 GiB"`` or bytes.

        Raises:
            AssertionError: it is not.
            ValueError: LIMIT is no size.
        """
        __tracebackhide__ = True
        most = size(limit, "assert_peak_below()")
        if not self.off and self.peak >= most:
            self._fail("peak", self.peak, most)

    def assert_growth_below(self, limit: str | int) -> None:
        """Fail the test if growth is not below LIMIT; says who leaves it over.

        Args:
            limit: ``"64 KiB/step"`` or bytes a step.

        Raises:
            AssertionError: it is not, or there were fewer than two steps.
            ValueError: LIMIT is no size.
        """
        __tracebackhide__ = True
        most = per_step(limit, "assert_growth_below()")
        if self.off:
            return
        if self.growth is None:
            raise MemoryLimitExceeded(
                "memprof: growth needs two steps: for step in p, or p.step()"
            )
        if self.growth >= most:
            self._fail("growth", self.growth, most)

    def _fail(self, metric: str, value: int, most: int) -> None:
        __tracebackhide__ = True
        from memprof.integrations.verdict import over_limit
        from memprof.reports.units import told

        finding = over_limit(metric, value, most, self._measure, self._top)
        lines = [f"memprof: {finding.headline}", *finding.lines]
        raise MemoryLimitExceeded(told("\n".join(lines)))
