"""Train a small causal transformer and explain where its memory went.

    python examples/train_gpt.py
    python examples/train_gpt.py --checkpoint      # recompute blocks in backward
    python examples/train_gpt.py --autocast        # bf16 matrix products

Needs torch alone.  Record a run with and one without a flag, then compare:

    python examples/train_gpt.py --output before.memprof
    python examples/train_gpt.py --output after.memprof --checkpoint
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from arguments import at_least, chosen_device
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import memprof

# prof.step() stands at the top of the loop, so step 0, which waits, is the time
# before the loop; steps 1 and 2 warm up and 3 to 5 are recorded.  Later steps only
# train: with repeat=1 there is no second window to take the place of the first.
WAIT, WARMUP, ACTIVE = 1, 2, 3


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, dim))


class MLP(nn.Module):
    """Two linear layers around a GELU."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """Attention and MLP, each behind a layer norm and beside a residual."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = MLP(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A causal language model whose output layer shares the token embedding."""

    def __init__(
        self,
        vocab: int,
        length: int,
        dim: int,
        layers: int,
        heads: int,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.tokens = nn.Embedding(vocab, dim)
        self.positions = nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            if self.checkpointing:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(self.norm(x))


def token_batch(
    batch: int, length: int, vocab: int, random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Make sequences that count upwards by a stride of their own, modulo 64."""
    first = torch.randint(64, (batch, 1), generator=random)
    stride = torch.randint(1, 9, (batch, 1), generator=random)
    sequence = (first + stride * torch.arange(length + 1)) % min(vocab, 64)
    return sequence[:, :-1], sequence[:, 1:]


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    autocast: bool = False,
) -> float:
    """Run one step of training and return its loss."""
    bf16 = torch.autocast(x.device.type, torch.bfloat16, enabled=autocast)
    with memprof.record_function("forward"), bf16:
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    with memprof.record_function("backward"):
        loss.backward()
    with memprof.record_function("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def compare_with_torch(
    prof: memprof.profile, device: torch.device, stats: dict[str, int]
) -> None:
    """Hold memprof's peak against torch's own counters for the same steps."""
    mine = prof.peak(device).requested
    requested = stats["requested_bytes.all.peak"]
    allocated = stats["allocated_bytes.all.peak"]
    verdict = "equal" if mine == requested else f"{mine - requested:+,} B apart"
    print(
        f"peak: memprof {mine:,} B, torch {requested:,} B requested ({verdict}); "
        f"torch.cuda.max_memory_allocated() {allocated:,} B, which also counts "
        f"the rounding of each block ({allocated - requested:,} B)"
    )


def main(argv: list[str] | None = None) -> None:
    """Train, save the recording and print its summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps",
        type=at_least(WARMUP + 1),
        default=WARMUP + ACTIVE,
        help="turns of the loop; default: %(default)s, the first "
        f"{WARMUP} only warm up",
    )
    for name, what, default in (
        ("batch", "sequences", "8"),
        ("length", "tokens of each", "1024, on a CPU 128"),
        ("dim", "width of the model", "768, on a CPU 128"),
        ("layers", "blocks", "12, on a CPU 4"),
        ("heads", "of attention", "dim / 64, on a CPU 4"),
        ("vocab", "different tokens", "32768, on a CPU 1024"),
    ):
        parser.add_argument(
            f"--{name}", type=at_least(1), help=f"{what}; default: {default}"
        )
    parser.add_argument(
        "--device", type=chosen_device, help="default: cuda if there is one, else cpu"
    )
    parser.add_argument(
        "--checkpoint", action="store_true", help="checkpoint each block's activations"
    )
    parser.add_argument("--autocast", action="store_true", help="run in bf16")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo/gpt.memprof"),
        help="the recording; default: %(default)s",
    )
    parser.add_argument("--summary", type=Path, help="write the summary here as well")
    args = parser.parse_args(argv)
    device = args.device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    batch = args.batch or 8
    length = args.length or (1024 if on_gpu else 128)
    dim = args.dim or (768 if on_gpu else 128)
    layers = args.layers or (12 if on_gpu else 4)
    heads = args.heads or (max(1, dim // 64) if on_gpu else 4)
    vocab = args.vocab or (32768 if on_gpu else 1024)
    if dim % heads:
        parser.error(f"--dim ({dim}) must be a multiple of --heads ({heads})")
    print(
        f"GPT on {device}: {args.steps} steps, batch {batch}, length {length}, "
        f"{layers} layers of {dim}, {heads} heads, {vocab} tokens"
    )

    torch.manual_seed(0)
    model = GPT(vocab, length, dim, layers, heads, args.checkpoint).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(1)
    torch_stats: dict[str, int] = {}

    def save(prof: memprof.profile) -> None:  # called when the active steps are over
        args.output.parent.mkdir(parents=True, exist_ok=True)
        prof.save(args.output)
        if on_gpu:
            torch_stats.update(torch.cuda.memory_stats(device))

    schedule = memprof.schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1)
    with memprof.profile(schedule=schedule, on_trace_ready=save) as prof:
        for _ in range(args.steps):
            prof.step()
            if on_gpu and prof.step_num == WAIT + WARMUP:
                # Only for compare_with_torch(): count from the first active step.
                torch.cuda.reset_peak_memory_stats(device)
            began = time.perf_counter()
            tokens, targets = token_batch(batch, length, vocab, random)
            x, y = tokens.to(device), targets.to(device)
            loss = train_step(model, optimizer, x, y, args.autocast)
            spent = time.perf_counter() - began
            print(f"step {prof.step_num}: loss {loss:.4f}  {spent:.2f} s")

    summary = prof.summary()
    print(f"\n{summary}")
    if torch_stats:
        compare_with_torch(prof, device, torch_stats)
    if args.summary:
        args.summary.parent.mkdir(parents=True, exist_ok=True)
        args.summary.write_text(summary.text(), encoding="utf-8")
    print(f"recording: {args.output}")


if __name__ == "__main__":
    main()
