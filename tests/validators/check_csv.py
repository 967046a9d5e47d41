"""Our tables as CSV: RFC 4180, every line as long as the header, known columns."""

from __future__ import annotations

import csv
import io

from check_parquet import COLUMNS, TEXTS


def check_csv(content: bytes, table: str) -> list[str]:
    """Return what is wrong with a file, nothing if it is right."""
    try:
        rows = read(content)
    except (ValueError, csv.Error) as error:
        return [str(error)]
    if not rows:
        return ["there is no header"]
    header, *lines = rows
    expected = [name for name in COLUMNS[table] if (table, name) != _WIDE]
    wrong = [] if header == expected else [f"the header is {header}"]
    if not content.endswith(b"\n"):
        wrong.append("the last line has no end")
    for number, line in enumerate(lines):
        if len(line) != len(header):
            wrong.append(f"line {number + 2} has {len(line)} fields")
            continue
        for name, field in zip(header, line):
            if name not in TEXTS and not field.removeprefix("-").isdigit():
                wrong.append(f"line {number + 2}: {name} is {field!r}")
    return wrong


_WIDE = ("allocations", "stack")  # only where each text is written once


def read(content: bytes) -> list[list[str]]:
    """Return the fields of each line."""
    csv.field_size_limit(2**24)
    text = content.decode("utf-8")
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))
