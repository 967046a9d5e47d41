"""Files that do harm, and places where none can be written; without torch."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

import memprof
from memprof import MemprofError, files, json_stream, kineto

GOLDEN = Path(__file__).parents[1] / "golden" / "convnet.memprof"

WRITES = {
    "c.json": lambda rec, to: rec.export_chrome_trace(to),
    "c.json.gz": lambda rec, to: rec.export_chrome_trace(to),
    "t.json": lambda rec, to: rec.export_memory_timeline(to),
    "t.raw.json.gz": lambda rec, to: rec.export_memory_timeline(to),
    "t.html": lambda rec, to: rec.export_memory_timeline(to),
    "s.pickle": lambda rec, to: rec.export_snapshot(to),
    "a.speedscope.json": lambda rec, to: rec.export_speedscope(to),
    "a.pb.gz": lambda rec, to: rec.export_pprof(to),
    "a.txt": lambda rec, to: rec.export_collapsed(to),
    "l.csv": lambda rec, to: rec.export_csv(to),
    "p.pftrace": lambda rec, to: rec.export_perfetto(to),
    "r.memprof": lambda rec, to: rec.save(to),
}


@pytest.fixture(scope="module")
def recording():
    return memprof.load(GOLDEN)


def put(path, data: bytes | object, zipped: bool = False):
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    path.write_bytes(gzip.compress(data) if zipped else data)
    return path


# -- reading ------------------------------------------------------------------------

ODD = [
    b"1e400", b"-1e400", b"NaN", b"1e18", b"9223372036854775807",
    b"-9223372036854775808", b"18446744073709551616", b"1" + b"0" * 400, b"null",
    b'"x"', b"[]", b"true",
]  # fmt: skip


def use(path, folder) -> bool:
    """Load and write out again; whether PATH was read at all."""
    try:
        found = memprof.load(path)
    except MemprofError:
        return False
    str(found.summary())
    found.export_chrome_trace(folder / "o.json", full=True)
    json.loads((folder / "o.json").read_text(), parse_constant=pytest.fail)
    found.export_memory_timeline(folder / "o.raw.json.gz")
    found.export_csv(folder / "o.csv")
    return True


@pytest.mark.parametrize("odd", ODD)
def test_numbers_that_are_none_or_too_large_are_left_out(odd, tmp_path):
    good = (
        b'{"ph":"i","name":"[memory]","pid":1,"tid":2,"ts":6,"args":{"Addr":8192,'
        b'"Bytes":512,"Total Allocated":1024,"Device Id":0,"Device Type":1}}'
    )
    step = b'{"ph":"X","cat":"user_annotation","name":"ProfilerStep#7","pid":1,"tid":2,'
    texts = [
        b'{"traceEvents":[' + good.replace(b"6,", odd + b",", 1) + b"," + good + b"]}",
        b'{"traceEvents":[' + step + b'"ts":' + odd + b',"dur":1},' + good + b"]}",
        b'{"traceEvents":[' + step + b'"ts":1,"dur":' + odd + b"}," + good + b"]}",
        b'{"baseTimeNanoseconds":' + odd + b',"traceEvents":[' + good + b"]}",
    ]
    for name in (b"Addr", b"Bytes", b"Total Allocated", b"Device Id", b"Device Type"):
        args = json.loads(good)["args"]
        parts = [
            b'"%b":%b' % (key.encode(), odd if key.encode() == name else b"%d" % value)
            for key, value in args.items()
        ]
        event = b'{"ph":"i","name":"[memory]","pid":1,"tid":2,"ts":5,"args":{%b}}'
        texts.append(
            b'{"traceEvents":[' + event % b",".join(parts) + b"," + good + b"]}"
        )
    for text in texts:
        assert use(put(tmp_path / "a.json", text), tmp_path), text
    for place in range(4):
        row = [b"10", b"2", b"512", b"3"]
        row[place] = odd
        text = b"[[5,1,100,0],[" + b",".join(row) + b"]]"
        use(put(tmp_path / "a.raw.json", text), tmp_path)  # read, or refused in words


def test_a_file_of_no_events_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(kineto, "MOST_NO_EVENTS", 10)
    with pytest.raises(MemprofError, match="11 items that are no events"):
        memprof.load(put(tmp_path / "a.json", {"traceEvents": [1] * 100}))


def test_space_is_skipped_at_once(tmp_path):
    data = b'{"traceEvents":[' + b" " * (32 << 20)
    begun = time.process_time()
    with pytest.raises(MemprofError, match="the file ends"):
        memprof.load(put(tmp_path / "a.json", data))
    assert time.process_time() - begun < 2  # a character at a time takes longer


def test_ever_more_gzip_members_are_given_up(tmp_path):
    (tmp_path / "a.json").write_bytes(
        gzip.compress(b'{"traceEvents":[') + gzip.compress(b"") * 100_000
    )
    with pytest.raises(MemprofError, match="1000 gzip members"):
        memprof.load(tmp_path / "a.json")


def test_what_is_nothing_that_we_read_says_what_is_read(tmp_path):
    for data in (b"hello", b"", b"[[", b"null", b"\x1f\x8b"):
        with pytest.raises(MemprofError, match=r"reads its own recordings.*\.pickle"):
            memprof.load(put(tmp_path / "x", data))


@pytest.mark.parametrize("protocol", [0, 1])
@pytest.mark.parametrize("value", [{"segments": []}, [{"device": 0}]])
def test_an_old_pickle_says_what_to_do(protocol, value, tmp_path):
    with pytest.raises(MemprofError, match=r"protocol 0 or 1: .*protocol 4"):
        memprof.load(put(tmp_path / "x", pickle.dumps(value, protocol)))


# -- merging ------------------------------------------------------------------------


def test_what_cannot_be_merged_into_is_named(recording, tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "LEAST_LIMIT", 1 << 20)
    out, given = tmp_path / "out.json", tmp_path / "given.json"
    os.mkfifo(tmp_path / "pipe")

    def refuses(what, error, match):
        with pytest.raises(error, match=match):
            recording.export_chrome_trace(out, merge=what)
        assert not out.exists()

    refuses(tmp_path / "pipe", MemprofError, "pipe' is not a regular file")
    refuses("/dev/zero", MemprofError, "/dev/zero' is not a regular file")
    refuses(tmp_path / "none", FileNotFoundError, "none")
    refuses(tmp_path, IsADirectoryError, str(tmp_path))
    for number in (1, True):  # a number of an open file is no path
        refuses(number, TypeError, "str")
    bomb = b'{"traceEvents":[' + b" " * (64 << 20) + b"]}"
    refuses(put(given, bomb, True), MemprofError, "given.json.*times its size")
    packed = gzip.compress(b'{"traceEvents":[]}')
    refuses(put(given, packed[:-9]), MemprofError, "given.json.*is cut")
    refuses(put(given, packed[:10] + b"\xff" * 20), MemprofError, "not decompress")


def test_a_second_merge_says_that_rows_are_twice(recording, tmp_path):
    given = put(tmp_path / "given.json", {"traceEvents": []})
    recording.export_chrome_trace(tmp_path / "one.json", merge=given)
    with pytest.warns(UserWarning, match="one.json.*twice"):
        recording.export_chrome_trace(
            tmp_path / "two.json", merge=tmp_path / "one.json"
        )


# -- writing ------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITES)
def test_a_full_disk_is_named_and_leaves_nothing(name, recording, tmp_path):
    """A limit on the size of files stands for the disk."""
    WRITES[name](recording, tmp_path / name)  # imports are done with
    (tmp_path / name).write_bytes(b"old")
    for limit in (0, 100):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            with pytest.raises(OSError, match=name):
                WRITES[name](recording, tmp_path / name)
        finally:
            unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        assert os.listdir(tmp_path) == [name]
        assert (tmp_path / name).read_bytes() == b"old"


@pytest.mark.parametrize("name", WRITES)
def test_a_name_may_be_as_long_as_names_may(name, recording, tmp_path):
    path = tmp_path / (name.rjust(255, "ä" if name[0] == "s" else "a")[-255:])
    if len(os.fsencode(path.name)) > 255:
        path = tmp_path / ("ä" * 120 + name).rjust(255 - 120, "a")
    assert len(os.fsencode(path.name)) == 255
    WRITES[name](recording, path)
    assert path.stat().st_size > 0
    assert os.listdir(tmp_path) == [path.name]


def test_paths_that_are_none_say_what_to_do(recording, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, write in WRITES.items():
        with pytest.raises(OSError, match=r"no folder .*~.*expanduser"):
            write(recording, f"~/{name}")
    for name, write in WRITES.items():
        if name != "l.csv":
            with pytest.raises(FileNotFoundError, match="'' is no name of a file"):
                write(recording, "")
    with pytest.raises(FileNotFoundError, match=r"expanduser.*~/a\.memprof"):
        memprof.load("~/a.memprof")
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match=r"file' is no folder: .*\*\.csv"):
        recording.export_csv("file")
    recording.export_csv(b"bytes.csv")
    assert sorted(os.listdir()) == ["bytes.csv", "file"]


def test_who_only_asks_is_in_nobodys_way(recording, tmp_path):
    """Two threads or processes may export to the same file at once."""
    path = tmp_path / "a.json"
    path.touch()
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # what an export does while it looks
        assert files.save_target(path) == str(path)
        fcntl.flock(other, fcntl.LOCK_EX)  # what a running profile does
        with pytest.raises(MemprofError, match="a running profile streams"):
            recording.export_chrome_trace(path)


def test_equal_recordings_give_equal_files(tmp_path):
    first, second = memprof.load(GOLDEN), memprof.load(GOLDEN)
    str(second.summary())  # which asks for labels
    for name in ("r.memprof", "s.pickle"):
        WRITES[name](first, tmp_path / "a")
        WRITES[name](second, tmp_path / "b")
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


WRITER = """
import sys, memprof
recording = memprof.load(sys.argv[1])
recording.export_chrome_trace("c.json.gz")
print("begun", flush=True)
while True:
    recording.export_chrome_trace("c.json.gz")
    recording.export_snapshot("s.pickle")
    recording.export_csv("l.csv")
    recording.save("r.memprof")
"""


def test_killed_while_it_writes_a_file_is_the_old_or_the_new(
    recording, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # a trace has its name as it was given in it
    names = ("c.json.gz", "s.pickle", "l.csv", "r.memprof")
    new = {}
    for name in names:
        WRITES[name](recording, name)
        new[name] = zlib.crc32((tmp_path / name).read_bytes())
    old = zlib.crc32(b"old")
    for wait in (0.02, 0.05):
        for name in names:
            (tmp_path / name).write_bytes(b"old")
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, GOLDEN],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(GOLDEN.parents[2])},
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"begun\n"
            time.sleep(wait)
            child.send_signal(signal.SIGKILL)
        for name in names:
            found = zlib.crc32((tmp_path / name).read_bytes())
            assert found in (old, new[name]), name
