"""The verbs of the command line: one file a verb, and this list of them.

A verb is a module with ``NAME``, ``HELP``, ``add_arguments(parser)`` and
``run(args)``, which returns the exit code. What is wrong with the words alone,
whatever the file, is usage: it is told by the ``type`` of the argument.
"""

from memprof.commands import (
    convert,
    diff,
    doctor,
    info,
    report,
    run,
    selftest,
    summary,
    trim,
)

COMMANDS = (run, summary, report, diff, convert, trim, info, doctor, selftest)
