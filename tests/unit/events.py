"""Random event streams that torch's allocators could have written.

``random_stream(seed)`` plays a small allocator for each GPU and one for the CPU,
with threads that run ops, modules, regions and steps, and writes down what hooks
would have seen.  Streams are valid: blocks lie in segments and never overlap,
frees follow births, scopes nest.  A few facts are odd on purpose, as they are in
life: frees of blocks nobody saw born, marks of other sessions, roles of dead
storages.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

import numpy as np

from memprof import _core
from memprof.recording import EVENT_DTYPE, NO_INDEX

CPU = -1
SESSION = 7
OTHER_SESSION = 8
PAGE = 2 << 20
NO_SEQUENCE = 2**64 - 1

KIND = {
    "alloc": 1,
    "free_requested": 2,
    "free_completed": 3,
    "segment_alloc": 4,
    "segment_free": 5,
    "segment_map": 6,
    "segment_unmap": 7,
    "oom": 8,
    "snapshot": 9,
    "other": 10,
    "op_begin": 16,
    "op_end": 17,
    "module_begin": 18,
    "module_end": 19,
    "region_begin": 20,
    "region_end": 21,
    "optimizer_begin": 22,
    "optimizer_end": 23,
    "step": 32,
    "role": 33,
    "window_begin": 34,
    "window_end": 35,
    "shape": 36,
    "seed_segment": 48,
    "seed_block": 49,
    "seed_origin": 50,
    "gpu_launch": 96,
    "gpu_work": 97,
    "gpu_lost": 98,
}
OTHER, FORWARD, BACKWARD, OPTIMIZER = range(4)
GRAD_MODE, IN_MODULE, RECOMPUTE, PENDING, BACKWARD_OP, IN_OP = 1, 2, 4, 8, 16, 32
MADE_NODE, DIED_IN_FORWARD = 64, 128

OPS = [f"aten::op{i}" for i in range(8)]
MODULES = ["", "layers.0", "layers.0.attn", "layers.1", "layers.1.attn", "head"]
REGIONS = ["forward", "backward", "load batch"]
OWNERS = ["layers.0.weight", "layers.1.weight", "head.bias"]
SHAPES = ["float32[8, 8]", "float32[64]", "int64[32]"]
NAMES = OPS + MODULES[1:] + REGIONS + OWNERS + ["SGD"] + SHAPES
NUMBER = {name: index for index, name in enumerate(NAMES)}


def rows(events: list[dict[str, int]]) -> np.ndarray:
    """Lay out events as the core wants them: EVENT_DTYPE [n]."""
    array = np.zeros(len(events), EVENT_DTYPE)
    for name in ("op", "module", "stack"):
        array[name] = NO_INDEX
    for index, event in enumerate(events):
        row = array[index]
        for name, value in event.items():
            row[name] = value
    return array


@dataclass
class Segment:
    """Memory that an allocator took from the driver, and who is where in it."""

    begin: int
    size: int
    blocks: dict[int, int] = field(default_factory=dict)  # address -> room taken

    def place(self, room: int) -> int | None:
        """Return the first address with ROOM bytes free."""
        at = self.begin
        for address in sorted(self.blocks):
            if address - at >= room:
                return at
            at = address + self.blocks[address]
        return at if self.begin + self.size - at >= room else None


@dataclass
class Thread:
    """What one thread is inside of."""

    number: int
    ops: list[tuple[str, int, int]] = field(default_factory=list)  # name, flags, seq
    modules: list[str] = field(default_factory=list)
    regions: list[str] = field(default_factory=list)
    instance: int = 0
    phase: int = OTHER
    sequence: int = 1  # the next autograd number


class Stream:
    """Writes one stream."""

    def __init__(self, seed: int, gpus: int = 2) -> None:
        self.random = random.Random(seed)
        self.events: list[dict[str, int]] = []
        self.now = 1_000_000
        self.step = 0
        self.gpus = gpus
        self.segments: dict[int, list[Segment]] = {gpu: [] for gpu in range(gpus)}
        self.top = {gpu: (gpu + 1) << 40 for gpu in range(gpus)}
        self.live: dict[int, dict[int, int]] = {n: {} for n in range(-1, gpus)}
        self.pending: dict[int, dict[int, int]] = {n: {} for n in range(gpus)}
        self.threads = [Thread(100 + i) for i in range(3)]
        self.instances = 0
        self.made: list[tuple[int, int]] = []  # (logical thread, sequence)
        self.cpu_free: list[int] = []
        self.cpu_top = 1 << 30

    # -- writing

    def write(self, kind: str, **fields: int) -> None:
        self.now += self.random.randrange(1, 3_000)
        self.events.append(
            {"kind": KIND[kind], "time_ns": self.now, "step": self.step, **fields}
        )

    def context(self, thread: Thread) -> dict[str, int]:
        """Return what a hook on THREAD stamps on every event."""
        flags = IN_OP if thread.ops else 0
        if thread.modules:
            flags |= IN_MODULE
        if thread.phase == FORWARD:
            flags |= GRAD_MODE
        found = {
            "thread": thread.number,
            "phase": thread.phase,
            "flags": flags,
            "op_instance": thread.instance if thread.ops else 0,
        }
        if thread.ops:
            found["op"] = NUMBER[thread.ops[-1][0]]
        if thread.modules and thread.modules[-1]:
            found["module"] = NUMBER[thread.modules[-1]]
        return found

    # -- allocators

    def size(self) -> int:
        return self.random.choice(
            [
                0,
                1,
                100,
                512,
                513,
                4096,
                100_000,
                700_001,
                self.random.randrange(1 << 22),
            ]
        )

    def new_segment(self, gpu: int, thread: Thread, kind: str, size: int) -> Segment:
        begin = self.top[gpu]
        self.top[gpu] += size + PAGE
        segment = Segment(begin, size)
        self.segments[gpu].append(segment)
        where = {} if kind == "seed_segment" else self.context(thread)
        self.write(kind, device=gpu, address=begin, size=size, **where)
        return segment

    def allocate(self, device: int, thread: Thread) -> None:
        size = self.size()
        if device == CPU:
            if self.cpu_free and self.random.random() < 0.6:
                address = self.cpu_free.pop(self.random.randrange(len(self.cpu_free)))
            else:
                address = self.cpu_top
                self.cpu_top += 64
        else:
            room = max(-(-size // 512) * 512, 512)
            for segment in self.segments[device]:
                address = segment.place(room)
                if address is not None:
                    break
            else:
                kind = self.random.choice(["segment_alloc", "segment_map"])
                pages = -(-room // PAGE) + self.random.randrange(3)
                segment = self.new_segment(device, thread, kind, pages * PAGE)
                address = segment.begin
            segment.blocks[address] = room
        self.write(
            "alloc",
            device=device,
            address=address,
            size=size,
            stream=0 if device == CPU else self.random.choice([0, 0x55]),
            **self.context(thread),
        )
        self.live[device][address] = size

    def free(self, device: int, thread: Thread) -> None:
        live = self.live[device]
        if not live:
            return
        address = self.random.choice(list(live))
        size = live.pop(address)
        where = self.context(thread)
        if device == CPU:
            self.write("free_completed", device=device, address=address, **where)
            self.cpu_free.append(address)
            return
        self.write("free_requested", device=device, address=address, size=size, **where)
        if self.random.random() < 0.2:
            self.pending[device][address] = size
        else:
            self.complete(device, address, size, thread)

    def complete(self, gpu: int, address: int, size: int, thread: Thread) -> None:
        self.write(
            "free_completed",
            device=gpu,
            address=address,
            size=size,
            **self.context(thread),
        )
        for segment in self.segments[gpu]:
            segment.blocks.pop(address, None)

    def drop_memory(self, gpu: int, thread: Thread) -> None:
        """Give a segment back, or unmap free pages of one."""
        for segment in self.segments[gpu]:
            where = self.context(thread)
            if not segment.blocks:
                kind = self.random.choice(["segment_free", "segment_unmap"])
                self.write(
                    kind,
                    device=gpu,
                    address=segment.begin,
                    size=segment.size,
                    **where,
                )
                self.segments[gpu].remove(segment)
                return
            # A hole at page borders splits the segment in two.
            page = segment.begin + PAGE * self.random.randrange(segment.size // PAGE)
            taken = [(at, at + room) for at, room in segment.blocks.items()]
            if all(end <= page or at >= page + PAGE for at, end in taken):
                self.write(
                    "segment_unmap", device=gpu, address=page, size=PAGE, **where
                )
                self.segments[gpu].remove(segment)
                end = segment.begin + segment.size
                for low, high in ((segment.begin, page), (page + PAGE, end)):
                    if high > low:
                        part = Segment(low, high - low)
                        part.blocks = {
                            at: room
                            for at, room in segment.blocks.items()
                            if low <= at < high
                        }
                        self.segments[gpu].append(part)
                return

    # -- what threads do

    def begin_op(self, thread: Thread) -> None:
        name = self.random.choice(OPS)
        if not thread.ops:
            self.instances += 1
            thread.instance = self.instances
        flags, sequence, forward_thread = 0, NO_SEQUENCE, 0
        if thread.phase == BACKWARD and self.made and self.random.random() < 0.7:
            flags = BACKWARD_OP
            forward_thread, sequence = self.random.choice(self.made)
        elif thread.phase == FORWARD and self.random.random() < 0.7:
            # An op sees the next number; only some make a node and use it up.
            sequence = thread.sequence
            if self.random.random() < 0.6:
                thread.sequence += 1
            self.made.append((thread.number, sequence))
        where = self.context(thread)
        thread.ops.append((name, flags, sequence))
        where["op"] = NUMBER[name]
        where["flags"] |= flags
        self.write(
            "op_begin",
            address=sequence,
            size=forward_thread,
            stream=thread.number,
            **where,
        )

    def end_op(self, thread: Thread) -> None:
        if thread.ops:
            where = self.context(thread)
            name, flags, _ = thread.ops.pop()
            where["op"] = NUMBER[name]
            where["flags"] |= flags
            self.write("op_end", **where)

    def begin_module(self, thread: Thread) -> None:
        if thread.ops or thread.phase == BACKWARD or len(thread.modules) > 3:
            return
        name = self.random.choice(MODULES[1:])
        thread.phase = FORWARD
        thread.modules.append(name)
        self.write(
            "module_begin",
            address=thread.sequence,
            stream=thread.number,
            **self.context(thread),
        )

    def end_module(self, thread: Thread) -> None:
        if thread.ops or not thread.modules:
            return
        self.write(
            "module_end",
            address=thread.sequence,
            stream=thread.number,
            **self.context(thread),
        )
        thread.modules.pop()
        if not thread.modules:
            thread.phase = OTHER

    def toggle_region(self, thread: Thread) -> None:
        if thread.regions and self.random.random() < 0.5:
            name = thread.regions.pop(self.random.randrange(len(thread.regions)))
            kind = "region_end"
        else:
            name = self.random.choice(REGIONS)
            if name in thread.regions:
                return
            thread.regions.append(name)
            kind = "region_begin"
        self.write(kind, **{**self.context(thread), "op": NUMBER[name]})

    def change_phase(self, thread: Thread) -> None:
        if not thread.modules and not thread.ops:
            thread.phase = self.random.choice([OTHER, BACKWARD, OPTIMIZER])

    def mark_role(self, thread: Thread) -> None:
        device = self.random.choice(list(self.live))
        known = list(self.live[device]) or [0x1234]
        self.write(
            "role",
            device=device,
            address=self.random.choice(known),
            size=self.random.randrange(1, 6),
            thread=thread.number,
            op=NUMBER[self.random.choice(OWNERS)],
        )

    def odd_fact(self, thread: Thread) -> None:
        """Write something that fits nothing."""
        gpu = self.random.randrange(self.gpus) if self.gpus else CPU
        address = 0xDEAD000 + self.random.randrange(100)
        where = self.context(thread)
        choice = self.random.randrange(6)
        if choice == 0:
            self.write("free_completed", device=CPU, address=address, **where)
        elif choice == 1 and self.gpus:
            self.write("free_requested", device=gpu, address=address, size=64, **where)
            self.write("free_completed", device=gpu, address=address, size=64, **where)
        elif choice == 2:
            self.write("step", address=OTHER_SESSION, size=self.random.randrange(99))
        elif choice == 3 and self.gpus:
            self.write("oom", device=gpu, address=0, size=1 << 40, **where)
        elif choice == 4 and self.gpus:
            self.write("snapshot", device=0, size=5, **where)
        elif self.live[gpu]:  # the free of a block was lost
            address = self.random.choice(list(self.live[gpu]))
            size = min(self.size(), self.live[gpu][address])
            self.live[gpu][address] = size
            self.write("alloc", device=gpu, address=address, size=size, **where)

    def next_step(self) -> None:
        self.step += 1
        self.write("step", address=SESSION, size=self.step)

    # -- the whole

    def seed(self) -> None:
        """Write the state at the start, as the tracker hands it on."""
        thread = self.threads[0]
        for gpu in range(self.gpus):
            for _ in range(self.random.randrange(3)):
                pages = 1 + self.random.randrange(4)
                self.new_segment(gpu, thread, "seed_segment", pages * PAGE)
            for segment in self.segments[gpu]:
                at = segment.begin
                while at < segment.begin + segment.size and self.random.random() < 0.8:
                    room = 512 * (1 + self.random.randrange(1000))
                    room = min(room, segment.begin + segment.size - at)
                    self.seed_block(gpu, at, room - self.random.randrange(512))
                    segment.blocks[at] = room
                    at += room
        for _ in range(self.random.randrange(5)):
            self.seed_block(CPU, self.cpu_top, self.size())
            self.cpu_top += 64

    def seed_block(self, device: int, address: int, size: int) -> None:
        known = self.random.random() < 0.5  # its birth was seen
        where = {"thread": 100, "op": 1, "phase": self.random.randrange(4)}
        pending = device != CPU and self.random.random() < 0.1
        self.write(
            "seed_block",
            device=device,
            address=address,
            size=size,
            flags=PENDING if pending else 0,
            **(where if known else {}),
        )
        (self.pending if pending else self.live)[device][address] = size
        if known and self.random.random() < 0.5:
            self.write(
                "seed_origin",
                device=device,
                address=address,
                op=2,
                module=NUMBER["head"],
                op_instance=NUMBER["forward"],
            )
        if self.random.random() < 0.5:
            self.write(
                "role",
                device=device,
                address=address,
                size=self.random.randrange(1, 6),
                op=NUMBER[self.random.choice(OWNERS)],
            )

    def act(self) -> None:
        thread = self.random.choice(self.threads)
        device = self.random.choice(list(self.live))
        gpu = max(device, 0)
        actions = [
            (30, lambda: self.allocate(device, thread)),
            (24, lambda: self.free(device, thread)),
            (10, lambda: self.begin_op(thread)),
            (10, lambda: self.end_op(thread)),
            (4, lambda: self.begin_module(thread)),
            (4, lambda: self.end_module(thread)),
            (3, lambda: self.toggle_region(thread)),
            (3, lambda: self.change_phase(thread)),
            (4, lambda: self.mark_role(thread)),
            (2, self.next_step),
            (1, lambda: self.odd_fact(thread)),
        ]
        if self.gpus:
            actions.append((2, lambda: self.drop_memory(gpu, thread)))
            if self.pending[gpu]:
                address = next(iter(self.pending[gpu]))
                actions.append(
                    (
                        8,
                        lambda: self.complete(
                            gpu, address, self.pending[gpu].pop(address), thread
                        ),
                    )
                )
        weights = [weight for weight, _ in actions]
        self.random.choices([action for _, action in actions], weights)[0]()

    def play(self, length: int, window: bool) -> np.ndarray:
        if window:
            self.seed()
            self.write("step", address=SESSION, size=self.step)
            self.write("window_begin", address=SESSION)
        while len(self.events) < length:
            self.act()
        if window and self.random.random() < 0.7:
            self.write("window_end", address=SESSION)
        return rows(self.events)


def random_stream(
    seed: int, length: int = 400, gpus: int | None = None, window: bool = True
) -> np.ndarray:
    """Return a random valid stream, EVENT_DTYPE [about LENGTH].

    Args:
        seed: the same seed gives the same stream.
        length: events, at least.
        gpus: how many GPUs beside the CPU; None: 0 to 3 by the seed.
        window: begin with the state and a window mark, as a recording does.
    """
    stream = Stream(seed, seed % 4 if gpus is None else gpus)
    return stream.play(length, window)


class Script:
    """A run written by hand: names and stacks in words instead of ids."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.stacks: list[tuple[tuple[str, str, int], ...]] = []
        self.events: list[dict[str, int]] = []
        self.now = 0

    def name(self, text: str) -> int:
        """Return the string id of TEXT."""
        if text not in self.names:
            self.names.append(text)
        return self.names.index(text)

    def write(self, kind: str, *, stack: object = None, **fields: object) -> int:
        """Append an event; returns its number.

        Args:
            kind: its name.
            stack: (function, file, line) triples, innermost first.
            fields: of EVENT_DTYPE; ``op`` and ``module`` may be texts.
        """
        self.now += 1_000
        event: dict[str, int] = {"kind": KIND[kind], "time_ns": self.now, "thread": 1}
        for key, value in fields.items():
            is_text = isinstance(value, str)
            event[key] = self.name(value) if is_text else value  # type: ignore
        if stack is not None:
            frames = tuple(stack)  # type: ignore
            if frames not in self.stacks:
                self.stacks.append(frames)
            event["stack"] = self.stacks.index(frames)
        self.events.append(event)
        return len(self.events) - 1

    def core(self, **info: object) -> object:
        """Return what ``Recording`` wraps, with our stacks in it."""
        core = _core.from_events(rows(self.events), self.names)
        core.info = json.dumps(info)
        return WithStacks(core, self.stacks)


