"""The table of modules: what each keeps after forward, and what it needs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memprof.devices import device_name
from memprof.reports.units import size_text, text_of

if TYPE_CHECKING:
    from memprof.recording import Recording

SCHEMA = 1
_COLUMNS = (
    ("retained", "retained_bytes"),
    ("transient", "transient_bytes"),
    ("born fwd", "forward_bytes"),
    ("peak bwd", "backward_peak_bytes"),
    ("born bwd", "backward_bytes"),
    ("parameters", "parameter_bytes"),
    ("gradients", "gradient_bytes"),
    ("optimizer", "optimizer_state_bytes"),
)


class ModuleTable:
    """``Recording.module_stats`` for reading: ``str()`` is the table."""

    def __init__(
        self,
        recording: Recording,
        device: object = None,
        step: int | None = None,
        *,
        depth: int | None = None,
    ) -> None:
        """Ask RECORDING; see ``Recording.module_table``."""
        rows = recording.module_stats(device, step)
        if depth is not None:
            rows = rows[rows["depth"] <= depth]
        self._facts: dict[str, Any] = {
            "schema": SCHEMA,
            "device": device_name(recording._device(device)),
            "step": step,
            "rows": [
                dict(zip(rows.dtype.names or (), row, strict=True))
                for row in rows.tolist()
            ],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return ``rows``, dicts with the fields of ``MODULE_DTYPE``, for JSON."""
        return self._facts

    def text(self, *, exact: bool = False) -> str:
        """Return the table, plain.

        Args:
            exact: bytes instead of KiB, MiB and GiB.
        """
        rows = self._facts["rows"]
        if not rows:
            return "no modules were recorded\n"
        names = [
            "  " * row["depth"] + (row["name"] or "(a model without a name)")
            for row in rows
        ]
        wide = max(len("module"), *map(len, names))
        cells = [[title for title, _ in _COLUMNS]]
        for row in rows:
            sizes = [row[field] for _, field in _COLUMNS]
            cells.append(
                [str(n) if exact else size_text(n) if n else "0" for n in sizes]
            )
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            name.ljust(wide)
            + "".join(
                f"  {cell.rjust(size)}" for cell, size in zip(line, widths, strict=True)
            )
            for name, line in zip(["module", *names], cells, strict=True)
        ]
        return text_of(lines)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        rows, device = self._facts["rows"], self._facts["device"]
        return f"<memprof.ModuleTable: {len(rows)} modules on {device}>"
