"""From what ``_core.holders`` found to a path in words for each holder.

The core gives a part of Python's heap: nodes, and references with their key,
index or name. Here each node gets its nearest path from something that stands
by itself: a variable of a running function, a module's global, a class, an
exception being handled. Only plain data: no object of the program is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

END_KINDS = ("running", "globals", "module", "type", "handled")
"""Kinds of nodes at which a path begins."""

ONLY_CPP = "held by C++ only"
CYCLE = "reference cycle"

# What a module keeps its parts in: left out, as in Python's own spelling.
_TABLES = ("_parameters", "_buffers", "_modules")

# What a path says of a dict whose keys are attributes.
_ATTRIBUTES = ("dict", "module", "optimizer", "table", "ctx")

# Of an optimizer, as name and as key.
_SECOND_NAMES = ("param_groups", "'param_groups'")

# Kinds of nodes that may stand at the head of a path that nothing leads to.
_HEADS = ("object", "generator", "function", "frame", "exception", "graph")


class Node(NamedTuple):
    """One node of the core's answer; see ``_core.holders``."""

    kind: str
    type_name: str
    title: str | None
    address: int
    type_address: int
    garbage: bool
    wanted: bool
    storage: int
    bytes: int
    thread: int


class Path(NamedTuple):
    """The way to a node, as text, and what the next word means."""

    text: str
    how: str = ""
    param: int = 0


class Known(NamedTuple):
    """What is known of the program, by addresses of classes and objects."""

    modules: frozenset[int]
    """Classes of ``torch.nn.Module``."""
    optimizers: frozenset[int]
    """Classes of ``torch.optim.Optimizer``."""
    threads: dict[int, str]
    """Names of all threads but the main one."""
    parameter: Callable[[int], str]
    """The name of the parameter at an address."""


Edge = tuple[int, int, str, "str | int | None"]
"""Held node, holder, kind of reference, its key, index or name."""


def _short(name: str | None) -> str:
    """Return a qualified name without the functions that it was made in."""
    return (name or "").rpartition("<locals>.")[2]


def _item(kind: str, label: str | int | None) -> str:
    """Return what stands in brackets: keys come as their ``repr``, tensors as int."""
    return "<tensor>" if kind == "key" and isinstance(label, int) else str(label)


