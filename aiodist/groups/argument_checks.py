"""Checks of arguments that all operations share. Each raises at once and says what to do instead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, Protocol

from aiodist.errors import InvalidUsageError
from aiodist.groups.group_facts import GroupFacts


class Members(Protocol):
    """The ranks of a group."""

    rank: int
    """This process's number in the group."""
    size: int
    ranks: tuple[int, ...]
    """The global ranks of the members."""


class NumberedGroup(Members, GroupFacts, Protocol):
    """A group that knows the numbers of its members."""

    def group_rank(self, global_rank: int) -> int:
        """Return the group's number of ``global_rank``. Raises InvalidUsageError for a rank outside."""


def fill_list(objects: list[Any], arrived: Any) -> None:
    """Replace the entries of ``objects`` by those of ``arrived``, a list of the same length."""
    if type(arrived) is not list:
        raise InvalidUsageError(
            f"the object that arrived is a {type(arrived).__name__} and no list: receive it with "
            "recv_object"
        )
    if len(arrived) != len(objects):
        raise InvalidUsageError(
            f"{len(arrived)} objects arrived for a list of {len(objects)}; the lists must "
            "have one length on all ranks"
        )
    objects[:] = arrived


def fill_list_from(objects: list[Any], arrived: Any, source: int) -> int:
    """Do as `fill_list`, for a message from ``source``, and return that."""
    fill_list(objects, arrived)
    return source


def arrived(obj: Any) -> Any:
    """Return an object as it arrived."""
    return obj


def pickles(group: GroupFacts, allow_pickle: bool | None, weights_only: bool = False) -> bool:
    """Return ``allow_pickle``; where None, what ``init_process_group`` was told.

    ``weights_only``: if True, return False.
    """
    allowed = group.world.allow_pickle
    if allow_pickle is not None:
        allowed = check_bool(allow_pickle, "allow_pickle")
    if check_bool(weights_only, "weights_only"):
        if allow_pickle:
            raise InvalidUsageError(
                "allow_pickle=True allows what weights_only=True forbids; pass one of them"
            )
        return False
    return allowed


def check_mutable(objects: Any, name: str) -> list[Any]:
    """Return a list that is filled in place."""
    if not isinstance(objects, list):
        raise TypeError(
            f"{name} must be a list (it is filled in place), not {type(objects).__name__}"
        )
    return objects


def check_rank(
    group: NumberedGroup,
    global_rank: int | None,
    group_rank: int | None,
    name: str,
    *,
    default: int | None = None,
) -> int:
    """Return the group rank that ``name`` (src or dst) or ``group_name`` means.

    ``default``: the group rank where neither is given; None: one of them is required.
    """
    if isinstance(group_rank, bool):
        raise TypeError(
            f"group_{name} must be an int, not bool; torch's async_op stands in this place, and the "
            "async API has none: each operation starts at the call and returns an awaitable Work"
        )
    if global_rank is not None and group_rank is not None:
        raise InvalidUsageError(f"pass {name} or group_{name}, not both")
    if group_rank is not None:
        group_rank = check_int(group_rank, f"group_{name}")
        if not 0 <= group_rank < group.size:
            raise InvalidUsageError(
                f"group_{name} {group_rank} is out of range: group {group.group_name!r} has ranks 0 to "
                f"{group.size - 1}"
            )
        return group_rank
    if global_rank is None:
        if default is None:
            raise InvalidUsageError(f"pass {name} (a global rank) or group_{name}")
        return default
    if type(global_rank) is not int:
        global_rank = check_int(global_rank, name)
    if not 0 <= global_rank < group.world.size:
        raise InvalidUsageError(
            f"{name} {global_rank} is out of range: the world has ranks 0 to {group.world.size - 1}"
        )
    return group.group_rank(global_rank)


def check_other(group: NumberedGroup, rank: int, name: str) -> int:
    """Raise InvalidUsageError for a message to this rank itself."""
    if rank == group.rank:
        raise InvalidUsageError(
            f"{name} is this rank itself ({group.global_rank}); a message needs another rank"
        )
    return rank


def check_source(group: NumberedGroup, src: int | None, group_src: int | None) -> int | None:
    """Return the group rank that ``src`` or ``group_src`` means, None (any rank) where neither is given."""
    if src is None and group_src is None:
        return None
    return check_other(group, check_rank(group, src, group_src, "src"), "src")


