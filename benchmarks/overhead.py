"""What recording costs a training step: memprof beside torch's own tools.

    python benchmarks/overhead.py                     # three models, every tool
    python benchmarks/overhead.py --models launch-bound --rounds 60
    python benchmarks/overhead.py --quick             # minutes on two cores

Ratios only: time of a step with the tool over time of the same step without it.
Both are taken within a second or so of each other, many times over, so that a
machine that drifts or is shared moves both.  Two ways, named in the table:

in one process
    Rounds of bare, memprof without ops, memprof, bare, ... in one process; a
    round's ratio is over the mean of the two bare blocks around it.  "Bare" is
    then a process in which memprof has run and is stopped: what that costs is
    the row "memprof, after stop()".
paired
    Two processes, both alive, take turns; one never loads the tool.  For tools
    that leave something behind, and for "after stop()".  Two processes are never
    equally fast, so they first take turns with both bare, and the ratios are
    divided by the median of those.

Each step is timed from one torch.cuda.synchronize() to the next, and a block is as
fast as its fastest step: what else the machine does only ever adds.  Start, stop
and the first steps after a start are outside.  There is nothing asserted.

"RecordFunction alone" is what torch itself takes to tell of ops: its callbacks
with nothing recorded.  Less than that no follower of ops can cost.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import math
import multiprocessing
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[], Tensor]  # runs one training step, returns its loss

MODELS = ("launch-bound", "resnet50", "large")
LOSS_STEPS = 5


# -- the models ---------------------------------------------------------------


class Transformer(nn.Module):
    """A causal language model made of torch's own encoder layers."""

    def __init__(self, vocab: int, length: int, dim: int, layers: int, heads: int):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, 0.0, F.gelu, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("mask", mask)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of every position."""
        x = self.layers(self.tokens(tokens), mask=self.mask, is_causal=True)
        return self.head(x)


def transformer_step(
    device: torch.device,
    *,
    batch: int,
    length: int,
    dim: int,
    layers: int,
    heads: int,
    vocab: int,
    bf16: bool,
) -> tuple[Step, str]:
    """Build a transformer, AdamW and one fixed batch."""
    model = Transformer(vocab, length, dim, layers, heads).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(vocab, (batch, length + 1)).to(device)
    x, y = tokens[:, :-1], tokens[:, 1:].reshape(-1)

    def step() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(model(x).flatten(0, 1), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    about = (
        f"transformer, {layers} layers of {dim}, batch {batch} x {length}, AdamW"
        f"{', bf16 autocast' if bf16 else ''}"
    )
    return step, about


def resnet50_step(device: torch.device, batch: int, size: int) -> tuple[Step, str]:
    """Build torchvision's ResNet-50, SGD with momentum and one fixed batch."""
    try:
        models = importlib.import_module("torchvision.models")
    except ImportError as error:
        raise RuntimeError(f"torchvision cannot be imported ({error})") from None
    model = models.resnet50(num_classes=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x = torch.randn(batch, 3, size, size).to(device)
    y = torch.randint(10, (batch,)).to(device)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, f"ResNet-50, batch {batch} at {size}x{size}, SGD with momentum"


def build(model: str, device: torch.device) -> tuple[Step, str]:
    """Build a model from a fixed seed; return its step and a description."""
    torch.manual_seed(0)
    gpu = device.type == "cuda"
    if model == "resnet50":
        return resnet50_step(device, *((64, 224) if gpu else (8, 64)))
    if model == "large":
        # On a GPU large enough that the GPU, not Python, sets the pace.
        if gpu:
            size = {"batch": 16, "length": 1024, "dim": 1024, "layers": 24}
            return transformer_step(device, **size, heads=16, vocab=32768, bf16=True)
        size = {"batch": 8, "length": 128, "dim": 256, "layers": 4}
        return transformer_step(device, **size, heads=4, vocab=1024, bf16=False)
    # launch-bound: many small layers and tiny tensors, so the CPU sets the pace.
    # Not so many that only a few steps fit into a block: it is their least.
    size = {"batch": 2, "length": 16, "dim": 64, "layers": 12}
    return transformer_step(device, **size, heads=4, vocab=256, bf16=False)


# -- the tools ----------------------------------------------------------------


@dataclass(frozen=True)
class Tool:
    """A configuration to measure: how it is named and what exactly it calls."""

    label: str
    call: str
    cuda_only: bool = False


TOOLS = {
    "bare": Tool("bare", "nothing"),
    "memprof_no_ops": Tool("memprof without ops", "memprof.profile(with_ops=False)"),
    "memprof": Tool("memprof, everything", "memprof.profile(): stacks, modules, ops"),
    "record_function": Tool(
        "RecordFunction alone", "torch's callbacks for ops, and nothing recorded"
    ),
    "torch_profiler": Tool(
        "torch.profiler", "torch.profiler.profile(profile_memory=True)"
    ),
    "torch_profiler_stack": Tool(
        "torch.profiler, stacks",
        "torch.profiler.profile(profile_memory=True, with_stack=True)",
    ),
    "memory_history": Tool(
        "torch memory history",
        "torch.cuda.memory._record_memory_history(stacks='python')",
        cuda_only=True,
    ),
}
MINE = ("record_function", "memprof_no_ops", "memprof")
PEERS = ("torch_profiler", "torch_profiler_stack", "memory_history")


def memprof_info(profiler: Any, name: str) -> int | None:
    """Read a counter of a memprof recording's ``info``."""
    info = profiler.recording.info
    value = info.get(name) if isinstance(info, Mapping) else getattr(info, name, None)
    return None if value is None else int(value)


@contextlib.contextmanager
def running(tool: str, counters: dict[str, int | None]) -> Iterator[None]:
    """Run TOOL around the body; leave what it counted in COUNTERS."""
    if tool == "bare":
        yield
    elif tool in ("memprof", "memprof_no_ops"):
        import memprof  # not before: "bare" must mean a process without it

        with memprof.profile(with_ops=tool == "memprof") as profiler:
            yield
        counters["events"] = memprof_info(profiler, "events")
        counters["dropped"] = memprof_info(profiler, "dropped")
    elif tool == "record_function":
        from memprof import _core

        session = _core.Session(
            ops=2,
            shapes=False,
            stacks=False,
            modules=False,
            cpu=False,
            cuda=False,
            event_budget_bytes=0,
            allocation_budget_bytes=0,
        )
        session.start(False)
        try:
            yield
        finally:
            session.stop()
    elif tool in ("torch_profiler", "torch_profiler_stack"):
        stack = tool == "torch_profiler_stack"
        with torch.profiler.profile(profile_memory=True, with_stack=stack):
            yield
    elif tool == "memory_history":
        record = torch.cuda.memory._record_memory_history
        record("all", context="all", stacks="python", max_entries=1_000_000)
        try:
            yield
        finally:
            record(None)
    else:
        raise ValueError(f"unknown tool {tool!r}")


# -- the process that runs steps ----------------------------------------------


@dataclass
class Block:
    """What one timed block of steps gave."""

    seconds: float  # of its fastest step
    events_per_step: float | None = None
    dropped: int | None = None


class Bench:
    """One model in one process; its public methods are what the parent calls."""

    def __init__(self, model: str, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.model = model
        self.device = torch.device(device)
        self.step: Step | None = None

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def build(self) -> tuple[str, float]:
        """Build the model; return its description and the seconds of a step."""
        self.step, about = build(self.model, self.device)
        gc.collect()
        self.block("bare", 1, 2)
        return about, min(self.block("bare", 1, 0).seconds for _ in range(3))

    def block(self, tool: str, steps: int, warmup: int) -> Block:
        """Time STEPS steps under TOOL, after WARMUP steps under it."""
        step = self.step
        assert step is not None
        counters: dict[str, int | None] = {}
        with running(tool, counters):
            for _ in range(warmup):
                step()
            self._synchronize()
            seconds = math.inf
            for _ in range(steps):
                began = time.perf_counter()
                step()
                self._synchronize()
                seconds = min(seconds, time.perf_counter() - began)
        events = counters.get("events")
        per_step = None if events is None else events / (steps + warmup)
        return Block(seconds, per_step, counters.get("dropped"))

    def losses(self, tool: str, steps: int) -> list[float]:
        """Train a fresh model under TOOL, with deterministic kernels if any."""
        self.step = None
        gc.collect()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.use_deterministic_algorithms(True, warn_only=True)
            try:
                step, _ = build(self.model, self.device)
                with running(tool, {}):
                    return [float(step()) for _ in range(steps)]
            finally:
                torch.use_deterministic_algorithms(False)


def serve(connection: Connection, model: str, device: str, threads: int) -> None:
    """Answer the parent's calls until it closes the pipe."""
    bench = Bench(model, device, threads)
    while True:
        try:
            verb, arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, getattr(bench, verb)(*arguments)))
        except Exception as error:
            connection.send((False, f"{type(error).__name__}: {error}"))


