"""Operations like those before, for the blocking API, which tries this first.

Each looks at its arguments as the function of its name in `api.collectives` or `api.p2p` does, and
carries the operation out if an equal one was made before, and all it needs is at hand: mostly nothing
is made for it. None: it was not; call that function. ``pg`` is the default group.
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
"""Of the function in `api.collectives` or `api.p2p`, by place, up to where ``group`` stands.

Taken as they are: to spread them over parameters once more takes as long as the swap itself.
"""

Named = Mapping[str, Any]
"""What that function was given by name, without ``group`` and ``timeout``."""

Done = CompletedRecord | Work[None]
"""It has ended, or it has begun and has to wait."""

CachedCall = Callable[[GroupEngine, Args, Named], Done | None]


def send(pg: GroupEngine, args: Args, named: Named) -> CompletedRecord | None:
    """``(tensor, dst)``, and ``tag``."""
    tensor, dst = args
    to = check_other(pg, check_rank(pg, dst, named.get("group_dst"), "dst"), "dst")
    return pg.backend.send_cached(tensor, to, check_tag(named["tag"]))


def recv(pg: GroupEngine, args: Args, named: Named) -> CompletedRecord | None:
    """``(tensor, src)``, and ``tag``; from ``src``, that is, which is what the function returns."""
    tensor, src = args
    if tensor is None or src is None:
        return None
    source = check_other(pg, check_rank(pg, src, named.get("group_src"), "src"), "src")
    return pg.backend.recv_cached(tensor, source, check_tag(named["tag"]))


def barrier(pg: GroupEngine, args: Args, named: Named) -> Done | None:
    """``()``."""
    if named.get("device_ids") is not None:
        return None
    return pg.backend.run_cached_without_tensor()


def broadcast(pg: GroupEngine, args: Args, named: Named) -> Done | None:
    """``(tensor, src)``."""
    tensor, src = args
    return pg.backend.run_cached(
        "broadcast", tensor, check_rank(pg, src, named.get("group_src"), "src")
    )


def all_reduce(pg: GroupEngine, args: Args, named: Named) -> Done | None:
    """``(tensor, op)``."""
    tensor, op = args
    if type(op) is not ReduceOp:  # else no call: of 4 bytes all of it counts
        op = ReduceOp.of(op)
    return pg.backend.run_cached("all_reduce", tensor, id(op.kind))


def reduce(pg: GroupEngine, args: Args, named: Named) -> Done | None:
    """``(tensor, dst, op)``."""
    tensor, dst, op = args
    variant = check_rank(pg, dst, named.get("group_dst"), "dst"), id(ReduceOp.of(op).kind)
    return pg.backend.run_cached("reduce", tensor, variant)


def all_gather_into_tensor(pg: GroupEngine, args: Args, named: Named) -> Done | None:
    """``(output, input)``."""
    output, tensor = args
    return pg.backend.run_cached_between("all_gather", output, tensor)


def reduce_scatter_tensor(pg: GroupEngine, args: Args, named: Named) -> Done | None:
    """``(output, input, op)``."""
    output, tensor, op = args
    return pg.backend.run_cached_between("reduce_scatter", output, tensor, id(ReduceOp.of(op).kind))


def all_to_all_single(pg: GroupEngine, args: Args, named: Named) -> Done | None:
    """``(output, input, output_split_sizes, input_split_sizes)``."""
    output, tensor, *splits = args
    if splits != [None, None]:
        return None
    return pg.backend.run_cached_between("all_to_all", output, tensor)