class Paths:
    """The nearest path to every node of a part of the heap."""

    def __init__(self, nodes: list[Node], edges: Iterable[Edge], known: Known) -> None:
        """Walk from all ends at once, nearest first; ties fall by text."""
        self._nodes = [
            node._replace(type_name=_short(node.type_name), title=_short(node.title))
            for node in nodes
        ]
        self._known = known
        self._held: list[list[tuple[int, str, str | int | None]]]
        self._holders: list[list[tuple[int, str, str | int | None]]]
        self._held = [[] for _ in nodes]
        self._holders = [[] for _ in nodes]
        named: set[tuple[int, int]] = set()
        rest = []
        for held, holder, kind, label in edges:
            if kind == "some":
                rest.append((held, holder))
                continue
            named.add((held, holder))
            self._holders[held].append((holder, kind, label))
            self._held[holder].append((held, kind, label))
        for held, holder in dict.fromkeys(rest):
            if (held, holder) not in named:
                self._holders[held].append((holder, "some", None))
                self._held[holder].append((held, "some", None))
        self._paths: list[Path | None] = [None] * len(nodes)
        self._parents: list[int] = [-1] * len(nodes)
        self._second = False
        self._spread(i for i, node in enumerate(nodes) if node.kind in END_KINDS)
        # Second choice: over what an optimizer and a graph only refer to.
        self._second = True
        self._spread([])
        # Nothing that Python sees leads to what is left.
        for heads in (_HEADS, None):
            self._spread(
                i
                for i, node in enumerate(nodes)
                if self._paths[i] is None
                and (heads is None or node.kind in heads)
                and (node.garbage or not node.wanted)
            )

    def holders(self, node: int) -> set[str]:
        """Return the paths to NODE, one for each object that refers to it."""
        found: set[str] = set()
        weak: set[str] = set()
        for holder, kind, label in self._holders[node]:
            before = self._paths[holder]
            if before is None or self._leads_through(holder, node):
                continue
            path = self._step(before, holder, kind, label, node)
            text = path.text
            if before.how == "state" and kind == "as key":
                continue  # an optimizer's own table: told by its param_groups
            head = self._nodes[self._head(holder)]
            if head.kind not in END_KINDS:
                if head.garbage:
                    text = f"{CYCLE}: {text}"
                else:
                    text = f"{text}, {ONLY_CPP}"
            (weak if kind == "link" and label == "variable" else found).add(text)
        if self._nodes[node].garbage and not found:
            found.add(CYCLE)
        return found or weak

    # -- walking ---------------------------------------------------------------

    def _leads_through(self, node: int, through: int) -> bool:
        if self._nodes[through].garbage:
            return False  # a cycle leads through everything in it
        while node >= 0:
            if node == through:
                return True
            node = self._parents[node]
        return False

    def _head(self, node: int) -> int:
        while self._parents[node] >= 0:
            node = self._parents[node]
        return node

    def _is_second(
        self, before: Path, holder: int, kind: str, label: str | int | None
    ) -> bool:
        """Whether a reference says less than any other that leads there."""
        optimizer = label in _SECOND_NAMES and (
            before.how == "optimizer"
            or self._nodes[holder].type_address in self._known.optimizers
        )
        return optimizer or kind == "as key" or (kind == "link" and label != ".grad")

    def _spread(self, heads: Iterable[int]) -> None:
        """Go on from HEADS, and from all nodes that have a path."""
        level = [i for i, path in enumerate(self._paths) if path is not None]
        for i in heads:
            self._paths[i] = self._begin(i)
            level.append(i)
        while level:
            best: dict[int, tuple[str, int, Path]] = {}
            for holder in level:
                before = self._paths[holder]
                assert before is not None
                for held, kind, label in self._held[holder]:
                    if self._paths[held] is not None:
                        continue
                    if self._second or not self._is_second(before, holder, kind, label):
                        path = self._step(before, holder, kind, label, held)
                        if held not in best or path.text < best[held][0]:
                            best[held] = (path.text, holder, path)
            for held, (_, holder, path) in best.items():
                self._paths[held] = path
                self._parents[held] = holder
            level = list(best)

    # -- words -----------------------------------------------------------------

    def _begin(self, index: int) -> Path:
        """Return the first words of a path."""
        node = self._nodes[index]
        title = node.title or node.type_name
        if node.kind in ("running", "handled"):
            thread = self._known.threads.get(node.thread)
            prefix = "" if thread is None else f"thread {thread!r} "
            if node.kind == "handled":
                return Path(f"{prefix}exception being handled")
            return Path(f"{prefix}{title}()")
        if node.kind == "globals":
            return Path(title, "dict")
        if node.kind == "module":
            return Path(title)
        if node.kind == "type":
            return Path(f"class {title}")
        if node.kind in ("function", "generator", "frame"):
            return self._enter(Path(""), index)
        if node.kind in ("dict", "sequence"):
            return Path(f"a {node.type_name}")
        if node.kind == "graph":
            return Path("a graph", "graph")
        return Path(node.type_name)

    def _enter(self, path: Path, index: int) -> Path:
        """Add what a node itself says: the names of frames and functions."""
        node = self._nodes[index]
        arrow = f"{path.text} -> " if path.text else ""
        if node.kind == "frame":
            if path.text.endswith(f"generator {node.title}()"):
                return path  # Python 3.10: its frame is an object of its own
            return Path(f"{arrow}frame {node.title}()")
        if node.kind == "generator":
            return Path(f"{arrow}generator {node.title}()")
        if node.kind == "function" and not path.text:
            return Path(f"{node.title}()")
        return path

    def _step(
        self, before: Path, holder: int, kind: str, label: str | int | None, held: int
    ) -> Path:
        """Return the path to HELD over a reference of HOLDER's."""
        return self._enter(self._refer(before, holder, kind, label, held), held)

    def _refer(
        self, before: Path, holder: int, kind: str, label: str | int | None, held: int
    ) -> Path:
        text, how, param = before
        node = self._nodes[holder]
        if node.kind == "graph":
            return self._in_graph(before, node, kind, label, held)
        if kind == "variable":
            return Path(f"{text} local {label!r}")
        if kind == "closure":
            return Path(f"{text} closure variable {label!r}")
        if kind in ("cell", "traceback"):
            return before
        if kind == "context":
            return Path(f"{text}.__context__")
        if kind == "dict":
            if node.type_address in self._known.optimizers:
                return Path(node.type_name, "optimizer")
            return Path(text, "module" if self._is_module(node) else "dict")
        if kind == "defaults":
            return Path(f"{text} default")
        if kind == "link":
            if label == "grad_fn":
                return Path(text, "grad_fn")
            return Path(f"{text}{label or ''}")
        if kind == "name" or (kind == "key" and how in _ATTRIBUTES):
            return self._attribute(before, node, str(label), kind)
        if kind == "key" and how == "state":
            if isinstance(label, int):
                return Path(text, "per", label)
            return Path(f"{text}[{label}]")
        if how == "per":
            owner = self._known.parameter(param)
            inside = f"[{_item(kind, label)}]" if kind in ("key", "index") else ""
            return Path(f"{text}{inside} of {owner}")
        if kind in ("key", "index"):
            return Path(f"{text}[{_item(kind, label)}]")
        if kind == "as key":
            return Path(f"{text} (as a key)")
        if node.kind == "frame" and self._nodes[held].kind == "dict":
            return Path(f"{text}.f_locals")
        if node.kind in ("dict", "sequence", "object"):
            return Path(f"{text} (inside of a {node.type_name})")
        return before

    def _is_module(self, node: Node) -> bool:
        return node.type_address in self._known.modules

    def _attribute(self, before: Path, node: Node, label: str, kind: str) -> Path:
        """Return the path to an attribute; torch's own tables are not told."""
        name = label
        if kind == "key":  # of a __dict__, as its repr
            name = label[1:-1] if label[:1] in "'\"" else label
        if before.how == "ctx":
            return Path(f"ctx.{name} of {before.text}")
        if before.how != "table" and name in _TABLES:
            if before.how == "module" or self._is_module(node):
                return Path(before.text, "table")
        if node.type_address in self._known.optimizers:  # its dict is inside of it
            before = Path(node.type_name, "optimizer")
        if before.how == "optimizer" and name == "state":
            return Path(f"{before.text}.state", "state")
        return Path(f"{before.text}.{name}")

    def _in_graph(
        self, before: Path, node: Node, kind: str, label: str | int | None, held: int
    ) -> Path:
        """Return the path over a node of autograd's."""
        if kind == "link" and label is None:
            return Path(before.text, "graph")  # on to the next node
        whose = {"grad_fn": f"grad_fn of {before.text}", "": before.text}.get(
            before.how, f"in the graph of {before.text}"
        )
        if before.text == "a graph":
            whose = before.text
        if kind == "dict":
            return Path(f"{node.title} ({whose})", "ctx")
        if kind == "name":
            return Path(f"ctx.{label} of {node.title} ({whose})")
        if kind == "link" and label != "variable":
            return Path(f"saved by {node.title} ({whose})")
        return Path(f"leaf of the graph: {node.title} ({whose})")
