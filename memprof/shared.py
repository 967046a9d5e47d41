"""What recordings and profiles share: methods that ask a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memprof.recording import Recording


class Shared:
    """The base of such methods; a class of them is a subject, in a file of its own."""

    def _exported(self) -> Recording:
        """Return the recording that answers: this one, or the profile's."""
        raise NotImplementedError
