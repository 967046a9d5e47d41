"""``memprof report``: the file it writes, its name, and what bad use is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from memprof import load
from memprof.cli import main

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def run(tmp_path):
    return Path(shutil.copy(GOLDEN / "convnet.memprof", tmp_path / "run.memprof"))


def test_the_report_lies_beside_the_recording(run, capsys):
    assert main(["report", str(run)]) == 0
    made = run.with_name("memprof-report-run.html")
    assert made.read_text() == page_of(run)
    out, err = capsys.readouterr()
    assert out.startswith(f"{made}  ")
    assert err == ""


def page_of(run: Path, **options: object) -> str:
    from memprof.reports.html import page

    return page(load(run), **options)


def test_a_file_that_is_there_stays_unless_forced(run, tmp_path, capsys):
    target = tmp_path / "r.html"
    target.write_text("mine")
    assert main(["report", str(run), "-o", str(target)]) == 1
    assert target.read_text() == "mine"
    assert "--force" in capsys.readouterr().err
    assert main(["report", str(run), "-o", str(target), "-f"]) == 0
    assert target.read_text().startswith("<!doctype html>")


def test_options_reach_the_page(run, tmp_path):
    target = tmp_path / "r.html"
    words = ["report", str(run), "-o", str(target), "--device", "cuda:0"]
    words += ["--compare", str(GOLDEN / "churn.memprof"), "--paths", "hash"]
    assert main(words) == 0
    before = load(GOLDEN / "churn.memprof")
    assert target.read_text() == page_of(
        run, device="cuda:0", compare=before, paths="hash"
    )


def test_a_cut_recording_is_told(run, capsys):
    run.write_bytes(run.read_bytes()[:-200])
    assert main(["report", str(run)]) == 0
    assert "is cut" in capsys.readouterr().err


def test_what_is_wrong_is_one_sentence(run, tmp_path, capsys):
    assert main(["report", str(tmp_path / "none.memprof")]) == 1
    assert "none.memprof" in capsys.readouterr().err
    assert main(["report", str(run), "--device", "cuda:7"]) == 1
    assert "was not recorded" in capsys.readouterr().err
    assert not run.with_name("memprof-report-run.html").exists()
    with pytest.raises(SystemExit) as ended:
        main(["report", str(run), "--paths", "some"])
    assert ended.value.code == 2
