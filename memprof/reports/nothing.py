"""The page of a device of which nothing is known: valid, and says so."""

from __future__ import annotations

import html

from memprof._version import __version__


def page() -> str:
    """Return the page that stands where a report would."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<title>Memory of no device</title>\n</head>\n<body>\n"
        "<h1>Memory of no device</h1>\n<p>Nothing was recorded of this device.</p>\n"
        f"<p><small>memprof {html.escape(__version__)}</small></p>\n</body>\n</html>\n"
    )