class NotRun(Exception):
    """A measurement could not be made; the text says why."""


class Process:
    """The parent's side of one serve()."""

    def __init__(self, model: str, device: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, model, device, threads), daemon=True
        )
        self._process.start()
        theirs.close()

    def call(self, verb: str, *arguments: Any, limit: float | None = None) -> Any:
        """Call a method of the Bench; after LIMIT seconds, end the process."""
        try:
            self._connection.send((verb, arguments))
            if not self._connection.poll(limit):
                self.close(kill=True)
                raise NotRun(f"one block did not finish within {limit:.0f} s")
            ok, value = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode
            raise NotRun(f"its process ended (exit code {code})") from None
        if not ok:
            raise NotRun(value)
        return value

    def close(self, kill: bool = False) -> None:
        """End the process."""
        self._connection.close()
        if kill:
            self._process.kill()
        self._process.join(30)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


# -- measuring ----------------------------------------------------------------


@dataclass
class Row:
    """One line of the table."""

    tool: str
    label: str
    call: str
    how: str = ""
    ratios: list[float] = field(default_factory=list)
    events_per_step: float | None = None
    dropped: int | None = None
    note: str = ""

    def add(self, block: Block, bare_seconds: float) -> None:
        """Take in one round."""
        self.ratios.append(block.seconds / bare_seconds)
        if block.events_per_step is not None:
            self.events_per_step = block.events_per_step
        if block.dropped is not None:
            self.dropped = (self.dropped or 0) + block.dropped

    def to_dict(self) -> dict[str, Any]:
        """Return the row for JSON, with its statistics."""
        result = asdict(self)
        if self.ratios:
            result["median"] = statistics.median(self.ratios)
            result["p10"] = percentile(self.ratios, 0.1)
            result["p90"] = percentile(self.ratios, 0.9)
            result["median_95"] = median_interval(self.ratios)
        return result


