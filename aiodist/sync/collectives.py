"""The blocking API. Generated from `aiodist.api.collectives` by ``make generated``: edit that instead."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.api.collectives import Timeout
from aiodist.groups.argument_checks import check_bool, check_rank
from aiodist.groups.handle import Group
from aiodist.groups.operation import (
    Agree,
    AllReduce,
    AllReduceCoalesced,
    Barrier,
    Broadcast,
    BroadcastNew,
    Reduce,
    Tensor,
)
from aiodist.sync.adapter import Done, member_of
from aiodist.sync.portal import portal
from aiodist.types import ReduceOp


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Group | None = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Done:
    """Copy ``tensor`` of one rank into ``tensor`` of all ranks.

    Cancelled, it fails on all ranks. After a failure the contents of ``tensor`` on the other
    ranks are undefined.

    Args:
        tensor: What the source sends, and where the other ranks receive. Same dtype and number of
            elements on all ranks.
        src: The source's global rank. Pass it or ``group_src``.
        group: The process group; None is the default group.
        async_op: Whether to return as soon as the operation has started.
        group_src: The source's rank in the group, in place of ``src``.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Returns:
        With ``async_op=True`` a `Work`. Else None, when this rank's part is done.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    if (pg := member_of(group, "broadcast")) is None:
        return None
    root = check_rank(pg, src, group_src, "src")
    result: Done = portal().start(async_op, pg, Broadcast(tensor, root), timeout)
    return result


def broadcast_new(
    tensor: Tensor | None = None,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Tensor:
    """Return ``tensor`` of one rank on all ranks, whatever its dtype and shape.

    Kind (torch or numpy), dtype and shape travel with the data. Cancelled, it fails on all ranks.

    Blocks until this rank's part is done.

    Args:
        tensor: What the source sends. The other ranks pass None.
        src: The source's global rank. Pass it or ``group_src``.
        group: The process group; None is the default group.
        group_src: The source's rank in the group, in place of ``src``.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Returns:
        On the source ``tensor`` itself, on the other ranks a new tensor on the CPU.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    if (pg := member_of(group, "broadcast_new")) is None:
        return None
    root = check_rank(pg, src, group_src, "src")
    return portal().start(False, pg, BroadcastNew(tensor, root), timeout)


def all_reduce(
    tensor: Tensor,
    op: ReduceOp | str = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Reduce ``tensor`` over all ranks, in place; the result is bitwise the same on all ranks.

    Cancelled, it fails on all ranks. After a failure the contents of ``tensor`` are undefined.

    Args:
        tensor: Operand and result. Same dtype and number of elements on all ranks. Shapes may
            differ: elements are matched in C order.
        op: How elements are reduced, a `ReduceOp` or its name, such as "sum".
        group: The process group; None is the default group.
        async_op: Whether to return as soon as the operation has started.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Returns:
        With ``async_op=True`` a `Work`. Else None, when this rank's part is done.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    if (pg := member_of(group, "all_reduce")) is None:
        return None
    result: Done = portal().start(async_op, pg, AllReduce(tensor, ReduceOp.of(op)), timeout)
    return result


def all_reduce_coalesced(
    tensors: Sequence[Tensor],
    op: ReduceOp | str = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    timeout: Timeout = None,
) -> Done:
    """Reduce several tensors in one operation, in place.

    Cancelled, it fails on all ranks. After a failure the contents of ``tensors`` are undefined.

    Args:
        tensors: Operands and results, at least one, of one dtype. Their numbers of elements are
            the same on all ranks, one by one.
        op: How elements are reduced, a `ReduceOp` or its name, such as "sum".
        group: The process group; None is the default group.
        async_op: Whether to return as soon as the operation has started.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Returns:
        With ``async_op=True`` a `Work`. Else None, when this rank's part is done.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    if (pg := member_of(group, "all_reduce_coalesced")) is None:
        return None
    result: Done = portal().start(
        async_op, pg, AllReduceCoalesced(tensors, ReduceOp.of(op)), timeout
    )
    return result


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: ReduceOp | str = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    timeout: Timeout = None,
) -> Done:
    """Reduce ``tensor`` over all ranks into that of one rank.

    Cancelled, it fails on all ranks. After a failure the contents of the target's ``tensor`` are
    undefined.

    Args:
        tensor: The operand, and on the target the result. The others keep theirs. Same dtype and
            number of elements on all ranks.
        dst: The target's global rank. Pass it or ``group_dst``.
        op: How elements are reduced, a `ReduceOp` or its name, such as "sum".
        group: The process group; None is the default group.
        async_op: Whether to return as soon as the operation has started.
        group_dst: The target's rank in the group, in place of ``dst``.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Returns:
        With ``async_op=True`` a `Work`. Else None, when this rank's part is done.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    if (pg := member_of(group, "reduce")) is None:
        return None
    root = check_rank(pg, dst, group_dst, "dst")
    result: Done = portal().start(async_op, pg, Reduce(tensor, root, ReduceOp.of(op)), timeout)
    return result


def barrier(
    group: Group | None = None,
    async_op: bool = False,
    device_ids: Sequence[int] | None = None,
    timeout: Timeout = None,
) -> Done:
    """Wait until all ranks of the group have called it.

    Cancelled, it fails on all ranks.

    Args:
        group: The process group; None is the default group.
        async_op: Whether to return as soon as the operation has started.
        device_ids: torch's parameter; it has no effect.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Returns:
        With ``async_op=True`` a `Work`. Else None, when this rank's part is done.

    Raises:
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    if (pg := member_of(group, "barrier")) is None:
        return None
    result: Done = portal().start(async_op, pg, Barrier(), timeout)
    return result


def monitored_barrier(
    group: Group | None = None, timeout: Timeout = None, wait_all_ranks: bool = False
) -> None:
    """Wait for all ranks as `barrier`, and name all ranks that did not come in time.

    The rank that times out asks all ranks at once, and waits at most 0.5 s for their answers.
    Cancelled, it fails on all ranks.

    Blocks until this rank's part is done.

    Args:
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.
        wait_all_ranks: torch's parameter; it changes nothing. In torch, False names only the
            first missing rank.

    Raises:
        CollectiveTimeoutError: Its ``waiting_for`` lists the missing ranks, and ``last_finished``
            says what each of them did last.
        CollectiveError: Another failure, as for `barrier`.
    """
    if (pg := member_of(group, "monitored_barrier")) is None:
        return
    check_bool(wait_all_ranks, "wait_all_ranks")
    portal().start(False, pg, Agree("monitored_barrier", 0), timeout)
