"""Where the ranks of a default group meet: at torch's store, or at the one that follows it.

By ``env://`` and ``tcp://``, torch's rank 0 serves the store and closes it when the group is
destroyed. A rank may destroy the group and initialise again before rank 0 has done so. It is then a
client of the old server, and nothing in torch tells that server apart from the next one. Here the
server itself does: a rank that has met there before counts a second visit. When such a server goes
away, rank 0 is on its way to the next one at the same address.
"""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as torch_dist
from torch._C import _distributed_c10d as c10d

from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError, DistStoreError, StoreTimeoutError
from aiodist.torch_backend.rendezvous import time_left
from aiodist.torch_backend.worlds import TorchWorld


def meet(options: Any, name: str) -> tuple[TorchWorld, Any | None]:
    """Return the world of the ranks that meet at torch's store, and a replacement for that store.

    There is no replacement (None) unless the server of torch's store was an old one and has gone.
    torch's client then logs that it lost its connection. ``options``: torch's for the default
    group, which is called ``name``. Raises what ``aiodist.init_process_group`` raises.
    """
    # torch puts the kind of device in front, of the first one that the backend is named for.
    store = _for_us(options.store.underlying_store)
    rank, size = options.group_rank, options.group_size
    timeout = options.timeout
    deadline = Deadline(timeout)
    tcp = _of_torch(store) if rank else None
    prefixes = ("default_pg", f"{options.group_id}/")  # as torch has put them in front
    may_be_old = tcp is not None and _was_here(store, _for_us(_in_front(tcp, *prefixes)), rank)
    try:
        return TorchWorld.met(store, rank, size, timeout, name), None
    except DistStoreError as error:
        if tcp is None or not may_be_old or isinstance(error, StoreTimeoutError):
            raise
    registered = _in_front(_following(tcp, size, deadline), *prefixes)
    registered.set_timeout(timeout)
    store = _for_us(registered)
    store.add(_visits(rank), 1)
    world = TorchWorld.met(store, rank, size, time_left(deadline), name)
    world.whole.set_timeout(timeout)
    return world, registered


def _of_torch(store: Any) -> Any | None:
    """The TCPStore behind ``store`` if this rank is a client of what rank 0 serves."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    by_agent = "TORCHELASTIC_USE_AGENT_STORE" in os.environ
    return store if isinstance(store, c10d.TCPStore) and not by_agent else None


def _following(tcp: Any, size: int, deadline: Deadline) -> Any:
    """A client of the server that comes after that of ``tcp``. Raises DistNetworkError."""
    try:
        return c10d.TCPStore(tcp.host, tcp.port, size, is_master=False, timeout=time_left(deadline))
    except RuntimeError as error:
        raise DistNetworkError(
            f"rank 0 closed its store at {tcp.host}, port {tcp.port}, and served no other there "
            f"within {deadline.timeout:g} s; see whether it calls init_process_group again: {error}"
        ) from None


def _was_here(store: Any, same: Any, rank: int) -> bool:
    """Whether this rank has met the others at this server before, or it is just going away.

    False also where ``same``, the store as torch makes it, is not ``store``: then the caller made
    it, and it is the caller's to replace.
    """
    key = _visits(rank)
    try:
        visits = store.add(key, 1)
        return bool(same.check([key]) and visits > 1)
    except RuntimeError:
        return True


def _visits(rank: int) -> str:
    return f"aiodist/visits/{rank}"


def _for_us(store: Any) -> Any:
    return _in_front(store, "aiodist/")


def _in_front(store: Any, *prefixes: str) -> Any:
    for prefix in prefixes:
        store = c10d.PrefixStore(prefix, store)
    return store


def register_store(group: Any, store: Any) -> None:
    """Have torch's registry name ``store`` as the one of ``group``, once it has the group.

    torch enters a default group with the store it had before, and then asks for its rank: then
    is the time, and the method is the class's again.
    """

    def rank() -> int:
        del group.rank
        registry = torch_dist.distributed_c10d._world.pg_map
        if group in registry:
            registry[group] = (registry[group][0], store)
        number: int = group.rank()
        return number

    group.rank = rank
