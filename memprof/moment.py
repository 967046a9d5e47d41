"""A moment: what is alive on one device after one event, and whose it is.

Every number comes from the rows of the recording; nothing is replayed here.
Whatever a moment is divided by, the parts sum to ``requested`` to the byte.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from memprof import _core
from memprof.devices import device_name
from memprof.groups import dense_codes, exact_sums
from memprof.models import MODULE_ROLES
from memprof.options import check_whole
from memprof.rows import NO_INDEX, Ints, Rows

if TYPE_CHECKING:
    from memprof.recording import Frame, Recording
    from memprof.totals import TotalAt

BACKWARD = 2  # index into _core.PHASES

KEYS = (
    "category",
    "module",
    "op",
    "line",
    "where",
    "function",
    "file",
    "stack",
    "owner",
    "reason",
    "phase",
    "step",
    "region",
    "thread",
    "stream",
    "forward_module",
    "label",
    "shape",
)
"""What ``Moment.rows`` can divide by."""

OTHER = "other"
"""Every key of the row that stands for the rows cut off; its ``rest`` is True."""

# Files that are none: the import system's, and code that torch.fx generates.
_MADE_UP = ("<frozen ", "<eval_with_key>")

# Through these torch functions a program enters backward: what lies outside of
# them is the line that said .backward(), the same for every block.
_ENTERS_BACKWARD = {"_engine_run_backward", "backward", "grad"}


class Places:
    """Where code stands: the user's frame of each stack, as text.

    The user's frame is the innermost one that lies neither in the folders of
    torch and torchvision nor in memprof; if there is none, the innermost.
    """

    def __init__(self, recording: Recording) -> None:
        """Read the folders from the recording's info (``paths``, ``cwd``)."""
        self._core = recording._core
        info = recording.info
        paths = info.get("paths")
        paths = paths if isinstance(paths, dict) else {}
        here = os.path.dirname(os.path.abspath(__file__))
        library = [paths.get(name) for name in ("torch", "torchvision", "memprof")]
        self._library = tuple(
            os.path.join(folder, "") for folder in [*library, here] if folder
        )
        # A recording made elsewhere may not say: then the usual folders.
        self._guessed = not paths.get("torch")
        self._torch = paths.get("torch")
        roots = [paths.get("cwd"), info.get("cwd"), os.getcwd()]
        self._roots = [os.path.join(root, "") for root in roots if root]
        self._files: dict[int, tuple[str, bool, bool]] = {}
        self._lines: dict[int, tuple[str, str, str, bool]] = {}

    def is_library(self, file: str) -> bool:
        """Return whether FILE is torch's, torchvision's or memprof's."""
        if file.startswith((*self._library, *_MADE_UP)):
            return True
        return self._guessed and any(
            f"-packages/{name}/" in file for name in ("torch", "torchvision", "memprof")
        )

    def shown(self, file: str) -> str:
        """Return FILE relative to where the run was started, or to site-packages.

        The shorter of both: an environment may lie inside of a project.
        """
        found = [file[len(root) :] for root in self._roots if file.startswith(root)]
        for folder in ("/site-packages/", "/dist-packages/"):
            _, inside, rest = file.rpartition(folder)
            if inside:
                found.append(rest)
        return min(found, key=len, default=file)

    def of(self, stack: int) -> tuple[str, str, str, bool]:
        """Describe the user's frame of a stack id.

        Returns:
            ``file:line``, function, file, and whether the frame lies inside
            backward's entry (or there is no such entry): if False, the line only
            says ``.backward()``.
        """
        place = self._lines.get(stack)
        if place is None:
            place = self._lines[stack] = self._find(stack)
        return place

    def _file(self, index: int, file: str) -> tuple[str, bool, bool]:
        known = self._files.get(index)
        if known is None:
            autograd = "/torch/autograd/" in file
            known = (self.shown(file), self.is_library(file), autograd)
            self._files[index] = known
        return known

    def _find(self, stack: int) -> tuple[str, str, str, bool]:
        frames = self._core.stack(stack)
        if not frames:
            return "", "", "", True
        ids = self._core.stack_ids(stack)
        inside = True
        for (function, file, line), (_, index, _) in zip(frames, ids, strict=True):
            shown, library, autograd = self._file(index, file)
            if not library:
                return f"{shown}:{line}", function, shown, inside
            if autograd and function in _ENTERS_BACKWARD:
                inside = False
        function, file, line = frames[0]
        shown = self._file(ids[0][1], file)[0]
        return f"{shown}:{line}", function, shown, inside


