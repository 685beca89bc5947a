"""Collectives over several tensors of each rank: one for each of its GPUs, or of its CPU tensors.

What torch.distributed had in its versions 1 as ``*_multigpu``. A rank's tensors become one by a
local reduction, one collective runs between the ranks, on the device of the first, and local
copies give each tensor its result. The tensors of a list are alike: torch tensors or numpy arrays,
one dtype, one number of elements; the backend of the group has to serve the device of the first.
All ranks pass equally many. The local part before the collective runs at the call; errors and
cancellation are those of the collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aiodist.api.collectives import Timeout
from aiodist.backends.polling import until
from aiodist.deadline import to_seconds
from aiodist.errors import InvalidUsageError
from aiodist.groups.argument_checks import check_index, check_list, check_rank
from aiodist.groups.following_work import following
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.handle import Group
from aiodist.groups.operation import AllGatherCoalesced, AllReduce, Broadcast, Reduce, Tensor
from aiodist.groups.work import Work
from aiodist.groups.world import current_world
from aiodist.tensors import tensor_lists
from aiodist.tensors.cuda_streams import on_callers_stream
from aiodist.types import RedOpType, ReduceOp


def broadcast_multigpu(
    tensor_list: list[Tensor],
    src: int,
    group: Group | None = None,
    src_tensor: int = 0,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Copy one tensor of one rank into all tensors of all ranks.

    Cancelled, it fails on all ranks. After a failure the contents of ``tensor_list`` are
    undefined.

    Args:
        tensor_list: This rank's tensors, at least one: of one kind, dtype and number of elements.
            All ranks pass equally many.
        src: The source's global rank.
        group: The process group; None is the default group.
        src_tensor: The place in the source's ``tensor_list`` of the tensor to copy.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    root = check_rank(pg, src, None, "src")
    tensors = _check(tensor_list, "tensor_list")
    check_index(src_tensor, "src_tensor", len(tensors), "tensor_list")
    first, *others = tensors
    seconds = to_seconds(timeout)
    pg.backend.check_tensor(first, writable=True)
    if pg.rank == root and src_tensor:
        tensor_lists.assign(first, tensors[src_tensor])
    work = pg.start(Broadcast(first, root), seconds)

    def spread() -> None:
        for target in others:
            tensor_lists.assign(target, first)

    return _then(pg, work, spread, tensors)


def all_reduce_multigpu(
    tensor_list: list[Tensor],
    op: ReduceOp | str = ReduceOp.SUM,
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Reduce all tensors of all ranks into one; every tensor of every rank becomes that.

    AVG divides by the number of all tensors. The result is bitwise the same everywhere.
    Cancelled, it fails on all ranks. After a failure the contents of ``tensor_list`` are
    undefined.

    Args:
        tensor_list: This rank's tensors, at least one: of one kind, dtype and number of elements.
            All ranks pass equally many.
        op: How elements are reduced, a `ReduceOp` or its name, such as "sum".
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    op = ReduceOp.of(op)
    tensors = _check(tensor_list, "tensor_list")
    result = tensor_lists.reduced(tensors, op)
    work = pg.start(AllReduce(result, _between_ranks(op)), timeout)
    total = pg.size * len(tensors)
    return _then(pg, work, lambda: _hand_over(result, op, total, tensors), tensors)


def reduce_multigpu(
    tensor_list: list[Tensor],
    dst: int,
    op: ReduceOp | str = ReduceOp.SUM,
    group: Group | None = None,
    dst_tensor: int = 0,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Reduce all tensors of all ranks into one tensor of one rank.

    AVG divides by the number of all tensors. All other tensors stay as they are. Cancelled, it
    fails on all ranks. After a failure the contents of the target's tensor are undefined.

    Args:
        tensor_list: This rank's tensors, at least one: of one kind, dtype and number of elements.
            All ranks pass equally many.
        dst: The target's global rank.
        op: How elements are reduced, a `ReduceOp` or its name, such as "sum".
        group: The process group; None is the default group.
        dst_tensor: The place in the target's ``tensor_list`` of the tensor that becomes the
            result.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    root = check_rank(pg, dst, None, "dst")
    op = ReduceOp.of(op)
    tensors = _filled(tensor_list, "tensor_list")
    place = check_index(dst_tensor, "dst_tensor", len(tensors), "tensor_list")
    written = [place] if pg.rank == root else []
    tensor_lists.check_alike(tensors, "tensor_list", written)
    result = tensor_lists.reduced(tensors, op)
    work = pg.start(Reduce(result, root, _between_ranks(op)), timeout)
    targets = [tensors[number] for number in written]
    total = pg.size * len(tensors)
    return _then(pg, work, lambda: _hand_over(result, op, total, targets), targets)


def all_gather_multigpu(
    output_tensor_lists: list[list[Tensor]],
    input_tensor_list: list[Tensor],
    group: Group | None = None,
    *,
    timeout: Timeout = None,
) -> Work[None]:
    """Gather all tensors of all ranks, once for each tensor of this rank.

    Element j of rank k stands at ``output_tensor_lists[i][k * len(input_tensor_list) + j]`` for
    every i. Cancelled, it fails on all ranks. After a failure the contents of
    ``output_tensor_lists`` are undefined.

    Args:
        output_tensor_lists: For each tensor of this rank a list of that number times the group's
            size tensors.
        input_tensor_list: This rank's tensors, at least one: of one kind, dtype and number of
            elements. All ranks pass equally many.
        group: The process group; None is the default group.
        timeout: Seconds or a timedelta; None is the group's timeout, ``math.inf`` no limit.

    Raises:
        InvalidUsageError: The arguments do not fit together. Nothing has been sent.
        CollectiveError: Ranks disagree, a rank is lost or has cancelled, the group has ended, or
            time ran out.
    """
    pg = current_world().group(group)
    inputs = _filled(input_tensor_list, "input_tensor_list")
    tensor_lists.check_alike(inputs, "input_tensor_list", written=())
    n = len(inputs)
    outputs = check_list(output_tensor_lists, "output_tensor_lists")
    if len(outputs) != n:
        raise InvalidUsageError(
            f"output_tensor_lists has {len(outputs)} lists; it must have {n}, one for each of "
            "input_tensor_list"
        )
    for i, row in enumerate(outputs):
        name = f"output_tensor_lists[{i}]"
        if len(check_list(row, name)) != n * pg.size:
            raise InvalidUsageError(
                f"{name} has {len(row)} tensors; it must have {n * pg.size}: {n} (as "
                f"input_tensor_list) for each of the group's {pg.size} ranks"
            )
        places = range(1, len(row) + 1)
        tensor_lists.check_alike([inputs[0], *row], f"[input_tensor_list[0], *{name}]", places)
    first, *others = outputs
    rows = [first[k * n : (k + 1) * n] for k in range(pg.size)]
    given = tensor_lists.together(inputs)
    work = pg.start(AllGatherCoalesced(rows, given), timeout)

    def copy() -> None:
        for row in others:
            for target, source in zip(row, first, strict=True):
                tensor_lists.assign(target, source)

    return _then(pg, work, copy, [target for row in others for target in row])


def _then(
    pg: GroupEngine, work: Work[None], job: Callable[[], None], targets: Sequence[Tensor]
) -> Work[None]:
    """Return a work that is ``work``, then ``job()``, which fills ``targets`` on the caller's stream."""
    begin = on_callers_stream(tensor_lists.begin)

    async def finish() -> None:
        await until(pg, begin(job, targets))

    return following(pg.world.loop, work, finish)


def _check(tensors: Any, name: str) -> list[Tensor]:
    checked = _filled(tensors, name)
    tensor_lists.check_alike(checked, name)
    return checked


def _filled(tensors: Any, name: str) -> list[Tensor]:
    checked = check_list(tensors, name)
    if not checked:
        raise InvalidUsageError(f"{name} is empty; it must have a tensor for each device")
    return checked


def _between_ranks(op: ReduceOp) -> ReduceOp:
    # An average of averages would round twice.
    return ReduceOp.SUM if op.kind is RedOpType.AVG else op


def _hand_over(result: Tensor, op: ReduceOp, total: int, targets: Sequence[Tensor]) -> None:
    """Finish the reduction over all ranks in ``result``, and copy it to ``targets``."""
    if op.kind is RedOpType.AVG and targets:
        tensor_lists.divide(result, total)
    for target in targets:
        tensor_lists.assign(target, result)
