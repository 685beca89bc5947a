"""Persistent collectives, as MPI-4 has them: prepared once, and started without a look-up per call."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.groups.argument_checks import check_list, check_rank
from aiodist.groups.handle import Group
from aiodist.groups.operation import (
    AllGatherSingle,
    AllReduce,
    AllToAllSingle,
    Barrier,
    Broadcast,
    Reduce,
    ReduceScatterSingle,
    Tensor,
)
from aiodist.groups.persistent_collective import PersistentCollective
from aiodist.groups.world import current_world
from aiodist.types import ReduceOp


def barrier_init(group: Group | None = None) -> PersistentCollective:
    """Prepare a `barrier`, which each ``start()`` of the result runs.

    Sends nothing.

    Args:
        group: The process group; None is the default group.

    Raises:
        InvalidUsageError: This rank is not in the group.
    """
    return PersistentCollective(current_world().group_here(group), Barrier())


def broadcast_init(
    tensor: Tensor,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
) -> PersistentCollective:
    """Prepare a `broadcast` of ``tensor``, which each ``start()`` of the result runs.

    Sends nothing.

    Args:
        tensor: What the source sends, and where the other ranks receive.
        src: The source's global rank. Pass it or ``group_src``.
        group: The process group; None is the default group.
        group_src: The source's rank in the group, in place of ``src``.

    Raises:
        InvalidUsageError: The arguments do not fit together.
    """
    pg = current_world().group_here(group)
    return PersistentCollective(pg, Broadcast(tensor, check_rank(pg, src, group_src, "src")))


def reduce_init(
    tensor: Tensor,
    dst: int | None = None,
    op: ReduceOp | str = ReduceOp.SUM,
    group: Group | None = None,
    group_dst: int | None = None,
) -> PersistentCollective:
    """Prepare a `reduce` of ``tensor``, which each ``start()`` of the result runs.

    Sends nothing.

    Args:
        tensor: Operand, and on the target the result.
        dst: The target's global rank. Pass it or ``group_dst``.
        op: How elements are reduced, a `ReduceOp` or its name, such as "sum".
        group: The process group; None is the default group.
        group_dst: The target's rank in the group, in place of ``dst``.

    Raises:
        InvalidUsageError: The arguments do not fit together.
    """
    pg = current_world().group_here(group)
    root = check_rank(pg, dst, group_dst, "dst")
    return PersistentCollective(pg, Reduce(tensor, root, ReduceOp.of(op)))


def all_reduce_init(
    tensor: Tensor, op: ReduceOp | str = ReduceOp.SUM, group: Group | None = None
) -> PersistentCollective:
    """Prepare an `all_reduce` of ``tensor``, which each ``start()`` of the result runs.

    Sends nothing.

    Args:
        tensor: Operand and result.
        op: How elements are reduced, a `ReduceOp` or its name, such as "sum".
        group: The process group; None is the default group.

    Raises:
        InvalidUsageError: The arguments do not fit together.
    """
    return PersistentCollective(
        current_world().group_here(group), AllReduce(tensor, ReduceOp.of(op))
    )


def all_gather_into_tensor_init(
    output_tensor: Tensor, input_tensor: Tensor, group: Group | None = None
) -> PersistentCollective:
    """Prepare an `all_gather_into_tensor`, which each ``start()`` of the result runs.

    Sends nothing.

    Args:
        output_tensor: Where all ranks' tensors go, one after the other.
        input_tensor: This rank's tensor.
        group: The process group; None is the default group.

    Raises:
        InvalidUsageError: The arguments do not fit together.
    """
    operation = AllGatherSingle(output_tensor, input_tensor)
    return PersistentCollective(current_world().group_here(group), operation)


def reduce_scatter_tensor_init(
    output: Tensor,
    input: Tensor,
    op: ReduceOp | str = ReduceOp.SUM,
    group: Group | None = None,
) -> PersistentCollective:
    """Prepare a `reduce_scatter_tensor`, which each ``start()`` of the result runs.

    Sends nothing.

    Args:
        output: This rank's result.
        input: Group size times the elements of ``output``.
        op: How elements are reduced, a `ReduceOp` or its name, such as "sum".
        group: The process group; None is the default group.

    Raises:
        InvalidUsageError: The arguments do not fit together.
    """
    operation = ReduceScatterSingle(output, input, ReduceOp.of(op))
    return PersistentCollective(current_world().group_here(group), operation)


def all_to_all_single_init(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group | None = None,
) -> PersistentCollective:
    """Prepare an `all_to_all_single`, which each ``start()`` of the result runs.

    Sends nothing.

    Args:
        output: Where the parts of all ranks go, one after the other.
        input: The parts for all ranks, one after the other.
        output_split_sizes: Rows of ``output`` from each rank; None is equal parts.
        input_split_sizes: Rows of ``input`` for each rank; None is equal parts.
        group: The process group; None is the default group.

    Raises:
        InvalidUsageError: The arguments do not fit together.
    """
    into, out_of = (
        None if sizes is None else tuple(check_list(sizes, name))
        for name, sizes in (
            ("output_split_sizes", output_split_sizes),
            ("input_split_sizes", input_split_sizes),
        )
    )
    operation = AllToAllSingle(output, input, into, out_of)
    return PersistentCollective(current_world().group_here(group), operation)
