"""Small collectives that are over before anything is made for them, beside those that are not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import aiodist as dist
from aiodist.backends.plans import GroupShape, all_to_all_plan
from aiodist.collectives.all_reduce_slots import AllReduceSlots
from aiodist.collectives.broadcast_shared import PIECE_BYTES, BroadcastSlots
from aiodist.collectives.select import SHARED_RULES
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.operation import Opened
from aiodist.groups.shm_collective import ShmCollective, announce
from aiodist.groups.shm_words import STEP_BITS
from aiodist.groups.world import current_world
from aiodist.p2p import spin_policy
from aiodist.shm.group_area import LARGEST_SLOT_BYTES, SLOT_BYTES, SLOT_TAGS, SLOTS
from aiodist.shm.shared_memory import SharedMemory
from aiodist.tensors import Buffer
from aiodist.tensors.dtypes import dtype_named
from aiodist.testing.in_process import run_ranks
from tests.backends.at_once import native
from tests.engine.conftest import outcome
from tests.limits import until

Array = npt.NDArray[np.float64]
Check = Callable[[], bool]

OPS = {
    dist.ReduceOp.SUM: lambda values: sum(values),
    dist.ReduceOp.AVG: lambda values: sum(values) / len(values),
    dist.ReduceOp.PRODUCT: np.prod,
    dist.ReduceOp.MAX: max,
    dist.ReduceOp.MIN: min,
}


async def meet() -> None:
    """All ranks' memory is open, and none is in an operation."""
    await dist.barrier()
    await dist.barrier()


def kinds(rank: int, size: int) -> dict[str, Callable[[], tuple[dist.Work[None], Check]]]:
    """Each small collective: what starts it, and whether its results are right on this rank."""

    def row(r: int, count: int = 3) -> np.ndarray:
        return np.arange(count, dtype=np.float32) + 10 * r

    def barrier() -> tuple[dist.Work[None], Check]:
        return dist.barrier(), lambda: True

    def all_reduce() -> tuple[dist.Work[None], Check]:
        data = row(rank)
        expected = sum(row(r) for r in range(size))
        return dist.all_reduce(data), lambda: bool((data == expected).all())

    def reduce() -> tuple[dist.Work[None], Check]:
        data, root = row(rank), size - 1
        expected = sum(row(r) for r in range(size)) if rank == root else row(rank)
        return dist.reduce(data, root), lambda: bool((data == expected).all())

    def broadcast() -> tuple[dist.Work[None], Check]:
        data = row(rank)
        return dist.broadcast(data, 1), lambda: bool((data == row(1)).all())

    def all_gather() -> tuple[dist.Work[None], Check]:
        out = np.zeros((size, 3), np.float32)
        expected = np.stack([row(r) for r in range(size)])
        return dist.all_gather_into_tensor(out, row(rank)), lambda: bool((out == expected).all())

    def all_gather_of_unequal() -> tuple[dist.Work[None], Check]:
        outs = [np.zeros(r + 1, np.float32) for r in range(size)]
        work = dist.all_gather(outs, row(rank, rank + 1))
        return work, lambda: all((out == row(r, r + 1)).all() for r, out in enumerate(outs))

    def reduce_scatter() -> tuple[dist.Work[None], Check]:
        out, data = np.zeros(3, np.float32), np.concatenate([row(rank + r) for r in range(size)])
        expected = sum(row(r + rank) for r in range(size)) / np.float32(size)
        work = dist.reduce_scatter_tensor(out, data, dist.ReduceOp.AVG)
        return work, lambda: bool((out == expected).all() and (data[:3] == row(rank)).all())

    def all_to_all() -> tuple[dist.Work[None], Check]:
        inputs = [row(10 * rank + r, (rank + r) % 3) for r in range(size)]
        outs = [np.zeros((rank + r) % 3, np.float32) for r in range(size)]
        work = dist.all_to_all(outs, inputs)
        return work, lambda: all(
            (out == row(10 * r + rank, len(out))).all() for r, out in enumerate(outs)
        )

    return {
        start.__name__: start
        for start in (
            barrier,
            all_reduce,
            reduce,
            broadcast,
            all_gather,
            all_gather_of_unequal,
            reduce_scatter,
            all_to_all,
        )
    }


