"""Where a recording may be written: links, modes, devices, other people's streams."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from events import NAMES, random_stream

from memprof import MemprofError, _core, files
from memprof.recording import Recording, load

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def recording():
    return Recording(_core.from_events(random_stream(3), NAMES))


def count(path: Path) -> int:
    return int(load(path).info["events"])


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---- save ----------------------------------------------------------------------


def test_a_link_still_leads_to_what_is_saved(tmp_path, recording):
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to(Path("folder") / "target")
    for _ in "not there yet", "replaced":
        recording.save(link)
        assert link.is_symlink()
        assert count(target) == recording.info["events"]
    assert sorted(p.name for p in target.parent.iterdir()) == ["target"]


@pytest.mark.parametrize("bits", [0o600, 0o640, 0o444, 0o755])
def test_a_file_keeps_its_mode(bits, tmp_path, recording):
    path = tmp_path / "file"
    path.touch()
    path.chmod(bits)
    recording.save(path)
    assert mode(path) == bits
    assert count(path) == recording.info["events"]


def test_a_new_file_has_the_usual_mode(tmp_path, recording):
    (tmp_path / "usual").touch()
    recording.save(tmp_path / "file")
    assert mode(tmp_path / "file") == mode(tmp_path / "usual")


def test_what_is_no_file_is_refused(tmp_path, recording):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    (tmp_path / "link").symlink_to("pipe")
    before = sorted(tmp_path.iterdir())
    for name, what in (
        ("pipe", "a pipe"),
        ("socket", "a socket"),
        ("link", "a pipe"),
    ):
        with pytest.raises(MemprofError, match=f"{name}.* is {what}; .*regular file"):
            recording.save(tmp_path / name)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        recording.save(tmp_path / "folder")
    assert sorted(tmp_path.iterdir()) == before
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_device_is_refused():
    # Only looked at: no test opens a device, let alone replaces it.
    with pytest.raises(MemprofError, match="is a device"):
        files.check_regular("/dev/zero", "path")


def test_a_link_to_itself_is_an_error_not_replaced(tmp_path, recording):
    link = tmp_path / "link"
    link.symlink_to("link")
    with pytest.raises(OSError, match="link"):
        recording.save(link)
    assert link.is_symlink()


def test_a_disk_that_takes_nothing_leaves_no_file(tmp_path):
    # A limit on the size of files stands for the full disk.
    code = f"""
import resource, sys
sys.path.insert(0, {str(ROOT / "tests" / "unit")!r})
from events import NAMES, random_stream
from memprof import _core
from memprof.recording import Recording
recording = Recording(_core.from_events(random_stream(3), NAMES))
for most in (0, 100):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    try:
        recording.save({str(tmp_path / "file")!r})
    except OSError as problem:
        print(problem)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("File too large") == 2, done.stdout
    assert list(tmp_path.iterdir()) == []


# ---- streams -------------------------------------------------------------------


def test_a_file_has_one_claim_at_a_time(tmp_path):
    path, other = str(tmp_path / "file"), str(tmp_path / "other")
    claim = files.Claim(path)
    assert claim.is_new
    os.link(path, other)  # another name for the same file
    for name in (path, other):
        with pytest.raises(MemprofError, match="another running profile streams"):
            files.Claim(name)
    claim.release()
    claim.release()
    again = files.Claim(other)
    assert not again.is_new
    again.release()


def test_a_claim_holds_against_other_processes_and_not_beyond(tmp_path):
    path = str(tmp_path / "file")
    code = f"from memprof.files import Claim; Claim({path!r})"

    def elsewhere() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )

    claim = files.Claim(path)
    refused = elsewhere()
    assert refused.returncode != 0
    assert "MemprofError" in refused.stderr
    claim.release()
    assert elsewhere().returncode == 0
    files.Claim(path).release()  # the other process is gone, and its claim


def test_a_forked_child_neither_has_nor_keeps_the_claim(tmp_path):
    path = str(tmp_path / "file")
    claim = files.Claim(path)
    child = os.fork()
    if child == 0:
        try:
            files.Claim(path)
        except MemprofError:
            os._exit(7)
        os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with pytest.raises(MemprofError):  # its end has not ended ours
        files.Claim(path)
    claim.release()


def test_saving_onto_a_stream_is_refused(tmp_path, recording):
    path = tmp_path / "file"
    claim = files.Claim(str(path))
    (tmp_path / "link").symlink_to(path)
    for name in ("file", "link"):
        with pytest.raises(MemprofError, match="a running profile streams to this"):
            recording.save(tmp_path / name)
    assert path.stat().st_size == 0
    assert not claim.is_gone()
    claim.release()
    recording.save(path)
    assert count(path) == recording.info["events"]


def test_a_discarded_claim_takes_its_own_file_along(tmp_path):
    path = tmp_path / "file"
    files.Claim(str(path)).discard()
    assert not path.exists()
    path.write_text("somebody's")
    files.Claim(str(path)).discard()
    assert path.read_text() == "somebody's"


def test_a_deleted_file_is_gone(tmp_path):
    claim = files.Claim(str(tmp_path / "file"))
    os.unlink(tmp_path / "file")
    assert claim.is_gone()
    claim.release()


# ---- other people's handles ------------------------------------------------------


def test_a_claim_leaves_a_file_alone_that_took_its_handle(tmp_path):
    claim = files.Claim(str(tmp_path / "ours"))
    handle = claim._handle
    theirs = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
    try:
        os.dup2(theirs, handle)
        assert not claim.is_gone()
        claim.release()
        assert os.fstat(handle).st_ino == os.fstat(theirs).st_ino  # still open
    finally:
        os.close(theirs)
        os.close(handle)
