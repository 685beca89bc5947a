"""Objects over every operation that carries them."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import numpy as np
import pytest
import torch

import aiodist as dist
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.world import current_world
from aiodist.testing.in_process import run_ranks

SIZE = 3
ROOT = 2

VALUES: dict[str, Any] = {
    "None": None,
    "numbers": [0, -1, 1 << 70, -(1 << 70), 1.5, float("inf"), -0.0, 2 + 3j, True, False],
    "text": ["", "äöü", "\N{SNOWMAN}", "a" * 100_000],
    "bytes": [b"", b"\0\1", bytearray(b"xyz"), memoryview(b"abc").tobytes()],
    "list": [1, [2, [3, []]]],
    "tuple": (1, (2,), ()),
    "dict": {"a": 1, 2: "b", (3, 4): [5], None: {}},
    "set": {1, 2, 3},
    "frozenset": frozenset({1, frozenset({2})}),
    "range and slice": [range(1, 10, 2), slice(1, None, 3)],
    "collections": [OrderedDict(b=1, a=2), deque([1, 2], maxlen=5), Counter("aab")],
    "dates": [datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC), date(2024, 1, 2), timedelta(1, 2, 3)],
    "exact numbers": [Decimal("1.10"), Fraction(1, 3)],
    "names": [UUID(int=7), PurePosixPath("/a/b")],
    "ellipsis": [..., NotImplemented],
}


@dataclass
class Custom:
    value: int


class Made(dict[str, int]):
    """A subclass is not its base: it must not come back as one."""


def same(one: Any, two: Any) -> bool:
    """Equal in value and in type, all the way down."""
    if type(one) is not type(two):
        return False
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict):
        return list(map(repr, one)) == list(map(repr, two)) and all(
            same(a, b) for a, b in zip(one.values(), two.values(), strict=True)
        )
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and np.array_equal(one, two)
    return repr(one) == repr(two)


async def broadcast(rank: int, make: Callable[[int], Any], pickle: bool) -> None:
    objects = [make(0), make(1)] if rank == ROOT else [None, None]
    await dist.broadcast_object_list(objects, ROOT, allow_pickle=pickle)
    assert same(objects, [make(0), make(1)])


async def broadcast_one(rank: int, make: Callable[[int], Any], pickle: bool) -> None:
    mine = make(0) if rank == ROOT else None
    arrived = await dist.broadcast_object(mine, ROOT, allow_pickle=pickle)
    assert same(arrived, make(0))
    assert (arrived is mine) == (rank == ROOT)


async def all_gather(rank: int, make: Callable[[int], Any], pickle: bool) -> None:
    objects: list[Any] = [None] * SIZE
    await dist.all_gather_object(objects, make(rank), allow_pickle=pickle)
    assert same(objects, [make(number) for number in range(SIZE)])


async def gather(rank: int, make: Callable[[int], Any], pickle: bool) -> None:
    objects: list[Any] | None = [None] * SIZE if rank == ROOT else None
    await dist.gather_object(make(rank), objects, ROOT, allow_pickle=pickle)
    assert same(objects, [make(number) for number in range(SIZE)] if rank == ROOT else None)


async def scatter(rank: int, make: Callable[[int], Any], pickle: bool) -> None:
    output = [None, "left alone"]
    given = [make(number) for number in range(SIZE)] if rank == ROOT else None
    await dist.scatter_object_list(output, given, ROOT, allow_pickle=pickle)
    assert same(output, [make(rank), "left alone"])


async def send(rank: int, make: Callable[[int], Any], pickle: bool) -> None:
    if rank != ROOT:
        await dist.send_object_list([make(rank), rank], ROOT, allow_pickle=pickle)
        return
    for source in (None, None):
        objects = [None, None]
        sender = await dist.recv_object_list(objects, source, allow_pickle=pickle)
        assert same(objects, [make(sender), sender])


def plain(number: int) -> Any:
    return number


def late(number: int) -> Any:
    """Refused when more than a step of it has been packed."""
    return [*([[number]] * 100_000), Custom(number)]


Program = Callable[[int, Callable[[int], Any], bool], Awaitable[None]]
PROGRAMS: list[Program] = [broadcast, broadcast_one, all_gather, gather, scatter, send]


@pytest.mark.parametrize("program", PROGRAMS)
async def test_builtin_objects_come_back_unchanged(program: Program) -> None:
    async def on_rank(rank: int) -> None:
        for name, value in VALUES.items():

            def make(number: int, name: str = name, value: Any = value) -> Any:
                return {"of": number, "what": (name, value)}

            await program(rank, make, False)
            await dist.barrier()  # no rank is a value ahead where any rank's is received

    await run_ranks(SIZE, on_rank, timeout=20)


@pytest.mark.parametrize("transport", ["inproc", "tcp"])
@pytest.mark.parametrize("program", PROGRAMS)
async def test_tensors_and_arrays_inside(program: Program, transport: str) -> None:
    def make(number: int) -> Any:
        return {
            "tensor": torch.full((2, 3), number, dtype=torch.bfloat16),
            "none": torch.zeros(0, 3),
            "array": [np.full((3, 1), number, np.uint16), np.float32(number)],
            "large": torch.full((300_000,), float(number)),
        }

    await run_ranks(SIZE, lambda rank: program(rank, make, False), transport, timeout=20)


@pytest.mark.parametrize("make", [Custom, lambda n: [Custom(n)], lambda n: Made(a=n)])
@pytest.mark.parametrize("program", PROGRAMS)
async def test_own_classes_where_pickle_is_allowed(program: Program, make: Any) -> None:
    await run_ranks(SIZE, lambda rank: program(rank, make, True), timeout=20)


@pytest.mark.parametrize("transport", ["inproc", "tcp"])
@pytest.mark.parametrize("make", [Custom, lambda n: [Custom(n)], late], ids=["own", "in", "late"])
@pytest.mark.parametrize("program", PROGRAMS)
async def test_an_object_that_one_rank_refuses_fails_on_all_ranks(
    program: Program, make: Any, transport: str
) -> None:
    """The sender raises why, those that wait for it are told, and the next operation works."""
    refusing = ROOT if program in (broadcast, broadcast_one, scatter) else 0
    told = []

    async def on_rank(rank: int) -> None:
        if rank == refusing:
            with pytest.raises(TypeError, match="allow_pickle=True"):
                await program(rank, make, False)
        else:
            try:
                await program(rank, plain, False)
            except dist.DistBackendError as error:
                told.append((rank, error))
        one = torch.ones(1)
        await dist.all_reduce(one)
        assert one.item() == SIZE

    await run_ranks(SIZE, on_rank, transport, timeout=20)
    waiting = {gather: [ROOT], send: [ROOT]}.get(program, [r for r in range(SIZE) if r != refusing])
    assert {rank for rank, _ in told} >= set(waiting)
    for _, error in told:
        assert re.search(r"rank \d.*TypeError.*allow_pickle=True", str(error))
        assert error.rank == refusing


class TurnGate:
    """Lets each collective begin in the next turn of the loop, as MPI does once all ranks agree."""

    def __init__(self, group: GroupEngine) -> None:
        self._group = group

    async def enter(self, context: Any) -> None:
        await self._group.next_turn()

    def leave(self, context: Any) -> None:
        pass


async def test_an_object_is_refused_with_its_reason_where_the_collective_begins_later() -> None:
    async def on_rank(rank: int) -> None:
        group = current_world().default_group()
        group.use_messenger(group.endpoint, TurnGate(group))
        if rank == 0:
            with pytest.raises(TypeError, match="does not travel exactly as it is"):
                dist.broadcast_object(object())
        else:
            with pytest.raises(dist.CollectiveError, match="failed on rank 0: TypeError"):
                await dist.broadcast_object()
        await dist.barrier()

    await run_ranks(2, on_rank)


async def test_an_object_that_is_refused_keeps_its_place_among_the_messages() -> None:
    async def on_rank(rank: int) -> None:
        if rank == 0:
            await dist.send_object_list(["first"], 1)
            with pytest.raises(TypeError):
                dist.send_object_list([Custom(2)], 1)
            await dist.send_object_list(["third"], 1)
            return
        objects = [None]
        await dist.recv_object_list(objects, 0)
        assert objects == ["first"]
        with pytest.raises(dist.DistBackendError, match="rank 0 could not send an object: TypeE"):
            await dist.recv_object_list(objects, 0)
        await dist.recv_object_list(objects, 0)
        assert objects == ["third"]

    await run_ranks(2, on_rank, timeout=20)


async def test_pickle_has_to_be_allowed_by_the_receiver_too() -> None:
    async def on_rank(rank: int) -> None:
        objects = [Custom(1)] if rank == ROOT else [None]
        if rank == ROOT:
            try:
                await dist.broadcast_object_list(objects, ROOT, allow_pickle=True)
            except dist.CollectiveError:
                pass  # told by the others, if they were in time
        else:
            with pytest.raises((TypeError, dist.DistError), match="allow_pickle=True"):
                await dist.broadcast_object_list(objects, ROOT)
            assert objects == [None]
        one = torch.ones(1)
        await dist.all_reduce(one)
        assert one.item() == SIZE

    await run_ranks(SIZE, on_rank, timeout=20)


def only_weights(what: str, objects: list[Any], given: Any) -> dist.Work[Any]:
    """Start an operation of all ranks that brings ``given`` of one rank, or of all, into ``objects``."""
    if what == "broadcast_object_list":
        if given is not None:
            objects[:] = [given] * SIZE
        return dist.broadcast_object_list(objects, ROOT, weights_only=True)
    if what == "all_gather_object":
        return dist.all_gather_object(objects, given, weights_only=True)
    if what == "gather_object":
        at_root = objects if dist.get_rank() == ROOT else None
        return dist.gather_object(given, at_root, ROOT, weights_only=True)
    if what == "scatter_object_list":
        given = None if given is None else [given] * SIZE
        return dist.scatter_object_list(objects, given, ROOT, weights_only=True)
    if given is not None:
        return dist.send_object_list([given] * SIZE, 0, weights_only=True)
    return dist.recv_object_list(objects, ROOT, weights_only=True)


FROM_THE_ROOT = ("broadcast_object_list", "scatter_object_list", "send_object_list")
FROM_ALL = ("all_gather_object", "gather_object")


def given_by(what: str, rank: int, value: Any) -> Any:
    return value if what in FROM_ALL or rank == ROOT else None


def takes_part(what: str, rank: int) -> bool:
    return what != "send_object_list" or rank in (0, ROOT)


@pytest.mark.parametrize("what", FROM_THE_ROOT + FROM_ALL)
async def test_weights_only_refuses_pickle_that_the_world_allows(what: str) -> None:
    async def on_rank(rank: int) -> None:
        current_world().allow_pickle = True
        objects: list[Any] = [None] * SIZE
        plain = {"step": 3, "weights": torch.ones(2)}
        if takes_part(what, rank):
            await only_weights(what, objects, given_by(what, rank, plain))
            for arrived in objects:
                assert arrived is None or same(arrived, plain)
            before, given = [*objects], given_by(what, rank, Custom(1))
            if given is not None:
                with pytest.raises(TypeError, match="allow_pickle=True"):
                    await only_weights(what, objects, given)
            else:
                with pytest.raises(dist.DistBackendError, match=r"rank 2.*TypeError"):
                    await only_weights(what, objects, given)
                assert same(objects, before)
        one = torch.ones(1)
        await dist.all_reduce(one)
        assert one.item() == SIZE

    await run_ranks(SIZE, on_rank, timeout=20)


async def test_weights_only_refuses_what_another_rank_has_pickled() -> None:
    async def on_rank(rank: int) -> None:
        current_world().allow_pickle = True
        if rank == 0:
            await dist.send_object_list([Custom(1)], 1)
            await dist.send_object_list([2], 1)
        else:
            objects = [None]
            with pytest.raises(TypeError, match="allow_pickle=True"):
                await dist.recv_object_list(objects, 0, weights_only=True)
            assert objects == [None]
            await dist.recv_object_list(objects, 0, weights_only=True)
            assert objects == [2]

    await run_ranks(2, on_rank, timeout=20)


async def test_lists_of_other_lengths_are_told_apart() -> None:
    async def on_rank(rank: int) -> None:
        if rank == 0:
            await dist.send_object_list([1, 2], 1)
        else:
            with pytest.raises(dist.DistError, match="2 objects arrived for a list of 3"):
                await dist.recv_object_list([None] * 3, 0)
        await dist.barrier()

    await run_ranks(2, on_rank, timeout=20)


async def test_objects_are_read_when_the_operation_starts() -> None:
    """What is changed before the await has gone out as it was."""

    async def on_rank(rank: int) -> None:
        mine = [rank]
        objects: list[Any] = [None] * 2
        work = dist.all_gather_object(objects, mine)
        mine.append(99)
        await work
        assert objects == [[0], [1]]

    await run_ranks(2, on_rank, timeout=20)


async def test_one_value_twice_in_a_list_and_defaultdicts() -> None:
    async def on_rank(rank: int) -> None:
        twice = [1]
        objects: list[Any] = [None] * 2
        await dist.all_gather_object(objects, [twice, twice, dict(defaultdict(list, a=[1]))])
        assert objects == [[[1], [1], {"a": [1]}]] * 2

    await run_ranks(2, on_rank, timeout=20)
