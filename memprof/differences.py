"""What differs between two multisets of blocks, as rows that sum to the difference.

An account says how many bytes and blocks there are of each key: category, module,
op, line, shape, type. Addresses are never in it. Equal keys are set against each
other; then what is left is joined where it is the same code in another place (a
line that moved with its function) or the same code with other tensors (float16
became float32). Joining changes how a difference is told, never its sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from memprof.moment import OTHER
from memprof.reports.facts import NEARLY_EQUAL, _common, _folded

Key: TypeAlias = tuple[str, ...]
Held: TypeAlias = tuple[int, int]
Account: TypeAlias = Mapping[Key, Held]
"""Key -> bytes, blocks."""

NEW, GONE = "new", "gone"

_SHORT = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "c64",
    "complex128": "c128",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
}


class _Pair:
    """What one key had before and has after."""

    __slots__ = ("after", "before", "key", "was")

    def __init__(self, key: Key, was: Key, before: Held, after: Held) -> None:
        self.key = key  # as after; of what is gone as before
        self.was = was
        self.before = before
        self.after = after


def differences(
    keys: Sequence[str], a: Account, b: Account, *, fold: bool = True
) -> tuple[list[dict[str, Any]], int]:
    """Set two accounts against each other.

    Args:
        keys: names of the parts of keys. ``function`` is read to follow moved
            lines, and is in no row.
        a: before.
        b: after.
        fold: join rows of repeated layers, ``layers.*.attn``.

    Returns:
        Rows, largest difference first, and the bytes that are the same in both.
        A row has ``delta, before, after`` (bytes), ``before_count, after_count``
        (blocks), the keys, ``change`` (``new``, ``gone``, ``f16>f32``, ``[8]>[16]``
        or nothing) and ``modules`` (how many were joined).
    """
    names = list(keys)
    moved = _moved_lines(names, a, b)
    pairs: list[_Pair] = []
    old: dict[Key, Held] = {}
    new = dict(b)
    for was, held in a.items():
        key = moved.get(was, was)
        if key in new:
            pairs.append(_Pair(key, was, held, new.pop(key)))
        else:
            old[was] = held
    line = ("line",) if "line" in names and "function" in names else ()
    tensor = tuple(name for name in ("shape", "dtype") if name in names)
    for loose in dict.fromkeys((line, tensor, line + tensor)):
        if loose and old and new:
            pairs += _join(names, loose, old, new)
    pairs += [_Pair(key, key, held, (0, 0)) for key, held in old.items()]
    pairs += [_Pair(key, key, (0, 0), held) for key, held in new.items()]

    same, rows = 0, []
    for pair in pairs:
        if pair.before == pair.after:
            same += pair.before[0]
        else:
            rows.append(_row(names, pair))
    if fold and "module" in names:
        rows = _fold(names, rows)
    shown = [name for name in names if name != "function"]
    rows.sort(
        key=lambda row: (
            -abs(row["delta"]),
            -row["delta"],
            *(str(row[name]) for name in shown),
            row["change"],
        )
    )
    return rows, same


def cut(
    rows: list[dict[str, Any]], limit: int | None, keys: Sequence[str]
) -> list[dict[str, Any]]:
    """Keep LIMIT rows and put the others into one more, ``other``, that sums up."""
    if limit is None or len(rows) <= limit:
        return rows
    rest = rows[limit:]
    other: dict[str, Any] = {
        name: sum(row[name] for row in rest)
        for name in ("delta", "before", "after", "before_count", "after_count")
    }
    other.update({name: OTHER for name in keys if name != "function"})
    other.update(change="", modules=0, rest=True, rows=len(rest))
    return [*rows[:limit], other]


def split_shape(text: str) -> tuple[str, str]:
    """Divide ``float32[8, 64]`` into ``[8, 64]`` and ``float32``.

    >>> split_shape("float32[8, 64]"), split_shape("")
    (('[8, 64]', 'float32'), ('', ''))
    """
    dtype, bracket, sizes = text.partition("[")
    return bracket + sizes, dtype


# -- joining -------------------------------------------------------------------


def _line(text: str) -> tuple[str, int]:
    """Divide ``file:line``."""
    file, _, number = text.rpartition(":")
    return file, int(number) if number.isdecimal() else 0


def _moved_lines(names: Sequence[str], a: Account, b: Account) -> dict[Key, Key]:
    """Return keys of A -> the same with the line that their function moved to.

    A function whose file was edited above it moves as a whole: each gets the one
    shift at which most of its bytes find their equals.
    """
    if "line" not in names or "function" not in names:
        return {}
    at_line, at_function = names.index("line"), names.index("function")

    def functions(account: Account) -> dict[tuple[str, str], list[Key]]:
        found: dict[tuple[str, str], list[Key]] = {}
        for key in account:
            if key[at_line]:
                place = (_line(key[at_line])[0], key[at_function])
                found.setdefault(place, []).append(key)
        return found

    def shifted(key: Key, by: int) -> Key:
        file, line = _line(key[at_line])
        return (*key[:at_line], f"{file}:{line + by}", *key[at_line + 1 :])

    moved: dict[Key, Key] = {}
    theirs = functions(b)
    for place, mine in functions(a).items():
        if all(key in b for key in mine):
            continue
        lines = {_line(key[at_line])[1] for key in mine}
        targets = {_line(key[at_line])[1] for key in theirs.get(place, ())}
        shifts = {there - here for there in targets for here in lines}
        if len(shifts) > 512:  # generated code; nobody edits that
            continue

        def found(by: int, mine: list[Key] = mine) -> int:
            return sum(
                a[key][0] + 1 for key in mine if b.get(shifted(key, by)) == a[key]
            )

        best = max(shifts | {0}, key=lambda by: (found(by), by == 0, -abs(by), by))
        if best and found(best) > found(0):
            moved.update((key, shifted(key, best)) for key in mine)
    return moved


def _join(
    names: Sequence[str],
    loose: Sequence[str],
    gone: dict[Key, Held],
    new: dict[Key, Held],
) -> list[_Pair]:
    """Pair what is gone with what is new and differs in the keys LOOSE only.

    Takes out of GONE and NEW what it pairs. Of several, those of equal bytes
    first, then those of as many blocks, largest first.
    """
    fixed = [index for index, name in enumerate(names) if name not in loose]

    def by_rest(account: dict[Key, Held]) -> dict[Key, list[Key]]:
        found: dict[Key, list[Key]] = {}
        for key in account:
            found.setdefault(tuple(key[index] for index in fixed), []).append(key)
        return found

    pairs: list[_Pair] = []
    candidates = by_rest(new)
    for rest, old in by_rest(gone).items():
        there = candidates.get(rest, [])
        for alike in (_bytes_and_count, _count):
            for was in sorted(old, key=lambda key: (-gone[key][0], key)):
                fitting = [key for key in there if alike(new[key]) == alike(gone[was])]
                if fitting:
                    key = max(fitting, key=lambda key: (_kept(key, was), new[key][0]))
                    pairs.append(_Pair(key, was, gone.pop(was), new.pop(key)))
                    old.remove(was)
                    there.remove(key)
    return pairs


def _bytes_and_count(held: Held) -> tuple[int, ...]:
    return held


def _count(held: Held) -> tuple[int, ...]:
    return (held[1],)


def _kept(key: Key, was: Key) -> int:
    """Return how many parts of a key stayed."""
    return sum(new == old for new, old in zip(key, was, strict=True))


# -- rows ----------------------------------------------------------------------


def _row(names: Sequence[str], pair: _Pair) -> dict[str, Any]:
    after = dict(zip(names, pair.key, strict=True))
    before = dict(zip(names, pair.was, strict=True))
    after.pop("function", None)
    return {
        "delta": pair.after[0] - pair.before[0],
        "before": pair.before[0],
        "after": pair.after[0],
        "before_count": pair.before[1],
        "after_count": pair.after[1],
        **after,
        "change": _change(before, after, pair),
        "modules": 1,
    }


def _change(before: dict[str, str], after: dict[str, str], pair: _Pair) -> str:
    if not pair.before[1]:
        return NEW
    if not pair.after[1]:
        return GONE
    words = []
    for name in ("dtype", "shape"):
        old, now = before.get(name, ""), after.get(name, "")
        if old != now and old and now:
            words.append(f"{_SHORT.get(old, old)}>{_SHORT.get(now, now)}")
    return " ".join(words)


def _fold(names: Sequence[str], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join rows that differ only in the numbers of repeated layers.

    As the summary does: only rows of nearly equal differences, so that what
    stands out does not hide among its likes.
    """
    same = [name for name in names if name not in ("module", "function")]
    alike: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = (
            _folded(row["module"], row["module"]),
            row["delta"] > 0,
            row["change"],
            *(row[name] for name in same),
        )
        alike.setdefault(key, []).append(row)
    folded = []
    for group in alike.values():
        parts: list[list[dict[str, Any]]] = []
        for row in sorted(group, key=lambda row: -abs(row["delta"])):
            if parts and abs(row["delta"]) >= NEARLY_EQUAL * abs(parts[-1][0]["delta"]):
                parts[-1].append(row)
            else:
                parts.append([row])
        folded += [_joined(part) for part in parts]
    return folded


def _joined(rows: list[dict[str, Any]]) -> dict[str, Any]:
    if len(rows) == 1:
        return rows[0]
    joined = dict(rows[0])
    for name in ("delta", "before", "after", "before_count", "after_count", "modules"):
        joined[name] = sum(row[name] for row in rows)
    joined["module"] = _common([row["module"] for row in rows])
    return joined
