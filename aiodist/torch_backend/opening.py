"""What torch calls to make a group."""

from __future__ import annotations

from typing import Any

import torch.distributed as torch_dist

from aiodist.torch_backend.group import TorchGroup
from aiodist.torch_backend.meeting import meet, register_store
from aiodist.torch_backend.worlds import TorchWorld


def open_group(options: Any, backend_options: Any = None) -> TorchGroup:
    """The group that ``options``, torch's ``_DistributedBackendOptions``, describe.

    Sub-groups share the connections of the default group; where that one is not ours, or for the
    default group itself, the members meet at the store. Errors: those of
    ``aiodist.init_process_group``.
    """
    ranks = list(options.global_ranks_in_group)
    whole = torch_dist.group.WORLD
    if ranks and isinstance(whole, TorchGroup):
        return whole.subgroup(options.group_id, ranks, options.timeout)
    unnamed = not ranks and options.group_id == "0"  # torch's number for it says nothing
    name = "" if unnamed else options.group_id
    if ranks:
        world = TorchWorld(
            options.store, options.group_rank, options.group_size, options.timeout, name
        )
        return TorchGroup(world, world.whole, owns_world=True)
    world, store = meet(options, name)
    group = TorchGroup(world, world.whole, owns_world=True)
    if store is not None:
        register_store(group, store)
    return group
