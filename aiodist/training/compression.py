"""What gradients look like on the wire."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch


class Compression(Enum):
    """How gradients travel: as they are, or rounded to two bytes a number.

    fp16 keeps 11 bits of each number and what lies between 6e-8 and 65504; bf16 keeps 8 bits, and
    the range of float32. Numbers are rounded before they are added, and each sum is rounded again.
    Integers, and numbers that have two bytes already, travel as they are.
    """

    none = "none"
    fp16 = "float16"
    bf16 = "bfloat16"

    def on_wire(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype that gradients travel in.

        Args:
            dtype: The gradients' own dtype.
        """
        if self is Compression.none or dtype not in (torch.float32, torch.float64):
            return dtype
        return torch.float16 if self is Compression.fp16 else torch.bfloat16

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """Return a tensor as it travels, and what `decompress` needs.

        Args:
            tensor: The gradients.

        Returns:
            The tensor in the dtype of the wire, and its own dtype.
        """
        return tensor.to(self.on_wire(tensor.dtype)), tensor.dtype

    def decompress(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return what has travelled in the dtype that it had.

        Args:
            tensor: What has travelled.
            dtype: The dtype that `compress` returned.
        """
        return tensor.to(dtype)


def check_compression(compression: Any) -> None:
    """Raise TypeError unless ``compression`` is a `Compression`."""
    if not isinstance(compression, Compression):
        raise TypeError(
            "compression must be Compression.none, Compression.fp16 or Compression.bf16, not "
            f"{compression!r}"
        )
