"""The windows of a profile: each becomes a recording, and a file if asked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memprof import _core, cuda, info
from memprof.careful import attempt, sentence
from memprof.errors import MemprofError
from memprof.files import Claim, check_regular, check_writable
from memprof.warn import warn

SAVE_IT = ". The recording in memory is whole: save() it"
"""The remedy where a file fails, for whoever has the profile."""

if TYPE_CHECKING:
    from typing import TypeAlias

    from memprof.follow import Follower
    from memprof.recording import Recording

    Facts: TypeAlias = Callable[[], dict[str, Any]]  # those of the profile
    MakeId: TypeAlias = Callable[[], str] | None  # None: ids are random


class Windows:
    """The open window, what became of the last one, and where the next goes.

    Knows neither schedules nor steps. The caller holds the profile's lock.
    """

    def __init__(self, path: str | None) -> None:
        """Begin with none.

        Args:
            path: The file of the first one; None: they stay in memory.
        """
        self.is_open = False
        self.trace_id: str | None = None
        """The id of the open or last window."""
        self.last: Recording | None = None
        self.failure = ""
        """Why there is no recording of a window."""
        self.started: dict[str, Any] = {}
        """When the profile was started last; empty: never."""
        self._path = path
        self._claim: Claim | None = None  # the file of the open window
        self._count = 0  # begun so far
        self._torch: Any = None
        self._counters: tuple[info.Counters, info.Counters] = ({}, {})
        self._begun_wall_ns = 0

    def check_path(self) -> None:
        """Say at the start that ``path`` cannot be written, not in mid-run.

        Raises:
            OSError: It cannot.
            MemprofError: It is no regular file.
        """
        path = self._next_path()
        if path is not None:
            check_regular(path, "path")
            check_writable(path, "path=")

    def start(self, torch: Any) -> None:
        """Note when the profile starts, and what torch had counted by then."""
        self.is_open = False
        self._torch = torch
        self._counters = (cuda.counters(torch), {})
        self.started = {"start_ns": time.time_ns()}

    def so_far(self, follower: Follower, facts: Facts) -> Recording:
        """Return what the open window holds."""
        from memprof.recording import Recording

        core = follower.snapshot()
        core.info = self._info(core, follower, facts())
        return Recording(core, cuda.current(self._torch))

    def begin(self, follower: Follower, facts: Facts, make_id: MakeId) -> None:
        """Open the next window."""
        trace_id = _new_trace_id(make_id)
        self._open(follower, self._next_path())
        self.trace_id = trace_id
        attempt("the file's info", self._describe_early, follower, facts)

    def begin_anyhow(self, follower: Follower, facts: Facts, make_id: MakeId) -> None:
        """Open the next window; if its file cannot be made, in memory only."""
        trace_id = os.urandom(16).hex()
        try:
            trace_id = _new_trace_id(make_id)
        except Exception as problem:
            warn(f"custom_trace_id_callback raised {sentence(problem)}")
        try:
            self._open_somewhere(follower)
        except Exception as problem:
            self.failure = f"{type(problem).__name__}: {problem}"
            raise
        self.trace_id = trace_id
        attempt("the file's info", self._describe_early, follower, facts)

    def _next_path(self) -> str | None:
        """Return the file of the next window."""
        if self._path is None or self._count == 0:
            return self._path
        stem, suffix = os.path.splitext(self._path)
        return f"{stem}.{self._count + 1}{suffix}"

    def _open_somewhere(self, follower: Follower) -> None:
        path = self._next_path()
        try:
            self._open(follower, path)
        except (OSError, MemprofError) as problem:
            if path is None:
                raise
            warn(f"memprof records in memory only: {problem}")
            self._open(follower, None)

    def _open(self, follower: Follower, path: str | None) -> None:
        claim = None if path is None else Claim(path)
        try:
            follower.window_begin(path)
        except BaseException:
            if claim is not None:
                claim.discard()
            raise
        self._claim = claim
        self.is_open = True
        self._count += 1
        self._begun_wall_ns = time.time_ns()
        self._counters = (self._counters[0], cuda.counters(self._torch))

    def end(self, follower: Follower, facts: Facts) -> bool:
        """Turn the open window into a recording; whether there is one."""
        from memprof.recording import Recording

        if not self.is_open:
            return False
        self.is_open = False
        try:
            try:
                core = follower.window_end()
            except Exception as problem:
                self.failure = sentence(problem)
                warn(f"memprof lost this window: {self.failure}")
                return False
            self.last = Recording(core, None)
            attempt("the recording's info", self._describe, core, follower, facts)
            self._close_file(core, follower, facts)
            return True
        finally:
            claim, self._claim = self._claim, None
            if claim is not None:
                claim.release()

    def _close_file(
        self, core: _core.Recording, follower: Follower, facts: Facts
    ) -> None:
        """Finish the window's file; say it if that is not whole."""
        why = ""
        try:
            core.close_stream()
        except OSError as problem:
            why = problem.strerror or str(problem)
        except Exception as problem:
            why = sentence(problem)
        if core.stream_errno:
            why = os.strerror(core.stream_errno)
        claim = self._claim
        if claim is None:
            return
        if not why and claim.is_gone():
            why = "it was deleted while it was written"
        if why:
            attempt("the recording's info", self._describe, core, follower, facts, why)
            warn(
                f"memprof: the recording's file failed: {claim.path}: {why}; what it "
                f"holds ends there{SAVE_IT}"
            )

    def _describe_early(self, follower: Follower, facts: Facts) -> None:
        """Let the file say what is known by now, lest it be never closed."""
        if self._claim is None:
            return
        torch, said = self._torch, facts()
        said.update(
            window=self._count,
            trace_id=self.trace_id,
            wall={**self.started, "begin_ns": self._begun_wall_ns},
        )
        numbers = [int(name.partition(":")[2]) for name in self._counters[1]]
        lasting = ("sources", "shim", "own_tensors", "models")

        def followed() -> dict[str, Any]:
            known = follower.facts()
            return {name: known[name] for name in lasting if name in known}

        for what, part in (
            ("versions", lambda: info.versions(torch)),
            ("devices", lambda: info.device_facts(torch, numbers)),
            ("sources", followed),
        ):
            attempt(f"info of {what}", lambda part=part: said.update(part()))
        # What UTF-8 cannot hold (an argument's odd bytes) JSON can, escaped.
        text = info.text(said).encode("utf-8", "backslashreplace").decode()
        follower.window_describe(text)

    def _describe(
        self,
        core: _core.Recording,
        follower: Follower,
        facts: Facts,
        stream_error: str = "",
    ) -> None:
        from memprof.recording import Recording

        core.info = self._info(core, follower, facts(), stream_error)
        self.last = Recording(core, cuda.current(self._torch))

    def _info(
        self,
        core: _core.Recording,
        follower: Follower,
        facts: dict[str, Any],
        stream_error: str = "",
    ) -> str:
        """Return FACTS and those of the window as JSON."""
        torch, (start, begin) = self._torch, self._counters
        facts.update(
            window=self._count,
            trace_id=self.trace_id,
            wall={
                **self.started,
                "begin_ns": self._begun_wall_ns,
                "end_ns": time.time_ns(),
            },
        )
        if self._claim is not None:
            if not stream_error and core.stream_errno:
                stream_error = os.strerror(core.stream_errno)
            facts["stream"] = {"path": self._claim.path, "error": stream_error}

        def counters() -> dict[str, Any]:
            return info.torch_counters(start, begin, cuda.counters(torch))

        # One fact that cannot be had must not cost the others.
        for what, part in (
            ("versions", lambda: info.versions(torch)),
            ("devices", lambda: info.device_facts(torch, core.devices())),
            ("the process group", lambda: info.distributed(torch)),
            ("sources", follower.facts),
            ("counters", lambda: {"torch_counters": counters()}),
        ):
            attempt(f"info of {what}", lambda part=part: facts.update(part()))
        return info.text(facts)


def _new_trace_id(make_id: MakeId) -> str:
    return os.urandom(16).hex() if make_id is None else str(make_id())
