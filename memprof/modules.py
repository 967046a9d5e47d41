"""Qualified names of modules and parameters, kept while these live.

The first model's parts are called as in ``named_modules``
(``layer1.0.conv1``), those of any other begin with its class
(``Discriminator/layer1.0.conv1``), so two models never mix. A model itself has
the name of its class. A part of two models keeps its first name.
"""

from __future__ import annotations

import weakref
from typing import Any

from memprof import _core, heap
from memprof.careful import class_name


class _Named(weakref.ref[Any]):
    """A weak reference that knows where its object was and how it is called."""

    __slots__ = ("address", "name", "root")

    address: int
    name: str
    root: str


class Names:
    """Who is called how. Nothing that is named is kept alive."""

    def __init__(self) -> None:
        """Know nobody."""
        self._known: dict[int, _Named] = {}
        self._roots: dict[int, _Named] = {}
        # Class of the model whose parts have bare names, once there is one.
        self._bare_class: str | None = None
        # The class of a model for the bare names of its own tensors: "weight".
        self.own: dict[str, str] = {}
        self._titles: dict[str, None] = {}

    def clear(self) -> None:
        """Forget everybody."""
        self._known.clear()
        self._roots.clear()
        self.own.clear()
        self._titles.clear()
        self._bare_class = None
        _core.forget_objects()

    def name(self, thing: Any) -> str | None:
        """Return the name of a module or parameter, None if it has none."""
        known = self._known.get(id(thing))
        return known.name if known is not None and known() is thing else None

    def at(self, address: int) -> Any:
        """Return the named module or parameter with that ``id``, else None."""
        known = self._known.get(address)
        return None if known is None else known()

    def roots(self) -> list[Any]:
        """Return the models seen, in the order in which they were."""
        found = (ref() for ref in list(self._roots.values()))
        return [root for root in found if root is not None]

    def titles(self) -> list[str]:
        """Return the names of all models, the one whose parts have bare names first.

        Those that are gone are there too; ``""`` is first if there is none such.
        """
        bare = self._bare_class or ""
        return [bare, *(title for title in list(self._titles) if title != bare)]

    def add_root(self, root: Any) -> None:
        """Name a model, its submodules and their parameters.

        Called again it names what has come to it meanwhile.
        """
        known = self._roots.get(id(root))
        if known is not None and known() is root:
            title = known.root
        else:
            title = self._title(root)
            ref = self._reference(root, title, self._roots)
            if ref is None:
                return
            ref.root = title
            self._titles[title] = None
        prefix = self._prefix(title)
        for path, module in heap.submodules(root):
            self.add(module, prefix + path if path else title)
            inside = self.inside(module)
            for name, parameter in heap.tensors(module, "_parameters"):
                self.add(parameter, inside + name)
            if inside == "":
                for table in ("_parameters", "_buffers"):
                    for name, _ in heap.tensors(module, table):
                        self.own[name] = title

    def inside(self, module: Any) -> str:
        """Return what the names of a module's own tensors begin with."""
        root = self._roots.get(id(module))
        name = self.name(module)
        if root is not None and root() is module and name == root.root:
            return self._prefix(root.root)
        return f"{name or class_name(module)}."

    def _prefix(self, title: str) -> str:
        """Return what the names of the parts of a model begin with."""
        return "" if title == self._bare_class else f"{title}/"

    def add(self, thing: Any, name: str) -> None:
        """Name one module or parameter, unless it has a name."""
        if self.name(thing) is None and self._reference(thing, name, self._known):
            _core.name_object(thing, name)

    def _title(self, root: Any) -> str:
        """Choose what a new root is called: its class, numbered if need be."""
        name = class_name(root)
        if not heap.children(root) and not heap.tensors(root, "_parameters"):
            return name  # a loss, say: made anew each step, always the same
        if self._bare_class is None:
            self._bare_class = name
        taken = {ref.root for ref in self._roots.values() if ref() is not None}
        title, number = name, 1
        while title in taken:
            number += 1
            title = f"{name}#{number}"
        return title

    def _reference(
        self, thing: Any, name: str, table: dict[int, _Named]
    ) -> _Named | None:
        """Put a weak reference into TABLE that leaves it when THING dies."""
        forget = _core.forget_object if table is self._known else None

        def died(ref: Any) -> None:
            address: int = ref.address
            if table.get(address) is ref:
                del table[address]
                if forget is not None:
                    forget(address)

        try:
            ref = _Named(thing, died)
        except TypeError:  # a class with __slots__ and no __weakref__
            return None
        ref.address, ref.name, ref.root = id(thing), name, ""
        table[ref.address] = ref
        return ref
