"""Collectives like those before, for the blocking door, which tries this first.

Each looks at its arguments as the function of its name in `api.collectives` does, and carries the
operation out if an equal one was made before, and all it needs is at hand: nothing is started, and
nothing made for it. None: it was not; call that function. ``pg`` is the default group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiodist.groups.backend import Tensor
from aiodist.groups.checks import check_rank
from aiodist.groups.process_group import ProcessGroup
from aiodist.observe.recorder import Ended
from aiodist.types import ReduceOp

Again = Callable[..., Ended | None]
"""(default group, arguments of the function in `api.collectives` but ``group`` and ``timeout``)."""


def barrier(pg: ProcessGroup, device_ids: Sequence[int] | None = None) -> Ended | None:
    """See above."""
    return pg.backend.again_of_nothing()


def broadcast(
    pg: ProcessGroup, tensor: Tensor, src: int | None, group_src: int | None = None
) -> Ended | None:
    """See above."""
    return pg.backend.again("broadcast", tensor, check_rank(pg, src, group_src, "src"))


def all_reduce(pg: ProcessGroup, tensor: Tensor, op: ReduceOp) -> Ended | None:
    """See above."""
    return pg.backend.again("all_reduce", tensor, id(ReduceOp.of(op).kind))


def reduce(
    pg: ProcessGroup, tensor: Tensor, dst: int | None, op: ReduceOp, group_dst: int | None = None
) -> Ended | None:
    """See above."""
    root = check_rank(pg, dst, group_dst, "dst")
    return pg.backend.again("reduce", tensor, (root, id(ReduceOp.of(op).kind)))


def all_gather_into_tensor(pg: ProcessGroup, output: Tensor, tensor: Tensor) -> Ended | None:
    """See above."""
    return pg.backend.again_between("all_gather", output, tensor)


def reduce_scatter_tensor(
    pg: ProcessGroup, output: Tensor, tensor: Tensor, op: ReduceOp
) -> Ended | None:
    """See above."""
    return pg.backend.again_between("reduce_scatter", output, tensor, id(ReduceOp.of(op).kind))


def all_to_all_single(
    pg: ProcessGroup,
    output: Tensor,
    tensor: Tensor,
    output_split_sizes: Sequence[int] | None,
    input_split_sizes: Sequence[int] | None,
) -> Ended | None:
    """See above."""
    if output_split_sizes is not None or input_split_sizes is not None:
        return None
    return pg.backend.again_between("all_to_all", output, tensor)
