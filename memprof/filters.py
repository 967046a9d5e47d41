"""The filter language: words that must all hold of an allocation.

It is the one of the report's tab All allocations (``reports/app/filter.js``), and the
two must agree: both look at the columns of ``reports.page_device``, and
``tests/unit/filter_cases.py`` is run through both. In short::

    attn                    somewhere in module, op, line, function, owner, region...
    cat:activation module:layers.*.attn op: line: owner: function: region: shape:
    stack: saved: label: phase: reason: stream: pool: step:3 step:3-5
    size>64MiB size<=4096 alive:peak alive:cursor alive:end
    -word                   not
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from memprof import _core
from memprof.reports.page_device import Device, Names

if TYPE_CHECKING:
    from memprof.recording import Recording
    from memprof.rows import Ints

Mask: TypeAlias = NDArray[np.bool_]
Test: TypeAlias = Callable[[str], bool]

TEXT_KEYS = (
    *("module", "op", "line", "function", "owner", "region", "shape", "label"),
    "stream",
)
KEYS = {
    "cat": "category",
    "category": "category",
    "module": "module",
    "op": "op",
    "line": "line",
    "file": "line",
    "function": "function",
    "owner": "owner",
    "region": "region",
    "shape": "shape",
    "label": "label",
    "stream": "stream",
    "phase": "phase",
    "pool": "pool",
    "stack": "stack",
    "step": "step",
    "saved": "saved",
    "alive": "alive",
    "reason": "reason",
}

# White space as a browser sees it.
_SPACE = "\\t\\n\\v\\f\\r \\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff"  # noqa: E501
_WORD = re.compile(f'(?:[^{_SPACE}"]|"[^"]*"?)+')
_SIZE = re.compile(r"([0-9.]+)([kmgt]?)(i?)(b?)", re.IGNORECASE)
_COMPARED = re.compile(r"size(>=|<=|>|<|=|:)(.+)", re.IGNORECASE)
_STEPS = re.compile(r"(-?[0-9]+)(?:-([0-9]+))?")


class FilterError(ValueError):
    """A query is none; says which word, and what would be right."""


def words_of(query: str) -> list[str]:
    """Return the words of a query; quotes keep spaces together."""
    return [word.replace('"', "") for word in _WORD.findall(query)]


def matcher(pattern: str) -> Test:
    """Return a test of lower-case texts: with ``*`` a pattern for the whole."""
    low = pattern.lower()
    if "*" not in low:
        return lambda text: low in text
    whole = re.compile(".*".join(map(re.escape, low.split("*"))), re.DOTALL)
    return lambda text: whole.fullmatch(text) is not None


def parse_size(text: str) -> float:
    """Return bytes: ``64MiB``, ``64M`` and ``64m`` are 2**26, ``64MB`` is 64 million.

    Raises:
        FilterError: it is no size.
    """
    found = _SIZE.fullmatch(text)
    try:
        number = float(found[1]) if found else None
    except ValueError:  # 1.2.3
        number = None
    if found is None or number is None:
        raise FilterError(f"“{text}” is no size; write 64MiB, 1.5GiB, 4096")
    power = "kmgt".index(found[2].lower()) + 1 if found[2] else 0
    base = 1024 if found[3] or not found[4] or not power else 1000
    return number * float(base**power)


class Filtered:
    """The allocations of one device, and which of them a query is true of.

    Attributes:
        device: the page's columns of it; ``device.lives`` are the rows of
            ``allocations(device)``, in the order of their births.
        cursor: the page's event that ``alive:cursor`` means.
    """

    def __init__(
        self, recording: Recording, device: object = None, cursor: int | None = None
    ) -> None:
        """Gather the columns.

        Args:
            recording: what to look into.
            device: see ``Recording``.
            cursor: the event that ``alive:cursor`` means; None: the peak.
        """
        number = recording._device(device)
        self._recording = recording
        self.names = Names(recording, "relative")
        self.device = Device(recording, number, self.names)
        self.site, columns = self.device._sites()
        self.sites = {one.name.removeprefix("s_"): one.values for one in columns}
        lives = self.device.lives
        self.peak = int(self.device.rank(recording.peak(self.device.name).event))
        self.cursor = self.peak if cursor is None else int(self.device.rank(cursor))
        self.size: Ints = lives["size"].astype(np.int64)
        self._birth = self.device.rank(lives["born_event"].astype(np.int64))
        died = lives["died_event"].astype(np.int64)
        self._count = len(self.device.event)
        self._death = np.where(died < 0, self._count, self.device.rank(died))
        self._fate: Ints | None = None
        self._asked_fate = False
        self._lower: list[str] = []

    def mask(self, query: str) -> Mask:
        """Return which lives a query is true of, bool [n].

        Raises:
            FilterError: a word of it is wrong.
        """
        found = np.ones(len(self.size), np.bool_)
        for word in words_of(query):
            negated = len(word) > 1 and word.startswith("-")
            one = self._word(word[1:] if negated else word)
            found &= ~one if negated else one
        return found

    def alive(self, event: int) -> Mask:
        """Return which lives are there after the page's EVENT."""
        found: Mask = (self._birth <= event) & (self._death > event)
        return found

    # -- words -------------------------------------------------------------------

    def _word(self, word: str) -> Mask:
        compared = _COMPARED.fullmatch(word)
        if compared:
            return self._sized(compared[1], parse_size(compared[2]))
        colon = word.find(":")
        head = word[:colon].lower() if colon > 0 else ""
        key = KEYS.get(head, "")
        if not key:
            return self._anywhere(word, head, colon)
        return self._keyed(key, word[colon + 1 :])

    def _sized(self, sign: str, limit: float) -> Mask:
        # A limit is rarely whole; sizes are, and below 2**53.
        size = self.size.astype(np.float64)
        tests: dict[str, Callable[[], Mask]] = {
            ">": lambda: size > limit,
            "<": lambda: size < limit,
            ">=": lambda: size >= limit,
            "<=": lambda: size <= limit,
            "=": lambda: size == limit,
            ":": lambda: size == limit,
        }
        return tests[sign]()

    def _anywhere(self, word: str, head: str, colon: int) -> Mask:
        # aten::mul and model.py:12 have colons too; a misspelt key is told.
        is_key = re.fullmatch("[a-z]+", head) and "::" not in word
        if is_key and colon < len(word) - 1:
            self._fates()  # their texts are among those that are looked through
            if not any(word.lower() in text for text in self._lowered()):
                raise FilterError(
                    f"there is no key “{head}:”; keys: {' '.join(KEYS)} size"
                )
        test = matcher(word)
        good = self._texts(test)
        site = np.zeros(self._sites, np.bool_)
        for name in TEXT_KEYS:
            site |= good[self.sites[name]]
        return self._of_sites(site) | self._category(test)

    def _keyed(self, key: str, value: str) -> Mask:
        if key == "alive":
            places = {"peak": self.peak, "cursor": self.cursor, "end": self._count - 1}
            if value not in places:
                raise FilterError("alive: is peak, cursor or end")
            return self.alive(places[value])
        if key == "step":
            return self._step(value)
        test = matcher(value)
        if key == "category":
            return self._category(test)
        if key == "saved":
            fate = self._fates()
            if fate is None:
                raise FilterError("what blocks were saved for is not in this report")
            return self._texts(test)[fate]
        if key in ("phase", "reason"):
            texts = _core.PHASES if key == "phase" else _core.REASONS
            good = np.array([test(text) for text in texts], np.bool_)
            return self._of_sites(good[self.sites[key]])
        if key == "pool":
            pools = [str(pool) == value for pool in self.sites["pool"].tolist()]
            return self._of_sites(np.array(pools, np.bool_))
        if key == "stack":
            good = self._stacks(test)
            return self._of_sites(
                good[self.sites["stack"]] | good[self.sites["forward_stack"]]
            )
        return self._of_sites(self._texts(test)[self.sites[key]])

    def _step(self, value: str) -> Mask:
        bounds = _STEPS.fullmatch(value)
        if bounds is None:
            raise FilterError("step: is a number or a range, step:3 or step:3-5")
        low, high = int(bounds[1]), int(bounds[2] or bounds[1])
        steps = self.steps()
        return (steps >= low) & (steps <= high) & self._in_step

    def steps(self) -> Ints:
        """Return the number of the step in which each life was born; -1: in none."""
        rows = self._recording.steps
        found = np.full(len(self.size), -1, np.int64)
        self._in_step = np.zeros(len(self.size), np.bool_)
        if len(rows):
            begin = self.device.rank(rows["begin_event"])
            end = self.device.rank(rows["end_event"])
            at = np.maximum(np.searchsorted(begin, self._birth, "right") - 1, 0)
            inside = (begin[at] <= self._birth) & (self._birth <= end[at])
            inside &= self._birth >= 0  # what is older than the recording has none
            found[inside] = rows["number"][at[inside]]
            self._in_step = inside
        return found

    def _category(self, test: Test) -> Mask:
        good = [test(name) or test(name.replace("_", " ")) for name in _core.CATEGORIES]
        found: Mask = np.array(good, np.bool_)[self.device.lives["category"]]
        return found

    # -- texts -------------------------------------------------------------------

    @property
    def _sites(self) -> int:
        return len(self.sites["module"])

    def _of_sites(self, good: Mask) -> Mask:
        found: Mask = good[self.site] if len(self.site) else np.zeros(0, np.bool_)
        return found

    def _lowered(self) -> list[str]:
        texts = self.names.texts
        self._lower += [text.lower() for text in texts[len(self._lower) :]]
        return self._lower

    def _texts(self, test: Test) -> Mask:
        return np.array([test(text) for text in self._lowered()], np.bool_)

    def _stacks(self, test: Test) -> Mask:
        """Return the trie nodes with a frame, here or below, that TEST is true of."""
        texts = self._lowered()
        frames = [
            test(f"{texts[function]} {texts[file]}:{max(line, 0)}")
            for function, file, line in self.names.frames
        ]
        good = np.zeros(len(self.names.nodes), np.bool_)
        for node, (parent, frame) in enumerate(self.names.nodes):
            if node:
                good[node] = good[parent] or frames[frame]
        return good

    def _fates(self) -> Ints | None:
        if not self._asked_fate:
            self._asked_fate = True
            self._fate = self.device._fates()
        return self._fate

    # -- what is found -----------------------------------------------------------

    def text(self, key: str, rows: Ints) -> list[str]:
        """Return the texts of a key of some lives, as the report shows them."""
        texts, column = self.names.texts, self.sites[key]
        return [texts[i] for i in column[self.site[rows]].tolist()]


