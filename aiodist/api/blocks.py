"""Collectives that move a block of each rank: gather, scatter, reduce_scatter, all_to_all.

What `aiodist.api.collectives` says of tensors, errors and cancellation holds for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.api.collectives import Timeout
from aiodist.groups.argument_checks import check_rank
from aiodist.groups.handle import Group
from aiodist.groups.operation import (
    AllGather,
    AllGatherCoalesced,
    AllGatherNew,
    AllGatherSingle,
    AllToAll,
    AllToAllSingle,
    Gather,
    GatherSingle,
    ReduceScatter,
    ReduceScatterSingle,
    Scatter,
    Tensor,
)
from aiodist.groups.work import Work
from aiodist.groups.world import current_world
from aiodist.types import ReduceOp


def all_gather_new(
    tensor: Tensor, group: Group | None = None, *, timeout: Timeout = None
) -> Work[list[Tensor]]:
    """Return the tensors of all ranks as new tensors on the CPU.

    Each rank's tensor has a kind (torch or numpy), dtype and shape of its own, which travel with
    the data. Cancelled, it fails on all ranks.

    Args:
        tensor: This rank's tensor.
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Returns:
        A list of tensors, by group rank.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    return pg.start(AllGatherNew(tensor), timeout)


def all_gather(
    tensor_list: list[Tensor],
    tensor: Tensor,
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Fill ``tensor_list[r]`` with rank r's ``tensor`` on all ranks.

    Cancelled, it fails on all ranks. After a failure the contents of ``tensor_list`` are
    undefined.

    Args:
        tensor_list: One tensor for each rank, with that rank's number of elements, all of one
            dtype. They share no memory.
        tensor: This rank's tensor. Shapes may differ between ranks.
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    return pg.start(AllGather(tensor_list, tensor), timeout)


def all_gather_coalesced(
    output_tensor_lists: list[list[Tensor]],
    input_tensor_list: list[Tensor],
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Fill ``output_tensor_lists[r][i]`` with rank r's ``input_tensor_list[i]`` on all ranks.

    Cancelled, it fails on all ranks. After a failure the contents of ``output_tensor_lists`` are
    undefined.

    Args:
        output_tensor_lists: For each rank a list with one tensor for each of its inputs, of the
            same number of elements. They share no memory.
        input_tensor_list: This rank's tensors, at least one, of one dtype. All ranks pass equally
            many; shapes may differ.
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    operation = AllGatherCoalesced(output_tensor_lists, input_tensor_list)
    return pg.start(operation, timeout)


def all_gather_into_tensor(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Gather ``input_tensor`` of all ranks, one after the other, into one ``output_tensor``.

    Cancelled, it fails on all ranks. After a failure the contents of ``output_tensor`` are
    undefined.

    Args:
        output_tensor: Group size times the elements of ``input_tensor``, of the same dtype.
            Concatenated along the first dimension or stacked along a new one: the memory is the
            same.
        input_tensor: This rank's tensor. Same dtype and number of elements on all ranks. It may lie
            in ``output_tensor``.
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    return pg.start(AllGatherSingle(output_tensor, input_tensor), timeout)


all_gather_single = all_gather_into_tensor  # torch has both names


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int | None = None,
    group: Group | None = None,
    group_dst: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Fill ``gather_list[r]`` on one rank with rank r's ``tensor``.

    Cancelled, it fails on all ranks. After a failure the contents of ``gather_list`` are
    undefined.

    Args:
        tensor: This rank's tensor. One dtype on all ranks; shapes may differ.
        gather_list: On the target one tensor for each rank, with that rank's number of elements.
            They share no memory. None on the other ranks.
        dst: The target's global rank; the group's first rank if neither it nor ``group_dst`` is
            given.
        group: The process group; None is the default group.
        group_dst: The target's rank in the group, in place of ``dst``.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    root = check_rank(pg, dst, group_dst, "dst", default=0)
    return pg.start(Gather(tensor, gather_list, root), timeout)


def gather_single(
    tensor: Tensor,
    gather_tensor: Tensor | None = None,
    dst: int | None = None,
    group: Group | None = None,
    group_dst: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Gather ``tensor`` of all ranks, one after the other, into one ``gather_tensor`` on one rank.

    Cancelled, it fails on all ranks. After a failure the contents of ``gather_tensor`` are
    undefined.

    Args:
        tensor: This rank's tensor. Same dtype and number of elements on all ranks. It may lie in
            ``gather_tensor``.
        gather_tensor: On the target, group size times the elements of ``tensor``, of the same
            dtype. Concatenated along the first dimension or stacked along a new one: the memory is
            the same. The other ranks leave it as it is; None will do.
        dst: The target's global rank; the group's first rank if neither it nor ``group_dst`` is
            given.
        group: The process group; None is the default group.
        group_dst: The target's rank in the group, in place of ``dst``.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    root = check_rank(pg, dst, group_dst, "dst", default=0)
    return pg.start(GatherSingle(tensor, gather_tensor, root), timeout)


gather_into_tensor = gather_single  # torch has both names


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Fill ``tensor`` on each rank r with ``scatter_list[r]`` of one rank.

    Cancelled, it fails on all ranks. After a failure the contents of ``tensor`` are undefined.

    Args:
        tensor: Where this rank receives. One dtype on all ranks; shapes may differ.
        scatter_list: On the source one tensor for each rank, with that rank's number of elements.
            None on the other ranks.
        src: The source's global rank; the group's first rank if neither it nor ``group_src`` is
            given.
        group: The process group; None is the default group.
        group_src: The source's rank in the group, in place of ``src``.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    root = check_rank(pg, src, group_src, "src", default=0)
    return pg.start(Scatter(tensor, scatter_list, root), timeout)


def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: ReduceOp | str = ReduceOp.SUM,
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Reduce ``input_list[r]`` over all ranks into rank r's ``output``.

    The inputs stay as they are, except where ``output`` lies in them. Cancelled, it fails on all
    ranks. After a failure the contents of ``output`` are undefined.

    Args:
        output: This rank's result, with as many elements as its entry of ``input_list``.
        input_list: One tensor for each rank, all of one dtype. Entry r has one number of elements
            on all ranks.
        op: How elements are reduced, a `ReduceOp` or its name, such as "sum".
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    return pg.start(ReduceScatter(output, input_list, ReduceOp.of(op)), timeout)


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: ReduceOp | str = ReduceOp.SUM,
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Reduce ``input`` over all ranks; rank r gets the r-th of its equal parts in ``output``.

    ``input`` stays as it is, except where ``output`` lies in it. Cancelled, it fails on all ranks.
    After a failure the contents of ``output`` are undefined.

    Args:
        output: This rank's result. Same dtype and number of elements on all ranks.
        input: Group size times the elements of ``output``, of the same dtype.
        op: How elements are reduced, a `ReduceOp` or its name, such as "sum".
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    return pg.start(ReduceScatterSingle(output, input, ReduceOp.of(op)), timeout)


reduce_scatter_single = reduce_scatter_tensor  # torch has both names


def all_to_all(
    output_tensor_list: list[Tensor],
    input_tensor_list: list[Tensor],
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Send ``input_tensor_list[r]`` to each rank r; fill ``output_tensor_list[r]`` from rank r.

    Cancelled, it fails on all ranks. After a failure the contents of ``output_tensor_list`` are
    undefined.

    Args:
        output_tensor_list: One tensor for each rank, with as many elements as that rank sends
            here. They share no memory, and none with those of ``input_tensor_list``.
        input_tensor_list: One tensor for each rank, all of one dtype. Shapes may differ.
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    return pg.start(AllToAll(output_tensor_list, input_tensor_list), timeout)


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Send some rows of ``input`` to each rank; fill ``output`` with the rows that come.

    Rows are counted along the first dimension. They stand in ``output`` by group rank. Cancelled,
    it fails on all ranks. After a failure the contents of ``output`` are undefined.

    Args:
        output: Where rows are received, of the same dtype as ``input``. The two share no memory.
        input: The rows to send, by group rank.
        output_split_sizes: How many rows come from each rank; None divides ``output`` equally.
        input_split_sizes: How many rows go to each rank; None divides ``input`` equally.
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    operation = AllToAllSingle(output, input, output_split_sizes, input_split_sizes)
    return pg.start(operation, timeout)
