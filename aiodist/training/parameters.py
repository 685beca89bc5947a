"""Making the parameters of all ranks equal before the first step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from aiodist.training.buckets import arrange

_BYTES = 4 << 20

Parameters = torch.nn.Module | Mapping[str, Any] | Iterable[torch.Tensor]


def rows_of(parameters: Parameters) -> list[tuple[list[torch.Tensor], torch.Tensor]]:
    """Tensors that travel together, and the row of memory that they travel in.

    Of a module: its parameters and buffers. Of a mapping: the tensors in it; what else is in it
    stays as it is. Equal on all ranks.
    """
    if isinstance(parameters, torch.nn.Module):
        parameters = [*parameters.parameters(), *parameters.buffers()]
    elif isinstance(parameters, Mapping):
        parameters = [value for value in parameters.values() if isinstance(value, torch.Tensor)]
    return [
        (several, torch.cat([tensor.detach().flatten() for tensor in several]))
        for several in arrange(parameters, _BYTES)
    ]


def unpack(rows: Iterable[tuple[list[torch.Tensor], torch.Tensor]]) -> None:
    """Copy what has come in the rows into the tensors."""
    with torch.no_grad():
        for several, row in rows:
            parts = torch.split(row, [tensor.numel() for tensor in several])
            for tensor, part in zip(several, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))
