"""Collectives of the async API. Each starts at the call and returns an awaitable `Work`.

A tensor is a torch.Tensor on the CPU or a numpy.ndarray, contiguous or not, of any size from no
element up. All members of the group call the same operations in the same order. ``group`` is the
default group where None; ``timeout`` (seconds or timedelta) the group's where None.
``math.inf`` is no limit: a worker may wait for hours in `broadcast` or `recv`, and it sleeps.

Raised at the call, before anything is sent, with the group still usable: TypeError and
InvalidUsageError (a ValueError) for invalid arguments, NotInitializedError before
``init_process_group``. Raised by ``await``: CollectiveMismatchError where ranks disagree,
CollectiveTimeoutError, CollectiveCancelledError, PeerLostError, GroupClosedError. A rank may have
succeeded before a failure is known, such as the root of a broadcast of little data: it logs the
failure. After a failure or a cancellation the contents of the outputs are undefined, and nothing
writes to them any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

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
from aiodist.groups.work import Work
from aiodist.groups.world import current_world
from aiodist.types import ReduceOp

Timeout = float | timedelta | None


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Copy ``tensor`` of one rank into ``tensor`` of all ranks.

    Cancelled, it fails on all ranks. After a failure the contents of ``tensor`` on the other
    ranks are undefined.

    Args:
        tensor: What the source sends, and where the other ranks receive. Same dtype and number of
            elements on all ranks.
        src: The source's global rank. Pass it or ``group_src``.
        group: The process group; None is the default group.
        group_src: The source's rank in the group, in place of ``src``.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    root = check_rank(pg, src, group_src, "src")
    return pg.start(Broadcast(tensor, root), timeout)


def broadcast_new(
    tensor: Tensor | None = None,
    src: int | None = None,
    group: Group | None = None,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[Tensor]:
    """Return ``tensor`` of one rank on all ranks, whatever its dtype and shape.

    Kind (torch or numpy), dtype and shape travel with the data. Cancelled, it fails on all ranks.

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
    pg = current_world().group(group)
    root = check_rank(pg, src, group_src, "src")
    return pg.start(BroadcastNew(tensor, root), timeout)


def all_reduce(
    tensor: Tensor,
    op: ReduceOp | str = ReduceOp.SUM,
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Reduce ``tensor`` over all ranks, in place; the result is bitwise the same on all ranks.

    Cancelled, it fails on all ranks. After a failure the contents of ``tensor`` are undefined.

    Args:
        tensor: Operand and result. Same dtype and number of elements on all ranks. Shapes may
            differ: elements are matched in C order.
        op: How elements are reduced, a `ReduceOp` or its name, such as "sum".
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    return pg.start(AllReduce(tensor, ReduceOp.of(op)), timeout)


def all_reduce_coalesced(
    tensors: Sequence[Tensor],
    op: ReduceOp | str = ReduceOp.SUM,
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Reduce several tensors in one operation, in place.

    Cancelled, it fails on all ranks. After a failure the contents of ``tensors`` are undefined.

    Args:
        tensors: Operands and results, at least one, of one dtype. Their numbers of elements are
            the same on all ranks, one by one.
        op: How elements are reduced, a `ReduceOp` or its name, such as "sum".
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    return pg.start(AllReduceCoalesced(tensors, ReduceOp.of(op)), timeout)


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: ReduceOp | str = ReduceOp.SUM,
    group: Group | None = None,
    group_dst: int | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Reduce ``tensor`` over all ranks into that of one rank.

    Cancelled, it fails on all ranks. After a failure the contents of the target's ``tensor`` are
    undefined.

    Args:
        tensor: The operand, and on the target the result. The others keep theirs. Same dtype and
            number of elements on all ranks.
        dst: The target's global rank. Pass it or ``group_dst``.
        op: How elements are reduced, a `ReduceOp` or its name, such as "sum".
        group: The process group; None is the default group.
        group_dst: The target's rank in the group, in place of ``dst``.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    root = check_rank(pg, dst, group_dst, "dst")
    return pg.start(Reduce(tensor, root, ReduceOp.of(op)), timeout)


def barrier(
    group: Group | None = None, device_ids: Sequence[int] | None = None, timeout: Timeout = None
) -> Work[None]:
    """Wait until all ranks of the group have called it.

    Cancelled, it fails on all ranks.

    Args:
        group: The process group; None is the default group.
        device_ids: torch's parameter; it has no effect.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    return pg.start(Barrier(), timeout)


def monitored_barrier(
    group: Group | None = None, timeout: Timeout = None, wait_all_ranks: bool = False
) -> Work[None]:
    """Wait for all ranks as `barrier`, and name all ranks that did not come in time.

    The rank that times out asks all ranks at once, and waits at most 0.5 s for their answers.
    Cancelled, it fails on all ranks.

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
    pg = current_world().group(group)
    check_bool(wait_all_ranks, "wait_all_ranks")
    return pg.start(Agree("monitored_barrier", 0), timeout)
