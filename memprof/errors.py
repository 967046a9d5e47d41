"""The exceptions that memprof raises on its own account.

``OSError``, ``ValueError``, ``TypeError`` and ``IndexError`` keep their usual
meaning; what only memprof can get wrong is a ``MemprofError``.
"""

from memprof._core import Error as MemprofError
from memprof._core import ShimError
from memprof.reports.units import told

__all__ = ["MemprofError", "ShimError"]


def _text(error: Exception) -> str:
    """Return what a traceback shows: names in it are other people's."""
    return told(Exception.__str__(error))


MemprofError.__str__ = _text  # type: ignore[method-assign,assignment]
