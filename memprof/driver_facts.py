"""What is known of the driver's memory and of GPUs' work: methods of recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memprof import driver_rows
from memprof.rows import Rows
from memprof.shared import Shared

if TYPE_CHECKING:
    from memprof.books import Books
    from memprof.outside import Outside


class DriverFacts(Shared):
    """The methods of a recording, and of a profile, that ask beyond torch's memory."""

    def driver_allocations(self, device: object = None) -> Rows:
        """Return one row a thing taken from the driver, ``DRIVER_DTYPE``, read-only.

        Whoever took it: torch's own segments are among them (``is_torch``), so
        what others hold are the rows without that mark.  ``group`` is an index
        into ``memprof.recording.DRIVER_GROUPS``, ``owner`` the library that asked
        (``rec.owner(i)``; none: unknown).  Empty without the ledger (``info``'s
        source ``driver``); what was taken before it began is in no row.

        Args:
            device: only what is of that device (``"cpu"``: pinned host memory);
                None: everything, with device -2 where it is not known.

        Raises:
            ValueError: not a device.
        """
        return driver_rows.driver_lives(self._exported()._core, device)

    def driver_accounts(self, event: int | None = None, device: object = None) -> Rows:
        """Return who holds what of the driver, ``DRIVER_ACCOUNT_DTYPE``.

        A row for each device, group, owner and whether it is torch's: ``bytes``
        and ``count`` after EVENT, ``peak``, ``total`` and ``taken`` up to it.

        Args:
            event: None: at the end; -1: when the recording began.
            device: as for ``driver_allocations``.

        Raises:
            ValueError: there is no such event, or DEVICE is none.
        """
        return driver_rows.driver_accounts(self._exported()._core, event, device)

    def driver_gaps(self) -> Rows:
        """Return the stretches without the ledger, ``DRIVER_GAP_DTYPE``.

        ``reason`` is a string id (``rec.op(i)``).
        """
        return driver_rows.driver_gaps(self._exported()._core)

    def kernels(self, device: object = None) -> Rows:
        """Return what ran on GPUs, ``KERNEL_DTYPE``: one row a piece, by start.

        Kernels, copies and sets, recorded by ``memprof.profile(with_kernels=True)``;
        ``kind`` is an index into ``memprof.recording.GPU_KINDS``. ``name``, and ``op``,
        ``module`` and ``stack`` of the launch, are ids as of allocations
        (``rec.op(i)``).
        Empty otherwise: ``info["sources"]`` says why, ``info["kernels_lost"]`` what is
        missing.

        Args:
            device: only what ran on that GPU; None: everything.

        Raises:
            ValueError: not a device.
        """
        from memprof.kernels import kernels

        return kernels(self._exported(), device)

    def books(self, device: object = None, at: object = "peak") -> Books:
        """Say what every byte is that the process holds of a GPU, by library.

        At the sample of the process total that is nearest to the moment: torch's
        requested and other reserved bytes, what each library holds, the driver's
        rounding, memprof's own, the context, images, and what nothing explains.
        ``rows`` sum to ``total`` to the byte. ``level`` says what could be had, and
        ``why`` no more; see ``memprof.books``.

        Args:
            device: an int, ``"cuda:0"`` or a ``torch.device``; None: the GPU in use.
            at: ``"peak"`` (of the requested bytes), ``"end"``, the number of a step or
                ``"step:3"`` (its end), or a ``Moment`` (``at(time_ns=...)``).

        Raises:
            ValueError: not a GPU of the recording, or no such moment.
        """
        from memprof.books import Books

        return Books(self._exported(), device, at)

    def outside(self, device: object = None) -> Outside:
        """Return the same over time: the parts at every sample, as arrays.

        Args:
            device: as for ``books``.

        Raises:
            ValueError: not a GPU of the recording.
        """
        from memprof.outside import outside

        return outside(self._exported(), device)

    def totals(self, device: object = None) -> Rows:
        """Return what the driver said, ``TOTAL_DTYPE``: one row a sample.

        How many bytes this process holds on the device (``process_bytes``) and all
        do (``device_used_bytes``), measured at the beginning and the end, at steps,
        soon after torch took more than ever from the driver, and twice a second;
        see ``memprof.totals``. Of the CPU: what the operating system says.

        ``method`` and ``device_method`` say how a number was had, ``why`` why not: -1
        is not measured. They index ``TOTAL_METHODS`` and ``TOTAL_WHYS``. No rows:
        nothing was; ``info["sources"]`` says why.

        Args:
            device: whose; ``"all"``: every device's. Devices that torch did not use,
                but something else in the process, are there too.
        """
        from memprof.totals import totals

        return totals(self._exported(), device)
