"""The pytest plugin: limits, leaks and committed baselines of memory.

This is what pytest loads through its entry point, in every run, so it imports
nothing of torch and nothing of memprof's core, and does nothing, until a marker,
the fixture or an option of ours is used; until then it has no hook that runs for each
test. What is done then is in the modules
beside it: ``settings``, ``plan`` (what a test asks for), ``runner`` (measures the
body), ``verdict`` (judges), ``baselines``, ``runs`` (the stored ones), ``board``
(what the controller collects and prints).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from memprof.integrations.tracking import Tracking

MARKERS = (
    "memprof_limit(peak=, growth=, reserved=, outside=, device=, warmup=, steps=): "
    'fixed limits of memory, as peak="2 GiB", growth="64 KiB/step"; peak is above the '
    "level at the start of the test",
    'memprof_no_leaks(steps=5, warmup=2, allow="0 B"): runs the test several times; '
    "nothing may be left over from run to run",
    'memprof_baseline(peak="5%", growth="64 KiB/step"): compares with the committed '
    "baseline of this environment",
)
NAMES = ("memprof_limit", "memprof_no_leaks", "memprof_baseline")

_LISTENER = "memprof-listener"

# In the ini file these ask for every test to be measured.
_MEASURE_ALL = ("memprof", "memprof_save", "memprof_autosave", "memprof_compare")

# option, metavar (None: a switch), ini type, help.  The ini twin of --memprof-top
# is memprof_top.
_OPTIONS = (
    ("--memprof", None, "measure every test and print a summary"),
    ("--memprof-off", None, "measure nothing and enforce nothing, markers neither"),
    ("--memprof-top", "N", "rows of tables and tests of the summary; default: 10"),
    ("--memprof-html", "DIR", "write an HTML report of each failure into DIR"),
    ("--memprof-baselines", "DIR", "where the committed baselines are; default: "
     "memprof_baselines beside the root ini file"),
    ("--memprof-update-baseline", None, "write what tests with memprof_baseline "
     "measured, of those that passed, as their new baseline"),
    ("--memprof-require-baseline", None, "fail tests with memprof_baseline that have "
     "no baseline in this environment"),
    ("--memprof-confirm", "N", "run a body that exceeds a limit N more times, and fail "
     "only if all do; default: 1"),
    ("--memprof-save", "NAME", "store this run as .memprof/<key>/NNNN_NAME.json"),
    ("--memprof-autosave", None, "store this run, named after the commit"),
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and their twins in the ini file."""
    group = parser.getgroup("memprof", "memory of PyTorch (memprof)")
    for option, metavar, words in _OPTIONS:
        ini = option[2:].replace("-", "_")
        dest = f"{ini}_" if ini == "memprof" else ini
        if metavar is None:
            group.addoption(
                option, action="store_true", default=None, dest=dest, help=words
            )
            parser.addini(dest.rstrip("_"), words, type="bool", default=None)
        else:
            group.addoption(
                option, metavar=metavar, default=None, dest=dest, help=words
            )
            parser.addini(ini, words, default=None)
    words = "compare with a stored run: its number or name; default: the last one"
    group.addoption(
        "--memprof-compare",
        metavar="NUM|NAME",
        nargs="?",
        const="",
        default=None,
        dest="memprof_compare",
        help=words,
    )
    parser.addini("memprof_compare", words, default=None)
    words = "with --memprof-compare: fail tests above the stored run by more than that"
    group.addoption(
        "--memprof-compare-fail",
        metavar="METRIC:LIMIT",
        action="append",
        default=None,
        dest="memprof_compare_fail",
        help=f"{words}, as peak:5%% or growth:64KiB/step; may be repeated",
    )
    parser.addini("memprof_compare_fail", words, type="linelist", default=None)
    parser.addini(
        "memprof_default_peak",
        "limit of the peak of every measured test without one of its own",
        default=None,
    )


def pytest_configure(config: pytest.Config) -> None:
    """Name the markers; read the options if there is one."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    if _asked(config):
        from memprof.integrations.settings import settings_of

        settings_of(config)  # a wrong one is told now
        _start(config)


def _asked(config: pytest.Config) -> bool:
    """Whether an option of ours was given; the ini file's are not looked for yet."""
    given = vars(config.option)
    return any(
        value is not None
        for name, value in given.items()
        if name.startswith("memprof_")
    )


def _start(config: pytest.Config) -> None:
    """Load what measures, once."""
    if not config.pluginmanager.has_plugin("memprof-runner"):
        from memprof.integrations.runner import Runner

        config.pluginmanager.register(Runner(config), "memprof-runner")
        _listen(config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Begin to measure if a test asks for it, or the ini file does."""
    if _is_marked(items) or any(config.getini(name) for name in _MEASURE_ALL):
        from memprof.integrations.plan import check_items

        _start(config)
        check_items(config, items)


def _is_marked(items: list[pytest.Item]) -> bool:
    """Whether a test, its class or its module has a marker of ours.

    Plain loops, each node once: this is all that there is to do for a test of a suite
    that does not use us.
    """
    seen = set()
    for item in items:
        node: Any = item
        while node is not None:
            for mark in node.own_markers:
                if mark.name in NAMES:
                    return True
            node = node.parent
            if id(node) in seen:
                break
            seen.add(id(node))
    return False


@pytest.fixture
def memprof(request: pytest.FixtureRequest) -> Iterator[Tracking]:
    """Measure parts of a test: ``with memprof.track() as p: ...``."""
    from memprof.integrations.tracking import Tracking

    _start(request.config)
    tracking = Tracking(request.node, request.config)
    yield tracking
    tracking.close()


# -- what the controller hears ---------------------------------------------------
#
# In a run without xdist the same process measures and prints.  With it workers
# measure, and the controller, which collects nothing, hears of it by reports.


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Listen where the reports of xdist's workers arrive."""
    if session.config.pluginmanager.has_plugin("dsession"):
        _listen(session.config)


def _listen(config: pytest.Config) -> None:
    """Hear of reports from here on; not in a worker, whose controller does."""
    manager = config.pluginmanager
    if not hasattr(config, "workerinput") and not manager.has_plugin(_LISTENER):
        manager.register(_Listener(config), _LISTENER)


class _Listener:
    """Passes on reports that have something of ours."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._board: Any = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Hear a report."""
        if self._board is None and getattr(report, "memprof", None) is not None:
            from memprof.integrations.board import Board

            self._board = Board(self._config)
            self._config.pluginmanager.register(self._board, "memprof-board")
        if self._board is not None:
            self._board.hear(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, str] | None:
        """Show a test that failed by its memory as M."""
        facts = getattr(report, "memprof", None)
        if facts and facts.get("failed") and report.when == "call" and report.failed:
            return "failed", "M", "MEMORY"
        return None
