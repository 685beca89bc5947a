"""Folders of small images by class, as training recipes read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def write_images(root: Path, classes: Sequence[str], count: int) -> None:
    """Write ``count`` images of each class into ``root/train`` and ``root/val``: a class is a colour."""
    random = np.random.default_rng(0)
    for split in ("train", "val"):
        for number, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True)
            for image in range(count):
                pixels = random.integers(0, 120, (24 + image % 5, 20 + image % 7, 3), np.uint8)
                pixels[..., number % 3] += 100
                Image.fromarray(pixels).save(folder / f"{image}.{('png', 'jpg')[image % 2]}")
