"""A model's and an optimizer's state, from one rank to all others of a group."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from aiodist.api.collectives import Timeout
from aiodist.deadline import to_seconds
from aiodist.errors import DistError, InvalidUsageError
from aiodist.groups.argument_checks import check_rank, fill_list
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.handle import Group
from aiodist.groups.object_operation import BroadcastObject
from aiodist.groups.operation import Broadcast, Tensor
from aiodist.groups.work import Work
from aiodist.groups.world import current_world
from aiodist.tensors import buffer_of, decode_meta, empty_like_message, encode_meta, is_tensor

log = logging.getLogger("aiodist")

Node = list[Any]
"""The description of a part of a state for the other ranks: its kind and its contents."""

_TENSOR, _DICT, _LIST, _TUPLE, _VALUE, _REFUSED = range(6)


async def sync_state(
    state_dict: Any,
    group: Group | None = None,
    src: int | None = None,
    group_src: int | None = None,
    *,
    timeout: Timeout = None,
) -> Any:
    """Make ``state_dict`` on all ranks of a group bitwise equal to that of one.

    All call it, as a collective. On the other ranks ``state_dict`` is changed in place. A tensor
    of the same kind, dtype and shape is written into, so a model whose ``state_dict()`` is passed
    gets the source's parameters. Missing entries are added, and entries that the source does not
    have are removed. A rank that had tensors of another dtype or shape, or under other names, or
    that cannot be written, logs a warning: its model does not get the source's. A namedtuple stays
    one where this rank has one of as many fields.

    It consists of several operations. After a failure or a cancellation the state is a mixture, and
    ranks may have started different numbers of them: call it again on a new group, such as `shrink` makes.

    Args:
        state_dict: Dicts, lists and tuples of tensors (or arrays) and of what objects may hold,
            such as ``model.state_dict()``, ``optimizer.state_dict()``, or both in one dict.
        group: The process group; None is the default group.
        src: The source's global rank. If neither it nor ``group_src`` is given: the first member
            that is no newcomer, the one to ask after `grow` and `rejoin`.
        group_src: The source's rank in the group, in place of ``src``.
        timeout: Limit of each of its operations: seconds or a timedelta; None is the group's timeout.

    Returns:
        ``state_dict``; another object where it is neither dict nor list.

    Raises:
        CollectiveError: What `broadcast` and `broadcast_object_list` raise.
        InvalidUsageError: A tensor of the source cannot travel, a sparse one for instance. All ranks
            raise it.
        TypeError: A part of the state cannot travel, a DTensor for instance. The other ranks raise
            InvalidUsageError or CollectiveError.
    """
    pg = current_world().group_here(group)
    root = check_rank(pg, src, group_src, "src", default=_healthy(pg))
    seconds = to_seconds(timeout)
    tensors: list[Tensor] = []
    plan: list[Any] = [None]
    refused: DistError | TypeError | None = None
    if pg.rank == root:
        try:
            plan[0] = _describe(state_dict, tensors)
        except (DistError, TypeError) as error:
            # The other ranks wait for the state, so they have to know.
            plan[0], refused = [_REFUSED, str(error)], error
    fill = partial(fill_list, plan)
    name, pickle = "broadcast_object_list", pg.world.allow_pickle
    await pg.start(BroadcastObject(name, plan, fill, root, pickle), seconds)
    if refused is not None:
        raise refused
    if pg.rank != root:
        if plan[0][0] == _REFUSED:
            raise InvalidUsageError(
                f"the state of rank {pg.ranks[root]} cannot travel: {plan[0][1]}"
            )
        rebuilding = _Rebuilding()
        state_dict, tensors = rebuilding.part(plan[0], state_dict), rebuilding.tensors
        if rebuilding.unused:
            log.warning(
                "sync_state: rank %d had %d tensors that do not fit the state of rank %d, one at "
                "state_dict%s. They were taken out; a model that they belong to keeps their values: is it "
                "the same model on both ranks?",
                *(pg.global_rank, len(rebuilding.unused), pg.ranks[root], min(rebuilding.unused)),
            )
    works: list[Work[None]] = []
    try:
        works.extend(pg.start(Broadcast(tensor, root), seconds) for tensor in tensors)
        for work in works:
            await work
    except BaseException:
        for work in works:  # else they would write to the state after the end of this call
            work.cancel()
        raise
    return state_dict


def _healthy(group: GroupEngine) -> int:
    """Return the first member that was in the group before the last `grow`."""
    for number, rank in enumerate(group.ranks):
        if rank not in group.newcomers:
            return number
    return 0


def _describe(part: Any, tensors: list[Tensor]) -> Node:
    """Return ``part`` without the memory of its tensors, and append those to ``tensors``."""
    if is_tensor(part):
        tensors.append(part)
        return [_TENSOR, encode_meta(buffer_of(part, "a tensor of state_dict", writable=False))]
    if isinstance(part, dict):
        return [_DICT, [[key, _describe(value, tensors)] for key, value in part.items()]]
    if isinstance(part, list):
        return [_LIST, [_describe(value, tensors) for value in part]]
    if isinstance(part, tuple):
        return [_TUPLE, [_describe(value, tensors) for value in part]]
    return [_VALUE, part]


class _Rebuilding:
    """The state of another rank, made in the memory of this rank's as far as that fits."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        """Those of the result, which are not filled yet."""
        self.unused: list[str] = []
        """Where this rank had tensors that the result does not have."""

    def part(self, node: Node, mine: Any, place: str = "") -> Any:
        """Return what ``node`` describes, in ``mine`` as far as that fits. ``place``: that in the state."""
        kind, content = node
        if kind == _TENSOR:
            tensor = mine
            if not _fits(mine, content):
                tensor = empty_like_message(*decode_meta(content)).owner
                self._drop(mine, place)
            self.tensors.append(tensor)
            return tensor
        if kind == _DICT:
            target = mine if isinstance(mine, dict) else {}
            built = {
                key: self.part(value, target.get(key), f"{place}[{key!r}]")
                for key, value in content
            }
            for key in target.keys() - built.keys():
                self._drop(target[key], f"{place}[{key!r}]")
            target.clear()
            target.update(built)
            return target
        if kind == _VALUE:
            return content
        old = list(mine) if isinstance(mine, (list, tuple)) else []
        old += [None] * (len(content) - len(old))
        items = [self.part(each, old[i], f"{place}[{i}]") for i, each in enumerate(content)]
        if kind == _TUPLE:
            alike = isinstance(mine, tuple) and len(mine) == len(items)
            return getattr(mine, "_make", tuple)(items) if alike else tuple(items)
        if isinstance(mine, list):
            mine[:] = items
            return mine
        return items

    def _drop(self, mine: Any, place: str) -> None:
        if is_tensor(mine):
            self.unused.append(place)


def _fits(mine: Any, meta: bytes) -> bool:
    if not is_tensor(mine):
        return False
    try:
        own = encode_meta(buffer_of(mine, "state_dict", writable=True, load=False))
    except (DistError, TypeError):
        return False  # an error on this rank alone would let the other ranks wait
    return own == meta
