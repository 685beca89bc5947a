"""Questions about what is available: the default group, backends, the launcher's facts."""

from __future__ import annotations

import os

from aiodist.backends.registry import backend_named
from aiodist.errors import InvalidUsageError
from aiodist.groups.world import current_world
from aiodist.rendezvous.environments import read_environment
from aiodist.types import Backend


def is_initialized() -> bool:
    """Return whether the default group exists."""
    return current_world().is_initialized


def is_available() -> bool:
    """Return True: where aiodist imports, it works."""
    return True


def is_mpi_available() -> bool:
    """Return whether backend "mpi" can be used here."""
    return is_backend_available(Backend.MPI)


def is_nccl_available() -> bool:
    """Return whether backend "nccl" can be used here."""
    return is_backend_available(Backend.NCCL)


def is_gloo_available() -> bool:
    """Return True: "gloo" names the native backend."""
    return is_backend_available(Backend.GLOO)


def is_backend_available(backend: str) -> bool:
    """Return whether ``init_process_group`` takes a backend here.

    Args:
        backend: A name; False for an unknown one.
    """
    try:
        backend_named(backend)
    except ValueError:
        return False
    return True


def is_torchelastic_launched() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def get_node_local_size(fallback_size: int | None = None) -> int:
    """Return how many ranks are on this rank's host.

    LOCAL_WORLD_SIZE or the launcher's own variable says it. Where neither is set, the ranks of an
    initialised world on this host are counted.

    Args:
        fallback_size: The result without a variable and a world.

    Raises:
        InvalidUsageError: Nothing says it, and there is no ``fallback_size``.
    """
    local = read_environment(os.environ).local_size()
    if local is not None:
        return local
    world = current_world()
    if world.is_initialized:
        host = world.endpoint.host_of(world.rank)
        return sum(world.endpoint.host_of(rank) == host for rank in range(world.size))
    if fallback_size is None:
        raise InvalidUsageError(
            "LOCAL_WORLD_SIZE is not set: start this script by a launcher (aiodist run, torchrun), "
            "call init_process_group first, or pass fallback_size"
        )
    return int(fallback_size)


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Return this rank's number on its host, from 0.

    LOCAL_RANK or the launcher's own variable says it.

    Args:
        fallback_rank: The result without a variable.

    Raises:
        InvalidUsageError: No variable says it, and there is no ``fallback_rank``.
    """
    local = read_environment(os.environ).local_rank()
    if local is not None:
        return local
    if fallback_rank is None:
        raise InvalidUsageError(
            "LOCAL_RANK is not set: start this script by a launcher (aiodist run, torchrun), or "
            "pass fallback_rank"
        )
    return int(fallback_rank)
