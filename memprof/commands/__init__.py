"""The verbs of the command line: one file a verb, and this list of them.

A verb is a module with ``NAME``, ``HELP``, ``add_arguments(parser)`` and
``run(args)``, which returns the exit code.
"""

from memprof.commands import summary

COMMANDS = (summary,)
