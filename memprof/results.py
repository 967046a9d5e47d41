"""The questions that a recording answers, asked of a profile."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from memprof.absent import without
from memprof.export import Exports
from memprof.outputs import Outputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memprof.averages import OperatorAverages
    from memprof.books import Books
    from memprof.labels import Rule
    from memprof.moment import Moment
    from memprof.outside import Outside
    from memprof.recording import Frame, Recording, Rows, Timeline
    from memprof.reports.modules import ModuleTable
    from memprof.reports.text import Summary


class Results(Exports, Outputs):
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

    def driver_allocations(self, device: object = None) -> Rows:
        """See ``Recording.driver_allocations``."""
        return self.recording.driver_allocations(device)

    def driver_accounts(self, event: int | None = None, device: object = None) -> Rows:
        """See ``Recording.driver_accounts``."""
        return self.recording.driver_accounts(event, device)

    def driver_gaps(self) -> Rows:
        """See ``Recording.driver_gaps``."""
        return self.recording.driver_gaps()

    def kernels(self, device: object = None) -> Rows:
        """See ``Recording.kernels``."""
        return self.recording.kernels(device)

    def step_stats(self, device: object = None) -> Rows:
        """See ``Recording.step_stats``."""
        return self.recording.step_stats(device)

    def books(self, device: object = None, at: object = "peak") -> Books:
        """See ``Recording.books``."""
        return self.recording.books(device, at)

    def outside(self, device: object = None) -> Outside:
        """See ``Recording.outside``."""
        return self.recording.outside(device)

    def totals(self, device: object = None) -> Rows:
        """See ``Recording.totals``."""
        return self.recording.totals(device)

    def timeline(self, device: object = None, by: str = "category") -> Timeline:
        """See ``Recording.timeline``."""
        return self.recording.timeline(device, by)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """See ``Recording.rules``."""
        return self.recording.rules

    @property
    def label_names(self) -> tuple[str, ...]:
        """See ``Recording.label_names``."""
        return self.recording.label_names

    def label(
        self,
        label: str,
        *,
        module: str | None = None,
        op: str | None = None,
        stack: str | None = None,
        region: str | None = None,
        device: object = None,
    ) -> Recording:
        """See ``Recording.label``: gives a recording, the profile has no labels."""
        return self.recording.label(
            label, module=module, op=op, stack=stack, region=region, device=device
        )

    def labels(self, device: object = None) -> NDArray[np.int32]:
        """See ``Recording.labels``."""
        return self.recording.labels(device)

    def module_stats(self, device: object = None, step: int | None = None) -> Rows:
        """See ``Recording.module_stats``."""
        return self.recording.module_stats(device, step)

    def module_table(
        self,
        device: object = None,
        step: int | None = None,
        *,
        depth: int | None = None,
    ) -> ModuleTable:
        """See ``Recording.module_table``."""
        return self.recording.module_table(device, step, depth=depth)

    def op(self, index: int) -> str:
        """See ``Recording.op``."""
        return self.recording.op(index)

    def module(self, index: int) -> str:
        """See ``Recording.module``."""
        return self.recording.module(index)

    def owner(self, index: int) -> str:
        """See ``Recording.owner``."""
        return self.recording.owner(index)

    def region(self, index: int) -> str:
        """See ``Recording.region``."""
        return self.recording.region(index)

    def shape(self, index: int) -> str:
        """See ``Recording.shape``."""
        return self.recording.shape(index)

    def kind(self, number: int) -> str:
        """See ``Recording.kind``."""
        return self.recording.kind(number)

    def stack(self, index: int) -> tuple[Frame, ...]:
        """See ``Recording.stack``."""
        return self.recording.stack(index)

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

    def report(
        self,
        path: str | os.PathLike[str],
        device: object = None,
        *,
        paths: str = "relative",
        source: bool = False,
        compress: bool = True,
        compare: Recording | None = None,
    ) -> None:
        """See ``Recording.report``."""
        self.recording.report(
            path,
            device,
            paths=paths,
            source=source,
            compress=compress,
            compare=compare,
        )

    def export_html(self, path: str | os.PathLike[str], device: object = None) -> None:
        """See ``Recording.export_html``."""
        self.recording.export_html(path, device)

    def show(self, device: object = None, *, height: int = 600) -> Any:
        """See ``Recording.show``."""
        return self.recording.show(device, height=height)

    def save(self, path: str | os.PathLike[str]) -> None:
        """See ``Recording.save``."""
        self.recording.save(path)

    def export_snapshot(
        self, path: str | os.PathLike[str], *, force: bool = False
    ) -> None:
        """See ``Recording.export_snapshot``."""
        self.recording.export_snapshot(path, force=force)

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
