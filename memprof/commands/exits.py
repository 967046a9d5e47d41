"""The exit codes of all verbs, so that a build tells a regression from a crash.

``run`` ends with the program's own code instead, and 128 + n after signal n.
"""

from __future__ import annotations

DONE = 0
FAILED = 1
"""It could not be carried out; standard error has one sentence that says why."""
USAGE = 2
"""The command was not understood, whatever the files hold."""
EXCEEDED = 3
"""A limit or baseline was exceeded: ``check``, ``diff --fail``."""
NO_VERDICT = 4
"""The input is cut or has lost events: of gates only, others warn and are done."""
INTERRUPTED = 130
"""Ctrl-C."""
