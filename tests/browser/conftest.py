"""Headless browsers for the tests of the report; said once if there is none.

Chromium and Firefox are Debian's (``apt-get install chromium firefox-esr``) or what
``MEMPROF_CHROMIUM`` and ``MEMPROF_FIREFOX`` name; what drives them comes from ``make
browser-tools``. ``MEMPROF_REQUIRE_BROWSER=1`` turns a skip into a failure: for CI.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memprof import load

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "unit"))  # events.py

import firefox as fox  # noqa: E402

NEEDS = pytest.StashKey[list[str]]()
TRIED = pytest.StashKey[str]()


def chromium() -> str | None:
    """Return the browser's path."""
    named = os.environ.get("MEMPROF_CHROMIUM")
    return named or shutil.which("chromium") or shutil.which("chromium-browser")


def why_not() -> str:
    """Return what is missing for these tests; ``""``: nothing."""
    modules = {
        "playwright": "playwright",
        "axe_playwright_python": "axe-playwright-python",
    }
    missing = [
        package
        for name, package in modules.items()
        if importlib.util.find_spec(name) is None
    ]
    if chromium() is None:
        missing.append("chromium (a Debian package)")
    return ", ".join(missing)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Skip a browser's tests where there is no such browser."""
    config.stash[NEEDS] = []
    for fixture, why in (("browser", why_not), ("firefox", fox.why_not)):
        mine = [
            item
            for item in items
            if HERE in item.path.parents
            and fixture in getattr(item, "fixturenames", ())
        ]
        missing = why() if mine else ""
        if missing and not os.environ.get("MEMPROF_REQUIRE_BROWSER"):
            reason = f"no {fixture}: {missing} missing; `make browser-tools`"
            for item in mine:
                item.add_marker(pytest.mark.skip(reason=reason))
            config.stash[NEEDS].append(
                f"{len(mine)} {fixture} tests skipped: {missing} missing"
            )


def pytest_report_collectionfinish(config: pytest.Config) -> str | list[str]:
    """Say once, in one line, that a browser's tests do not run."""
    return config.stash.get(NEEDS, [])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which Firefox it was: Debian's is another every year."""
    if TRIED in config.stash:
        terminalreporter.write_line(config.stash[TRIED])


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A browser for the session."""
    missing = why_not()
    if missing:
        pytest.fail(f"MEMPROF_REQUIRE_BROWSER is set, but {missing} missing")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox"]
        )
        yield started
        started.close()


@pytest.fixture(scope="session")
def firefox(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[fox.Firefox]:
    """A Firefox for the session."""
    missing = fox.why_not()
    if missing:
        pytest.fail(f"MEMPROF_REQUIRE_BROWSER is set, but {missing} missing")
    started = fox.Firefox(tmp_path_factory.mktemp("firefox"))
    pytestconfig.stash[TRIED] = f"the report was tried in Firefox {started.version}"
    yield started
    started.close()


class Opened:
    """A page with a report in it, and all that it said and asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda m: self.said.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("request", lambda request: self.asked.append(request.url))

    def js(self, expression: str, argument: Any = None) -> Any:
        """Evaluate an expression, or call a function with ARGUMENT."""
        return self.page.evaluate(expression, argument)

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Wait until a condition is true; the page forbids Playwright's own way."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.js(condition):
                return
            self.page.wait_for_timeout(20)
        raise AssertionError(f"not within {seconds} s: {condition}; {self.said}")

    def open(self, path: Path, state: str = "") -> None:
        """Open a report and wait until it is there."""
        self.page.goto("about:blank")
        self.page.goto(f"{path.as_uri()}{state}")
        self.wait(
            "Boolean(window.memprof && (memprof.ready || memprof.errors().length))"
        )
        assert self.js("memprof.ready"), self.js("memprof.errors()")
        self.settle()

    def settle(self) -> None:
        """Let two frames pass."""
        self.js(
            "new Promise((f) => requestAnimationFrame(() => requestAnimationFrame(f)))"
        )

    def test(self, name: str) -> Any:
        """Return the element with a test id."""
        return self.page.get_by_test_id(name)

    def check_quiet(self) -> None:
        """Fail if the page said anything, or asked for anything but itself."""
        assert self.said == []
        assert self.js("memprof.errors()") == []
        assert fox.strangers(self.asked) == []


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two runs of a GPU: it has every tab."""
    path = tmp_path_factory.mktemp("gpu") / "r.html"
    golden = HERE.parent / "golden"
    load(golden / "checkpointed.memprof").report(
        path, compare=load(golden / "convnet.memprof")
    )
    return path


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Opened]]:
    """Open reports: ``opened(path, state="#tab=all", **context)``."""
    contexts = []

    def start(path: Path | None = None, state: str = "", **options: Any) -> Opened:
        options.setdefault("viewport", {"width": 1280, "height": 1000})
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        found = Opened(context.new_page())
        if path is not None:
            found.open(path, state)
        return found

    yield start
    for context in contexts:
        context.close()