KINDS = tuple(kinds(0, 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 3, 4])
async def test_the_last_to_call_has_ended_when_the_call_returns(size: int, kind: str) -> None:
    """A rank that needs no data of its peers has completed too.

    These are the root of a broadcast, and every rank of a reduce but its root.
    """
    called = [asyncio.Event() for _ in range(size)]
    at_once: set[int] = set()

    async def main(rank: int) -> None:
        await meet()
        if rank:
            await called[rank - 1].wait()
        work, is_right = kinds(rank, size)[kind]()
        if work.is_completed():
            at_once.add(rank)
        called[rank].set()
        await work
        assert is_right()

    await run_ranks(size, main, "shm", timeout=20)
    expected = {"broadcast": set(range(1, size)), "reduce": set(range(size))}
    assert at_once == expected.get(kind, {size - 1})


@pytest.mark.parametrize("size", [2, 3])
async def test_by_turns_each_rank_is_the_last(size: int) -> None:
    """Results are right whether a rank takes the cached path or the general one, early or late."""

    async def main(rank: int) -> None:
        await meet()
        starts = kinds(rank, size)
        for step in range(5 * size):
            for number, start in enumerate(starts.values()):
                for _ in range((step + number + rank) % size):
                    await asyncio.sleep(0)
                work, is_right = start()
                await work
                assert is_right(), (step, start.__name__)

    await run_ranks(size, main, "shm", timeout=20)


async def test_equal_calls_are_remembered_and_unequal_ones_told_apart() -> None:
    async def main(rank: int) -> None:
        await meet()
        for count in (2, 5, 2, 5):
            for dtype in (np.int32, np.float64):
                for root in range(2):
                    data = np.full(count, rank, dtype)
                    await dist.broadcast(data, root)
                    assert (data == root).all()
                for op, result in ((dist.ReduceOp.SUM, 3), (dist.ReduceOp.MAX, 2)):
                    data = np.full(count, rank + 1, dtype)
                    await dist.all_reduce(data, op)
                    assert (data == result).all()
                for factor in (2, 3):  # each premul_sum is another
                    data = np.full(count, rank + 1, dtype)
                    await dist.all_reduce(data, dist.ReduceOp.premul_sum(factor))
                    assert (data == 3 * factor).all()

    await run_ranks(2, main, "shm", timeout=20)


async def test_a_late_rank_does_not_keep_the_note_of_one_that_waited_long() -> None:
    """A rank that waits in an operation tells the others over the streams."""

    async def main(rank: int) -> None:
        await meet()
        group = current_world().default_group()
        if rank == 0:
            await until(lambda: 1 in group._announced)
        await dist.barrier()
        assert not group._announced
        await dist.barrier()

    await run_ranks(2, main, "shm", timeout=20)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.kind.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
async def test_results_of_the_cached_path_equal_those_of_the_general_path(
    op: dist.ReduceOp, dtype: str
) -> None:
    """Each rank in turn calls last and takes the cached path; the others take the general one."""
    bits: dict[int, list[bytes]] = {rank: [] for rank in range(3)}

    async def main(rank: int) -> None:
        await meet()
        for step in range(6):
            data = torch.full((2, 3), (rank + 2) / 4, dtype=getattr(torch, dtype))
            if step % 3 == rank:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            await dist.all_reduce(data, op)
            expected = OPS[op]([(r + 2) / 4 for r in range(3)])
            assert torch.allclose(data.double(), torch.full((2, 3), expected).double(), rtol=1e-2)
            bits[rank].append(bytes(data.view(torch.uint8).numpy().tobytes()))

    await run_ranks(3, main, "shm", timeout=20)
    assert bits[0] == bits[1] == bits[2]


def _plain(value: float) -> torch.Tensor:
    return torch.full((4,), value)


def _parameter(value: float) -> torch.Tensor:
    return torch.nn.Parameter(_plain(value))


def _in_columns(value: float) -> torch.Tensor:
    return torch.full((4, 2), value)[:, 0]


