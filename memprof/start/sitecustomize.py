# Python runs this at its start where `memprof run` has put the folder on
# PYTHONPATH: in the program, and in every Python that the program starts. That
# may be any Python, so all of them can read this file, and it does next to
# nothing: memprof itself is loaded once torch has been imported. The program's
# own sitecustomize, which this file hides, comes last.
import os
import sys

_folder = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [
    path for path in sys.path if os.path.realpath(path) != os.path.realpath(_folder)
]

if sys.version_info >= (3, 10) and os.environ.get("MEMPROF_RUN"):
    try:
        import importlib.util as _util

        _spec = _util.spec_from_file_location(
            "memprof_torch_import",
            os.path.join(os.path.dirname(_folder), "torch_import.py"),
        )
        _waits = _util.module_from_spec(_spec)  # type: ignore[arg-type]
        _spec.loader.exec_module(_waits)  # type: ignore[union-attr]
        _waits.when_torch_comes(_waits.record)
        _waits.tell_at_exit()
    except Exception as _problem:  # the program's run matters more
        _text = ascii(str(_problem))[1:-1]
        sys.stderr.write("memprof: nothing will be recorded: %s\n" % _text)  # noqa: UP031

_ours = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
except ImportError as _problem:
    if getattr(_problem, "name", "sitecustomize") != "sitecustomize":
        raise
finally:
    # Python looks for the name of what it has imported.
    if _ours is not None:
        sys.modules.setdefault("sitecustomize", _ours)