def facts(
    found: Filtered, query: str, *, largest: bool = False, limit: int | None = None
) -> dict[str, Any]:
    """Return what a query finds.

    Args:
        found: whose allocations.
        query: the words.
        largest: those first; else in the order of their births.
        limit: of rows; None: all.

    Returns:
        ``count``, ``bytes``, ``alive_count`` and ``alive_bytes`` (at the cursor) of all
        that is found, and ``rows``, of which the names are ``COLUMNS``.

    Raises:
        FilterError: a word is wrong.
    """
    mask = found.mask(query)
    at = np.flatnonzero(mask).astype(np.int64, copy=False)
    alive = at[found.alive(found.cursor)[at]]
    order = at
    if largest:
        order = at[np.argsort(-found.size[at], kind="stable")]
    shown = order if limit is None else order[:limit]
    return {
        "device": found.device.name,
        "query": query,
        "count": len(at),
        "bytes": int(found.size[at].sum()),
        "alive_count": len(alive),
        "alive_bytes": int(found.size[alive].sum()),
        "rows": _rows(found, shown),
    }


COLUMNS = (
    *("id", "bytes", "born_event", "died_event", "born_ns", "died_ns", "step"),
    *("phase", "category", "module", "op", "line", "function", "owner", "shape"),
    *("stream", "reason"),
)
"""Of a row. Times are since the start; -1: before it, at its end, or in no step."""