def _negated(value: float) -> torch.Tensor:
    return torch._neg_view(torch.full((4,), -value))


async def _reduced_twice(data: Any, rank: int) -> None:
    """Run three collectives on ``data``, which holds the number of the rank, from 1 on, of two ranks."""
    await dist.all_reduce(data)
    assert (data == 3).all()
    await dist.broadcast(data, 0)
    await dist.reduce(data, 1)
    assert (data == 3 + 3 * rank).all()


async def test_a_tensor_that_is_like_a_plain_one_but_not_plain_is_not_taken_for_one() -> None:
    async def main(rank: int) -> None:
        await meet()
        for make in (_plain, _in_columns, _negated, _parameter) * 2:
            for size in (4, 4, 5):
                await dist.all_reduce(torch.ones(size))
            await _reduced_twice(make(rank + 1.0), rank)
        with pytest.raises(dist.InvalidUsageError, match="layout"):
            dist.all_reduce(torch.ones(4).to_sparse())
        with pytest.raises(dist.InvalidUsageError, match="meta"):
            dist.all_reduce(torch.ones(4, device="meta"))
        with pytest.raises(TypeError, match="tensor must be"):
            dist.all_reduce([1.0] * 4)
        await meet()

    await run_ranks(2, main, "shm", timeout=20)


def _array(value: float) -> Array:
    return np.full(4, value)


def _backwards(value: float) -> Array:
    return np.full(4, value)[::-1]


def _array_in_columns(value: float) -> Array:
    return np.full((4, 2), value)[:, 0]


async def test_an_array_that_is_like_a_plain_one_but_not_plain_is_not_taken_for_one() -> None:
    async def main(rank: int) -> None:
        await meet()
        for make in (_array, _array_in_columns, _backwards) * 2:
            await _reduced_twice(make(rank + 1.0), rank)
        fixed = np.full(4, 7.0)
        fixed.flags.writeable = False
        with pytest.raises(dist.InvalidUsageError, match="read-only"):
            dist.all_reduce(fixed)
        data = np.zeros(4)
        await dist.broadcast(fixed if rank == 0 else data, 0)
        assert rank == 0 or (data == 7).all()
        await meet()

    await run_ranks(2, main, "shm", timeout=20)


PAIRS: dict[str, Callable[[Any, Any], dist.Work[None]]] = {
    "all_gather": dist.all_gather_into_tensor,
    "all_to_all": dist.all_to_all_single,
    "reduce_scatter": dist.reduce_scatter_tensor,
}


def _row_of_tensor(value: float, size: int) -> torch.Tensor:
    return torch.full((size,), value)


def _negated_column(value: float, size: int) -> torch.Tensor:
    return torch._neg_view(torch.full((size, 2), -value)[:, 0])


def _row_of_array(value: float, size: int) -> Array:
    return np.full(size, value)


def _column_of_array(value: float, size: int) -> Array:
    return np.full((size, 2), value)[:, 0]


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize(
    ("plain", "strange"),
    [(_row_of_tensor, _negated_column), (_row_of_array, _column_of_array)],
    ids=["torch", "numpy"],
)
async def test_either_of_two_may_be_like_a_plain_one_but_not_plain(
    kind: str, plain: Callable[[float, int], Any], strange: Callable[[float, int], Any]
) -> None:
    start = PAIRS[kind]

    def pair(rank: int, make: Callable[[float, int], Any]) -> list[Any]:
        short, long = make(rank + 1.0, 4), make(rank + 1.0, 8)
        if kind == "all_gather":
            return [long, short]
        return [short, long] if kind == "reduce_scatter" else [long, make(rank + 1.0, 8)]

    def expected() -> list[float]:
        return [3.0] * 4 if kind == "reduce_scatter" else [1.0] * 4 + [2.0] * 4

    async def main(rank: int) -> None:
        await meet()
        for step in range(12):
            make = [plain, plain, strange][step % 3]
            other = [plain, strange][step % 2]
            target, source = pair(rank, make)[0], pair(rank, other)[1]
            await start(target, source)
            assert target.tolist() == expected(), step
            with pytest.raises(dist.InvalidUsageError):
                start(target, torch.ones(3, dtype=torch.int16))
        await meet()

    await run_ranks(2, main, "shm", timeout=20)


