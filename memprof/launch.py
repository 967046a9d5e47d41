"""``memprof run``: start an unchanged program so that it records itself.

The process becomes the program (``exec``): the same Python, told by its
environment to load memprof once the program has imported torch. So arguments,
``__main__``, signals, exit code and tracebacks are the program's own, and
every Python that it starts is told the same (``start/sitecustomize.py``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memprof.errors import MemprofError

VARIABLE = "MEMPROF_RUN"
"""Environment: a ``Plan`` as JSON."""

FOLDER = Path(__file__).resolve().parent / "start"
"""What goes on PYTHONPATH: its ``sitecustomize`` is the first thing that runs."""

CHILDREN = ("new", "all", "none")
"""Which child processes record too: each new Python that imports torch; also
what multiprocessing forks; none."""

STEPS = ("program", "optimizer", "none")
"""What a step of the recording is: what the program tells a profiler, from one
step of the optimizer to the next, or nothing."""

_LONGEST = 200
"""Of a file's name, before rank and process."""


class Plan(NamedTuple):
    """What the processes of a run must know."""

    pid: int
    """The program itself; all others are its children."""
    cwd: str
    """Where it was started; files go there."""
    output: str | None
    """The program's recording, a whole path; None: an automatic name."""
    name: str
    """Of the program, for automatic names."""
    steps: str = "program"
    children: str = "new"
    quiet: bool = False
    verbose: bool = False
    options: dict[str, Any] = {}  # noqa: RUF012
    """Arguments of ``memprof.profile``."""
    began: float = 0.0
    """When, in seconds since 1970: what is younger, the run has written."""

    def text(self) -> str:
        """Return the plan for the environment."""
        return json.dumps(self._asdict())


def plan_of(environ: Mapping[str, str]) -> Plan | None:
    """Return the plan of this run; None: there is none, or none of ours."""
    try:
        return Plan(**json.loads(environ[VARIABLE]))
    except (KeyError, ValueError, TypeError):
        return None


# -- names -----------------------------------------------------------------------


def rank_of(environ: Mapping[str, str]) -> str:
    """Return ``.rank<k>`` as RANK says, which torchrun sets; else ``""``."""
    rank = environ.get("RANK", "")
    return f".rank{int(rank)}" if rank.isascii() and rank.isdigit() else ""


def script_name(script: str) -> str:
    """Return what a program is called in the name of its recording."""
    path = Path(script)
    name = path.parent.name if path.name == "__main__.py" else path.stem
    known = {"-c": "command", "": "python", "-": "stdin", "-m": "module"}
    name = known.get(script, name or "python")
    clean = "".join(c if c.isalnum() or c in "._-+" else "-" for c in name)
    return os.fsencode(clean)[:_LONGEST].decode("utf-8", "ignore").lstrip(".-") or "run"


def with_rank(output: str, environ: Mapping[str, str]) -> str:
    """Return OUTPUT with the rank before its suffix: ranks share no file."""
    stem, suffix = os.path.splitext(output)
    return f"{stem}{rank_of(environ)}{suffix}"


def file_of(plan: Plan, environ: Mapping[str, str], pid: int, script: str) -> str:
    """Return the file that process PID records to.

    Args:
        plan: Of the run.
        environ: Of the process, for its rank.
        pid: Its number.
        script: Its ``sys.argv[0]``.
    """
    if plan.output is not None:
        if pid == plan.pid:
            return plan.output
        stem, suffix = os.path.splitext(plan.output)
        return f"{stem}{rank_of(environ)}.{pid}{suffix}"
    name = plan.name if pid == plan.pid else script_name(script)
    return os.path.join(plan.cwd, f"memprof-{name}{rank_of(environ)}.{pid}.memprof")


def unused(plan: Plan, path: str) -> str:
    """Return PATH, or with a number before its suffix what is not there yet.

    A program that becomes another by ``exec`` keeps its process, and processes of
    containers have the same few numbers.  Only what ``-o`` names may be there.
    """
    stem, suffix = os.path.splitext(path)
    number = 1
    while _is_kept(plan, path):
        number += 1
        path = f"{stem}.{number}{suffix}"
    return path


def _is_kept(plan: Plan, path: str) -> bool:
    """Whether PATH is a file that nobody gave leave to replace."""
    try:
        written = os.stat(path).st_mtime
    except OSError:  # not there; or whoever writes it will say why it cannot be
        return False
    return path != plan.output or written >= plan.began


# -- start -------------------------------------------------------------------------


class Program(NamedTuple):
    """What to run: as python takes it."""

    how: str
    """``-m``, ``-c``, or ``""`` for a script."""
    what: str
    arguments: Sequence[str]

    @property
    def name(self) -> str:
        """What it is called in the name of its recording."""
        if self.how == "-m":
            return script_name(f"{self.what}.py")
        return script_name("-c" if self.how else self.what)

    def words(self) -> list[str]:
        """Return the command line of a Python that runs it, ours with its flags."""
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        how = [self.how] if self.how else []
        return [sys.executable, *flags, *how, self.what, *self.arguments]


def environment(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return ENVIRON with what makes a Python record as PLAN says."""
    before = [
        path
        for path in environ.get("PYTHONPATH", "").split(os.pathsep)
        if path and path != str(FOLDER)
    ]
    return {
        **environ,
        "PYTHONPATH": os.pathsep.join([str(FOLDER), *before]),
        VARIABLE: plan.text(),
    }


def check(program: Program) -> None:
    """Say before the start what cannot work.

    Raises:
        OSError: There is no such script.
        MemprofError: This Python was told not to heed its environment.
    """
    if not sys.executable:
        raise MemprofError("this Python does not know its own file: nothing can run")
    flags = sys.flags
    told = [
        option
        for option, on in (
            ("-I", flags.isolated),
            ("-E", flags.ignore_environment),
            ("-S", flags.no_site),
        )
        if on
    ]
    if told:
        raise MemprofError(
            f"memprof run starts the program by environment variables, which "
            f"python {told[0]} leaves unread: run it without {told[0]}"
        )
    if not program.how and program.what != "-" and not os.path.exists(program.what):
        raise FileNotFoundError(
            f"there is no script {program.what!r} to run; a module is run by -m, "
            "code by -c"
        )


def become(program: Program, plan: Plan) -> None:
    """Turn this process into the program; does not return.

    Raises:
        OSError: The system does not let us.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os.execve(sys.executable, program.words(), environment(plan, os.environ))
