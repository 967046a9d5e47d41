"""What modules hold: the methods of recordings that say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memprof.rows import Rows
from memprof.shared import Shared
from memprof.spans import find_step

if TYPE_CHECKING:
    from memprof.reports.modules import ModuleTable


class ModuleFacts(Shared):
    """The methods of a recording, and of a profile, about modules."""

    def module_stats(self, device: object = None, step: int | None = None) -> Rows:
        """Return one row a module, ``MODULE_DTYPE`` of ``memprof.modstats``.

        Models in the order in which they first ran, in each its modules in
        execution order (first birth in forward), those around others first.  The
        rows are the same for every device and step.  Library scratch (category
        workspace) is no module's.  A field without ``_self``
        is about the module and all modules inside of it, by name.

        * ``forward_bytes``: all that was born in forward;
        * ``retained_bytes``: born in forward and alive when the forward of its
          model ends: at the end (``retained_event``) at which the model as a
          whole held most, so the rows of a model sum up;
        * ``forward_peak_bytes``: the most that was alive at once, after any of
          its births, of what was born in forward; ``transient_bytes``: how much
          more that is than what is retained;
        * ``backward_bytes``, ``backward_peak_bytes``: the same of what was born
          in backward because of the module, gradients included;
        * ``parameter_bytes`` (buffers included), ``gradient_bytes``,
          ``optimizer_state_bytes``: the most that was alive at once.

        Args:
            device: whose bytes.
            step: births, ends and peaks in that step only; None: in all.

        Raises:
            ValueError: no such device or step.
        """
        from memprof.modstats import Tree, module_stats

        recording = self._exported()
        number = recording._device(device)
        span = (-1, recording._core.events_count)
        if step is not None:
            row = find_step(recording, step)
            span = int(row["begin_event"]), int(row["end_event"])
        if recording._tree is None:
            recording._tree = Tree(recording)
        return module_stats(recording, recording._tree, number, span)

    def module_table(
        self,
        device: object = None,
        step: int | None = None,
        *,
        depth: int | None = None,
    ) -> ModuleTable:
        """Return ``module_stats`` as a table; ``print`` it.

        Args:
            device: see ``module_stats``.
            step: likewise.
            depth: leave out modules inside of more others than that.
        """
        from memprof.reports.modules import ModuleTable

        return ModuleTable(self._exported(), device, step, depth=depth)
