"""Train ResNet-50 for a few steps and explain where its memory went.

    python examples/train_resnet50.py                      # synthetic images
    python examples/train_resnet50.py --data ~/cifar10     # the real CIFAR-10

On a GPU the batch is 64 images of 224x224; on a CPU it is 8 of 64x64, so that
the run ends within two minutes on two cores.  The recording is left in
demo/resnet50.memprof; look at it again with

    python -m memprof summary demo/resnet50.memprof
"""

from __future__ import annotations

import argparse
import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from arguments import at_least, chosen_device
from torch import Tensor, nn

import memprof

try:
    from torchvision.models import resnet50
except ImportError as error:
    sys.exit(
        f"This example needs torchvision, which cannot be imported here ({error}).\n"
        "Install the release made for your torch (pip install torchvision), or run "
        "examples/train_gpt.py, which needs torch alone."
    )

# prof.step() stands at the top of the loop, so step 0, which waits, is the time
# before the loop; steps 1 and 2 warm up and 3 to 5 are recorded.  Later steps only
# train: with repeat=1 there is no second window to take the place of the first.
WAIT, WARMUP, ACTIVE = 1, 2, 3


def synthetic_images(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Make images that look like CIFAR-10's: 3x32x32, ten classes, learnable.

    Each class is one blurred pattern; each image is its pattern plus noise.
    """
    random = torch.Generator().manual_seed(seed)
    patterns = torch.randn(10, 3, 4, 4, generator=random)
    patterns = F.interpolate(patterns, size=32, mode="bilinear")
    labels = torch.randint(10, (count,), generator=random)
    noise = torch.randn(count, 3, 32, 32, generator=random)
    return patterns[labels] + 0.5 * noise, labels


def cifar10_images(folder: Path) -> tuple[Tensor, Tensor]:
    """Read the CIFAR-10 "python version" from disk; nothing is downloaded."""
    if (folder / "cifar-10-batches-py").is_dir():
        folder = folder / "cifar-10-batches-py"
    files = [folder / f"data_batch_{n}" for n in range(1, 6)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        sys.exit(
            f"--data: {folder} lacks {', '.join(missing)}.\n"
            "It should hold the five training batches of CIFAR-10's python version "
            "(cifar-10-python.tar.gz, unpacked)."
        )
    images, labels = [], []
    for file in files:
        try:
            # A pickle can run code: read only files that you trust.
            batch = pickle.loads(file.read_bytes(), encoding="bytes")
            images.append(torch.from_numpy(batch[b"data"]).view(-1, 3, 32, 32))
            labels.extend(batch[b"labels"])
        except Exception as error:  # a damaged pickle can raise anything
            sys.exit(f"--data: {file} is not a CIFAR-10 batch ({error!r})")
    return torch.cat(images).float() / 127.5 - 1.0, torch.tensor(labels)


def batches(
    images: Tensor, labels: Tensor, batch: int, size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches for ever, in a fixed order, resized to size x size."""
    random = torch.Generator().manual_seed(1)
    while True:
        picked = torch.randint(len(images), (batch,), generator=random)
        x, y = images[picked].to(device), labels[picked].to(device)
        yield F.interpolate(x, size=(size, size), mode="bilinear"), y


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor
) -> float:
    """Run one step of training and return its loss."""
    with memprof.record_function("forward"):
        loss = F.cross_entropy(model(x), y)
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
    parser.add_argument(
        "--batch", type=at_least(1), help="images; default: 64, on a CPU 8"
    )
    parser.add_argument(
        "--size",
        type=at_least(32),
        help="pixels of a side; default: 224, on a CPU 64",
    )
    parser.add_argument(
        "--device", type=chosen_device, help="default: cuda if there is one, else cpu"
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="folder with the CIFAR-10 batches; default: made-up images",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo/resnet50.memprof"),
        help="the recording; default: %(default)s",
    )
    parser.add_argument("--summary", type=Path, help="write the summary here as well")
    args = parser.parse_args(argv)
    device = args.device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    batch = args.batch or (64 if on_gpu else 8)
    size = args.size or (224 if on_gpu else 64)
    images, labels = cifar10_images(args.data) if args.data else synthetic_images(512)
    print(f"ResNet-50 on {device}: {args.steps} steps, batch {batch}, {size}x{size}")

    torch.manual_seed(0)
    model = resnet50(num_classes=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    loader = batches(images, labels, batch, size, device)
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
            x, y = next(loader)
            loss = train_step(model, optimizer, x, y)
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
