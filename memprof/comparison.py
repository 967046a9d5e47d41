"""``memprof.compare``: what is different between two recordings' memory.

Two moments, the peaks unless said otherwise, set against each other as multisets
of blocks; see ``memprof.differences``. The rows sum to the difference to the byte.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from memprof.devices import device_name
from memprof.differences import Account, cut, differences, split_shape
from memprof.metrics import METRICS, metric
from memprof.moment import KEYS, Moment
from memprof.options import check_whole
from memprof.rows import CPU, Rows

if TYPE_CHECKING:
    from memprof.recording import Recording
    from memprof.results import Results

    Source: TypeAlias = str | os.PathLike[str] | Recording | Results

SCHEMA = 1
BY = ("category", "module", "op", "line", "shape", "dtype")
"""What blocks are told apart by."""

COMPARE_KEYS = (*(key for key in KEYS if key != "stack"), "dtype")
"""What ``by`` may hold: the keys of ``Moment.rows`` and ``dtype``."""


class Comparison:
    """What is alive at one moment of A and at one of B, and how they differ.

    ``str()`` is a table, ``to_dict()`` the same as data, ``to_numpy()`` its rows as
    an array, and a notebook shows a table.

    Attributes:
        a: the moment of the first recording.
        b: that of the second.
        at: which moments: ``"peak"``, ``"end"``, ``"step:3"``.
        rows: what differs, largest first; their ``delta`` sum to ``delta``.
        keys: what blocks are told apart by. Without ``shape`` and ``dtype`` where one
            of the recordings has none.
        unchanged: bytes that are the same in both; with the rows' ``before`` they sum
            to ``before``, with their ``after`` to ``after``.
        metrics: name -> (of A, of B); None: it was not measured.
    """

    def __init__(
        self,
        a: Moment,
        b: Moment,
        *,
        at: str = "peak",
        by: Sequence[str] = BY,
        limit: int | None = None,
        fold: bool = True,
        names: tuple[str, str] = ("", ""),
    ) -> None:
        """Compare two moments; ``memprof.compare`` does it for you."""
        self.a, self.b, self.at, self.names = a, b, at, names
        keys = compare_keys(by)
        self.shapes = with_shapes(a._recording) and with_shapes(b._recording)
        if not self.shapes:
            keys = [key for key in keys if key not in ("shape", "dtype")]
        if not keys:
            raise ValueError(
                "shapes were not recorded in both: pass record_shapes=True to profile, "
                "or compare by something else"
            )
        self.keys = tuple(keys)
        inner = (
            (*keys, "function") if "line" in keys and "function" not in keys else keys
        )
        rows, self.unchanged = differences(
            inner, account(a, inner), account(b, inner), fold=fold
        )
        self.rows_total = len(rows)
        self.rows = cut(rows, limit, self.keys)

    @property
    def before(self) -> int:
        """Bytes at the moment of A."""
        return self.a.requested

    @property
    def after(self) -> int:
        """Bytes at the moment of B."""
        return self.b.requested

    @property
    def delta(self) -> int:
        """How many bytes more there are in B."""
        return self.after - self.before

    @property
    def metrics(self) -> dict[str, tuple[int | None, int | None]]:
        """What gates look at; see ``memprof.metrics``."""
        return {
            name: (
                metric(self.a._recording, name, self.a.device),
                metric(self.b._recording, name, self.b.device),
            )
            for name in METRICS
        }

    def to_dict(self) -> dict[str, Any]:
        """Return it all, ready for JSON; sizes in bytes."""
        return {
            "schema": SCHEMA,
            "at": self.at,
            "a": _side(self.a, self.names[0]),
            "b": _side(self.b, self.names[1]),
            "before_bytes": self.before,
            "after_bytes": self.after,
            "delta_bytes": self.delta,
            "unchanged_bytes": self.unchanged,
            "keys": list(self.keys),
            "rows": self.rows,
            "rows_total": self.rows_total,
            "metrics": {name: list(pair) for name, pair in self.metrics.items()},
        }

    def to_numpy(self) -> Rows:
        """Return the rows as a structured array, a field a value."""
        numbers = ("delta", "before", "after", "before_count", "after_count", "modules")
        texts = [*self.keys, "change"]
        fields: list[Any] = [(name, "<i8") for name in numbers]
        for name in texts:
            longest = max((len(str(row[name])) for row in self.rows), default=0)
            fields.append((name, f"<U{max(longest, 1)}"))
        return np.array(
            [
                tuple([row[n] for n in numbers] + [str(row[n]) for n in texts])
                for row in self.rows
            ],
            np.dtype(fields),
        )

    def text(self, *, exact: bool = False) -> str:
        """Return the table, plain.

        Args:
            exact: bytes instead of KiB, MiB and GiB.
        """
        from memprof.reports.diff import text

        return text(self, exact=exact)

    def to_html(self) -> str:
        """Return an HTML fragment: static, no script, no style sheet."""
        from memprof.reports.diff import html_fragment

        return html_fragment(self)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return (
            f"<memprof.Comparison: {self.delta:+d} bytes at the {self.at} of "
            f"{self.b.device}, {self.rows_total} rows>"
        )

    def _repr_html_(self) -> str:
        return self.to_html()


def compare(
    a: Source,
    b: Source,
    *,
    device: object = None,
    at: str | int = "peak",
    by: str | Sequence[str] = BY,
    limit: int | None = None,
    fold: bool = True,
    names: tuple[str, str] | None = None,
) -> Comparison:
    """Say what is different between the memory of two runs.

    Blocks are told apart by what made them, never by address. A line that moved with
    its function is the same line, and a tensor whose type or shape changed is one
    row (``f16>f32``) where both recordings have shapes.

    Args:
        a: before: a file, a ``Recording`` or a profile.
        b: after.
        device: of which device; None: the GPU in use, else the CPU, of each.
        at: ``"peak"``, ``"end"`` or ``"step:3"`` (or 3): the end of that step.
        by: what blocks are told apart by; ``COMPARE_KEYS``.
        limit: keep that many rows, and make the rest one row ``other``.
        fold: join rows of repeated layers, ``layers.*.attn``.
        names: what the two are called; None: their files' names.

    Returns:
        A ``Comparison``; ``print`` it.

    Raises:
        OSError, memprof.MemprofError: a file cannot be read or is no recording.
        ValueError: there is no such device, step or key; or, without DEVICE, one run
            used a GPU and the other none.
        TypeError: A or B is nothing of the kind.
    """
    check_limit(limit)
    first, second = recording_of(a, "a"), recording_of(b, "b")
    devices = [device_name(recording._device(device)) for recording in (first, second)]
    if (devices[0] == "cpu") != (devices[1] == "cpu"):
        raise ValueError(
            f"a is of {devices[0]} and b of {devices[1]}: say which with "
            "device='cpu' or device='cuda:0'"
        )
    moments = [
        moment_at(recording, at, name)
        for recording, name in zip((first, second), devices, strict=True)
    ]
    return Comparison(
        moments[0],
        moments[1],
        at=at if isinstance(at, str) else f"step:{at}",
        by=by,
        limit=limit,
        fold=fold,
        names=names or (_name(a), _name(b)),
    )


def check_limit(limit: int | None) -> None:
    """Check a number of rows.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is below 0.
    """
    if limit is not None:
        check_whole(limit=limit)
        if limit < 0:
            raise ValueError(f"limit must be 0 or more, not {limit}")


def compare_keys(by: str | Sequence[str]) -> list[str]:
    """Return the keys that BY means.

    Raises:
        ValueError: there is no such key.
    """
    keys = [by] if isinstance(by, str) else list(by)
    for key in keys:
        if key not in COMPARE_KEYS:
            raise ValueError(
                f"cannot compare by {key!r}; choose {', '.join(COMPARE_KEYS)}"
            )
    if not keys:
        raise ValueError(f"cannot compare by nothing; choose {', '.join(COMPARE_KEYS)}")
    return list(dict.fromkeys(keys))


def recording_of(source: Any, what: str) -> Recording:
    """Return the recording that a file, a recording or a profile is.

    Raises:
        OSError, memprof.MemprofError: the file cannot be read or is none.
        TypeError: SOURCE is nothing of the kind.
    """
    from memprof.recording import Recording, load

    if isinstance(source, Recording):
        return source
    if isinstance(source, (str, os.PathLike)):
        return load(source)
    found = getattr(source, "recording", None)
    if isinstance(found, Recording):
        return found
    raise TypeError(
        f"{what} is {type(source).__name__}: compare() takes a file, a Recording or a "
        "profile"
    )


def moment_at(recording: Recording, at: str | int, device: str) -> Moment:
    """Return the moment that ``at`` means.

    Raises:
        ValueError: it means none; or there is no such step.
    """
    if at == "peak":
        return recording.peak(device)
    if at == "end":
        last = int(recording._core.events_count) - 1
        return recording.at(event=last, device=device)
    word, colon, number = str(at).rpartition(":")
    if number.isdecimal() and (word, colon) in (("step", ":"), ("", "")):
        return recording.at(step=int(number), device=device)
    raise ValueError(f"at={at!r}: choose 'peak', 'end' or 'step:3'")


def with_shapes(recording: Recording) -> bool:
    """Whether the profile recorded shapes."""
    return bool(recording._written_info().get("record_shapes"))


def account(moment: Moment, keys: Sequence[str]) -> Account:
    """Return what is alive at a moment, by KEYS."""
    asked = [key for key in keys if key not in ("shape", "dtype")]
    shaped = len(asked) < len(keys)
    held: dict[tuple[str, ...], tuple[int, int]] = {}
    for row in moment.rows((*asked, "shape") if shaped else asked):
        if shaped:
            row["shape"], row["dtype"] = split_shape(row["shape"])
        key = tuple(str(row[name]) for name in keys)
        size, count = held.get(key, (0, 0))
        held[key] = size + row["bytes"], count + row["count"]
    return held


def _side(moment: Moment, name: str) -> dict[str, Any]:
    info = moment._recording.info
    return {
        "name": name,
        "device": moment.device,
        "requested_bytes": moment.requested,
        "reserved_bytes": moment.reserved if moment._number != CPU else None,
        "event": moment.event,
        "step": moment.step,
        "phase": moment.phase,
        "module": moment.module,
        "op": moment.op,
        "torch": info.get("torch"),
        "dropped": info["dropped"],
        "finished": info["finished"],
    }


def _name(source: object) -> str:
    if isinstance(source, (str, os.PathLike)):
        return os.path.basename(os.fspath(source))
    return ""
