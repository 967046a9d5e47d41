"""Names of the user's for blocks: the methods of recordings that give and read them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from memprof.devices import device_name
from memprof.shared import Shared

if TYPE_CHECKING:
    from memprof.recording import Recording


class Labelled(Shared):
    """The methods of a recording, and of a profile, about labels.

    What a label is, and which block has which, is ``memprof.labels``' business.
    """

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
        """Return the same recording with one more rule that names blocks.

        It shares the data with this one, which stays as it is.  The patterns are
        regular expressions, found anywhere in a text (``re.search``); if several
        are given, a block must match all.  The first rule that matches names the
        block.

        Args:
            label: the name; several rules may give the same.
            module: in the module of ``Moment.rows``: where the block was born;
                for backward what caused it; else its owner's.
            op: in the name of its op.
            stack: in ``"function file:line"`` of any frame of its stack, or of
                the stack of the forward that caused it.
            region: in its innermost ``record_function`` region.
            device: blocks of that device only; None: of all.

        Raises:
            TypeError: a label or pattern is no text.
            ValueError: the label is empty, there is no pattern, or one is no
                regular expression; or there is no such device.
        """
        from memprof.labels import rule

        recording = self._exported()
        where = None if device is None else device_name(recording._device(device))
        made = rule(label, where, module=module, op=op, stack=stack, region=region)
        other = copy.copy(recording)
        other._rules, other._labelled = (*recording.rules, made), None
        return other

    def labels(self, device: object = None) -> NDArray[np.int32]:
        """Return the label of each row of ``allocations(device)``.

        Returns:
            int32 [n]: index into ``label_names``; 0: no rule names it.
        """
        recording = self._exported()
        codes = recording._labels().codes
        if isinstance(device, str) and device == "all":
            return codes
        chosen: NDArray[np.int32] = codes[recording.allocations(device)["id"]]
        chosen.flags.writeable = False
        return chosen

    @property
    def label_names(self) -> tuple[str, ...]:
        """What the numbers of ``labels`` mean; the first is ``""``."""
        return self._exported()._labels().names
