"""Is it a trace that every viewer takes?  ``check_chrome(bytes) -> list[str]``.

Of a merged trace only our own events are held to our rules: torch's are torch's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from unpack import is_int, is_number, strict_json, unpack

OUR_PIDS = range(9_000_000, 9_000_000 + 10 * (1 << 16))
ORDER = [
    "schemaVersion",
    "deviceProperties",
    "distributedInfo",
    "displayTimeUnit",
    "baseTimeNanoseconds",
    "traceEvents",
    "traceName",
]
RANK = re.compile(rb'"rank":\s+(\d+)')
OP_LIKE = {"cpu_op", "user_annotation", "gpu_user_annotation"}


def check_chrome(data: bytes, merged: bool = False) -> list[str]:
    """Return what is wrong with a trace, ours or one merged by us."""
    text, wrong = unpack(data)
    trace, more = strict_json(text)
    wrong += more
    if trace is None:
        return wrong
    if merged:
        events = trace if isinstance(trace, list) else trace["traceEvents"]
        ours = [e for e in events if e.get("pid") in OUR_PIDS]
        return wrong + check_events(ours)
    wrong += check_shape(text, trace)
    events = trace.get("traceEvents")
    if not isinstance(events, list):
        return [*wrong, "no traceEvents"]
    last = events[-1] if events else {}
    if last.get("name") != "Record Window End" or last.get("ph") != "i":
        wrong.append("the last event is not Record Window End")
    broken = check_events(events[:-1])
    if broken:
        return wrong + broken
    wrong += check_gpu(events)
    return wrong + check_memory(trace, events) + check_needs(events)


def check_shape(text: bytes, trace: Any) -> list[str]:
    """Check what stands around the events."""
    wrong = []
    if not text.startswith(b'{"'):
        return ["does not begin with an object's first key"]
    keys = list(trace)
    if [key for key in keys if key in ORDER] != ORDER:
        wrong.append(f"keys are missing or out of order: {keys}")
    events_at = text.find(b'"traceEvents"')
    ranks = [found.start() for found in RANK.finditer(text)]
    if len(ranks) != 1 or ranks[0] > events_at:
        wrong.append(f"HTA finds {len(ranks)} ranks, at {ranks[:3]}")
    if not is_int(trace.get("baseTimeNanoseconds")):
        wrong.append("baseTimeNanoseconds is no whole number")
    if trace.get("displayTimeUnit") != "ms" or trace.get("schemaVersion") != 1:
        wrong.append("displayTimeUnit or schemaVersion")
    for key, value in trace.get("metadata", {}).items():
        if not isinstance(value, (str, int, float)):
            wrong.append(f"metadata is not flat: {key}")
    return wrong


def check_events(events: list[dict[str, Any]]) -> list[str]:
    """Check every event by itself, and what belongs together."""
    wrong: list[str] = []
    slices: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        missing = {"ph", "name", "pid", "tid", "ts"} - event.keys()
        if missing:
            wrong.append(f"{sorted(missing)} missing: {event}")
            continue
        pid, tid = event["pid"], event["tid"]
        if not is_int(pid) or not is_int(tid) or tid == 0:
            wrong.append(f"pid or tid: {event}")
        elif not 0 <= pid < 2**32 or not 0 < tid < 2**32:
            wrong.append(f"pid or tid are too large: {event}")
        if not is_number(event["ts"]) or event["ts"] < 0:
            wrong.append(f"ts: {event}")
        if not isinstance(event["name"], str):
            wrong.append(f"name: {event}")
        if event["ph"] == "X":
            if not is_number(event.get("dur")) or event["dur"] < 0:
                wrong.append(f"dur: {event}")
            elif not isinstance(event.get("cat"), str):
                wrong.append(f"cat: {event}")
            else:
                slices[pid, tid].append(event)
        elif event["ph"] == "i" and event.get("s") not in ("t", "g"):
            wrong.append(f"s: {event}")
        elif event["ph"] not in "XiCMsfbe":
            wrong.append(f"ph: {event}")
    if wrong:
        return wrong
    for row in slices.values():
        wrong += check_nesting(row)
    wrong += check_counters([e for e in events if e["ph"] == "C"])
    wrong += check_spans([e for e in events if e["ph"] in "be"])
    return wrong + check_flows([e for e in events if e["ph"] in "sf"], slices)


def nanoseconds(micros: float) -> int:
    """Return a time of a file: exact below 2^53 ns."""
    return round(micros * 1000)


def extent(event: dict[str, Any]) -> tuple[int, int]:
    """Return where a slice begins and ends, in ns."""
    begin = nanoseconds(event["ts"])
    return begin, begin + nanoseconds(event["dur"])


def check_nesting(row: list[dict[str, Any]]) -> list[str]:
    """Check that slices of one row are apart, or one holds the other."""
    wrong = []
    open_ends: list[int] = []
    for begin, end, event in sorted(
        ((*extent(event), event) for event in row), key=lambda x: (x[0], -x[1])
    ):
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        if open_ends and end > open_ends[-1]:
            wrong.append(f"overlaps another on its row: {event}")
        open_ends.append(end)
    return wrong


def check_counters(counters: list[dict[str, Any]]) -> list[str]:
    """Check the arguments, and that categories sum to what is allocated."""
    wrong = []
    keys: dict[Any, Any] = {}
    now: dict[int, dict[str, Any]] = defaultdict(dict)
    order = sorted(range(len(counters)), key=lambda i: counters[i]["ts"])
    for place, index in enumerate(order):
        event = counters[index]
        args = event.get("args")
        if not isinstance(args, dict) or not all(map(is_number, args.values())):
            wrong.append(f"a counter's arguments: {event}")
            continue
        if "id" in event:
            wrong.append(f"Perfetto adds the id to the name: {event}")
        if keys.setdefault((event["pid"], event["name"]), list(args)) != list(args):
            wrong.append(f"other keys than before: {event}")
        levels = now[event["pid"]]
        if event["name"] == "by category":
            levels["stack"] = args
        else:
            levels[event["name"]] = args.get("bytes")
        following = counters[order[place + 1]] if place + 1 < len(order) else None
        if following is not None and following["ts"] == event["ts"]:
            continue
        for pid, known in now.items():
            parts = [v for k, v in known.items() if k.startswith("cat/")]
            if parts and sum(parts) != known.get("allocated"):
                wrong.append(f"categories of {pid} sum to {sum(parts)}: {known}")
            stack = known.get("stack")
            if stack and list(stack.values()) != parts:
                wrong.append(f"the stacked counter of {pid} differs: {known}")
    return wrong


def check_spans(events: list[dict[str, Any]]) -> list[str]:
    """Check that every async begin has its end, by category, id and name."""
    wrong = []
    found: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if not isinstance(event.get("id"), str) or not event["id"].startswith("0x"):
            wrong.append(f"an id that Perfetto does not read: {event}")
        found[event.get("cat"), event.get("id"), event["name"]].append(event)
    for pair in found.values():
        if [event["ph"] for event in pair] != ["b", "e"]:
            wrong.append(f"not one begin and one end: {pair}")
        elif pair[0]["ts"] > pair[1]["ts"]:
            wrong.append(f"ends before it begins: {pair}")
    return wrong


def check_flows(
    events: list[dict[str, Any]], slices: dict[Any, list[dict[str, Any]]]
) -> list[str]:
    """Check that flows have two ends, each inside of a slice."""
    wrong = []
    found: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if not is_int(event.get("id")):
            wrong.append(f"a flow's id: {event}")
        if event["ph"] == "f" and event.get("bp") != "e":
            wrong.append(f"no bp: {event}")
        found[event.get("cat"), event["name"], event.get("id")].append(event)
        at = nanoseconds(event["ts"])
        around = (extent(s) for s in slices[event["pid"], event["tid"]])
        if not any(begin <= at <= end for begin, end in around):
            wrong.append(f"inside of no slice: {event}")
    for pair in found.values():
        if [event["ph"] for event in pair] != ["s", "f"]:
            wrong.append(f"not one start and one finish: {pair}")
    return wrong


GPU_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}


def check_gpu(events: list[dict[str, Any]]) -> list[str]:
    """Check what ran on GPUs: where, what of, and that flows lead there."""
    wrong = []
    labels = {
        e["pid"]: e["args"]["labels"]
        for e in events
        if e["ph"] == "M" and e["name"] == "process_labels"
    }
    work: dict[Any, list[Any]] = defaultdict(list)
    launches: dict[Any, set[Any]] = defaultdict(set)
    for event in events:
        args = event.get("args", {})
        if event["ph"] != "X":
            continue
        if event["cat"] == "cuda_driver":
            at = event["pid"], event["tid"], event["ts"]
            launches[at].add(args.get("correlation"))
        if event["cat"] not in GPU_WORK:
            continue
        if not all(is_int(args.get(n)) for n in ("device", "stream", "correlation")):
            wrong.append(f"what a piece of GPU work says: {event}")
            continue
        if labels.get(event["pid"]) != f"GPU {args['device']}":
            wrong.append(f"on the row of another GPU: {event}")
        if (event["cat"] == "kernel") == ("bytes" in args):
            wrong.append(f"bytes are of copies and sets: {event}")
        at = event["pid"], event["tid"], event["ts"]
        work[at].append(args["correlation"])
    starts = {e["id"]: e for e in events if e["ph"] == "s" and e.get("cat") == "ac2g"}
    for event in events:
        if event["ph"] == "f" and event.get("cat") == "ac2g":
            start = starts[event["id"]]
            into = work[event["pid"], event["tid"], event["ts"]]
            out_of = launches[start["pid"], start["tid"], start["ts"]]
            if not out_of & set(into):
                wrong.append(f"leads from {sorted(out_of)} to {into}: {event}")
            if event["ts"] < start["ts"]:
                wrong.append(f"leads back in time: {event}")
    return wrong


def check_memory(trace: dict[str, Any], events: list[dict[str, Any]]) -> list[str]:
    """Check the [memory] instants: devices, and that bytes explain the totals."""
    wrong = []
    properties = trace.get("deviceProperties", [])
    totals: dict[int, int] = {}
    complete = trace.get("metadata", {}).get("memory_events") == "all"
    for event in events:
        if event["name"] != "[memory]" or event["ph"] != "i":
            continue
        args = event.get("args", {})
        names = ("Addr", "Bytes", "Total Allocated", "Total Reserved", "Device Id")
        if not all(is_int(args.get(n)) for n in (*names, "Device Type", "Ev Idx")):
            wrong.append(f"a [memory] event's arguments: {event}")
            continue
        device = args["Device Id"]
        if not -len(properties) <= device < len(properties):
            wrong.append(f"the plugin finds no such device: {event}")
        if args["Device Type"] != (0 if device == -1 else 1):
            wrong.append(f"Device Type: {event}")
        total = args["Total Allocated"]
        before = totals.get(device)
        if complete and before is not None and before + args["Bytes"] != total:
            wrong.append(f"{before} before: {event}")
        totals[device] = total
    return wrong


def check_needs(events: list[dict[str, Any]]) -> list[str]:
    """Check what TensorBoard's plugin cannot do without."""
    op_like = [e for e in events if e["ph"] == "X" and e.get("cat") in OP_LIKE]
    wrong = [
        f"a step without a number: {e}"
        for e in op_like
        if e["name"].startswith("ProfilerStep#") and not e["name"][13:].isdigit()
    ]
    if not any(
        e["dur"] > 0 and (e["cat"] == "cpu_op" or e["name"].startswith("ProfilerStep#"))
        for e in op_like
    ):
        wrong.append("no op and no step that takes time")
    return wrong