async def test_a_closed_group_keeps_no_memory() -> None:
    async def main(rank: int) -> None:
        group = await dist.new_group()
        assert isinstance(group, dist.ProcessGroup)
        for _ in range(4):
            await dist.all_reduce(torch.ones(4), group=group)
        plans = native(group).plans.plans
        assert plans
        await dist.destroy_process_group(group)
        assert not plans

    await run_ranks(2, main, "shm", timeout=20)


DISAGREEMENTS: dict[str, Callable[[int], dist.Work[None]]] = {
    "count": lambda rank: dist.all_reduce(np.full(3 + rank, 1.0)),
    "operation": lambda rank: dist.barrier() if rank else dist.all_reduce(np.full(3, 1.0)),
    "count in an all_gather": lambda rank: dist.all_gather_into_tensor(
        np.zeros(6 + 2 * rank), np.zeros(3 + rank)
    ),
    "block of an all_to_all": lambda rank: dist.all_to_all(
        [np.zeros(2), np.zeros(2)], [np.zeros(2 if r == rank else 3) for r in range(2)]
    ),
    "op": lambda rank: dist.reduce_scatter_tensor(
        np.zeros(2), np.zeros(4), dist.ReduceOp.MAX if rank else dist.ReduceOp.MIN
    ),
    "count in a broadcast": lambda rank: dist.broadcast(np.zeros(3 + rank), 0),
}
NEEDS_NO_PEER = {("count in a broadcast", 0)}
"""Who may have gone on by then: rank 0, the root."""


