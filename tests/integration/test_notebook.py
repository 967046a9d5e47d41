"""A notebook, executed: the tables, the frame, the magics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from memprof import load

pytest.importorskip("torch")
GOLDEN = Path(__file__).parents[1] / "golden"
ROOT = Path(__file__).parents[2]


class Tags(HTMLParser):
    """What elements a text has, and with what attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def check_static(text: str) -> None:
    """Fail for what an untrusted notebook takes away, or what is too large."""
    found = Tags(text).tags
    names = {tag for tag, _ in found}
    assert names <= {"div", "pre", "table", "thead", "tbody", "tfoot", "tr", "th", "td"}
    assert {"table", "td"} <= names
    assert not any(name.startswith("on") for _, attrs in found for name in attrs)
    assert len(text) < 100_000


@pytest.fixture
def golden():
    return load(GOLDEN / "checkpointed.memprof")


def test_static_forms(golden):
    check_static(golden.summary()._repr_html_())
    check_static(golden.key_averages()._repr_html_())
    bundle = golden._repr_mimebundle_()
    assert set(bundle) == {
        "text/plain",
        "text/html",
        "application/vnd.memprof+json",
    }
    check_static(bundle["text/html"])
    facts = json.loads(json.dumps(bundle["application/vnd.memprof+json"]))
    assert facts["peak"]["requested_bytes"] == golden.peak().requested
    assert len(bundle["text/plain"]) < 6000


def test_the_frame_may_run_scripts_and_nothing_else(golden):
    shown = golden.show(height=432)
    (tag, attrs), *rest = Tags(shown._repr_html_()).tags
    assert (tag, rest) == ("iframe", [])
    assert attrs["sandbox"] == "allow-scripts"
    assert attrs["height"] == "432"
    assert attrs["srcdoc"].startswith("<!doctype html>")
    with pytest.raises(ValueError, match="height"):
        golden.show(height=3)


def test_a_large_report_is_a_file_and_a_link(golden, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("memprof.integrations.jupyter.LARGEST", 1000)
    shown = golden.show()
    text = shown._repr_html_()
    assert shown._repr_html_() == text
    (file,) = tmp_path.iterdir()
    assert f'href="{file.name}"' in text
    assert file.read_text().startswith("<!doctype html>")
    assert "<iframe" not in text


CELLS = [
    "import memprof, torch\n%load_ext memprof",
    "model = torch.nn.Linear(64, 64)\nx = torch.randn(8, 64)",
    "%%memprof --steps 3 --html out.html\nloss = model(x).sum()\nloss.backward()",
    "prof = _\nprint(len(prof.steps), type(prof).__name__)\nprof",
    "prof.summary()",
    "prof.key_averages()",
    "prof.show(height=300)",
    "%memprof_peak torch.zeros(1000, 1000)",
    "%%memprof\nx2 = torch.ones(7)\nraise ValueError('on purpose')",
    "%%memprof --nonsense\n1",
    "import gc, weakref\nbig = torch.zeros(5000)\ngone = weakref.ref(big)\n"
    "with memprof.profile() as p:\n    y = big + 1\n"
    "s, k, shown, r = p.summary(), p.key_averages(), p.show(), p.recording\n"
    "del big\ngc.collect()\nprint('gone' if gone() is None else 'held')",
    "losses = []",
    "%%memprof --leaks\nlosses.append(model(x).sum())\nNone",
    "%%memprof --leaks --steps 4\nmodel(x).sum().backward()\nNone",
    "%%memprof --leaks --steps 2\nNone",
    "%%memprof\ndef broken():\n    local = torch.zeros(100000)\n    1 / 0\nbroken()",
]


# In a process of its own: what drives a kernel leaves threads and sockets behind.
DRIVER = """
import sys
import nbclient, nbformat
from jupyter_client.kernelspec import KernelSpecManager
path, folder = sys.argv[1:]
book = nbformat.read(path, as_version=4)
manager = nbclient.client.KernelManager(
    kernel_name="here",
    kernel_spec_manager=KernelSpecManager(kernel_dirs=[folder + "/kernels"]),
)
nbclient.NotebookClient(
    book,
    km=manager,
    timeout=300,
    allow_errors=True,
    resources={"metadata": {"path": folder}},
).execute()
nbformat.write(book, path)
"""


def test_a_notebook_from_end_to_end(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    # A kernel of this Python with this memprof, whatever else is installed.
    kernel = tmp_path / "kernels" / "here"
    kernel.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    spec = {"argv": command, "display_name": "here", "language": "python"}
    (kernel / "kernel.json").write_text(
        json.dumps({**spec, "env": {"PYTHONPATH": path, "JUPYTER_PLATFORM_DIRS": "1"}})
    )
    file = tmp_path / "book.ipynb"
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), file)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(file), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    book = nbformat.read(file, as_version=4)

    def outputs(index: int) -> dict[str, str]:
        found: dict[str, str] = {"stream": "", "error": ""}
        for out in book.cells[index].outputs:
            if out.output_type == "stream":
                found["stream"] += out.text
            elif out.output_type == "error":
                found["error"] += f"{out.ename}: {out.evalue}"
            else:
                found.update(out.data)
        return found

    for index in range(8):
        assert outputs(index)["error"] == "", CELLS[index]
    check_static(outputs(2)["text/html"])
    assert (tmp_path / "out.html").read_text().startswith("<!doctype html>")
    assert outputs(3)["stream"] == "3 profile\n"
    for index in (3, 4, 5):
        check_static(outputs(index)["text/html"])
    assert outputs(6)["text/html"].startswith("<iframe sandbox=")
    assert "3.815 MiB above" in outputs(7)["stream"]
    assert "on purpose" in outputs(8)["error"] + outputs(8)["stream"]
    assert "text/html" in outputs(8)
    assert "MemprofError" in outputs(9)["error"]
    assert "--nonsense" in outputs(9)["error"]
    assert outputs(10)["stream"] == "gone\n"
    leak = outputs(12)["stream"]
    assert "made in steps 1 to 3" in leak
    assert "3/3  input" in leak or "3/3  activation" in leak
    assert "losses[" in leak
    assert "no growth from step to step" in outputs(13)["stream"]
    assert "fewer than 3 steps" in outputs(14)["stream"]
    failed = outputs(15)["stream"]
    assert "391 KiB in 1 block is held by the last traceback alone" in failed
    assert "broken() local 'local'" in failed
