"""Arrow tables and Parquet files, by way of pyarrow, which is optional."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from memprof import output
from memprof._version import __version__
from memprof.errors import MemprofError
from memprof.files import Path
from memprof.tables import Column, table

if TYPE_CHECKING:
    from memprof.recording import Recording


def _module(name: str) -> Any:
    """Import a module of pyarrow.

    Raises:
        MemprofError: it is not installed; says what installs it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MemprofError(
            'Arrow and Parquet need pyarrow: pip install "torch-memprof[arrow]" '
            f"({error}). export_csv() needs nothing"
        ) from None


def to_arrow(recording: Recording, name: str) -> Any:
    """Return a table as a ``pyarrow.Table``."""
    pa = _module("pyarrow")
    columns = table(recording, name)
    arrays, fields = [], []
    while columns:  # each goes as soon as Arrow has its own
        column = columns.pop(0)
        array = _array(pa, column)
        about = {"unit": column.unit} if column.unit else None
        fields.append(pa.field(column.name, array.type, metadata=about))
        arrays.append(array)
    about = {
        "memprof": __version__,
        "table": name,
        "start_ns": str(recording._core.start_ns),
        "start_wall_ns": str(recording._core.start_wall_ns),
        "devices": json.dumps(recording.devices),
    }
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=about))


def _array(pa: Any, column: Column) -> Any:
    """Return a column as Arrow has it, in its own memory.

    From buffers: what ``pyarrow.array`` is given it first shows to pandas, whose
    import takes longer than all the rest.
    """
    if column.texts is None:
        return _numbers(pa, column.values, None)
    codes = column.values.astype(np.int32)
    missing = (codes < 0) | (codes >= len(column.texts))
    codes[missing] = 0  # also behind a null it has to be one that is there
    indices = _numbers(pa, codes, missing if missing.any() else None)
    return pa.DictionaryArray.from_arrays(indices, _texts(pa, column.texts))


def _numbers(pa: Any, values: Any, missing: Any) -> Any:
    plain = np.ascontiguousarray(values)
    there = None
    if missing is not None:
        there = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    kind = pa.from_numpy_dtype(plain.dtype)
    return pa.Array.from_buffers(kind, len(plain), [there, pa.py_buffer(plain)])


def _texts(pa: Any, texts: list[str]) -> Any:
    encoded = [text.encode("utf-8") for text in texts]
    ends = np.cumsum([0, *map(len, encoded)])
    large = int(ends[-1]) > np.iinfo(np.int32).max
    kind, width = (pa.large_string(), np.int64) if large else (pa.string(), np.int32)
    buffers = [None, pa.py_buffer(ends.astype(width)), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(kind, len(encoded), buffers)


def write_parquet(recording: Recording, path: Path, name: str) -> None:
    """Write ``Recording.export_parquet``."""
    parquet = _module("pyarrow.parquet")
    content = to_arrow(recording, name)
    texts = [
        field.name for field in content.schema if hasattr(field.type, "value_type")
    ]
    # A file that we open: what fails names it as the user does.
    with output.replacing(path) as temporary, open(temporary, "wb") as file:
        parquet.write_table(
            content,
            file,
            compression="zstd",
            compression_level=1,
            # Numbers differ too much for a dictionary; a dictionary of texts that
            # is given up for its size would write each row's stack.
            use_dictionary=texts,
            dictionary_pagesize_limit=2**31 - 1,
        )
