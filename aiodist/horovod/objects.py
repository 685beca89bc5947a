"""Equal replicas at the start, and Python objects between ranks."""

from __future__ import annotations

from typing import Any

import torch

import aiodist.sync as dist
from aiodist.horovod.input_checks import check_root
from aiodist.horovod.process_sets import ProcessSet, global_process_set
from aiodist.training import sync as training
from aiodist.training.parameters import Parameters


def broadcast_parameters(
    params: Parameters, root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Give all ranks the values of one rank, in place.

    Args:
        params: A ``state_dict()``, ``named_parameters()``, tensors, or a module.
        root_rank: The source's global rank.
        process_set: The ranks that take part; all of them by default.

    Raises:
        CollectiveError: What `aiodist.broadcast` raises.
    """
    training.broadcast_parameters(params, check_root(root_rank), process_set.group())


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give the optimizers of all ranks the state and the options of one rank's.

    Args:
        optimizer: An optimizer, with parameters and their groups in the same order on all ranks.
        root_rank: The source's global rank.
        model: Horovod's parameter; it has no effect.
        process_set: The ranks that take part; all of them by default.

    Raises:
        CollectiveError: What `aiodist.broadcast_object_list` raises.
    """
    training.broadcast_optimizer_state(
        optimizer, check_root(root_rank), process_set.group(), allow_pickle=True
    )


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of one rank. Objects of other classes are pickled.

    Args:
        obj: What the source sends; ignored on the other ranks.
        root_rank: The source's global rank.
        name: Horovod's parameter; it has no effect.
        process_set: The ranks that take part; all of them by default.

    Raises:
        CollectiveError: What `aiodist.broadcast_object` raises.
    """
    root, group = check_root(root_rank), process_set.group()
    return dist.broadcast_object(obj, root, group, allow_pickle=True)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all ranks, by rank. Objects of other classes are pickled.

    Args:
        obj: This rank's object.
        name: Horovod's parameter; it has no effect.
        process_set: The ranks that take part; all of them by default.

    Raises:
        CollectiveError: What `aiodist.all_gather_object` raises.
    """
    group = process_set.group()
    objects: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(objects, obj, group, allow_pickle=True)
    return objects
