"""Operations like those before, for the blocking door, which tries this first.

Each looks at its arguments as the function of its name in `api.collectives` or `api.p2p` does, and
carries the operation out if an equal one was made before, and all it needs is at hand: mostly nothing
is made for it. None: it was not; call that function. ``pg`` is the default group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiodist.groups.checks import check_other, check_rank, check_tag
from aiodist.groups.process_group import ProcessGroup
from aiodist.groups.work import Work
from aiodist.observe.recorder import Ended
from aiodist.types import ReduceOp

Args = tuple[Any, ...]
"""Of the function in `api.collectives` or `api.p2p`, by place, up to where ``group`` stands.

Taken as they are: to spread them over parameters once more takes as long as the swap itself.
"""

Named = Mapping[str, Any]
"""What that function was given by name, without ``group`` and ``timeout``."""

Done = Ended | Work[None]
"""It has ended, or it has begun and has to wait."""

Again = Callable[[ProcessGroup, Args, Named], Done | None]


def send(pg: ProcessGroup, args: Args, named: Named) -> Ended | None:
    """``(tensor, dst)``, and ``tag``."""
    tensor, dst = args
    to = check_other(pg, check_rank(pg, dst, named.get("group_dst"), "dst"), "dst")
    return pg.backend.send_again(tensor, to, check_tag(named["tag"]))


def recv(pg: ProcessGroup, args: Args, named: Named) -> Ended | None:
    """``(tensor, src)``, and ``tag``; from ``src``, that is, which is what the function returns."""
    tensor, src = args
    if tensor is None or src is None:
        return None
    source = check_other(pg, check_rank(pg, src, named.get("group_src"), "src"), "src")
    return pg.backend.recv_again(tensor, source, check_tag(named["tag"]))


def barrier(pg: ProcessGroup, args: Args, named: Named) -> Done | None:
    """``()``."""
    if named.get("device_ids") is not None:
        return None
    return pg.backend.again_of_nothing()


def broadcast(pg: ProcessGroup, args: Args, named: Named) -> Done | None:
    """``(tensor, src)``."""
    tensor, src = args
    return pg.backend.again("broadcast", tensor, check_rank(pg, src, named.get("group_src"), "src"))


def all_reduce(pg: ProcessGroup, args: Args, named: Named) -> Done | None:
    """``(tensor, op)``."""
    tensor, op = args
    if type(op) is not ReduceOp:  # else no call: of 4 bytes all of it counts
        op = ReduceOp.of(op)
    return pg.backend.again("all_reduce", tensor, id(op.kind))


def reduce(pg: ProcessGroup, args: Args, named: Named) -> Done | None:
    """``(tensor, dst, op)``."""
    tensor, dst, op = args
    variant = check_rank(pg, dst, named.get("group_dst"), "dst"), id(ReduceOp.of(op).kind)
    return pg.backend.again("reduce", tensor, variant)


def all_gather_into_tensor(pg: ProcessGroup, args: Args, named: Named) -> Done | None:
    """``(output, input)``."""
    output, tensor = args
    return pg.backend.again_between("all_gather", output, tensor)


def reduce_scatter_tensor(pg: ProcessGroup, args: Args, named: Named) -> Done | None:
    """``(output, input, op)``."""
    output, tensor, op = args
    return pg.backend.again_between("reduce_scatter", output, tensor, id(ReduceOp.of(op).kind))


def all_to_all_single(pg: ProcessGroup, args: Args, named: Named) -> Done | None:
    """``(output, input, output_split_sizes, input_split_sizes)``."""
    output, tensor, *splits = args
    if splits != [None, None]:
        return None
    return pg.backend.again_between("all_to_all", output, tensor)