def _rows(found: Filtered, at: Ints) -> list[dict[str, Any]]:
    lives = found.device.lives[at]
    recording = found._recording
    start = int(recording._core.start_ns)
    times = recording._times()
    columns: dict[str, list[Any]] = {
        "id": lives["id"].tolist(),
        "bytes": lives["size"].tolist(),
        "step": found.steps()[at].tolist(),
        "phase": [_core.PHASES[i] for i in lives["phase"].tolist()],
        "category": [_core.CATEGORIES[i] for i in lives["category"].tolist()],
        "reason": [_core.REASONS[i] for i in lives["reason"].tolist()],
    }
    for name in ("born", "died"):
        event = lives[f"{name}_event"].astype(np.int64)
        since = np.full(len(event), -1, np.int64)
        known = event >= 0
        since[known] = np.maximum(times[event[known]] - start, 0)
        columns[f"{name}_event"] = event.tolist()
        columns[f"{name}_ns"] = since.tolist()
    for key in ("module", "op", "line", "function", "owner", "shape", "stream"):
        columns[key] = found.text(key, at)
    return [
        dict(zip(COLUMNS, values, strict=True))
        for values in zip(*(columns[name] for name in COLUMNS), strict=True)
    ]


def tsv(rows: list[dict[str, Any]]) -> str:
    """Return rows as TSV: a line each, the names first; tabs in texts are ``\\t``."""
    from memprof.reports.units import one_line

    lines = ["\t".join(COLUMNS)]
    lines += ["\t".join(one_line(str(row[name])) for name in COLUMNS) for row in rows]
    return "\n".join(lines) + "\n"
