"""The exports that profiles and recordings share: stacks, tables, Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memprof.files import Path
from memprof.shared import Shared

if TYPE_CHECKING:
    from memprof.instants import At


class Outputs(Shared):
    """``export_*`` methods of a recording; a profile asks its recording.

    Each writes PATH whole or not at all, any number of times, in any order.
    Where there is nothing to tell (an empty recording, a device that was not
    recorded) the file is valid and empty and a warning says why.

    ``at`` is the moment: ``"peak"`` of the device, ``"end"``, ``"step=3"`` (its
    end; also the number alone), ``"time=..."`` in ns, or a ``Moment``.
    ``by`` puts one or several keys of ``Moment.rows`` (``"category"``,
    ``"module"``, ``"op"``...) around the stacks, outermost first.

    All raise ``OSError`` if the file cannot be written, and ``ValueError`` for
    an argument that means nothing here.
    """

    def export_speedscope(
        self,
        path: Path,
        *,
        device: object = None,
        at: At | Sequence[At] = "peak",
        by: str | Sequence[str] | None = None,
    ) -> None:
        """Write what is alive as a flame graph for speedscope.app.

        The weights sum to the bytes requested at the moment.

        Args:
            path: usually ``*.speedscope.json``.
            device: see the class of the recording.
            at: see the class; several give one profile each.
            by: see the class.
        """
        from memprof.stack_files import speedscope

        speedscope(self._exported(), path, device, at, by)

    def export_pprof(
        self,
        path: Path,
        *,
        device: object = None,
        at: At = "peak",
        by: str | Sequence[str] | None = None,
    ) -> None:
        """Write a heap profile for ``pprof``, gzipped.

        ``inuse_space`` and ``inuse_objects``: what is alive at the moment, to
        the byte. ``alloc_space`` and ``alloc_objects``: all that was allocated
        from the beginning of the recording until then.

        Args:
            path: usually ``*.pb.gz``.
            device: see the class of the recording.
            at: see the class.
            by: see the class.
        """
        from memprof.stack_files import pprof

        pprof(self._exported(), path, device, at, by)

    def export_collapsed(
        self,
        path: Path,
        *,
        device: object = None,
        at: At = "peak",
        by: str | Sequence[str] | None = None,
    ) -> None:
        """Write what is alive as lines ``memprof;outer;inner BYTES``.

        What ``flamegraph.pl``, Perfetto and others read. They show no unit, or
        call it samples, so let the file's name speak of bytes. The numbers sum
        to the bytes requested at the moment.

        Args:
            path: usually ``*.collapsedstack.txt``.
            device: see the class of the recording.
            at: see the class.
            by: see the class.
        """
        from memprof.stack_files import collapsed

        collapsed(self._exported(), path, device, at, by)

    def export_stacks(
        self, path: Path, metric: str = "self_alloc_bytes", *, device: object = None
    ) -> None:
        """Write torch.profiler's stacks: ``outer;inner VALUE``, of ops.

        Stacks are those of ``key_averages``; values that are not above 0 are
        left out. What is alive at a moment is in ``export_collapsed``.

        Args:
            path: the file.
            metric: a column of ``key_averages``: ``self_cpu_memory_usage``,
                ``self_cuda_memory_usage``, ``self_alloc_bytes``...
            device: whose ``*_bytes``; see the class of the recording.

        Raises:
            ValueError: there is no such metric; times are none.
        """
        from memprof.stack_files import by_metric

        by_metric(self._exported(), path, metric, device)

    def export_csv(self, path: Path, table: str | None = None) -> None:
        """Write tables as CSV.

        Args:
            path: a file ``*.csv`` for one table; else a folder, made if need be,
                which gets ``<table>.csv`` of each.
            table: ``"allocations"`` (what a file gets without it), ``"events"``,
                ``"steps"`` or ``"stacks"``.
        """
        from memprof.tables import write_csv

        write_csv(self._exported(), path, table)

    def export_parquet(self, path: Path, table: str = "allocations") -> None:
        """Write a table as Parquet; see ``to_arrow``.

        Args:
            path: usually ``*.parquet``.
            table: ``"allocations"``, ``"events"``, ``"steps"`` or ``"stacks"``.

        Raises:
            MemprofError: pyarrow is not installed.
        """
        from memprof.arrow import write_parquet

        write_parquet(self._exported(), path, table)

    def to_arrow(self, table: str = "allocations") -> Any:
        """Return a table as a ``pyarrow.Table``.

        Texts (op, module, category, stack...) are dictionary-encoded, null for
        none; the metadata of each column tells its unit.

        Args:
            table: ``"allocations"``, ``"events"``, ``"steps"`` or ``"stacks"``.

        Raises:
            MemprofError: pyarrow is not installed.
        """
        from memprof.arrow import to_arrow

        return to_arrow(self._exported(), table)

    def export_perfetto(
        self, path: Path, *, device: object = None, full: bool = False
    ) -> None:
        """Write a trace for ui.perfetto.dev (TrackEvent protobufs).

        Per device: counters with bytes as their unit on one shared axis, steps,
        phases, modules, the largest allocations, and allocations with their
        Python stacks weighted by bytes: mark a stretch of that track for a flame
        graph.

        Args:
            path: usually ``*.pftrace``.
            device: only that device; None: all.
            full: write every sample and every allocation; else as many as a
                viewer shows well, peaks always included, and the smaller
                allocations of each step and stack as one.
        """
        from memprof.perfetto import write

        write(self._exported(), path, device, full)
