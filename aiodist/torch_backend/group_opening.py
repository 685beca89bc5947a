"""The functions that torch calls to make a group."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as torch_dist
from torch import version
from torch.torch_version import TorchVersion

from aiodist.errors import InvalidUsageError
from aiodist.sync.torch_group import SharedWorld
from aiodist.torch_backend.group import TorchGroup
from aiodist.torch_backend.torch_meeting import meet, register_store
from aiodist.torch_backend.worlds import TorchWorld
from aiodist.types import DEFAULT_TIMEOUT


def open_group(options: Any, backend_options: Any = None) -> TorchGroup:
    """Return the group that torch's ``_DistributedBackendOptions`` describe.

    Sub-groups share the connections of the default group. If that is not aiodist's, or for the
    default group itself, the members meet at the store.

    Args:
        options: torch's options.
        backend_options: A ``SharedWorld`` for the default group that stands for that of
            ``aiodist.sync``, else ignored.

    Raises:
        InvalidUsageError: torch is too old, or a value is invalid.
        DistError: Another error of `init_process_group`.
    """
    _check_torch()
    ranks = list(options.global_ranks_in_group)
    whole = torch_dist.group.WORLD
    if ranks and isinstance(whole, TorchGroup):
        return whole.subgroup(options.group_id, whole.members(ranks), options.timeout)
    if isinstance(backend_options, SharedWorld):
        return _stand_for(backend_options)
    unnamed = not ranks and options.group_id == "0"  # torch's number for it says nothing
    name = "" if unnamed else options.group_id
    if ranks:
        return connect(options.store, options.group_rank, options.group_size, options.timeout, name)
    world, store = meet(options, name)
    group = TorchGroup(world, world.whole, owns_world=True)
    if store is not None:
        register_store(group, store)
    return group


def _stand_for(shared: SharedWorld) -> TorchGroup:
    """Return a group whose operations are those of the default group of ``aiodist.sync``."""
    world = TorchWorld(shared.world)
    shared.release = world.release
    group = TorchGroup(world, world.whole, owns_world=True)
    group.shared = shared
    return group


def connect(
    store: Any, rank: int, size: int, timeout: timedelta = DEFAULT_TIMEOUT, name: str = ""
) -> TorchGroup:
    """Make a group of ranks that meet at a store, apart from torch's default group.

    It is a ``torch.distributed.ProcessGroup`` with connections of its own, for programs that make
    and replace their groups themselves, as torchft does. The group closes by ``shutdown()``, at
    once by ``abort()``, and when it is no longer referred to.

    Args:
        store: One of torch's, or `aiodist.Store`, with a ``PrefixStore`` in front for each group
            that is made at it.
        rank: This rank, from 0.
        size: How many ranks.
        timeout: Holds for the meeting and for each operation.
        name: A name for errors.

    Returns:
        The group.

    Raises:
        InvalidUsageError: torch is too old, or a value is invalid.
        StoreTimeoutError: Ranks have not arrived in time.
        DistError: Another error of `init_process_group`.
    """
    _check_torch()
    world = TorchWorld.met(store, rank, size, timeout, name)
    return TorchGroup(world, world.whole, owns_world=True)


_OLDEST = "2.6"


def _check_torch() -> None:
    """Refuse a torch on which C++ callers of a group, such as DDP's reducer, wait for ever."""
    if TorchVersion(version.__version__) < TorchVersion(_OLDEST):
        raise InvalidUsageError(
            f'backend "aiodist" needs torch {_OLDEST} or newer, and this is {version.__version__}: '
            "upgrade torch, or use aiodist.sync"
        )
