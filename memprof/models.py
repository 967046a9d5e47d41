"""Models: which there are in a recording, and which names are parts of whom.

One model's parts have bare names (``layers.0.fc``), those of others begin with
the model's (``Net#2/layers.0.fc``); ``memprof.modules`` gives the names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memprof import _core
from memprof.groups import dense_codes
from memprof.rows import NO_INDEX

if TYPE_CHECKING:
    from memprof.recording import Recording

_MODULE_BEGIN = 18  # csrc/event.h
_STATE = _core.ROLES.index("optimizer_state")
_OF_MODEL = [_core.ROLES.index(name) for name in ("parameter", "buffer")]

MODULE_ROLES = [*_OF_MODEL, _core.ROLES.index("gradient"), _STATE]
"""Numbers of the roles whose owner's name holds a module's."""


class Models:
    """The models of a recording."""

    def __init__(self, recording: Recording) -> None:
        """Read the recording's info, or guess from which modules had hooks."""
        info = recording.info
        self.bare = ""
        """The model whose parts have bare names; ``""``: none has."""
        self._titles: set[str] = set()
        self._told = False
        known = info.get("models")
        if isinstance(known, list) and all(isinstance(name, str) for name in known):
            self._titles, self._told = set(known) - {""}, True
            self.bare = known[0] if known else ""
        else:
            self._guess(recording)
        self.own: dict[str, str] = self._find_own(recording)
        """The model by the names of its own tensors, which have no module part."""
        told = info.get("own_tensors")
        if isinstance(told, dict):
            self.own.update((k, v) for k, v in told.items() if isinstance(v, str))

    def _guess(self, recording: Recording) -> None:
        """Find the models of a recording that does not tell them."""
        text, events = recording.op, recording.events()
        marks = np.flatnonzero(events["kind"] == _MODULE_BEGIN)
        modules, first = np.unique(events["module"][marks], return_index=True)
        begins = {
            text(index): int(marks[place])
            for index, place in zip(modules.tolist(), first.tolist(), strict=True)
        }
        born_in = recording.allocations("all")["module"].astype(np.int64)
        _, ids = dense_codes(born_in)
        names = {*begins, *(text(index) for index in ids.tolist())}
        # Models have hooks, and names without a dot; so may a part of theirs
        # that was called from outside, but that is no class.
        found = [name for name in begins if name[:1].isupper() and "." not in name]
        prefixes = {name.partition("/")[0] for name in names if "/" in name}
        self._titles = {name for name in found if "/" not in name}
        numbered = {name for name in found if "#" in name}  # a later one's name
        likely = sorted(self._titles - prefixes - numbered, key=begins.__getitem__)
        self.bare = next(iter(likely), "")

    def _find_own(self, recording: Recording) -> dict[str, str]:
        """Return whose the parameters and buffers without a module part are."""
        lives = recording.allocations("all")
        held = np.isin(lives["role"], _OF_MODEL) & (lives["owner"] != NO_INDEX)
        _, ids = dense_codes(lives["owner"][held].astype(np.int64))
        own = {}
        for name in (recording.op(index) for index in ids.tolist()):
            # What no model holds is "parameter 3 of SGD".
            if name and "." not in name and " of " not in name:
                title, slash, _ = name.partition("/")
                theirs = slash and (title in self._titles or not self._told)
                own[name] = title if theirs else self.bare
        return own

    def place(self, name: str) -> tuple[str, str]:
        """Return the model that a module is part of, and its path in it."""
        if name in self._titles:
            return name, ""
        title, slash, path = name.partition("/")
        if slash and (title in self._titles or not self._told):
            return title, path
        return self.bare, name

    def name(self, model: str, path: str) -> str:
        """Return the name of a module, as it is written in recordings."""
        if not path:
            return model
        return path if model == self.bare else f"{model}/{path}"

    def owner(self, text: str, role: int) -> tuple[str, str] | None:
        """Return the module that an owner's name speaks of; None: no module.

        Args:
            text: as ``exp_avg of layers.0.attn.weight``.
            role: number of the storage's role.
        """
        name = text
        if role == _STATE:
            name = text.partition(" of ")[2]
        name = name.removesuffix(".grad")
        # What no model holds is "parameter 3 of SGD", its state "step of SGD".
        if not name or " of " in name:
            return None
        module = name.rpartition(".")[0]
        if module:
            return self.place(module)
        return (self.own[name], "") if name in self.own else None
