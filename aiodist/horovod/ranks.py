"""The start and the end of a job, the numbers of its ranks, and what this library is made of."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import aiodist.sync as dist
from aiodist.errors import InvalidUsageError, NotInitializedError
from aiodist.groups.switches import switch_from
from aiodist.groups.world import current_world
from aiodist.rendezvous.environments import read_environment
from aiodist.sync.torch_group import VARIABLE

if TYPE_CHECKING:
    from aiodist.training.sync import GradientReducer


class Session:
    """What this layer keeps of a job, between `init` and `shutdown`."""

    def __init__(self, places: Sequence[tuple[int, int]]) -> None:
        """``places``: local rank and local size of each rank."""
        self.places = places
        self.reducers: list[GradientReducer] = []
        """Those of the optimizers over all ranks, in the order in which they were made."""
        self.reducers_of_sets: list[GradientReducer] = []
        """Those of the optimizers over process sets."""
        self.process_sets = 0
        """How many process sets were made."""


def session() -> Session:
    """Return the session of this rank; raise NotInitializedError before `init`."""
    found: Session | None = current_world().extras.get(Session)
    if found is None:
        raise NotInitializedError("call hvd.init() first")
    return found


def start(comm: Any = None) -> None:
    """Meet the other ranks, if that was not done before. ``comm`` has to be None or empty."""
    if comm is not None and comm != []:
        raise InvalidUsageError(
            "hvd.init(comm=...) is not there: all ranks that the launcher started take part; make a "
            "process set of some of them with hvd.add_process_set(ranks)"
        )
    if is_initialized():
        return
    if not dist.is_initialized():
        # Horovod makes no group of torch's. By one, a library such as torchmetrics would reduce by itself
        # what the script reduces, or what it computes on one rank alone.
        torch_group = switch_from(VARIABLE, os.environ) is True
        here = read_environment(os.environ)
        if here.rank() is None and here.size() is None:  # started by hand: a job of one rank
            dist.init_process_group(
                store=dist.HashStore(), rank=0, world_size=1, torch_group=torch_group
            )
        else:
            dist.init_process_group(torch_group=torch_group)
    places: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(places, _place())
    current_world().extras[Session] = Session([(number, count) for number, count in places])


def _place() -> tuple[int, int]:
    """Return local rank and local size: the launcher's, else by the hosts that the ranks are on."""
    here = read_environment(os.environ)
    number, count = here.local_rank(), here.local_size()
    if number is not None and count is not None:
        return number, count
    world = current_world()
    host = world.endpoint.host_of(world.rank)
    ranks = [rank for rank in range(world.size) if world.endpoint.host_of(rank) == host]
    return ranks.index(world.rank), len(ranks)


def shutdown() -> None:
    """Close all groups, and leave the parameters of distributed optimizers alone.

    Without `init` before it, do nothing.
    """
    found: Session | None = current_world().extras.get(Session)
    for reducer in [] if found is None else found.reducers + found.reducers_of_sets:
        reducer.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def is_initialized() -> bool:
    """Return whether `init` has been called, and `shutdown` has not."""
    return current_world().extras.get(Session) is not None


def rank() -> int:
    """Return this rank's number among all, from 0 on."""
    session()
    return dist.get_rank()


def size() -> int:
    """Return the number of ranks."""
    return len(session().places)


def local_rank() -> int:
    """Return this rank's number on its host, from 0 on."""
    return session().places[rank()][0]


def local_size() -> int:
    """Return the number of ranks on this rank's host."""
    return session().places[rank()][1]


def cross_rank() -> int:
    """Return this rank's number among the ranks of all hosts that have the same local rank."""
    return sum(place[0] == local_rank() for place in session().places[: rank()])


def cross_size() -> int:
    """Return the number of ranks that have the same local rank: mostly the number of hosts."""
    return sum(place[0] == local_rank() for place in session().places)


def is_homogeneous() -> bool:
    """Return whether all hosts have equally many ranks."""
    return len({count for _, count in session().places}) == 1


def gloo_built() -> bool:
    """Return True: what Gloo is to Horovod, the engine is here; no MPI is needed."""
    return True


gloo_enabled = gloo_built


def mpi_built() -> bool:
    """Return False: `init` does not use MPI."""
    return False


mpi_enabled = mpi_threads_supported = mpi_built


def nccl_built() -> bool:
    """Return False: nothing here is compiled for a vendor's library. CUDA tensors are taken, too."""
    return False


ddl_built = ccl_built = cuda_built = rocm_built = nccl_built