@dataclass
class Result:
    """Everything measured on one model."""

    model: str
    about: str = ""
    bare_ms: float | None = None
    steps_per_block: int = 0
    rows: list[Row] = field(default_factory=list)
    losses: str = ""
    note: str = ""


def percentile(values: list[float], share: float) -> float:
    """Return the value below which SHARE of VALUES lies, interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def median_interval(values: list[float]) -> tuple[float, float]:
    """Return the median's 95 % range, from the order of VALUES alone."""
    ordered, count = sorted(values), len(values)
    low = max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)))
    return ordered[low], ordered[count - 1 - low]


def say(text: str) -> None:
    """Report progress, away from the table."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    rounds: int
    peer_rounds: int
    block_seconds: float
    peer_seconds: float
    threads: int

    def block(self, step_seconds: float) -> tuple[int, int]:
        """Return the steps to time in a block, and those to discard before."""
        steps = min(200, max(1, round(self.block_seconds / step_seconds)))
        return steps, 2 if steps > 1 else 1


def measure(model: str, device: str, plan: Plan) -> Result:
    """Measure every tool on one model."""
    result = Result(model)
    gpu = torch.device(device).type == "cuda"
    asked = PEERS if plan.peer_rounds else ()
    peers = [peer for peer in asked if gpu or not TOOLS[peer].cuda_only]
    # All start now, so that they import torch side by side; each builds its
    # model when its turn comes, so no more than two are in memory at once.
    bare = Process(model, device, plan.threads)
    mine = Process(model, device, plan.threads)
    others = {peer: Process(model, device, plan.threads) for peer in peers}
    try:
        try:
            result.about, seconds = bare.call("build")
        except NotRun as error:
            result.note = f"not run: {error}"
            return result
        steps, warmup = plan.block(seconds)
        result.bare_ms, result.steps_per_block = 1000 * seconds, steps
        say(f"{model}: {result.about}; {1000 * seconds:.1f} ms, {steps} steps a block")
        measure_memprof(result, bare, mine, (steps, warmup), plan)
        for peer in asked:
            row = Row(peer, TOOLS[peer].label, TOOLS[peer].call, "paired")
            result.rows.append(row)
            if peer not in others:
                row.note = f"not run: it records CUDA memory only, this is {device}"
                continue
            measure_peer(row, bare, others[peer], (min(steps, 5), warmup), plan)
            others[peer].close()
    finally:
        for process in (bare, mine, *others.values()):
            process.close(kill=True)
    return result


def take_turns(
    row: Row,
    bare: Process,
    other: Process,
    tool: str,
    size: tuple[int, int],
    rounds: int,
    limit: float | None = None,
) -> None:
    """Let two processes run blocks in turn, the second one under TOOL."""
    began = time.monotonic()
    before = bare.call("block", "bare", *size).seconds
    for _ in range(rounds):
        left = None if limit is None else limit - (time.monotonic() - began)
        if left is not None and left <= 0:
            row.note = f"stopped after {limit:.0f} s"
            return
        # A single block may take all of LIMIT: with a late start it would be
        # the rounds before it, not the tool, that ran out of time.
        block = other.call("block", tool, *size, limit=limit)
        after = bare.call("block", "bare", *size).seconds
        row.add(block, (before + after) / 2)
        before = after


def calibrate(
    bare: Process, other: Process, size: tuple[int, int], rounds: int
) -> float:
    """Return how much slower the second process is with both bare."""
    row = Row("bare", "", "")
    take_turns(row, bare, other, "bare", size, rounds)
    return statistics.median(row.ratios)


def measure_memprof(
    result: Result, bare: Process, mine: Process, size: tuple[int, int], plan: Plan
) -> None:
    """Measure memprof in one process, and what it leaves behind, paired."""
    noise = Row("bare", "bare, again", "nothing: the noise", "in one process")
    rows = {
        tool: Row(tool, TOOLS[tool].label, TOOLS[tool].call, "in one process")
        for tool in MINE
    }
    stopped = Row("stopped", "memprof, after stop()", "nothing, afterwards", "paired")
    result.rows += [noise, *rows.values(), stopped]
    try:
        mine.call("build")
        say("  memprof")
        bias = calibrate(bare, mine, size, plan.rounds)
        order = list(MINE)
        for tool in reversed(order):  # the first start compiles, loads, attaches
            mine.call("block", tool, 1, 1)
        before = mine.call("block", "bare", *size)
        for _ in range(plan.rounds):
            blocks = {tool: mine.call("block", tool, *size) for tool in order}
            after = mine.call("block", "bare", *size)
            for tool, block in blocks.items():
                rows[tool].add(block, (before.seconds + after.seconds) / 2)
            noise.add(after, before.seconds)
            before = after
            order.reverse()
        turns = Row("stopped", "", "")
        take_turns(turns, bare, mine, "bare", size, plan.rounds)
        stopped.ratios = [ratio / bias for ratio in turns.ratios]
    except NotRun as error:
        for row in (noise, *rows.values(), stopped):
            row.note = f"{'cut short' if row.ratios else 'not run'}: {error}"
    try:
        result.losses = compare_losses(mine)
    except NotRun as error:
        result.losses = f"not compared: {error}"
    mine.close()


def measure_peer(
    row: Row, bare: Process, other: Process, size: tuple[int, int], plan: Plan
) -> None:
    """Measure one of torch's tools against the bare process."""
    say(f"  {row.label}")
    try:
        other.call("build")
        bias = calibrate(bare, other, size, plan.peer_rounds)
        take_turns(
            row, bare, other, row.tool, size, plan.peer_rounds, plan.peer_seconds
        )
        row.ratios = [ratio / bias for ratio in row.ratios]
    except NotRun as error:
        row.note = f"not run: {error}"
        row.ratios = []  # not yet divided by the bias