@pytest.mark.parametrize("about", DISAGREEMENTS)
async def test_ranks_that_disagree_are_told_in_any_order_of_calls(about: str) -> None:
    async def main(rank: int) -> None:
        await meet()
        for last in range(2):
            await meet()
            if rank == last:
                await asyncio.sleep(0.01)
            error = await outcome(DISAGREEMENTS[about](rank))
            told = isinstance(error, dist.CollectiveMismatchError)
            assert told or (about, rank) in NEEDS_NO_PEER

    await run_ranks(2, main, "shm", timeout=20)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_1_mib_of_an_all_to_all_fits_with_its_lengths(size: int) -> None:
    shape, agreed = GroupShape(0, size, SHARED_RULES), Fingerprint("all_to_all")

    def room(length: int) -> int:
        opened: Opened[Buffer] = Opened((), (), out_of=[length] * size)
        return all_to_all_plan(shape, agreed, opened, None).room

    assert room((1 << 20) // size) <= LARGEST_SLOT_BYTES
    assert room((1 << 20) // size + 4096) > LARGEST_SLOT_BYTES


@pytest.mark.parametrize("second", [32 << 20, 8 << 20])
async def test_slots_are_large_where_all_ranks_have_room(
    monkeypatch: pytest.MonkeyPatch, second: int
) -> None:
    """Else what would have gone into them goes in chunks, on all ranks alike."""
    rooms, create = [32 << 20, second], SharedMemory.create
    monkeypatch.setattr(SharedMemory, "create", lambda rank, _: create(rank, rooms[rank]))
    count = (LARGEST_SLOT_BYTES - 4096) // 4  # what an all_gather has for each rank
    values = np.arange(count, dtype=np.float32)

    async def rank(number: int) -> None:
        await meet()
        communicator = current_world().default_group().communicator
        assert communicator is not None
        has_room = min(rooms) == 32 << 20
        assert communicator.shape.slot_bytes == (LARGEST_SLOT_BYTES if has_room else SLOT_BYTES)
        for _ in range(3):
            used = communicator.chunks_used
            mine, half = values + number, values[: count // 2] + number
            await dist.all_reduce(half)  # more goes in chunks
            assert (half == 2 * values[: count // 2] + 1).all()
            await dist.reduce(mine, 1)
            assert mine[-1] == (2 * values[-1] + 1 if number else values[-1])
            mine = values + number
            await dist.broadcast(mine, 0)
            assert (mine == values).all()
            whole = np.empty((2, count), np.float32)
            await dist.all_gather_into_tensor(whole, mine + number)
            assert (whole == values + np.arange(2)[:, None]).all()
            await dist.reduce_scatter_tensor(half, values + number)
            assert (half == (2 * values + 1).reshape(2, -1)[number]).all()
            both = np.empty(count, np.float32)
            await dist.all_to_all_single(both, values + number)
            parts = values.reshape(2, -1)[number] + np.arange(2)[:, None]
            assert (both.reshape(2, -1) == parts).all()
            assert (communicator.chunks_used == used) == has_room
            used = communicator.chunks_used
            uneven = [np.empty(count * 3 // 2, np.float32), np.empty(4, np.float32)]
            await dist.all_gather(uneven, np.full(len(uneven[number]), number, np.float32))
            assert all((block == r).all() for r, block in enumerate(uneven))
            assert communicator.chunks_used > used  # the longest is too long for a slot, for all

    await run_ranks(2, rank, "shm")


async def test_a_sequence_of_cached_calls_lets_the_loop_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def alone(shm: ShmCollective, sequence: int, *_: object) -> None:
        shm.communicator.advance((sequence + 2 << STEP_BITS) - 1)

    async def main(rank: int) -> None:
        group = await dist.new_group()
        await dist.barrier(group)
        await dist.barrier(group)
        if rank == 0:
            monkeypatch.setattr(ShmCollective, "exchange", alone)
            monkeypatch.setattr(spin_policy, "TURN_NANOSECONDS", 10**18)  # but one
            turned, run_cached = asyncio.Event(), asyncio.Event()
            asyncio.get_running_loop().call_soon(turned.set)
            end = time.monotonic() + 10
            while not turned.is_set():
                await dist.barrier(group)
                assert time.monotonic() < end
            asyncio.get_running_loop().call_soon(run_cached.set)
            for _ in range(3):
                await dist.barrier(group)
            assert not run_cached.is_set()
            monkeypatch.undo()
        await meet()

    await run_ranks(2, main, "shm", timeout=20)


async def test_an_exception_on_the_short_way_is_the_operations_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rank's operation fails with it, and counts: the next ones find each other."""

    def broken(*_: object) -> bool:
        raise ArithmeticError

    async def main(rank: int) -> None:
        await meet()
        if rank:
            await asyncio.sleep(0.01)  # the last: the others wait already
            monkeypatch.setattr(AllReduceSlots, "finish", broken)
        error = await outcome(dist.all_reduce(np.full(3, 1.0)))
        monkeypatch.undo()
        assert isinstance(error, ArithmeticError) if rank else error is None
        data = np.full(3, 1.0)
        await dist.all_reduce(data)
        assert (data == 2).all()

    await run_ranks(2, main, "shm", timeout=20)


async def test_small_ones_behind_large_ones_keep_their_order() -> None:
    async def main(rank: int) -> None:
        await meet()
        for _ in range(5):
            large, small = np.full(300_000, 1.0), np.full(3, 1.0)
            works = [dist.all_reduce(large), dist.all_reduce(small), dist.barrier()]
            works += [dist.all_reduce(small), dist.all_reduce(large)]
            for work in works:
                await work
            assert (small == 9).all()
            assert (large == 9).all()

    await run_ranks(3, main, "shm", timeout=20)


async def test_the_recorder_lists_cached_calls_and_a_closed_group_refuses_them() -> None:
    async def main(rank: int) -> None:
        await meet()
        before = current_world().recorder.count
        data = np.ones(2)
        for _ in range(4):
            await dist.all_reduce(data)
        latest = current_world().recorder.latest(4)
        assert current_world().recorder.count == before + 4
        assert [record.sequence for record in latest] == sorted(
            (record.sequence for record in latest), reverse=True
        )
        assert all(record.created <= record.finished for record in latest)
        group = await dist.new_group()
        assert isinstance(group, dist.ProcessGroup)
        await dist.barrier(group)
        await dist.barrier(group)
        await dist.destroy_process_group(group)
        with pytest.raises(dist.GroupClosedError):
            dist.all_reduce(data, group=group)

    await run_ranks(2, main, "shm", timeout=20)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch, segment_bytes: Callable[[int], None]) -> list[slice]:
    """The pieces of broadcasts that are copied out, by any rank."""
    taken: list[slice] = []
    finish_piece = BroadcastSlots.finish_piece

    def spy(call: BroadcastSlots, piece: slice, *rest: Any) -> None:
        taken.append(piece)
        finish_piece(call, piece, *rest)

    monkeypatch.setattr(BroadcastSlots, "finish_piece", spy)
    segment_bytes(32 << 20)  # so that slots are large
    return taken


@pytest.mark.parametrize("more", [0, 4, 5 * PIECE_BYTES // 2])
async def test_a_long_slot_is_copied_out_in_pieces(taken: list[slice], more: int) -> None:
    data = np.arange((PIECE_BYTES + more) // 4, dtype=np.float32)
    publish = asyncio.Event()

    async def main(rank: int) -> None:
        await meet()
        if rank == 1:
            await dist.broadcast(data, 1)
            publish.set()
        else:
            await publish.wait()
            mine = np.zeros_like(data)
            assert dist.broadcast(mine, 1).is_completed()
            assert (mine == data).all()

    await run_ranks(2, main, "shm", timeout=20)
    ends = [piece.stop for piece in taken]
    assert ends == ([*range(PIECE_BYTES, data.nbytes, PIECE_BYTES), data.nbytes] if more else [])


def begin_a_broadcast(data: npt.NDArray[np.float32], there: int, copied: int) -> None:
    """As rank 0 does of its ``data``: it has copied in ``there`` bytes of it, and says ``copied``."""
    group = current_world().default_group()
    communicator, sequence = group.communicator, group.n_started
    assert communicator is not None
    what = Fingerprint("broadcast", dtype_named("float32"), root=0, count=data.size)
    communicator.slots[sequence % SLOTS][0][:there] = data.data.cast("B")[:there]
    tag, base = SLOT_TAGS[sequence % SLOTS], sequence + 1 << STEP_BITS
    announce(communicator.mine, tag, base, what.words, data.nbytes, copied)


@pytest.mark.parametrize("copied", [PIECE_BYTES, PIECE_BYTES - 1, 5 * PIECE_BYTES])
async def test_a_reader_whose_next_piece_is_late_waits_for_all_of_them(
    taken: list[slice], copied: int
) -> None:
    """``copied``: what rank 0 claims to have published; there is one piece of it, and it has four."""
    data = np.arange(PIECE_BYTES, dtype=np.float32)
    begun, asleep = asyncio.Event(), asyncio.Event()

    async def main(rank: int) -> None:
        await meet()
        if rank == 0:
            begin_a_broadcast(data, PIECE_BYTES, copied)
            begun.set()
            await asleep.wait()
            assert taken == ([slice(0, PIECE_BYTES)] if copied == PIECE_BYTES else [])
            await dist.broadcast(data, 0)
        else:
            mine = np.zeros_like(data)
            await begun.wait()
            work = dist.broadcast(mine, 0)
            assert not work.is_completed()
            asleep.set()
            await work
            assert (mine == data).all()

    await run_ranks(2, main, "shm", timeout=20)


async def test_a_reader_with_all_pieces_waits_for_nothing_more() -> None:
    """Also if the root has not come to say yet that all of it is there."""
    data = np.arange(PIECE_BYTES // 2, dtype=np.float32)  # two pieces
    begun, ended = asyncio.Event(), asyncio.Event()

    async def main(rank: int) -> None:
        await meet()
        if rank == 0:
            begin_a_broadcast(data, data.nbytes, data.nbytes)
            begun.set()
            await ended.wait()
            await dist.broadcast(data, 0)
        else:
            mine = np.zeros_like(data)
            await begun.wait()
            assert dist.broadcast(mine, 0).is_completed()
            assert (mine == data).all()
            ended.set()

    await run_ranks(2, main, "shm", timeout=20)
