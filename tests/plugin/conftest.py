"""Runs of pytest inside of a test, with our plugin and no other but those named.

The inner runs share this process where they can: torch is imported once. They never
see this tree's own ini file, nor the entry points of what else is installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import pytest
from inner import HEAD, OTHERS, PLUGIN

torch = pytest.importorskip("torch")

NAMES = "board environment html_report measure plan runner settle tracking verdict"

# An inner run forgets every module that it was the first to import, and what has
# hooks in torch must not be there twice.
for _name in NAMES.split():
    importlib.import_module(f"memprof.integrations.{_name}")
for _name in ("profiler", "recording", "comparison", "cuda", "averages"):
    importlib.import_module(f"memprof.{_name}")

Run = Callable[..., pytest.RunResult]


@pytest.fixture(scope="session", autouse=True)
def torch_is_warm() -> None:
    """Record once, so that whatever torch and we load late is loaded."""
    import memprof

    with memprof.profile(record_shapes=True) as prof:
        torch.empty(8)
        prof.step()
    prof.recording.peak().rows(limit=3)


@pytest.fixture
def tests(pytester: pytest.Pytester) -> Callable[..., Callable[[str], str]]:
    """Write a file of tests; MIB and bytes_of are there.

    What it returns says on which line a comment is: ``at("leak")``.
    """

    def write(source: str, name: str = "test_it") -> Callable[[str], str]:
        path = pytester.makepyfile(**{name: HEAD + source})

        def at(comment: str) -> str:
            lines = path.read_text().splitlines()
            (number,) = [
                i for i, x in enumerate(lines, 1) if x.endswith(f"# {comment}")
            ]
            return f"{name}.py:{number}"

        return at

    return write


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run pytest on what was written, in this process."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def go(*words: object, plugins: Sequence[str] = ()) -> pytest.RunResult:
        loaded = ["-p", PLUGIN]
        for name in plugins:
            for module in OTHERS[name]:
                pytest.importorskip(module.partition(".")[0])
                loaded += ["-p", module]
        args = [*loaded, "-p", "no:cacheprovider", *map(str, words)]
        return pytester.runpytest_inprocess(*args)

    return go
