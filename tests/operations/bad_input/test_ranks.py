"""Ranks, tags and timeouts."""

from __future__ import annotations

import aiodist as dist
from aiodist.errors import InvalidUsageError
from tests.operations.bad_input.calls import (
    ME,
    Call,
    Entry,
    check_refused,
    each,
    t,
)

ENTRIES: list[Entry] = [
    ("no src", lambda h: dist.broadcast(t(4)), InvalidUsageError, "pass src"),
    ("no dst", lambda h: dist.reduce(t(4)), InvalidUsageError, "pass dst"),
    ("send without dst", lambda h: dist.send(t(4)), InvalidUsageError, "pass dst"),
    (
        "src out of range",
        lambda h: dist.broadcast(t(4), 3),
        InvalidUsageError,
        "src 3 is out of range: the world has ranks 0 to 2",
    ),
    ("src negative", lambda h: dist.broadcast(t(4), -1), InvalidUsageError, "src -1 is out of"),
    (
        "group_dst out of range",
        lambda h: dist.reduce(t(4), group_dst=2, group=h.pair),
        InvalidUsageError,
        "group_dst 2 is out of range: .* has ranks 0 to 1",
    ),
    (
        "src not in the group",
        lambda h: dist.broadcast(t(4), 0, h.pair),
        InvalidUsageError,
        r"rank 0 is not in group .*, whose ranks are \[",
    ),
    (
        "src and group_src",
        lambda h: dist.broadcast(t(4), 0, group_src=0),
        InvalidUsageError,
        "pass src or group_src, not both",
    ),
    (
        "dst and group_dst",
        lambda h: dist.gather(t(4), None, 0, group_dst=0),
        InvalidUsageError,
        "pass dst or group_dst, not both",
    ),
    ("src a string", lambda h: dist.broadcast(t(4), "0"), TypeError, "src must be an int, not str"),
    ("src a float", lambda h: dist.broadcast(t(4), 0.0), TypeError, "src must be an int"),
    (
        "send to oneself",
        lambda h: dist.send(t(4), ME),
        InvalidUsageError,
        r"dst is this rank itself \(1\)",
    ),
    (
        "isend to oneself in a group",
        lambda h: dist.isend(t(4), group_dst=dist.get_rank(h.pair), group=h.pair),
        InvalidUsageError,
        r"dst is this rank itself \(1\)",
    ),
    ("recv from oneself", lambda h: dist.recv(t(4), ME), InvalidUsageError, "src is this rank"),
    (
        "objects to oneself",
        lambda h: dist.send_object_list([1], ME),
        InvalidUsageError,
        "dst is this rank itself",
    ),
    ("tag a string", lambda h: dist.send(t(4), 0, tag="x"), TypeError, "tag must be an int"),
    ("tag None", lambda h: dist.recv(t(4), 0, tag=None), TypeError, "tag must be an int"),
    (
        "tag too large",
        lambda h: dist.send(t(4), 0, tag=1 << 70),
        InvalidUsageError,
        "tag must fit in 64 bits",
    ),
    (
        "negative timeout",
        lambda h: dist.all_reduce(t(4), timeout=-1),
        InvalidUsageError,
        "timeout must be positive, got -1; math.inf is no limit",
    ),
    (
        "timeout a string",
        lambda h: dist.barrier(timeout="1"),
        TypeError,
        "timeout must be a number of seconds",
    ),
    (
        "negative timeout of a receive",
        lambda h: dist.recv(t(4), 0, timeout=-0.5),
        InvalidUsageError,
        "timeout must be positive",
    ),
]


@each(ENTRIES)
async def test_bad_input(call: Call, error: type[Exception], words: str) -> None:
    await check_refused(call, error, words)
