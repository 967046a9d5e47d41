"""Files for other tools: the methods of recordings and profiles that write them.

Every file is whole or not there, and may be written any number of times, in any
order, from inside of a handler or later. What a file holds is the core's business
(``csrc/export_*.c``).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memprof.shared import Shared

if TYPE_CHECKING:
    pass

Path = str | os.PathLike[str]


class Exports(Shared):
    """The methods of a recording, and of a profile, that write files."""

    def export_memory_timeline(self, path: Path, device: object = None) -> None:
        """Write the bytes of each category over time, as torch.profiler does.

        The end of the name says what is written: ``.html``: the report;
        ``raw.json.gz``: each event, ``[ns, action, bytes, category]``; other
        ``.gz``: ``[times, sizes]``, compressed; all else: the same, not
        compressed. Times are since 1970, in microseconds but for ``raw``.

        Args:
            path: The file; one that is there is replaced.
            device: See ``Recording``. One that was not recorded gives an empty
                file and a warning.

        Raises:
            OSError: The file cannot be written.
        """
        from memprof.memory_timeline import export_memory_timeline

        export_memory_timeline(self._exported(), path, device)

    def export_snapshot(self, path: Path, *, force: bool = False) -> None:
        """Write PATH for torch's MemoryViz page (pytorch.org/memory_viz).

        Also for ``torch/cuda/_memory_viz.py`` and ``memprof.load``. The CPU, if
        recorded, is the device behind the last GPU.

        Args:
            path: the file, whole or not at all; ``.pickle``.
            force: write it even if it has more than 1 GB, which browsers do not
                open; from 200 MB on there is a warning.

        Raises:
            OSError: the file cannot be written; names the path.
            MemprofError: it would be too large; or PATH is no regular file, or a
                running profile streams to it.
        """
        from memprof.snapshots import export

        recording = self._exported()
        export(recording._core, path, recording._info_text(), force=force)

    def export_chrome_trace(
        self,
        path: Path,
        use_python_export: bool = False,
        *,
        merge: Path | None = None,
        full: bool = False,
        stacked: bool = False,
        force: bool = False,
    ) -> None:
        """Write a trace for Perfetto, chrome://tracing, TensorBoard and HTA.

        Args:
            path: The file; ``.gz`` at its end compresses it.
            use_python_export: Accepted, as in torch.
            merge: A trace that torch.profiler wrote of the same run: our events
                are added to its own, which stay as they are.
            full: All allocations and frees as ``[memory]`` events, not only the
                20,000 largest.
            stacked: One counter more, of all categories on top of each other.
            force: Write files above 1 GiB, too.

        Raises:
            OSError: A file cannot be read or written.
            MemprofError: ``merge`` is no trace, or the file would be larger than
                1 GiB, before it is compressed, without ``force``.
        """
        from memprof.chrome_trace import export_chrome_trace

        export_chrome_trace(
            self._exported(),
            path,
            merge=merge,
            full=full,
            stacked=stacked,
            force=force,
        )


def target(path: Path) -> str:
    """Return the file to write for PATH.

    Raises:
        OSError: It cannot be one.
        MemprofError: It is no regular file, or a running profile streams to it.
    """
    from memprof import files

    files.check_folder(path)
    return files.save_target(path)


def tensorboard_trace_handler(
    dir_name: Path,
    worker_name: str | None = None,
    use_gzip: bool = False,
    use_python_export: bool = False,
) -> Callable[[Any], None]:
    """Make an ``on_trace_ready`` that writes each window as a trace into a folder.

    Args:
        dir_name: The folder, made if need be; TensorBoard's ``--logdir``.
        worker_name: Begins the name of the file; None: host and process, those
            at the time of the call.
        use_gzip: Compress.
        use_python_export: Accepted, as in torch.
    """

    def handler(prof: Any) -> None:
        try:
            os.makedirs(dir_name, exist_ok=True)
        except OSError as problem:
            raise RuntimeError(f"Can't create directory: {dir_name}") from problem
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        suffix = ".gz" if use_gzip else ""
        # Nanoseconds: two windows never have the same name.
        name = f"{worker}.{time.time_ns()}.pt.trace.json{suffix}"
        prof.export_chrome_trace(os.path.join(dir_name, name))

    return handler
