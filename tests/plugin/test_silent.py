"""Until it is used the plugin is not there: nothing loaded, nothing said."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from inner import PLUGIN

ROOT = Path(__file__).parents[2]

UNUSED = """
import sys


def test_nothing_is_loaded():
    assert "{plugin}" in sys.modules
    for name in ("torch", "numpy", "memprof._core", "memprof.integrations.runner"):
        assert name not in sys.modules, name


def test_more():
    pass
"""

USED = """
import pytest, sys


@pytest.mark.memprof_limit(peak="1 GiB")
def test_something_is():
    assert "torch" in sys.modules
    assert "memprof._core" in sys.modules
"""


def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([*environment.pop("more", "").split(), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


def test_a_suite_that_does_not_use_it_loads_nothing(tmp_path):
    (tmp_path / "test_it.py").write_text(UNUSED.format(plugin=PLUGIN))
    without = run(tmp_path, "-k", "more", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    found = run(tmp_path, "-p", PLUGIN, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert found.returncode == 0, found.stdout
    assert "memprof" not in found.stdout
    assert len(found.stdout.splitlines()) == len(without.stdout.splitlines())
    (tmp_path / "test_it.py").write_text(USED)
    found = run(tmp_path, "-p", PLUGIN, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert found.returncode == 0, found.stdout


def test_the_entry_point_loads_it(tmp_path):
    if sys.version_info < (3, 11):
        pytest.skip("no tomllib")
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = ["[pytest11]"]
    for name, module in project["entry-points"]["pytest11"].items():
        assert importlib.util.find_spec(module) is not None
        lines.append(f"{name} = {module}")
    installed = tmp_path / "site" / "torch_memprof-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (installed / "METADATA").write_text("Name: torch-memprof\nVersion: 0\n")
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_it.py").write_text(UNUSED.format(plugin=PLUGIN))
    words = ["-p", "no:hypothesispytest", "-k", "nothing"]
    found = run(tests, *words, more=str(tmp_path / "site"))
    assert found.returncode == 0, found.stdout + found.stderr


def test_options_that_are_wrong_need_no_torch(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    off = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    found = run(tmp_path, "-p", PLUGIN, "--memprof-top=x", **off)
    assert found.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--memprof-top: 'x' is no number" in found.stderr
