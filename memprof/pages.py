"""The report, where people read: the methods of recordings that make its page."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from memprof.shared import Shared

if TYPE_CHECKING:
    from memprof.recording import Recording


class Pages(Shared):
    """The methods of a recording, and of a profile, that give the report.

    What is in it is ``memprof.reports``' business.
    """

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
        """Write the report: one HTML file, to be opened without a network.

        Args:
            path: the file; one that is there is replaced.
            device: only that device; None: all, opening on the one in use.
            paths: of source files: ``"relative"`` to packages, without the home
                folder; ``"full"``; ``"hash"``.
            source: put the lines of source that stacks lead to into it.
            compress: False: for browsers that cannot unpack.
            compare: the run before, for the tab Compare.

        Raises:
            OSError: the file cannot be written.
            MemprofError: the recording is too large for a page.
            ValueError: no such device, or PATHS is none of these.
        """
        from memprof.reports.html import write

        write(
            self._exported(),
            path,
            device,
            paths=paths,
            source=source,
            compress=compress,
            compare=compare,
        )

    def export_html(self, path: str | os.PathLike[str], device: object = None) -> None:
        """Write the report as ``report`` does, under the name of the exports."""
        self.report(path, device)

    def show(self, device: object = None, *, height: int = 600) -> Any:
        """Return the report for a notebook, where it is shown in place.

        Args:
            device: see ``report``.
            height: of the frame, in pixels.
        """
        from memprof.integrations.jupyter import Shown

        return Shown(self._exported(), device, height)

    def widget(self, device: object = None, *, height: int = 600) -> Any:
        """Return the report as a notebook's widget: ``show`` of any size.

        The notebook's file holds the table of the peak only: the data goes from the
        kernel to the front end as bytes. Needs the package ``anywidget``; without it
        a warning says so and this is ``show()``.

        Args:
            device: see ``report``.
            height: of the frame, in pixels.

        Raises:
            MemprofError: the recording is too large for a page.
            ValueError: no such device, or HEIGHT is no height.
        """
        from memprof.integrations.widget import widget

        return widget(self._exported(), device, height)
