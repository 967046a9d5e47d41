"""The exceptions that memprof raises on its own account.

``OSError``, ``ValueError``, ``TypeError`` and ``IndexError`` keep their usual
meaning; what only memprof can get wrong is a ``MemprofError``.
"""

from memprof._core import Error as MemprofError
from memprof._core import ShimError

__all__ = ["MemprofError", "ShimError"]
