"""Groups that are closed, foreign, or cannot be."""

from __future__ import annotations

import aiodist as dist
from aiodist.errors import GroupClosedError, InvalidUsageError
from tests.operations.bad_input.calls import (
    Call,
    Entry,
    check_refused,
    each,
    t,
)

ENTRIES: list[Entry] = [
    (
        "a closed group",
        lambda h: dist.all_reduce(t(4), group=h.closed),
        GroupClosedError,
        "was destroyed; make a new one",
    ),
    (
        "a send in a closed group",
        lambda h: dist.send(t(4), 0, h.closed),
        GroupClosedError,
        "was destroyed; make a new one",
    ),
    (
        "another rank's group",
        lambda h: dist.all_reduce(t(4), group=h.foreign),
        InvalidUsageError,
        "was made by another rank of this process",
    ),
    (
        "not a member",
        lambda h: dist.barrier(h.outside),
        InvalidUsageError,
        "rank 1 is not a member of this group; only its members may call this",
    ),
    (
        "not a member, to ask",
        lambda h: dist.get_process_group_ranks(h.outside),
        InvalidUsageError,
        "rank 1 is not a member of this group; only its members may call this",
    ),
    (
        "no group",
        lambda h: dist.barrier("pair"),
        TypeError,
        "group must be a ProcessGroup of aiodist, not str",
    ),
    (
        "a flag that is a text",
        lambda h: dist.monitored_barrier(wait_all_ranks="x"),
        TypeError,
        "wait_all_ranks must be True or False, not 'x'",
    ),
    (
        "ranks as a group",
        lambda h: dist.all_reduce(t(4), group=[0, 1]),
        TypeError,
        "group must be a ProcessGroup of aiodist, not list",
    ),
    ("no such rank", lambda h: dist.new_group([0, 3]), InvalidUsageError, "rank 3 is out of range"),
    ("a rank twice", lambda h: dist.new_group([0, 0]), InvalidUsageError, "must be distinct"),
    ("no rank", lambda h: dist.new_group([]), InvalidUsageError, "name at least one rank"),
    ("text for ranks", lambda h: dist.new_group("01"), TypeError, "list of ints, not str"),  # type: ignore[arg-type]
    ("a number for ranks", lambda h: dist.new_group(2), TypeError, "ranks must be a list"),
    ("ranks of strings", lambda h: dist.new_group(["0"]), TypeError, "must be an int, not str"),
    (
        "an unknown backend",
        lambda h: dist.new_group([0, 1], backend="smoke"),
        InvalidUsageError,
        "Invalid backend: 'smoke'. Known backends: 'aiodist', 'gloo'",
    ),
    (
        "a backend that is not here",
        lambda h: dist.new_group([0, 1], backend="mpi"),
        InvalidUsageError,
        "backend 'mpi' is not available",
    ),
    (
        "a negative timeout",
        lambda h: dist.new_group([0, 1], timeout=-1),
        InvalidUsageError,
        "timeout must be positive",
    ),
    (
        "a local group without this rank",
        lambda h: dist.new_group([0, 2], use_local_synchronization=True),
        InvalidUsageError,
        "only the members of the group may call",
    ),
    (
        "subgroups that do not divide",
        lambda h: dist.new_subgroups(2),
        InvalidUsageError,
        "group_size 2 does not divide the group's 3 ranks",
    ),
    (
        "subgroups of no ranks",
        lambda h: dist.new_subgroups(0),
        InvalidUsageError,
        "group_size 0 does not divide",
    ),
    (
        "subgroups that overlap",
        lambda h: dist.new_subgroups_by_enumeration([[0, 1], [1, 2]]),
        InvalidUsageError,
        "a rank may be in one subgroup only",
    ),
    (
        "subgroups as numbers",
        lambda h: dist.new_subgroups_by_enumeration([0, 1]),
        TypeError,
        "ranks must be a list of ints, not int",
    ),
    (
        "a split into nothing",
        lambda h: dist.split_group(h.pair, []),
        InvalidUsageError,
        "split_ranks is required",
    ),
    (
        "a split by global ranks",
        lambda h: dist.split_group(h.pair, [[1, 2]]),
        InvalidUsageError,
        "rank 2 is out of range: the parent group has ranks 0 to 1",
    ),
    (
        "a group rank out of range",
        lambda h: dist.get_global_rank(h.pair, 2),
        InvalidUsageError,
        "group rank 2 is out of range",
    ),
    (
        "a global rank outside",
        lambda h: dist.get_group_rank(h.pair, 0),
        InvalidUsageError,
        "rank 0 is not in group",
    ),
]


@each(ENTRIES)
async def test_bad_input(call: Call, error: type[Exception], words: str) -> None:
    await check_refused(call, error, words)
