"""The report as a widget of a notebook, by ``anywidget``.

The same page as everywhere, in a frame; its data reaches it as bytes beside the
notebook's text instead of as base64 in it, so that the notebook's file stays small
and no report is too large.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING, Any

from memprof.integrations.jupyter import Shown, checked_height
from memprof.warn import warn

if TYPE_CHECKING:
    from memprof.recording import Recording

SHORT = "<memprof report: a notebook shows it>"


def widget(recording: Recording, device: object, height: int) -> Any:
    """Make the widget; without anywidget warn and return what ``show()`` does.

    Raises:
        MemprofError: the recording is too large for a page.
        ValueError: no such device, or HEIGHT is no height.
    """
    if importlib.util.find_spec("anywidget") is None:
        warn("widget() needs anywidget (pip install anywidget); this is show() instead")
        return Shown(recording, device, height)
    from memprof.reports.html import frame

    height = checked_height(height)
    page, blocks = frame(recording, device)
    return _kind()(
        table=recording.summary(device)._repr_html_(),
        page=page,
        blocks=blocks,
        height=height,
    )


@functools.cache
def _kind() -> Any:
    """Return the widget's class; made when first wanted, as its base is optional."""
    import anywidget
    import traitlets

    from memprof.reports.html import APP

    class Report(anywidget.AnyWidget):  # type: ignore[misc]
        """The page, its blocks (gzip, by name) and the frame's height in pixels."""

        _esm = (APP / "widget.js").read_text("utf-8")
        page = traitlets.Unicode().tag(sync=True)
        blocks = traitlets.Dict().tag(sync=True)
        height = traitlets.Int().tag(sync=True)

        def __init__(self, table: str, **traits: Any) -> None:
            super().__init__(**traits)
            self._table = table

        def __repr__(self) -> str:
            return SHORT

        def _repr_html_(self) -> str:
            # What is left of a closed widget: its bundle is None then.
            return self._table

        def _repr_mimebundle_(self, **kwargs: Any) -> Any:
            """The widget, and the static table for whoever shows no widgets."""
            shown = super()._repr_mimebundle_(**kwargs)
            data, *others = shown if isinstance(shown, tuple) else (shown,)
            data = {
                **(data or {}),
                "text/plain": SHORT,
                "text/html": self._table,
            }
            return (data, *others) if others else data

    return Report