def compare_losses(mine: Process) -> str:
    """Train the same model bare, bare again and recorded; compare the losses."""
    bare = mine.call("losses", "bare", LOSS_STEPS)
    if mine.call("losses", "bare", LOSS_STEPS) != bare:
        return "not compared: two bare runs already differ (kernels not deterministic)"
    for tool in ("memprof_no_ops", "memprof"):
        recorded = mine.call("losses", tool, LOSS_STEPS)
        if recorded != bare:
            return f"DIFFERENT under {TOOLS[tool].label}: {bare} against {recorded}"
    return f"equal to the last bit over {LOSS_STEPS} steps, bare and recorded"


# -- reporting ----------------------------------------------------------------


def describe_machine(device: str) -> dict[str, str]:
    """Return what the figures depend on: processor, GPU, versions."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    machine = {
        "processor": f"{processor}, {cores or os.cpu_count()} cores",
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torchvision": version_of("torchvision"),
        "memprof": version_of("memprof"),
        "device": device,
    }
    if torch.device(device).type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
        machine["cuda"] = str(torch.version.cuda)
    return machine


def version_of(package: str) -> str:
    """Return a package's version, or why there is none."""
    try:
        return str(getattr(importlib.import_module(package), "__version__", "unknown"))
    except Exception as error:  # a broken build can raise anything
        return f"none ({error})"


