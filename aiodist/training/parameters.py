"""Making the replicas of all ranks equal: parameters, buffers, the state of optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from aiodist.errors import InvalidUsageError

_BYTES = 4 << 20

Parameters = (
    torch.nn.Module
    | Mapping[str, Any]
    | Iterable[torch.Tensor]
    | Iterable[tuple[str, torch.Tensor]]
)


def tensors_of(parameters: Parameters) -> list[torch.Tensor]:
    """Return the tensors to broadcast.

    A module has its parameters and buffers. A mapping and named tensors are sorted by name; values
    of a mapping that are no tensors are left out. Tensors without names stay in their order. Raises
    TypeError for something else.
    """
    if isinstance(parameters, torch.nn.Module):
        return [*parameters.parameters(), *parameters.buffers()]
    if not isinstance(parameters, Iterable):
        raise TypeError(
            "parameters must be a module, a state_dict(), named_parameters() or tensors, not "
            f"{type(parameters).__name__}"
        )
    several: list[Any] = list(parameters.items() if isinstance(parameters, Mapping) else parameters)
    named = [each for each in several if isinstance(each, tuple)]
    if not named:
        return check_tensors(several, "parameters")
    if len(named) != len(several):
        raise InvalidUsageError("parameters are tensors, or pairs of name and tensor, not both")
    by_name = sorted(named, key=lambda pair: str(pair[0]))
    return [tensor for _, tensor in by_name if isinstance(tensor, torch.Tensor)]


def check_tensors(tensors: Any, name: str) -> list[torch.Tensor]:
    """Return ``tensors`` as a list. Raise TypeError for what is no iterable of tensors."""
    if not isinstance(tensors, Iterable) or isinstance(tensors, torch.Tensor):
        raise TypeError(
            f"{name} must be several tensors, such as model.{name}(), not {type(tensors).__name__}"
        )
    several = list(tensors)
    for each in several:
        if not isinstance(each, torch.Tensor):
            raise TypeError(
                f"each of {name} must be a tensor, as in model.{name}(), not {type(each).__name__}"
            )
    return several


def check_optimizer(optimizer: Any) -> None:
    """Raise TypeError unless ``optimizer`` is one of torch."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}"
        )


def arrange(tensors: Iterable[torch.Tensor], limit: int) -> list[list[torch.Tensor]]:
    """Return the tensors in lists, in the given order: one dtype and device a list.

    Each list has at most ``limit`` bytes; a tensor that is larger is alone in its list. Equal tensors
    on all ranks give equal lists.
    """
    lists: list[list[torch.Tensor]] = []
    latest: dict[tuple[torch.dtype, torch.device], tuple[list[torch.Tensor], int]] = {}
    for tensor in tensors:
        kind = (tensor.dtype, tensor.device)
        members, room = latest.get(kind, ([], 0))
        if not members or tensor.nbytes > room:
            members, room = [], limit
            lists.append(members)
        members.append(tensor)
        latest[kind] = (members, room - tensor.nbytes)
    return lists


def lists_of(parameters: Parameters) -> list[list[torch.Tensor]]:
    """Return the tensors that travel together, in lists that are equal on all ranks."""
    return arrange(tensors_of(parameters), _BYTES)


def pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a flat copy of ``tensors``, one after the other."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def unpack(tensors: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    """Copy into ``tensors`` what stands in ``flat``, as `pack` laid it out."""
    with torch.no_grad():
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))


def root_of(src: int | None, root_rank: int | None) -> int:
    """Return the global rank that ``src`` or ``root_rank`` gives, or 0 without either."""
    if src is not None and root_rank is not None and src != root_rank:
        raise InvalidUsageError(f"src is {src} and root_rank is {root_rank}: pass one of them")
    chosen = src if src is not None else root_rank
    return 0 if chosen is None else chosen
