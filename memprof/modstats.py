"""Modules: what each one's forward and backward made, kept and needed at once.

Rows of ``Recording.module_stats``.  A block belongs to the innermost module that
ran at its birth; born in backward, to the forward module that caused it, or that
computes again.  What runs inside of a module is found by name: ``layers.0`` holds
``layers.0.fc1`` whoever calls it, so a module that is shared counts once, under
its first name, and one that runs twice is one row.

Works on whole columns: Python loops go over modules and depths, never over
events or lives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memprof import _core
from memprof.groups import dense_codes, exact_sums
from memprof.models import MODULE_ROLES
from memprof.rows import NO_INDEX, Ints, Rows

if TYPE_CHECKING:
    from memprof.recording import Recording

MODULE_DTYPE = np.dtype(
    [
        ("name", "O"),  # str: qualified; a model itself has its class's name
        ("model", "O"),  # str: name of the model (root module) it is part of
        ("depth", "<i8"),  # 0: the model itself
        ("parent", "<i8"),  # row of the module around it; -1: the model itself
        ("first_event", "<i8"),  # first birth in forward, subtree; -1: none
        ("calls", "<i8"),  # of its forward; -1: not known
        ("forward_bytes_self", "<i8"),  # born in forward, in the module itself
        ("forward_bytes", "<i8"),  # ... and in its subtree
        ("retained_event", "<i8"),  # the model's end of forward; -1: none
        ("retained_bytes_self", "<i8"),  # born in forward, alive after that event
        ("retained_bytes", "<i8"),
        ("forward_peak_bytes", "<i8"),  # most alive at once of births in forward
        ("transient_bytes", "<i8"),  # forward_peak_bytes - retained_bytes
        ("backward_bytes_self", "<i8"),  # born in backward for the module itself
        ("backward_bytes", "<i8"),
        ("backward_peak_bytes", "<i8"),  # most alive at once of these
        ("parameter_bytes", "<i8"),  # most alive at once, subtree; with buffers
        ("gradient_bytes", "<i8"),
        ("optimizer_state_bytes", "<i8"),
    ]
)
"""A row of ``Recording.module_stats``; without ``_self``: of the whole subtree."""

_MODULE_BEGIN, _MODULE_END = 18, 19  # csrc/event.h
_FORWARD, _BACKWARD = (_core.PHASES.index(name) for name in ("forward", "backward"))
_OWNED = {
    f"{name}_bytes": _core.CATEGORIES.index(name)
    for name in ("parameter", "gradient", "optimizer_state")
}
_WORKSPACE = _core.CATEGORIES.index("workspace")
_DEEPEST = 200  # modules inside of each other


class Tree:
    """All modules of a recording in execution order, and who is inside of whom."""

    def __init__(self, recording: Recording) -> None:
        """Find every module that something was born in or belongs to."""
        lives, events = recording.allocations("all"), recording.events()
        marks = np.flatnonzero(
            (events["kind"] == _MODULE_BEGIN) | (events["kind"] == _MODULE_END)
        )
        text = recording.op
        marked = events["module"][marks]
        is_begin = events["kind"][marks] == _MODULE_BEGIN
        self.models = recording._known_models()
        self._number: dict[tuple[str, str], int] = {}
        self._parents: list[int] = []
        place_of = self.models.place

        def module_node(index: int) -> int:
            return self._add(*place_of(text(index)))

        module = _nodes(lives["module"], module_node)
        forward = _nodes(lives["forward_module"], module_node)
        # A library's scratch is born wherever it is first needed, and stays.
        phase = np.where(lives["category"] == _WORKSPACE, 255, lives["phase"])
        self.forward = np.where(phase == _FORWARD, module, -1)
        self.backward = np.where(
            phase == _BACKWARD, np.where(module >= 0, module, forward), -1
        )
        self.mark_events = marks
        self.mark_nodes = _nodes(marked, module_node)
        self.mark_begins = is_begin
        self.owner = self._owners(recording, lives)
        self._finish(lives)

    def _add(self, model: str, path: str) -> int:
        """Return the number of a module, new ones and those around it included."""
        key = (model, path)
        number = self._number.get(key)
        if number is None:
            around = path.rpartition(".")[0]
            if around.count(".") >= _DEEPEST:  # no model; a name from somewhere else
                around = ".".join(around.split(".", _DEEPEST)[:_DEEPEST])
            parent = self._add(model, around) if path else -1
            number = self._number[key] = len(self._parents)
            self._parents.append(parent)
        return number

    def _owners(self, recording: Recording, lives: Rows) -> Ints:
        """Return the node that each life's storage belongs to, -1: none."""
        owner, role = lives["owner"].astype(np.int64), lives["role"].astype(np.int64)
        text, roles = recording.op, len(_core.ROLES)
        held = (owner != NO_INDEX) & np.isin(role, MODULE_ROLES)
        pairs = np.where(held, owner * roles + role + 1, 0)
        codes, values = dense_codes(pairs)
        words = [divmod(value - 1, roles) for value in values.tolist() if value]
        nodes = [-1] if len(values) and values[0] == 0 else []
        for index, number in words:
            place = self.models.owner(text(index), number)
            nodes.append(-1 if place is None else self._add(*place))
        return np.array(nodes, np.int64)[codes] if len(codes) else codes

    def _finish(self, lives: Rows) -> None:
        """Put the modules in order, parents first, and renumber all nodes."""
        count = len(self._parents)
        keys = list(self._number)
        depth = [0] * count
        for number, parent in enumerate(self._parents):  # parents come first
            depth[number] = depth[parent] + 1 if parent >= 0 else 0
        recorded = lives["born_event"] >= 0
        never = 2**62
        columns = [
            self._first(np.where(recorded, self.forward, -1), never),
            self._first(np.where(recorded, self.backward, -1), never),
            self._first(self.forward, never),
            self._first(self.owner, never),
        ]
        births = [
            tuple(column[number] for column in columns) for number in range(count)
        ]
        model = list(range(count))
        for number, parent in enumerate(self._parents):
            if parent >= 0:
                model[number] = model[parent]
        order = sorted(
            range(count),
            key=lambda n: (births[model[n]], model[n], births[n], depth[n], n),
        )
        rank = np.zeros(count + 1, np.int64)
        rank[order] = np.arange(count)
        rank[count] = -1  # where -1 points to
        self.names = [self.models.name(*keys[number]) for number in order]
        self.model_names = [keys[number][0] for number in order]
        self.depth = np.array([depth[number] for number in order], np.int64)
        self.parent = rank[[self._parents[number] for number in order]]
        self.first_event = np.full(count, -1, np.int64)
        for row, number in enumerate(order):
            if columns[0][number] < never:
                self.first_event[row] = lives["born_event"][columns[0][number]]
        self.forward, self.backward = rank[self.forward], rank[self.backward]
        self.owner, self.mark_nodes = rank[self.owner], rank[self.mark_nodes]
        # The node around each node at each depth, -1: the node is less deep.
        levels = int(self.depth.max()) + 1 if count else 0
        self.around = np.full((levels, count), -1, np.int64)
        self.around[self.depth, np.arange(count)] = np.arange(count)
        for level in range(levels - 1, 0, -1):
            deep = self.around[level] >= 0
            self.around[level - 1, deep] = self.parent[self.around[level, deep]]
        self.root = self.around[0] if levels else np.empty(0, np.int64)

    def _first(self, nodes: Ints, never: int) -> list[int]:
        """Return the first life of each node's subtree, NEVER: there is none."""
        own = np.full(len(self._parents) + 1, never, np.int64)
        own[nodes[::-1]] = np.arange(len(nodes))[::-1]  # the last one written stays
        found: list[int] = own[:-1].tolist()
        for number in range(len(found) - 1, -1, -1):
            parent = self._parents[number]
            if parent >= 0:
                found[parent] = min(found[parent], found[number])
        return found

    def subtree(self, own: Ints) -> Ints:
        """Add to each node's number those of all nodes inside of it."""
        total: Ints = own.copy()
        for level in range(len(self.around) - 1, 0, -1):
            deep = np.flatnonzero(self.depth == level)
            np.add.at(total, self.parent[deep], total[deep])
        return total


