"""CSV, Arrow and Parquet: the rows of the recording, texts and all."""

from __future__ import annotations

import os
import sys
import warnings

import numpy as np
import pytest
import sources
from check_csv import check_csv
from check_csv import read as read_csv
from check_parquet import COLUMNS, check_parquet, check_table
from hypothesis import given, settings
from hypothesis import strategies as st

import memprof
from memprof import _core
from memprof.recording import NO_INDEX, Recording

RECORDINGS = {**dict(sources.all_of_them()), "empty": sources.empty()}
TABLES = list(COLUMNS)


@pytest.fixture(params=RECORDINGS)
def recording(request) -> Recording:
    return RECORDINGS[request.param]


def needs(package: str):
    """Return a package that only tests need, or skip and say so."""
    return pytest.importorskip(
        package, reason=f"{package} is not installed (tests/validators need it)"
    )


def nul_free(text: str) -> str:
    return text.replace("\0", "�")


def texts(recording: Recording, ids: np.ndarray) -> list[str]:
    return [recording.op(index) for index in ids.tolist()]


# -- CSV ---------------------------------------------------------------------------


def csv_table(recording: Recording, tmp_path, table: str) -> list[dict[str, str]]:
    path = tmp_path / "a.csv"
    recording.export_csv(path, table)
    content = path.read_bytes()
    path.unlink()
    assert os.listdir(tmp_path) == []
    assert check_csv(content, table) == []
    header, *lines = read_csv(content)
    return [dict(zip(header, line)) for line in lines]


def test_csv_of_allocations_is_what_the_recording_has(recording, tmp_path) -> None:
    rows = recording.allocations("all")
    found = csv_table(recording, tmp_path, "allocations")
    assert len(found) == len(rows)
    numbers = [
        "id",
        "address",
        "size",
        "born_event",
        "died_event",
        "completed_event",
        "born_ns",
        "died_ns",
        "born_step",
        "died_step",
        "thread",
        "stream",
        "pool",
    ]
    for name in numbers:
        assert [int(row[name]) for row in found] == rows[name].tolist(), name
    for name in ("op", "owner", "region", "shape", "forward_module", "forward_op"):
        expected = list(map(nul_free, texts(recording, rows[name])))
        assert [row[name] for row in found] == expected, name
    for name, words in (
        ("category", _core.CATEGORIES),
        ("reason", _core.REASONS),
        ("role", _core.ROLES),
        ("phase", _core.PHASES),
    ):
        assert [row[name] for row in found] == [words[n] for n in rows[name]], name
    devices = [memprof.recording.device_name(n) for n in rows["device"].tolist()]
    assert [row["device"] for row in found] == devices


def test_lines_and_modules_of_csv_are_those_of_moments(recording, tmp_path) -> None:
    found = csv_table(recording, tmp_path, "allocations")
    for device in recording.devices:
        peak = recording.peak(device)
        alive = set(peak.live()["id"].tolist())
        for key in ("module", "line", "category"):
            sums: dict[str, int] = {}
            for row in found:
                if int(row["id"]) in alive:
                    sums[row[key]] = sums.get(row[key], 0) + int(row["size"])
            expected: dict[str, int] = {}
            for part in peak.rows(key):
                word = nul_free(part[key])
                expected[word] = expected.get(word, 0) + part["bytes"]
            assert sums == expected, key


def test_csv_of_events_steps_and_stacks(recording, tmp_path) -> None:
    events = recording.events()
    found = csv_table(recording, tmp_path, "events")
    assert [int(row["event"]) for row in found] == list(range(len(events)))
    for name in ("time_ns", "address", "size", "step", "thread", "flags"):
        assert [int(row[name]) for row in found] == events[name].tolist(), name
    kinds = [recording.kind(kind) for kind in events["kind"].tolist()]
    assert [row["kind"] for row in found] == kinds
    assert [row["op"] for row in found] == list(
        map(nul_free, texts(recording, events["op"]))
    )
    steps = csv_table(recording, tmp_path, "steps")
    stats = recording.step_stats("all")
    for name in COLUMNS["steps"]:
        if name != "device":
            assert [int(row[name]) for row in steps] == stats[name].tolist(), name
    stacks = {
        int(row["stack_id"]): row for row in csv_table(recording, tmp_path, "stacks")
    }
    used = {int(row["stack_id"]) for row in found} - {-1}
    lives = csv_table(recording, tmp_path, "allocations")
    used |= {int(row["stack_id"]) for row in lives} - {-1}
    assert used <= set(stacks)
    for index, row in stacks.items():
        frames = recording.stack(index)
        assert int(row["depth"]) == len(frames)
        assert row["stack"].startswith(nul_free(frames[-1].function))