def check_tag(tag: int) -> int:
    """Return a tag as it goes on the wire."""
    if type(tag) is not int:
        tag = check_int(tag, "tag")
    if not -(1 << 63) <= tag < 1 << 63:
        raise InvalidUsageError(f"tag must fit in 64 bits, got {tag}")
    return tag


def check_index(value: Any, name: str, size: int, of: str) -> int:
    """Return a place in the list ``of``, which has ``size`` entries."""
    place = check_int(value, name)
    if not 0 <= place < size:
        raise InvalidUsageError(f"{name} {place} is out of range: {of} has entries 0 to {size - 1}")
    return place


def check_list(items: Any, name: str, size: int | None = None, each: str = "rank") -> list[Any]:
    """Return a list or tuple; of ``size`` entries where that is given, one for each ``each``."""
    if not isinstance(items, (list, tuple)):
        has_rows = isinstance(items, Iterable) and not isinstance(items, (str, bytes))
        raise TypeError(
            f"{name} must be a list, not {type(items).__name__}"
            + (f": pass list({name})" if has_rows else "")
        )
    if size is not None and len(items) != size:
        raise InvalidUsageError(
            f"{name} has {len(items)} entries; it must have {size}, one for each {each} of the group"
        )
    return items if isinstance(items, list) else list(items)


def check_at_root(given: Any, name: str, group: Members, root: int) -> Any:
    """Return what the root has to pass. Raises InvalidUsageError if it is None."""
    if given is None:
        raise InvalidUsageError(f"{name} is required on the root, rank {group.ranks[root]}")
    return given


def check_root_list(items: Any, name: str, group: Members, root: int) -> list[Any] | None:
    """Return the list that only the root passes: required there, refused elsewhere unless empty."""
    if group.rank == root:
        return check_list(check_at_root(items, name, group, root), name, group.size)
    if items is not None and check_list(items, name):
        raise InvalidUsageError(
            f"{name} is for the root (rank {group.ranks[root]}) alone; pass None on this rank"
        )
    return None


def check_distinct(items: Sequence[Any], name: str) -> None:
    """Refuse a tensor that stands twice in a list that is written, as in ``[tensor] * size``."""
    if len(set(map(id, items))) == len(items):
        return
    first: dict[int, int] = {}
    for number, item in enumerate(items):
        before = first.setdefault(id(item), number)
        is_empty = 0 in getattr(item, "shape", ())  # of which nothing is written
        if before != number and not is_empty:
            raise InvalidUsageError(
                f"{name}[{before}] and {name}[{number}] are the same tensor, which cannot hold what "
                "comes for both; make one for each: [torch.empty_like(t) for _ in range(size)]"
            )


def check_ranks(
    ranks: Iterable[int], size: int, where: str = "the world", *, may_be_empty: bool = False
) -> tuple[int, ...]:
    """Return ranks that a call names, numbers below ``size`` in ``where``: distinct, at least one.

    ``may_be_empty``: whether a call may name none.
    """
    if not isinstance(ranks, Iterable) or isinstance(ranks, (str, bytes)):
        raise TypeError(f"ranks must be a list of ints, not {type(ranks).__name__}")
    chosen = tuple(check_int(rank, "each of ranks") for rank in ranks)
    for rank in chosen:
        if not 0 <= rank < size:
            raise InvalidUsageError(
                f"rank {rank} is out of range: {where} has ranks 0 to {size - 1}"
            )
    if len(set(chosen)) != len(chosen):
        raise InvalidUsageError(f"ranks must be distinct, got {list(chosen)}")
    if not chosen and not may_be_empty:
        raise InvalidUsageError("ranks is empty; name at least one rank")
    return chosen


def check_int(value: Any, name: str) -> int:
    """Return an integer of Python, numpy or torch as an int. Raises TypeError for others and for a bool."""
    if not isinstance(value, bool):
        try:
            return index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} must be an int, not {type(value).__name__}")


def check_count(value: Any, name: str) -> int:
    """Do as `check_int`. Raises InvalidUsageError for a number below 1."""
    count = check_int(value, name)
    if count < 1:
        raise InvalidUsageError(f"{name} must be at least 1, not {count}")
    return count


def check_bool(value: Any, name: str) -> bool:
    """Return ``value``. Raises TypeError unless it is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value