def _nodes(ids: NDArray[Any], node: Callable[[int], int]) -> Ints:
    """Turn string ids into nodes, asking once for each; -1 for none."""
    codes, values = dense_codes(np.where(ids == NO_INDEX, 0, ids.astype(np.int64) + 1))
    found = [node(value - 1) if value else -1 for value in values.tolist()]
    return np.array(found, np.int64)[codes] if len(codes) else codes


# -- levels --------------------------------------------------------------------


class Flow(NamedTuple):
    """Births and deaths in order, one entry each."""

    node: Ints
    delta: Ints  # bytes
    event: Ints
    birth: NDArray[np.bool_]

    def of(self, chosen: Any) -> Flow:
        """Return the chosen entries."""
        return Flow(*(column[chosen] for column in self))

    def by(self, group: Ints, groups: int) -> tuple[Ints, Ints, Ints]:
        """Sort the entries by group and add up.

        Returns:
            The order, the bytes alive in its group after each entry, and where
            groups start.
        """
        small = np.uint16 if groups < 2**16 else np.uint32  # sorts in linear time
        order = np.argsort(group.astype(small), kind="stable")
        sorted_group, delta = group[order], self.delta[order]
        starts = np.flatnonzero(np.diff(sorted_group, prepend=-1))
        level = np.cumsum(delta)
        before = level[starts] - delta[starts]
        level -= np.repeat(before, np.diff(starts, append=len(level)))
        return order, level, starts


