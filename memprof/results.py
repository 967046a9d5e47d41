"""The questions that a recording answers, asked of a profile."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from memprof.absent import without
from memprof.driver_facts import DriverFacts
from memprof.export import Exports
from memprof.labelled import Labelled
from memprof.module_facts import ModuleFacts
from memprof.outputs import Outputs
from memprof.pages import Pages
from memprof.texts import Texts

if TYPE_CHECKING:
    from memprof import _core
    from memprof.averages import OperatorAverages
    from memprof.labels import Rule
    from memprof.moment import Moment
    from memprof.recording import Recording, Rows, Timeline
    from memprof.reports.text import Summary


class Results(Texts, DriverFacts, ModuleFacts, Labelled, Pages, Exports, Outputs):
    """Every method of ``Recording``, answered by ``self.recording``.

    While a window is open the answer is about what it holds so far; after it,
    about the last window. Each method raises ``MemprofError`` before anything
    was recorded, and otherwise what the method of ``Recording`` raises.
    """

    @property
    def recording(self) -> Recording:
        """The recording of the open window so far, else of the last one."""
        raise NotImplementedError

    def _exported(self) -> Recording:
        return self.recording

    @property
    def _core(self) -> _core.Recording:  # type: ignore[override]
        return self.recording._core

    @property
    def info(self) -> dict[str, Any]:
        """See ``Recording.info``."""
        return self.recording.info

    @property
    def devices(self) -> list[str]:
        """See ``Recording.devices``."""
        return self.recording.devices

    @property
    def steps(self) -> Rows:
        """See ``Recording.steps``."""
        return self.recording.steps

    @property
    def phases(self) -> Rows:
        """See ``Recording.phases``."""
        return self.recording.phases

    def peak(
        self,
        device: object = None,
        *,
        of: str = "requested",
        step: int | None = None,
        phase: str | None = None,
        category: str | None = None,
        label: str | None = None,
    ) -> Moment:
        """See ``Recording.peak``."""
        return self.recording.peak(
            device, of=of, step=step, phase=phase, category=category, label=label
        )

    def at(
        self,
        *,
        time_ns: int | None = None,
        event: int | None = None,
        step: int | None = None,
        device: object = None,
    ) -> Moment:
        """See ``Recording.at``."""
        return self.recording.at(time_ns=time_ns, event=event, step=step, device=device)

    def allocations(self, device: object = None) -> Rows:
        """See ``Recording.allocations``."""
        return self.recording.allocations(device)

    def events(self, device: object = None) -> Rows:
        """See ``Recording.events``."""
        return self.recording.events(device)

    def step_stats(self, device: object = None) -> Rows:
        """See ``Recording.step_stats``."""
        return self.recording.step_stats(device)

    def timeline(self, device: object = None, by: str = "category") -> Timeline:
        """See ``Recording.timeline``."""
        return self.recording.timeline(device, by)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """See ``Recording.rules``."""
        return self.recording.rules

    def summary(self, device: object = None, *, limit: int = 12) -> Summary:
        """See ``Recording.summary``."""
        return self.recording.summary(device, limit=limit)

    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
        include_python_functions: bool = False,
        *,
        device: object = None,
    ) -> OperatorAverages:
        """See ``Recording.key_averages``."""
        return self.recording.key_averages(
            group_by_input_shape,
            group_by_stack_n,
            group_by_overload_name,
            include_python_functions,
            device=device,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """See ``Recording.save``."""
        self.recording.save(path)

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> dict[str, Any]:
        """Show a notebook the summary; before anything is recorded, the text."""
        from memprof.errors import MemprofError
        from memprof.integrations.jupyter import bundle

        try:
            return bundle(self, self.recording)
        except MemprofError:
            return {"text/plain": repr(self)}

    def __getattr__(self, name: str) -> Any:
        """Say what takes the place of an attribute that only torch has.

        Raises:
            AttributeError: always.
        """
        return without(self, name)