def table(result: Result) -> str:
    """Render one model's table."""
    lines = [f"{result.model}: {result.about}"]
    if result.note:
        return f"{result.model}: {result.note}"
    lines.append(
        f"  {result.bare_ms:.1f} ms a step bare, {result.steps_per_block} steps a block"
    )
    lines.append(
        f"  {'':24}{'ratio':>7}{'p10':>7}{'p90':>7}{'median 95 %':>16}{'rounds':>7}"
        f"{'events/step':>12}{'dropped':>8}  how"
    )
    for row in result.rows:
        figures = row.to_dict()
        if not row.ratios:
            lines.append(f"  {row.label:24}{row.note}")
            continue
        low, high = figures["median_95"]
        events = "" if row.events_per_step is None else f"{row.events_per_step:,.0f}"
        dropped = "" if row.dropped is None else f"{row.dropped:,}"
        lines.append(
            f"  {row.label:24}{figures['median']:7.3f}{figures['p10']:7.3f}"
            f"{figures['p90']:7.3f}{low:9.3f}-{high:.3f} {len(row.ratios):6d}"
            f"{events:>12}{dropped:>8}  {row.how}"
            f"{'; ' if row.note else ''}{row.note}"
        )
    lines.append(f"  losses: {result.losses}")
    return "\n".join(lines)


def write_json(path: Path, machine: dict[str, str], results: list[Result]) -> None:
    """Write everything that was measured, every ratio included."""
    models = []
    for result in results:
        entry = asdict(result)
        entry["rows"] = [row.to_dict() for row in result.rows]
        models.append(entry)
    text = json.dumps({"machine": machine, "models": models}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--device", help="default: cuda, if there is one")
    parser.add_argument("--rounds", type=int, help="for memprof; default 40, quick 6")
    parser.add_argument("--peer-rounds", type=int, help="default 8, quick 2; 0: none")
    parser.add_argument(
        "--peer-seconds",
        type=float,
        help="time for each of torch's tools on a model; default 45, quick 20",
    )
    parser.add_argument(
        "--block", type=float, help="seconds a timed block takes; default 0.4"
    )
    parser.add_argument(
        "--threads",
        type=int,
        help="torch's threads; on a CPU 1, as threads that wait for each other "
        "make a shared machine's noise many times worse",
    )
    parser.add_argument("--quick", action="store_true", help="few and short rounds")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    args = parser.parse_args(argv)

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = torch.device(device).type == "cuda"
    plan = Plan(
        rounds=max(2, args.rounds or (6 if args.quick else 40)),
        peer_rounds=(
            (2 if args.quick else 8)
            if args.peer_rounds is None
            else max(0, args.peer_rounds)
        ),
        block_seconds=args.block or (0.2 if args.quick else 0.4),
        peer_seconds=args.peer_seconds or (20 if args.quick else 45),
        threads=args.threads or (torch.get_num_threads() if on_gpu else 1),
    )
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch.profiler's chatter
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    machine = describe_machine(device) | {"threads": str(plan.threads)}
    for name, value in machine.items():
        print(f"{name:12}{value}")
    results: list[Result] = []
    for model in args.models:
        results.append(measure(model, device, plan))
        print(f"\n{table(results[-1])}", flush=True)
        if args.json:  # after each model: a run that is cut short keeps the rest
            write_json(args.json, machine, results)
    print("\nconfigurations:")
    for tool in TOOLS.values():
        print(f"  {tool.label:24}{tool.call}")


if __name__ == "__main__":
    main()