def _flow(lives: Rows, index: Ints, node: Ints) -> Flow:
    """Lay the births and deaths of the lives INDEX out in order."""
    born, died = lives["born_event"][index], lives["died_event"][index]
    size = lives["size"][index].astype(np.int64)
    dies = np.flatnonzero(died >= 0)
    # A block that replaces another is born by the event that ends the other.
    key = np.concatenate((2 * born + 1, 2 * died[dies]))
    order = np.argsort(key, kind="stable")
    birth = np.arange(len(key)) < len(born)
    return Flow(
        np.concatenate((node[index], node[index][dies]))[order],
        np.concatenate((size, -size[dies]))[order],
        np.concatenate((born, died[dies]))[order],
        birth[order],
    )


def _peaks(tree: Tree, flow: Flow, begin: int, end: int, carried: bool) -> Ints:
    """Return the most that was alive at once of each subtree.

    Args:
        tree: the modules.
        flow: what was born and died.
        begin: the first event to look at.
        end: the last one.
        carried: look at the state before BEGIN and after each birth; else only
            after each birth.
    """
    top = np.zeros(len(tree.names), np.int64)
    for around in tree.around:
        group = around[flow.node]
        if (group < 0).any():
            flow, group = flow.of(group >= 0), group[group >= 0]
        if not len(group):
            break
        order, level, starts = flow.by(group, len(top))
        event = flow.event[order]
        inside = (event >= begin) & (event <= end) & flow.birth[order]
        best = np.maximum.reduceat(np.where(inside, level, 0), starts)
        if carried:
            before = np.add.reduceat((event < begin).astype(np.int64), starts)
            last = np.maximum(starts + before - 1, 0)
            best = np.maximum(best, np.where(before > 0, level[last], 0))
        top[group[order[starts]]] = best
    return top


# -- the rows ------------------------------------------------------------------


def module_stats(
    recording: Recording, tree: Tree, device: int, span: tuple[int, int]
) -> Rows:
    """Return the rows of ``Recording.module_stats``, not written to any more.

    Args:
        recording: what to ask.
        tree: its modules.
        device: number of the device whose bytes are counted.
        span: first and last event of what is asked for; births before are not
            counted as born, but as alive.
    """
    begin, end = max(span[0], 0), span[1]
    lives = recording.allocations("all")
    count = len(tree.names)
    rows = np.zeros(count, MODULE_DTYPE)
    rows["name"], rows["model"] = tree.names, tree.model_names
    rows["depth"], rows["parent"] = tree.depth, tree.parent
    rows["first_event"] = tree.first_event
    rows["calls"] = _calls(tree, lives, begin, end)
    rows["retained_event"] = -1
    here = lives["device"] == device
    born = lives["born_event"]
    fresh = here & (born >= begin) & (born <= end)

    def put(field: str, nodes: Ints, chosen: NDArray[np.bool_]) -> None:
        index = np.flatnonzero(chosen & (nodes >= 0))
        own = np.array(
            exact_sums(nodes[index], lives["size"][index], count), np.int64
        ).reshape(-1)
        rows[f"{field}_self"], rows[field] = own, tree.subtree(own)

    put("forward_bytes", tree.forward, fresh)
    put("backward_bytes", tree.backward, fresh)

    forward = _flow(lives, np.flatnonzero(here & (tree.forward >= 0)), tree.forward)
    ends = _ends(recording, tree, forward, begin, end)
    rows["retained_event"] = ends[tree.root]
    at = np.append(ends[tree.root], -1)[tree.forward]
    died = lives["died_event"]
    put(
        "retained_bytes",
        tree.forward,
        here & (at >= 0) & (born <= at) & ((died < 0) | (died > at)),
    )
    peak = _peaks(tree, forward, begin, end, False)
    rows["forward_peak_bytes"] = np.maximum(peak, rows["retained_bytes"])
    rows["transient_bytes"] = rows["forward_peak_bytes"] - rows["retained_bytes"]

    backward = _flow(lives, np.flatnonzero(here & (tree.backward >= 0)), tree.backward)
    rows["backward_peak_bytes"] = _peaks(tree, backward, begin, end, False)
    for field, category in _OWNED.items():
        held = here & (tree.owner >= 0) & (lives["category"] == category)
        owned = _flow(lives, np.flatnonzero(held), tree.owner)
        rows[field] = _peaks(tree, owned, begin, end, True)
    rows.flags.writeable = False
    return rows


