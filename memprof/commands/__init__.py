"""The verbs of the command line: one file a verb, and this list of them.

A verb is a module with ``NAME``, ``HELP``, ``EXAMPLE``, ``add_arguments(parser)`` and
``run(args)``, which returns one of the codes in ``exits``; ``ALIASES`` are other names.
The common flags come from ``flags.add``, and what is written goes through ``emit``.
``EXAMPLE`` is one whole command; help shows it, and a test runs it in a folder with
``run.memprof``, ``before.memprof``, ``after.memprof`` and ``train.py``. What is wrong
with the words alone, whatever the file, is usage: it is told by the ``type`` of the
argument, or by ``args.usage_error(text)``.
"""

from memprof.commands import (
    check,
    completion,
    convert,
    diff,
    doctor,
    info,
    query,
    report,
    run,
    selftest,
    summary,
    table,
    timeline,
    tree,
    trim,
)

COMMANDS = (
    run,
    *(summary, report, table, tree, timeline),
    *(diff, check, query, convert, trim),
    *(info, doctor, selftest, completion),
)
