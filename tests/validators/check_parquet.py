"""Our tables as Parquet, read by pyarrow: columns, types, units, sums."""

from __future__ import annotations

from typing import Any

ALLOCATIONS = [
    "id",
    "device",
    "address",
    "size",
    "category",
    "reason",
    "role",
    "owner",
    "module",
    "op",
    "phase",
    "region",
    "shape",
    "forward_module",
    "forward_op",
    "line",
    "stack",
    "stack_id",
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
EVENTS = [
    "event",
    "time_ns",
    "kind",
    "device",
    "address",
    "size",
    "op",
    "module",
    "phase",
    "step",
    "line",
    "stack_id",
    "thread",
    "stream",
    "pool",
    "flags",
    "op_instance",
]
STEPS = [
    "number",
    "device",
    "begin_event",
    "end_event",
    "begin_ns",
    "end_ns",
    "requested_bytes_at_end",
    "requested_bytes_peak",
    "active_bytes_peak",
    "reserved_bytes_peak",
    "allocated_total",
]
COLUMNS = {
    "allocations": ALLOCATIONS,
    "events": EVENTS,
    "steps": STEPS,
    "stacks": ["stack_id", "depth", "line", "stack"],
}
TEXTS = {
    "device",
    "category",
    "reason",
    "role",
    "owner",
    "module",
    "op",
    "phase",
    "region",
    "shape",
    "forward_module",
    "forward_op",
    "line",
    "stack",
    "kind",
}
ALWAYS = {"device", "category", "reason", "role", "phase", "kind"}
UNITS = {
    "size": "bytes",
    "allocated_total": "bytes",
    **{name: "bytes" for name in STEPS if "_bytes_" in name},
    **{
        name: "ns"
        for names in COLUMNS.values()
        for name in names
        if name.endswith("_ns")
    },
}


def check_parquet(content: bytes, name: str) -> list[str]:
    """Return what is wrong with a file, nothing if it is right."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    if content[:4] != b"PAR1" or content[-4:] != b"PAR1":
        return ["it is no Parquet file"]
    try:
        table = parquet.read_table(pa.BufferReader(content))
        table.validate(full=True)
    except pa.ArrowException as error:
        return [str(error)]
    return check_table(table, name)


def check_table(table: Any, name: str) -> list[str]:
    """Return what is wrong with an Arrow table."""
    import pyarrow as pa

    wrong = []
    about = table.schema.metadata or {}
    if about.get(b"table") != name.encode():
        wrong.append(f"the table is called {about.get(b'table')!r}")
    if table.schema.names != COLUMNS[name]:
        wrong.append(f"the columns are {table.schema.names}")
    for field in table.schema:
        unit = ((field.metadata or {}).get(b"unit") or b"").decode()
        if unit != UNITS.get(field.name, ""):
            wrong.append(f"{field.name} is in {unit!r}")
        column = table.column(field.name)
        if field.name in TEXTS:
            if not pa.types.is_dictionary(field.type):
                wrong.append(f"{field.name} is {field.type}")
        elif not pa.types.is_integer(field.type):
            wrong.append(f"{field.name} is {field.type}")
        if column.null_count and (field.name not in TEXTS or field.name in ALWAYS):
            wrong.append(f"{field.name} has {column.null_count} nulls")
    for key in {"id", "event"} & set(table.schema.names):
        if table.column(key).to_pylist() != list(range(len(table))):
            wrong.append(f"{key} does not count the rows")
    return wrong