def test_a_folder_gets_every_table(tmp_path) -> None:
    recording = RECORDINGS["convnet"]
    recording.export_csv(tmp_path / "tables")
    assert sorted(os.listdir(tmp_path / "tables")) == [
        "allocations.csv",
        "events.csv",
        "stacks.csv",
        "steps.csv",
    ]
    for name in TABLES:
        content = (tmp_path / "tables" / f"{name}.csv").read_bytes()
        assert check_csv(content, name) == []
    recording.export_csv(tmp_path / "one", "steps")
    assert os.listdir(tmp_path / "one") == ["steps.csv"]


def test_words_that_are_no_table_or_file(tmp_path) -> None:
    recording = RECORDINGS["convnet"]
    with pytest.raises(ValueError, match="no table 'blocks'; choose 'allocations'"):
        recording.export_csv(tmp_path / "a.csv", "blocks")
    with pytest.raises(ValueError, match="no table 'blocks'"):
        recording.export_csv(tmp_path / "folder", "blocks")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        recording.export_csv(tmp_path / "nowhere" / "a.csv")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        recording.export_csv(tmp_path / "file")
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_is_an_os_error_and_leaves_what_was_there(tmp_path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with pytest.raises(OSError, match="No space left"):
        _core.write_csv("/dev/full", b"a\n", [(np.arange(100_000), None)])
    with pytest.raises(OSError, match="No such file"):
        _core.write_csv(str(tmp_path / "no" / "a"), b"a\n", [])


def test_the_csv_writer_writes_every_kind_of_number(tmp_path) -> None:
    path = tmp_path / "a.csv"
    for kind in "bBhHiIqQ":
        info = np.iinfo(np.dtype(kind))
        values = np.array([info.min, info.max, 0, 1, 10, 99, 100], kind)
        wide = np.zeros((7, 3), kind)
        wide[:, 1] = values
        for column in (values, wide[:, 1], values[::-1][::-1]):
            _core.write_csv(str(path), b"a\n", [(column, None)])
            assert path.read_text().split("\n") == [
                "a",
                *map(str, values.tolist()),
                "",
            ]
    codes = np.array([-1, 0, 1, 2, 5], np.int8)
    long = b"x" * 100_000
    _core.write_csv(str(path), b"a,b\n", [(codes, [b"p", long]), (codes, None)])
    assert path.read_bytes() == b"a,b\n,-1\np,0\n" + long + b",1\n,2\n,5\n"
    with pytest.raises(ValueError, match="differ in length"):
        _core.write_csv(str(path), b"", [(codes, None), (codes[1:], None)])
    for wrong in (np.zeros(3), np.zeros((2, 2), np.int8), np.zeros(3, "?")):
        with pytest.raises(TypeError, match="row of integers"):
            _core.write_csv(str(path), b"", [(wrong, None)])
    with pytest.raises(TypeError):
        _core.write_csv(str(path), b"", [(codes, ["text"])])


@given(
    words=st.lists(st.text(max_size=40), min_size=1, max_size=6, unique=True),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_any_text_comes_through_csv(tmp_path_factory, words, seed) -> None:
    from memprof.tables import _quoted

    path = tmp_path_factory.mktemp("csv") / "a.csv"
    codes = np.random.default_rng(seed).integers(0, len(words), 20)
    quoted = [_quoted(memprof.output.clean(word)) for word in words]
    _core.write_csv(str(path), b"a,b\n", [(codes, quoted), (codes, None)])
    expected = [
        [nul_free(memprof.output.clean(words[code])), str(code)]
        for code in codes.tolist()
    ]
    assert read_csv(path.read_bytes())[1:] == expected


@pytest.mark.parametrize("table", TABLES)
def test_pandas_reads_the_csv(recording, tmp_path, table) -> None:
    pandas = needs("pandas")
    path = tmp_path / "a.csv"
    recording.export_csv(path, table)
    frame = pandas.read_csv(path, keep_default_na=False)
    assert list(frame.columns) == read_csv(path.read_bytes())[0]
    if table == "allocations":
        assert frame["size"].sum() == recording.allocations("all")["size"].sum()


# -- Arrow and Parquet -----------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
def test_arrow_holds_what_csv_holds(recording, tmp_path, table) -> None:
    needs("pyarrow")
    content = recording.to_arrow(table)
    content.validate(full=True)
    assert check_table(content, table) == []
    lines = csv_table(recording, tmp_path, table)
    assert len(content) == len(lines)
    for name in read_csv_header(table):
        values = content.column(name).to_pylist()
        found = ["" if v is None else nul_free(str(v)) for v in values]
        assert found == [line[name] for line in lines], name


def read_csv_header(table: str) -> list[str]:
    return [n for n in COLUMNS[table] if (table, n) != ("allocations", "stack")]


@pytest.mark.parametrize("table", TABLES)
def test_parquet_is_read_back_as_it_was(recording, tmp_path, table) -> None:
    needs("pyarrow")
    import pyarrow.parquet as parquet

    path = tmp_path / "a.parquet"
    recording.export_parquet(path, table)
    assert os.listdir(tmp_path) == [path.name]
    content = path.read_bytes()
    assert check_parquet(content, table) == []
    recording.export_parquet(path, table)
    assert path.read_bytes() == content, "equal input gives equal bytes"
    there = parquet.read_table(path)
    ours = recording.to_arrow(table)
    for name in COLUMNS[table]:
        assert there.column(name).to_pylist() == ours.column(name).to_pylist(), name
    assert there.schema.metadata[b"table"] == table.encode()


def test_stacks_of_arrow_are_those_of_moments(recording) -> None:
    needs("pyarrow")
    content = recording.to_arrow()
    stacks = content.column("stack").to_pylist()
    ids = content.column("stack_id").to_pylist()
    for text, index in zip(stacks, ids):
        frames = recording.stack(NO_INDEX if index < 0 else index)
        assert (text is None) == (not frames)
        if frames:
            assert text.startswith(frames[-1].function)


def test_duckdb_sums_the_moment_to_the_byte(recording, tmp_path) -> None:
    duckdb = needs("duckdb")
    needs("pyarrow")
    path = tmp_path / "a.parquet"
    recording.export_parquet(path)
    for device in recording.devices:
        peak = recording.peak(device)
        rows = duckdb.execute(
            "select category, sum(size)::bigint from read_parquet(?) where device = ? "
            "and born_event <= ? and (died_event < 0 or died_event > ?) group by 1",
            [str(path), device, peak.event, peak.event],
        ).fetchall()
        expected = {name: size for name, size in peak.categories.items() if size}
        assert {name: size for name, size in rows if size} == expected


def test_duckdb_reads_the_csv_too(tmp_path) -> None:
    duckdb = needs("duckdb")
    recording = RECORDINGS["convnet"]
    recording.export_csv(tmp_path)
    (total,) = duckdb.execute(
        "select sum(size)::bigint from read_csv(?)", [str(tmp_path / "allocations.csv")]
    ).fetchone()
    assert total == int(recording.allocations("all")["size"].sum())


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch) -> None:
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    recording = RECORDINGS["convnet"]
    words = r'pip install "torch-memprof\[arrow\]"'
    with pytest.raises(memprof.MemprofError, match=words):
        recording.to_arrow()
    with pytest.raises(memprof.MemprofError, match=words):
        recording.export_parquet(tmp_path / "a.parquet")
    assert os.listdir(tmp_path) == []


def test_tables_of_a_training_run(tmp_path) -> None:
    pytest.importorskip("torch")
    recording = sources.trained_on_cpu()
    found = csv_table(recording, tmp_path, "allocations")
    own = [row for row in found if "sources.py:" in row["line"]]
    assert own
    assert {"parameter", "optimizer_state"} <= {row["category"] for row in found}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recording.export_csv(tmp_path / "all")
    needs("pyarrow")
    for table in TABLES:
        path = tmp_path / f"{table}.parquet"
        recording.export_parquet(path, table)
        assert check_parquet(path.read_bytes(), table) == []