def places(recording: Recording) -> Places:
    """Return the recording's places; made once."""
    if recording._places is None:
        recording._places = Places(recording)
    found: Places = recording._places
    return found


class Moment:
    """The state of one device after one event.

    Attributes:
        device: ``"cuda:0"``, ``"cpu"``.
        event: number of the event; -1: when the recording began.
        time_ns: its time, or the time that was asked for.
        step: the step it falls in; None outside of steps.
        phase: ``forward, backward, optimizer`` or ``other``; the run of
            ``Recording.phases`` it falls in.
        requested: bytes the program asked for and has not freed.
        active: the same, counting blocks until their free is completed.
        reserved: bytes torch took from the driver; on the CPU, where torch keeps
            no cache, the same as active.
    """

    def __init__(
        self,
        recording: Recording,
        device: int,
        event: int,
        *,
        step: int | None = None,
        time_ns: int | None = None,
    ) -> None:
        """Look a moment up; ``Recording.at`` and ``.peak`` do it for you."""
        self._recording = recording
        self._number = device
        self.device = device_name(device)
        self.event = event
        self.time_ns = recording._time(event) if time_ns is None else time_ns
        self.step = self._find_step() if step is None else int(step)
        self.phase = self._find_phase()
        samples = recording._sampled(device, 0)
        sample = int(np.searchsorted(samples.event, event, "right")) - 1
        requested, active, reserved = samples.bytes[max(sample, 0)].tolist()
        self.requested: int = requested
        self.active: int = active
        self.reserved: int = reserved
        self._live: Ints | None = None

    def _find_step(self) -> int | None:
        steps = self._recording.steps
        inside = (steps["begin_event"] <= self.event) & (
            self.event <= steps["end_event"]
        )
        found = np.flatnonzero(inside)
        return int(steps["number"][found[-1]]) if found.size else None

    def _find_phase(self) -> str:
        phases = self._recording.phases
        found = int(np.searchsorted(phases["begin_event"], self.event, "right")) - 1
        return str(phases["name"][found]) if found >= 0 else "other"

    @property
    def module(self) -> str:
        """Qualified name of the module the event happened in; ``""``: none.

        For a block born in backward the forward module that caused it.
        """
        found = self._text("module")
        if not found and self.phase == _core.PHASES[BACKWARD]:
            lives = self._recording.allocations("all")
            born = lives[lives["born_event"] == self.event]
            if len(born) and self.event >= 0:
                found = self._recording.op(int(born[0]["forward_module"]))
        return found

    @property
    def op(self) -> str:
        """Name of the op the event happened in; ``""``: none."""
        return self._text("op")

    def _text(self, field: str) -> str:
        events = self._recording.events()
        if not 0 <= self.event < len(events):
            return ""
        return self._recording.op(int(events[self.event][field]))

    def _index(self) -> Ints:
        """Return the rows, int64 [n], of the device's lives that are alive."""
        if self._live is None:
            lives = self._recording.allocations("all")
            alive = lives["born_event"] <= self.event
            died = lives["died_event"]
            alive &= (died < 0) | (died > self.event)
            alive &= lives["device"] == self._number
            self._live = np.flatnonzero(alive).astype(np.int64, copy=False)
        return self._live

    def live(self) -> Rows:
        """Return the rows of ``allocations()`` that are alive, births in order."""
        return self._recording.allocations("all")[self._index()]

    @property
    def categories(self) -> dict[str, int]:
        """Bytes of each category, every name; they sum to ``requested``."""
        lives = self._recording.allocations("all")
        index = self._index()
        sums = exact_sums(
            lives["category"][index].astype(np.int64),
            lives["size"][index],
            len(_core.CATEGORIES),
        )
        return dict(zip(_core.CATEGORIES, sums, strict=True))

    @property
    def labels(self) -> dict[str, int]:
        """Bytes of each label of ``Recording.label``; they sum to ``requested``."""
        lives = self._recording.allocations("all")
        return self._recording._labels().sums(
            self._index(), lives["size"][self._index()]
        )

    def total(self) -> TotalAt:
        """Return what the driver said last before, and first after the moment.

        Returns:
            ``before`` and ``after``, each a ``Total`` or None, how far they are from
            the moment (``age_ns``, ``ahead_ns``), and the ``nearest``.
        """
        from memprof.totals import total_at

        return total_at(self._recording, self._number, self.event, self.time_ns)

    def rows(
        self,
        by: str | Sequence[str] = ("category", "module", "op", "line"),
        limit: int | None = None,
    ) -> list[dict[str, Any]]:
        """Divide what is alive, largest part first.

        Args:
            by: one or several of ``KEYS``.

                * ``line`` is ``file:line`` of the innermost frame that is the
                  user's; ``""`` for a block without a stack.  For a block born
                  in backward it is the line of the forward that caused it,
                  unless the backward itself runs the user's code.
                * ``owner`` is the name of the parameter, buffer, state or
                  argument that the block is; ``""``: none is known.
                * ``where`` is the line, and the owner for a block without one.
                * ``function`` and ``file`` are those of the same frame, and
                  ``stack`` is its whole stack, a tuple of ``Frame``.  Files are
                  relative to the folder where the run was started, or to
                  site-packages; frames keep the path that Python has.
                * ``module`` is where the block was born; for backward the
                  forward module that caused it; else its owner's.  A model's
                  own tensors have the name of its class.
                * ``step`` is the step of birth, -1 if that was before the
                  recording; ``thread`` and ``stream`` are numbers.
                * ``shape`` is the tensor in the block, ``float32[64, 128]``, if
                  the profile had ``record_shapes=True``; else ``""``.
                * ``label`` is that of ``Recording.label``; ``""``: none.
            limit: keep that many rows and put the rest into one more, whose keys
                are all ``"other"``, whose ``rest`` is True (no other row has
                that key) and whose ``rows`` says how many it stands for.

        Returns:
            Dicts with ``bytes``, ``count`` (blocks) and the keys.  The bytes sum
            to ``requested``.

        Raises:
            ValueError: BY has no such key, or LIMIT is below 0.
            TypeError: LIMIT is no whole number.
        """
        return self._divided(self._index(), _checked(by, limit), limit)

    def _divided(
        self, index: Ints, keys: Sequence[str], limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Divide some of what is alive; see ``rows``."""
        columns = _Columns(self._recording, index)
        parts = [columns.part(key) for key in keys]
        return _grouped(columns.field("size"), keys, parts, limit)

    def why(
        self,
        by: str | Sequence[str] = ("category", "module", "op", "line"),
        limit: int | None = None,
    ) -> list[dict[str, Any]]:
        """Say why what is alive is still there, largest part first.

        What the recording knows: the owner of a parameter, buffer, gradient or
        optimizer state; the backward node until which a tensor was saved, and its
        module; or when the program let go of it. Blocks that wait for a stream,
        freed but not completed, are here too. ``memprof.why`` asks the living
        process instead.

        Args:
            by: as of ``rows``.
            limit: as of ``rows``.

        Returns:
            Rows as of ``rows`` with one more key, ``why``. The bytes sum to
            ``active``.

        Raises:
            ValueError: as of ``rows``.
        """
        from memprof.ends import reasons

        keys = _checked(by, limit)
        index = self._active_index()
        columns = _Columns(self._recording, index)
        parts = [columns.part(key) for key in keys]
        known: dict[str, int] = {}
        codes = [known.setdefault(why, len(known)) for why in reasons(self, index)]
        parts.append((np.array(codes, np.int64), list(known)))
        return _grouped(columns.field("size"), (*keys, "why"), parts, limit)

    def _active_index(self) -> Ints:
        """Return the rows, int64 [n], alive or with a free that is not completed."""
        lives = self._recording.allocations("all")
        completed = lives["completed_event"]
        active = lives["born_event"] <= self.event
        active &= (completed < 0) | (completed > self.event)
        active &= lives["device"] == self._number
        return np.flatnonzero(active).astype(np.int64, copy=False)

    def __repr__(self) -> str:
        if self.event < 0:
            when = "before the recording began"
        elif self.step is None:
            when = f"no step, {self.phase}"
        else:
            when = f"step {self.step}, {self.phase}"
        return (
            f"<memprof.Moment: {self.device}, {when}, {self.requested} bytes requested>"
        )


def _checked(by: str | Sequence[str], limit: int | None) -> tuple[str, ...]:
    """Return the keys that BY means.

    Raises:
        ValueError: there is no such key, or LIMIT is below 0.
        TypeError: LIMIT is no whole number.
    """
    keys = (by,) if isinstance(by, str) else tuple(by)
    unknown = [key for key in keys if key not in KEYS]
    if unknown or not keys:
        what = repr(unknown[0]) if unknown else "nothing"
        raise ValueError(f"cannot divide by {what}; choose {', '.join(KEYS)}")
    if limit is not None:
        check_whole(limit=limit)
    if limit is not None and limit < 0:
        raise ValueError(f"limit must be 0 or more, not {limit}")
    return keys


def _grouped(
    size: NDArray[np.uint64],
    keys: Sequence[str],
    parts: Sequence[tuple[Ints, list[Any]]],
    limit: int | None,
) -> list[dict[str, Any]]:
    """Add up SIZE by all PARTS at once; see ``Moment.rows``."""
    group = np.zeros(len(size), np.int64)
    for codes, values in parts:
        group, _ = dense_codes(group * max(len(values), 1) + codes)
    groups = int(group.max()) + 1 if len(group) else 0
    total = exact_sums(group, size, groups)
    count = np.bincount(group, minlength=groups).tolist()
    member = np.zeros(groups, np.int64)
    member[group] = np.arange(len(group))
    wanted = list(range(groups))
    if limit is not None and 0 < limit < groups:
        # Words only for what will be shown, equals of the last included.
        least = sorted(total, reverse=True)[limit - 1]
        wanted = [i for i in wanted if total[i] >= least]
    named = [
        [values[code] for code in codes[member[wanted]].tolist()]
        for codes, values in parts
    ]
    table = [
        {
            "bytes": total[i],
            "count": count[i],
            **dict(zip(keys, words, strict=True)),
        }
        for i, words in zip(wanted, zip(*named, strict=True), strict=True)
    ]
    table.sort(key=lambda row: (-row["bytes"], -row["count"], *_order(row, keys)))
    if limit is None or limit >= groups:
        return table
    return with_rest(table[:limit], keys, sum(total), len(size), groups)


def owner_module(owner: str, own: Mapping[str, str] | None = None) -> str:
    """Return the module part of an owner's name.

    Args:
        owner: as in ``owner`` of an allocation.
        own: the model for the names of its own tensors, which have no module
            part; see ``Models.own``.

    >>> owner_module("exp_avg of layers.0.attn.weight")
    'layers.0.attn'
    >>> owner_module("weight.grad", {"weight": "Linear"})
    'Linear'
    """
    name = owner.rpartition(" of ")[2].removesuffix(".grad")
    if own is not None and name in own:
        return own[name]
    # "Discriminator/weight": a part of a model that is not the first.
    return name.rpartition(".")[0] or name.rpartition("/")[0]


def with_rest(
    table: list[dict[str, Any]], keys: Iterable[str], size: int, count: int, rows: int
) -> list[dict[str, Any]]:
    """Add to TABLE the one row ``other`` that makes it sum up.

    Args:
        table: rows as of ``Moment.rows``.
        keys: their keys.
        size: what all bytes must sum to.
        count: what all blocks must sum to.
        rows: how many rows there were before the cut.
    """
    other: dict[str, Any] = {
        "bytes": size - sum(row["bytes"] for row in table),
        "count": count - sum(row["count"] for row in table),
    }
    other.update(dict.fromkeys(keys, OTHER))
    other["rest"] = True
    other["rows"] = rows - len(table)
    return [*table, other]


def _order(row: dict[str, Any], keys: Sequence[str]) -> list[str]:
    """Return what sorts rows of equal bytes, so that output is stable."""
    return [str(row[key]) for key in keys]


class _Columns:
    """The columns of some rows, each as codes and the values they stand for."""

    def __init__(self, recording: Recording, index: Ints) -> None:
        self._recording = recording
        self._places = places(recording)
        self._lives = recording.allocations("all")
        self._index = index
        self._fields: dict[str, Any] = {}

    def field(self, name: str) -> Any:
        """Return a field of the rows, contiguous."""
        if name not in self._fields:
            self._fields[name] = self._lives[name][self._index]
        return self._fields[name]

    def _ids(self, name: str) -> Ints:
        """Return a field of ids, int64, 0 for none and id + 1 else."""
        ids: Ints = self.field(name).astype(np.int64)
        ids += 1
        ids[ids > NO_INDEX] = 0
        return ids

    def part(self, key: str) -> tuple[Ints, list[Any]]:
        """Return codes int64 [n] of KEY and the value behind each code."""
        if key == "category":
            return self.field(key).astype(np.int64), list(_core.CATEGORIES)
        if key == "reason":
            return self.field(key).astype(np.int64), list(_core.REASONS)
        if key == "phase":
            return self.field(key).astype(np.int64), list(_core.PHASES)
        if key == "label":
            labels = self._recording._labels()
            return labels.codes[self._index].astype(np.int64), list(labels.names)
        if key == "step":
            codes, values = dense_codes(self.field("born_step").astype(np.int64) + 1)
            return codes, [value - 1 for value in values.tolist()]
        if key in ("thread", "stream"):
            numbers, inverse = np.unique(self.field(key), return_inverse=True)
            return inverse.reshape(-1).astype(np.int64), numbers.tolist()
        if key in ("op", "owner", "region", "forward_module", "shape"):
            return self._named(self._ids(key), self._text)
        if key == "module":
            return self._named(*self._modules())
        return self._where(key)

    def _text(self, code: int) -> str:
        return self._recording.op(code - 1) if code else ""

    @staticmethod
    def _named(codes: Ints, name: Callable[[int], Any]) -> tuple[Ints, list[Any]]:
        """Turn ids into codes of their texts: equal texts are one value."""
        dense, values = dense_codes(codes)
        known: dict[Any, int] = {}
        number = [
            known.setdefault(name(value), len(known)) for value in values.tolist()
        ]
        return np.array(number, np.int64)[dense], list(known)

    def _modules(self) -> tuple[Ints, Callable[[int], str]]:
        """Return the module's id, else the forward module's, else the owner's."""
        module = self._ids("module")
        module = np.where(module > 0, module, self._ids("forward_module"))
        owner = self._ids("owner")
        owned = np.isin(self.field("role"), MODULE_ROLES)
        texts = self._core_strings()
        codes = np.where(
            module > 0, module, np.where(owned & (owner > 0), owner + texts, 0)
        )

        def name(code: int) -> str:
            if code <= texts:
                return self._text(code)
            own = self._recording._known_models().own
            return owner_module(self._text(code - texts), own)

        return codes, name

    def _core_strings(self) -> int:
        return self._recording._core.strings()

    def stacks(self) -> Ints:
        """Return the stack that says most of each row, id + 1; 0: none.

        Of a block born in backward it is that of the forward that caused it,
        unless its own says more than ``.backward()``.
        """
        stack, forward = self._ids("stack"), self._ids("forward_stack")
        caused = forward > 0
        use_forward = caused & (stack == 0)
        asked = np.flatnonzero(caused & (stack > 0) & (self.field("phase") == BACKWARD))
        dense, values = dense_codes(stack[asked])
        says = np.array(
            [self._places.of(code - 1)[3] for code in values.tolist()], np.bool_
        )[dense]
        use_forward[asked[~says]] = True
        found: Ints = np.where(use_forward, forward, stack)
        return found

    def _where(self, key: str) -> tuple[Ints, list[Any]]:
        """Return ``line``, ``where``, ``function``, ``file`` or ``stack``."""
        found = self._places
        codes = self.stacks()
        stacks = self._recording._core.stacks()
        if key == "where":
            owner = self._ids("owner")
            codes = np.where(codes > 0, codes, np.where(owner > 0, owner + stacks, 0))

        def value(code: int) -> str | tuple[Frame, ...]:
            if code > stacks:
                return self._text(code - stacks)
            if key == "stack":
                return self._recording.stack(code - 1) if code else ()
            if not code:
                return ""
            line, function, file, _ = found.of(code - 1)
            return {"function": function, "file": file}.get(key, line)

        return self._named(codes, value)
