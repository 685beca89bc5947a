"""Checks of the arguments that several of Horovod's functions have."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from aiodist.errors import InvalidUsageError
from aiodist.groups.argument_checks import check_int
from aiodist.horovod import ranks as job


def check_tensor(tensor: Any) -> Tensor:
    """Return ``tensor``. Raises TypeError if it is no tensor of torch."""
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"tensor must be a torch tensor, not {type(tensor).__name__}: pass torch.as_tensor() of it"
        )
    return tensor


def detached(tensor: Any) -> Tensor:
    """Return ``tensor`` without its history. Raises TypeError if it is no tensor of torch."""
    return check_tensor(tensor).detach()


def rows_of(tensor: Any) -> Tensor:
    """Return ``tensor`` without its history, for an operation that divides its rows.

    Raises TypeError if it is no tensor of torch, and InvalidUsageError if it has no dimension.
    """
    rows = detached(tensor)
    if not rows.dim():
        raise InvalidUsageError("tensor is a scalar, which has no rows: pass tensor.reshape(1)")
    return rows


def check_root(root_rank: Any) -> int:
    """Return a global rank. Raises TypeError or InvalidUsageError if it is no rank of the job."""
    rank = check_int(root_rank, "root_rank")
    if not 0 <= rank < job.size():
        raise InvalidUsageError(
            f"root_rank {rank} is out of range: the job has ranks 0 to {job.size() - 1}"
        )
    return rank