class WithStacks:
    """A core recording of made-up events, with made-up stacks."""

    def __init__(self, core: object, stacks: list) -> None:
        self._core = core
        self._stacks = stacks
        self._texts = sorted({frame[1] for stack in stacks for frame in stack})

    def __getattr__(self, name: str) -> object:
        return getattr(self._core, name)

    def stacks(self) -> int:
        return len(self._stacks)

    def stack(self, index: int) -> tuple:
        return self._stacks[index]

    def stack_ids(self, index: int) -> tuple:
        return tuple(
            (0, self._texts.index(file), line) for _, file, line in self._stacks[index]
        )


def with_shapes(events: np.ndarray, seed: int) -> np.ndarray:
    """Put tensors into a stream: all of a block, a part, or more than there is.

    Some come while the op that made the block runs, some name blocks that are
    gone, and the other events stay as they are.  None come among the seeds.
    """
    chance = random.Random(seed)
    rows: list[np.void] = []
    blocks: list[np.void] = []
    seeds = np.flatnonzero(events["kind"] >= KIND["seed_segment"])
    first = seeds[-1] + 3 if len(seeds) else 0  # behind the last one's role
    for number, event in enumerate(events):
        rows.append(event)
        if event["kind"] in (KIND["alloc"], KIND["seed_block"]):
            blocks.append(event)
        while blocks and number >= first:
            if chance.random() < 0.7:
                break
            block = chance.choice(blocks[-6:])
            shape = (block if chance.random() < 0.5 else event).copy()
            shape["kind"] = KIND["shape"]
            shape["address"] = block["address"]
            shape["device"] = block["device"]
            size = int(block["size"])
            shape["size"] = chance.choice([size, size, size // 2, size + 1])
            shape["op"] = NUMBER[chance.choice(SHAPES)]
            shape["time_ns"] = event["time_ns"]
            shape["step"] = event["step"]
            rows.append(shape)
    return np.array(rows, EVENT_DTYPE)