def _ends(
    recording: Recording, tree: Tree, forward: Flow, begin: int, end: int
) -> Ints:
    """Return the end of forward at which each model retained most.

    Where a model had no hook these are the ends of its parts that had one, else
    of the runs of forward.

    Returns:
        Per node, set for models only: the event; -1: no forward ended.
    """
    found = np.full(len(tree.names), -1, np.int64)
    is_end = ~tree.mark_begins
    events, nodes = tree.mark_events[is_end], tree.mark_nodes[is_end]
    levels: dict[int, tuple[Ints, Ints]] = {}
    if len(forward.node):
        root = tree.root[forward.node]
        order, level, starts = forward.by(root, len(found))
        for low, high in zip(starts, np.append(starts[1:], len(order)), strict=True):
            part = order[low:high]
            levels[int(root[part[0]])] = (forward.event[part], level[low:high])
    for model in np.flatnonzero(tree.depth == 0).tolist():
        ends = events[nodes == model]
        if not len(ends):
            ends = events[(nodes >= 0) & (tree.root[nodes] == model)]
        if not len(ends):
            phases = recording.phases
            ends = phases["end_event"][phases["name"] == "forward"]
        ends = ends[(ends >= begin) & (ends <= end)]
        if not len(ends):
            continue
        event, level = levels.get(model, (np.empty(0, np.int64),) * 2)
        place = np.searchsorted(event, ends, "right")
        held = np.append(0, level)[place]
        found[model] = ends[int(np.argmax(held))]
    return found


def _calls(tree: Tree, lives: Rows, begin: int, end: int) -> Ints:
    """Return how often each module was called, -1: not known.

    Models have hooks; of other modules it is known only if all that was born
    inside of them was born between a begin and an end of theirs.
    """
    count = len(tree.names)
    wide = max(int(tree.mark_events.max(initial=0)), end) + 2
    starts = tree.mark_events[tree.mark_begins]
    nodes = tree.mark_nodes[tree.mark_begins]
    known = np.bincount(nodes[nodes >= 0], minlength=count) > 0
    calls = np.full(count, -1, np.int64)
    parts = np.flatnonzero(known & (tree.depth > 0))
    if len(parts):
        key = tree.mark_nodes * wide + tree.mark_events
        begins, ends = np.sort(key[tree.mark_begins]), np.sort(key[~tree.mark_begins])
        index = np.flatnonzero((tree.forward >= 0) & (lives["born_event"] >= 0))
        born = np.minimum(lives["born_event"][index], wide - 1)
        for around in tree.around[1:]:
            group = around[tree.forward[index]]
            checked = (group >= 0) & known[group]
            group, when = group[checked], born[checked]
            opened = np.searchsorted(begins, group * wide + when, "right")
            opened -= np.searchsorted(begins, group * wide)
            closed = np.searchsorted(ends, group * wide + when, "right")
            closed -= np.searchsorted(ends, group * wide)
            known[group[opened <= closed]] = False
    inside = nodes[(nodes >= 0) & (starts >= begin) & (starts <= end)]
    calls[known] = np.bincount(inside, minlength=count)[known]
    return calls
