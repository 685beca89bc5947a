"""Repeated operations of the blocking API, from the cache of plans.

Each function here has a namesake in `api.collectives` or `api.p2p` and checks the same arguments.
If the plan of an equal operation is cached, it runs that plan. Otherwise it returns None (a miss),
and the caller calls the namesake. ``pg`` is the default group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiodist.groups.checks import check_other, check_rank, check_tag
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord
from aiodist.types import ReduceOp

Args = tuple[Any, ...]
"""The positional arguments before ``group`` of the function in `api.collectives` or `api.p2p`.

They stay one tuple: unpacking it into parameters again takes as long as a cached operation.
"""

Named = Mapping[str, Any]
"""The keyword arguments of that function, without ``group`` and ``timeout``."""

Done = CompletedRecord | Work[None]
"""The record of an operation that has completed, or the `Work` of one that is under way."""

CachedCall = Callable[[GroupEngine, Args, Named], Done | None]


def send(pg: GroupEngine, args: Args, named: Named) -> CompletedRecord | None:
    """Send a tensor: ``(tensor, dst)``, and ``tag``."""
    tensor, dst = args
    to = check_other(pg, check_rank(pg, dst, named.get("group_dst"), "dst"), "dst")
    return pg.backend.send_cached(tensor, to, check_tag(named["tag"]))


def recv(pg: GroupEngine, args: Args, named: Named) -> CompletedRecord | None:
    """Receive from a given rank: ``(tensor, src)``, and ``tag``. A miss without tensor or ``src``."""
    tensor, src = args
    if tensor is None or src is None:
        return None
    source = check_other(pg, check_rank(pg, src, named.get("group_src"), "src"), "src")
    return pg.backend.recv_cached(tensor, source, check_tag(named["tag"]))


def barrier(pg: GroupEngine, args: Args, named: Named) -> Done | None:
    """Run a barrier: ``()``. A miss with ``device_ids``."""
    if named.get("device_ids") is not None:
        return None
    return pg.backend.run_cached_without_tensor()


def broadcast(pg: GroupEngine, args: Args, named: Named) -> Done | None:
    """Broadcast a tensor: ``(tensor, src)``."""
    tensor, src = args
    return pg.backend.run_cached(
        "broadcast", tensor, check_rank(pg, src, named.get("group_src"), "src")
    )


def all_reduce(pg: GroupEngine, args: Args, named: Named) -> Done | None:
    """Reduce on all ranks: ``(tensor, op)``."""
    tensor, op = args
    if type(op) is not ReduceOp:  # a call saved, which counts with 4 bytes
        op = ReduceOp.of(op)
    return pg.backend.run_cached("all_reduce", tensor, id(op.kind))


def reduce(pg: GroupEngine, args: Args, named: Named) -> Done | None:
    """Reduce on one rank: ``(tensor, dst, op)``."""
    tensor, dst, op = args
    variant = check_rank(pg, dst, named.get("group_dst"), "dst"), id(ReduceOp.of(op).kind)
    return pg.backend.run_cached("reduce", tensor, variant)


def all_gather_into_tensor(pg: GroupEngine, args: Args, named: Named) -> Done | None:
    """Gather on all ranks: ``(output, input)``."""
    output, tensor = args
    return pg.backend.run_cached_between("all_gather", output, tensor)


def reduce_scatter_tensor(pg: GroupEngine, args: Args, named: Named) -> Done | None:
    """Reduce and scatter the parts: ``(output, input, op)``."""
    output, tensor, op = args
    return pg.backend.run_cached_between("reduce_scatter", output, tensor, id(ReduceOp.of(op).kind))


def all_to_all_single(pg: GroupEngine, args: Args, named: Named) -> Done | None:
    """Exchange equal parts: ``(output, input, output_split_sizes, input_split_sizes)``."""
    output, tensor, *splits = args
    if splits != [None, None]:
        return None
    return pg.backend.run_cached_between("all_to_all", output, tensor)
