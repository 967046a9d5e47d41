"""``python -m memprof``: output, exit codes and what bad use is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from events import NAMES, random_stream, rows

from memprof import _core
from memprof._version import __version__
from memprof.cli import main
from memprof.commands import COMMANDS
from memprof.recording import Recording, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.memprof"
    core = _core.from_events(random_stream(5, length=3000, gpus=2), NAMES)
    core.info = json.dumps({"argv": ["train.py"]})
    Recording(core).save(path)
    return path


def memprof(*words: object, **options: object) -> subprocess.CompletedProcess:
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "memprof", *map(str, words)],
        capture_output=True,
        text=True,
        **options,
    )


def sentence(capsys: pytest.CaptureFixture) -> str:
    """Return the one line on standard error; nothing else was written."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("memprof: error: ")
    assert err.count("\n") == 1
    return err


def test_version() -> None:
    done = memprof("--version")
    assert (done.returncode, done.stdout) == (0, f"memprof {__version__}\n")


def test_every_verb_has_help() -> None:
    for command in COMMANDS:
        done = memprof(command.NAME, "--help")
        assert done.returncode == 0
        assert command.HELP in done.stdout


def test_summary_is_that_of_the_recording(file: Path) -> None:
    done = memprof("summary", file)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout == load(file).summary().text()  # no terminal: uncut
    done = memprof("summary", file, "--width", 80)
    assert done.stdout == load(file).summary().text(80)
    done = memprof("summary", file, "--device", "cpu", "--limit", 3, "--width", 120)
    assert done.stdout == load(file).summary("cpu", limit=3).text(120)


def test_json(file: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["summary", str(file), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts.pop("schema") == "memprof.summary/1"
    expected = json.loads(json.dumps(load(file).summary().to_dict()))
    del expected["schema"]  # of the method, a number
    assert facts == expected
    total = sum(row["bytes"] for row in facts["rows"])
    assert total == facts["peak"]["requested_bytes"]


def test_exact_bytes(file: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["summary", str(file), "--bytes", "--plain"]) == 0
    expected = load(file).summary().text(exact=True)
    assert capsys.readouterr().out == expected


def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["summary", str(tmp_path / "no.memprof")]) == 1
    assert "no.memprof: No such file or directory" in sentence(capsys)


def test_folder(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["summary", str(tmp_path)]) == 1
    assert str(tmp_path) in sentence(capsys)


@pytest.mark.parametrize("content", [b"", b"hello", b"\0" * 5000, os.urandom(4096)])
def test_what_is_no_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture, content: bytes
) -> None:
    path = tmp_path / "x.memprof"
    path.write_bytes(content)
    assert main(["summary", str(path)]) == 1
    assert "x.memprof" in sentence(capsys)


def test_a_newer_recording(file: Path, capsys: pytest.CaptureFixture) -> None:
    content = bytearray(file.read_bytes())
    content[8:12] = b"\x63\x00\x63\x00"  # version and oldest reader: 99
    file.write_bytes(content)
    assert main(["summary", str(file)]) == 1
    assert "newer" in sentence(capsys)


def test_a_cut_recording_gives_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "cut.memprof"
    events = np.repeat(rows([{"kind": 1, "device": -1, "size": 64}]), 150_000)
    events["kind"][1::2] = 3
    events["address"] = np.random.default_rng(1).integers(1 << 40, size=150_000)
    events["address"][1::2] = events["address"][::2]
    Recording(_core.from_events(events, [])).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    done = memprof("summary", path)
    assert done.returncode == 0
    assert "cut.memprof is cut" in done.stderr
    assert "! the recording is cut" in done.stdout
    assert 0 < load(path).info["events"] < 150_000
    done = memprof("summary", path, "--json")
    assert json.loads(done.stdout)["finished"] is False


def test_a_device_that_was_not_recorded(
    file: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(["summary", str(file), "--device", "cuda:7"]) == 1
    expected = "'cuda:7' was not recorded; devices here: 'cpu'"
    assert expected in sentence(capsys)


def test_not_enough_memory_is_an_error(
    file: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(path: Path) -> None:
        raise MemoryError("no room for 5 events")

    monkeypatch.setattr("memprof.recording.load", load)
    assert main(["summary", str(file)]) == 1
    assert "no room for 5 events" in sentence(capsys)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--device", "tpu"], "argument --device: 'tpu' is not a device; write 'cpu'"),
        (["--device", ""], "argument --device: '' is not a device"),
        (["--device", "cuda:-1"], "argument --device: 'cuda:-1' is not a device"),
        (["--device"], "argument --device: expected one argument"),
        (["--limit", "-1"], "argument --limit: must be a number, 0 or more, not '-1'"),
        (["--limit", "few"], "must be a number, 0 or more, not 'few'"),
        (["--width", "1.5"], "argument --width: must be a number, 0 or more"),
    ],
)
def test_bad_values_are_bad_usage(
    file: Path, capsys: pytest.CaptureFixture, words: list[str], expected: str
) -> None:
    for path in (file, file.with_name("no.memprof")):  # whatever the file
        with pytest.raises(SystemExit) as ended:
            main(["summary", str(path), *words])
        assert ended.value.code == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("usage: memprof summary")
        assert expected in err


@pytest.mark.parametrize("words", [["--device", "0"], ["--limit", "0"]])
def test_good_values(
    file: Path, capsys: pytest.CaptureFixture, words: list[str]
) -> None:
    assert main(["summary", str(file), *words]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("words", [[], ["sumary", "x"], ["summary"], ["summary", "-z"]])
def test_usage(words: list[str]) -> None:
    done = memprof(*words)
    assert done.returncode == 2
    assert "usage: memprof" in done.stderr


def test_a_closed_pipe_is_quiet(file: Path) -> None:
    for words in ("summary", "summary --json"):
        command = f"{sys.executable} -m memprof {words} {file} | true"
        done = subprocess.run(
            ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"],
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_output_is_told(file: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m memprof summary {file} >&-"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "memprof: error: standard output is closed\n"


def test_a_full_disk_is_told(file: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "memprof", "summary", str(file)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_runs_without_torch(file: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from memprof.cli import main; "
        f"sys.exit(main(['summary', {str(file)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_names_that_no_encoding_has_are_written_escaped(
    tmp_path: Path, encoding: str
) -> None:
    path = tmp_path / "a.memprof"
    event = {"kind": 1, "device": -1, "size": 64, "address": 64, "op": 0}
    core = _core.from_events(rows([event]), ["aten::größe"])
    core.info = json.dumps({"argv": ["run\udcff.py"]})
    Recording(core).save(path)
    for verb in ("table", "query"):
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run(
            [sys.executable, "-m", "memprof", verb, str(path), "-q"],
            capture_output=True,
            env=environment,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        op = b"aten::" + "größe".encode(encoding, "backslashreplace")
        assert op in done.stdout
        assert (b"run\\udcff.py" in done.stdout) is (verb != "query")


def test_without_standard_error_nothing_more_goes_to_standard_output(file, monkeypatch):
    def shown(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [
                "sh",
                "-c",
                'exec "$@" 2>&-',
                "-",
                sys.executable,
                "-m",
                "memprof",
                *words,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        return done.returncode, done.stdout

    assert shown("summary", "nowhere.memprof") == (1, "")
    assert shown("sumary") == (2, "")


def test_a_note_that_cannot_be_written_costs_no_result(file, capsys, monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert main(["query", str(file), "alive:peak"]) == 0
        with pytest.raises(OSError, match="No space"):
            full.flush()
        monkeypatch.undo()
        try:
            full.close()
        except OSError:
            pass
    assert "\t" in capsys.readouterr().out
