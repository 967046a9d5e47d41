"""The files that recordings are written to: who writes which, and where to.

A file that is being streamed to is locked (``flock``), so that neither another
profile, of this process or another, nor ``save`` takes it for its own.
"""

from __future__ import annotations

import fcntl
import os
import stat
from typing import Any

from memprof.errors import MemprofError
from memprof.reports.units import one_line

Path = str | os.PathLike[str]

_claimed: set[int] = set()


class Claim:
    """A file that one profile streams to.

    Attributes:
        path: As the profile was given it.
        is_new: It was not there before.
    """

    def __init__(self, path: str) -> None:
        """Take the file for this profile, making it if need be.

        Raises:
            OSError: It cannot be written.
            MemprofError: Somebody streams to it, or it is no regular file.
        """
        self.path = path
        check_regular(path, "path")
        self.is_new = not os.path.exists(path)
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._identity = _identity(self._handle)
        _claimed.add(self._handle)
        if not _lock(self._handle):
            self._close()
            raise MemprofError(
                f"path={path!r}: another running profile streams to this file; "
                "name another one"
            )

    def is_gone(self) -> bool:
        """Whether the file was deleted since."""
        return self._is_ours() and os.fstat(self._handle).st_nlink == 0

    def _is_ours(self) -> bool:
        """Whether the handle is still that of the file.

        A program may close all handles, and get the number for a file of its own.
        """
        try:
            return _identity(self._handle) == self._identity
        except OSError:  # closed
            return False

    def release(self) -> None:
        """Let others have the file."""
        if self._handle in _claimed and not self._is_ours():
            _claimed.discard(self._handle)
        elif self._handle in _claimed:
            try:
                # Not by closing alone: a forked child may share the handle.
                fcntl.flock(self._handle, fcntl.LOCK_UN)
            except OSError:  # a file system without locks
                pass
            self._close()

    def discard(self) -> None:
        """Release the file; one that we made and nobody wrote to goes."""
        if self.is_new:
            try:
                os.unlink(self.path)
            except OSError:  # somebody was quicker
                pass
        self.release()

    def _close(self) -> None:
        _claimed.discard(self._handle)
        os.close(self._handle)


def _identity(handle: int) -> tuple[int, int]:
    facts = os.fstat(handle)
    return facts.st_dev, facts.st_ino


def _lock(handle: int, how: int = fcntl.LOCK_EX) -> bool:
    """Lock a file; False if somebody else has."""
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def check_regular(path: Path, name: str) -> None:
    """Refuse what is there and is no file for bytes.

    Raises:
        IsADirectoryError: It is a folder.
        MemprofError: It is a device, a pipe or a socket.
        OSError: It cannot be looked at.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    kinds: tuple[tuple[Any, str], ...] = (
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
    )
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{name}={os.fspath(path)!r} is a folder")
    if not stat.S_ISREG(mode):
        what = next((text for test, text in kinds if test(mode)), "a device")
        raise MemprofError(f"{name}={os.fspath(path)!r} is {what}; name a regular file")


def check_folder(path: str | os.PathLike[str], what: str = "") -> None:
    """Check that PATH is the name of a file in a folder that is there.

    Args:
        path: the file.
        what: goes before the path in the message, ``"path="`` say.

    Raises:
        OSError: it is not; names the path and what is missing.
    """
    path = os.fspath(path)
    if not path:
        raise FileNotFoundError(f"{what}{path!r} is no name of a file")
    if os.path.isdir(path):
        raise IsADirectoryError(f"{what}{path!r} is a folder")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(
            f"{what}{path!r}: there is no folder {one_line(os.fsdecode(folder))}"
            f"{home_hint(path)}"
        )


def home_hint(path: str | bytes) -> str:
    """Return what to say behind a PATH that is not there; mostly nothing."""
    if not os.fsdecode(path).startswith("~"):
        return ""
    return "; only a shell expands ~, else os.path.expanduser() does"


def check_writable(path: str | os.PathLike[str], what: str = "") -> None:
    """Check that PATH can be opened for writing; see ``check_folder``.

    Raises:
        OSError: it cannot; names the path and what is missing.
    """
    check_folder(path, what)
    path = os.fspath(path)
    folder = os.path.dirname(os.path.abspath(path))
    target = path if os.path.exists(path) else folder
    if not os.access(target, os.W_OK):
        raise PermissionError(f"{what}{path!r} cannot be written")


def save_target(path: Path) -> str:
    """Return the file behind PATH, which may be replaced by a whole new one.

    Raises:
        MemprofError: It is no regular file, or a running profile streams to it.
        OSError: It cannot be looked at.
    """
    check_regular(path, "path")
    # A link stays one: what it leads to is replaced, even if that is not there.
    target = os.path.realpath(path) if os.path.islink(path) else path
    try:
        handle = os.open(target, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # none yet, or not to be read: replaced all the same
        return os.fspath(target)
    try:
        # Shared: others who only ask, as we do, are in nobody's way.
        if not _lock(handle, fcntl.LOCK_SH):
            raise MemprofError(
                f"{os.fspath(path)!r}: a running profile streams to this file; save "
                "to another one, or after stop()"
            )
    finally:
        os.close(handle)
    return os.fspath(target)


def _after_fork() -> None:
    """A child has no part in what its parent streams to."""
    while _claimed:
        os.close(_claimed.pop())


os.register_at_fork(after_in_child=_after_fork)
