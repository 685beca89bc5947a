"""Rows of moves: carried out, kept for equal calls on the same memory, and released."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aiodist.backends import view_cache
from aiodist.backends.view_cache import TensorViewCache
from aiodist.collectives.schedule import (
    READ,
    READ_REPOSTED,
    RELEASE,
    REPOST,
    WRITE,
    ScheduleRun,
    Step,
    operands_in_order,
)
from aiodist.collectives.views import DataView
from aiodist.completion import Pending
from aiodist.groups.shm_collective import ShmCollective
from tests.engine.conftest import ranks_of
from tests.limits import scaled
from tests.warm_python import WarmPython


def make_schedule(count: int = 3) -> Iterator[Step]:
    return ((RELEASE, 0, step, (), ()) for step in range(count))


def data() -> DataView:
    return DataView(memoryview(bytearray(8)))


def test_moves_are_kept_from_the_second_time_on() -> None:
    kept, first = TensorViewCache(), data()
    schedule = make_schedule()
    assert kept.keep(first, None, schedule) is schedule, "made as they are needed"
    assert first.schedule is None
    assert list(kept.keep(first, None, make_schedule())) == list(make_schedule())
    assert first.schedule == list(make_schedule())


def test_moves_on_other_memory_beside_are_others() -> None:
    kept, first, one, other = TensorViewCache(), data(), object(), object()
    for _ in range(2):
        kept.keep(first, one, make_schedule())
    assert first.schedule is not None
    schedule = make_schedule()
    assert kept.keep(first, other, schedule) is schedule
    assert first.schedule is None
    kept.keep(first, other, make_schedule(2))
    assert first.schedule == list(make_schedule(2))


def test_a_group_caches_a_bounded_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_cache, "MOST_STEPS", 10)
    kept = TensorViewCache()
    tensors = [data() for _ in range(4)]
    for tensor in tensors:
        for _ in range(2):
            kept.keep(tensor, None, make_schedule(4))
    assert [tensor.schedule is not None for tensor in tensors] == [True, True, False, False]
    schedule = make_schedule(4)
    assert kept.keep(tensors[3], None, schedule) is schedule, (
        "made as they are needed, as long as it is full"
    )
    # The first two are used no more, and the others again and again.
    for _ in range(view_cache.PATIENCE + 1):
        for tensor in tensors[2:]:
            kept.keep(tensor, None, make_schedule(4))
    assert [tensor.schedule is not None for tensor in tensors] == [False, False, True, True]
    kept.forget()
    assert [tensor.schedule for tensor in tensors] == [None] * 4


def test_more_moves_than_a_group_keeps_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_cache, "MOST_STEPS", 10)
    kept, long, short = TensorViewCache(), data(), data()
    for _ in range(4):
        assert len(list(kept.keep(long, None, make_schedule(11)))) == 11
    assert long.schedule is None
    for _ in range(2):
        kept.keep(short, None, make_schedule(4))
    assert short.schedule == list(make_schedule(4))


class Alone:
    """The words of chunks without waiting peers; ``said`` lists the calls made on them."""

    first = 0

    def __init__(self, fails: bool = False, free: bool = True) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.waits: dict[str, Pending[None]] = {}
        """What is not there when it is asked for first."""
        self._fails = fails
        self._free = free

    def may_begin(self) -> bool:
        return self._free

    def free(self, step: int) -> Pending[None] | None:
        return self._asked("free", step)

    def posted(self, rank: int, step: int, phase: int = 0) -> Pending[None] | None:
        if self._fails:
            raise TimeoutError
        return self._asked("posted", rank, step, phase)

    def post(self, step: int, phase: int = 0) -> None:
        self.said.append(("post", step, phase))

    def release(self, steps: int) -> None:
        self.said.append(("release", steps))

    def turn(self) -> Pending[None] | None:
        return self._asked("turn")

    def _asked(self, *what: Any) -> Pending[None] | None:
        self.said.append(what)
        return self.waits.pop(what[0], None)


@pytest.mark.parametrize("free", [True, False])
def test_the_first_chunk_is_written_before_all_have_met_where_it_may_be(free: bool) -> None:
    shm = Alone(free=free)
    run = ScheduleRun(shm, [(WRITE, 0, 0, (), ()), (WRITE, 0, 1, (), ())])
    run.begin()
    assert shm.said == ([("free", 0), ("post", 0, 0)] if free else [])
    assert run.advance() is None
    assert [what for what, *_ in shm.said] == ["free", "post", "free", "post"]
    shm = Alone(free=free)
    run = ScheduleRun(shm, [(READ, 1, 0, (), ())])
    run.begin()
    assert not shm.said
    assert run.advance() is None
    assert [what for what, *_ in shm.said] == ["posted"]


def test_a_schedule_that_must_wait_returns_the_wait_and_resumes_there() -> None:
    shm, done, into = Alone(), [], bytearray(4)
    shm.first = 10  # of earlier stretches of the operation
    shm.waits = {name: Pending() for name in ("free", "posted", "turn")}
    free, posted, turn = shm.waits.values()
    copy = memoryview(into), memoryview(b"data")
    run = ScheduleRun(
        shm,
        [
            (REPOST, 0, 0, (), [lambda: done.append("repost")]),
            (WRITE, 0, 1, [copy], [lambda: done.append(bytes(into))]),
            (READ_REPOSTED, 1, 0, (), [lambda: done.append("read")]),
            (RELEASE, 0, 1, (), [lambda: done.append("release")]),
            (REPOST, 0, 1, (), ()),
        ],
    )
    assert run.advance() is free
    assert done == ["repost"]
    assert run.advance() is posted
    assert done == ["repost", b"data"]
    assert run.advance() is turn
    assert run.released == 1
    assert done == ["repost", b"data", "read", "release"]
    assert run.advance() is None
    assert done == ["repost", b"data", "read", "release"]
    assert shm.said == [
        ("post", 10, 1),
        ("free", 11),
        ("free", 11),  # asked once more
        ("post", 11, 0),
        ("posted", 1, 10, 1),
        ("posted", 1, 10, 1),
        ("release", 11),
        ("turn",),
        ("post", 11, 1),
    ]
    assert run.advance() is None


def test_an_error_and_its_schedule_keep_no_shared_memory() -> None:
    shm, memory = Alone(fails=True), bytearray(8)

    def schedule() -> Iterator[Step]:
        view = memoryview(memory)
        yield WRITE, 0, 0, [(view[:4], memoryview(b"data"))], ()
        yield READ, 1, 0, [(view[4:], memoryview(b"more"))], ()

    run = ScheduleRun(shm, schedule())
    with pytest.raises(TimeoutError) as caught:
        run.advance()
    gc.collect()
    memory.append(0)  # BufferError where a view of it is alive
    assert run.advance() is None
    assert caught.value.__traceback__ is not None


def test_a_failed_wait_ends_the_schedule() -> None:
    communicator: Any = SimpleNamespace()
    shm, memory, lost = ShmCollective(communicator), bytearray(4), Pending[None]()
    steps = [(READ, 1, 0, [(memoryview(memory), memoryview(b"data"))], ())] * 2
    shm._run = ScheduleRun(Alone(), iter(steps))  # type: ignore[arg-type]
    body = shm.run_to_end(lost)
    assert body.send(None) is lost
    steps.clear()
    lost.fail(TimeoutError())
    with pytest.raises(TimeoutError) as caught:
        body.send(None)
    gc.collect()
    memory.append(0)  # BufferError where a view of it is alive
    assert caught.value.__traceback__ is not None


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_operands_are_reduced_as_soon_as_they_are_there(size: int) -> None:
    for rank in range(size):
        there, done = {rank}, []
        for other, ready in operands_in_order(rank, size):
            there.add(other)
            now = range(size - 1)[ready]
            assert all({*range(number + 2)} <= there for number in now)
            done += now
            assert len(done) == size - 1 or not {*range(len(done) + 2)} <= there, "one was left"
        assert done == list(range(size - 1))


ROUNDS = """
    import os
    import sys
    import torch
    import aiodist.sync as dist
    from aiodist.collectives import shm_exchange
    from aiodist.p2p import spin_policy

    # Each rank polls until its peers are there, so that all calls take the cached path.
    spin_policy.OVERSUBSCRIBED_SECONDS = 20.0
    shm_exchange.SPIN_BYTES = int(20.0 / spin_policy.BYTE_SECONDS)

    path, size = sys.argv[1], int(sys.argv[3])
    torch.set_num_threads(1)
    pids = []
    for rank in range(size):  # forked, so that torch is imported once
        pids.append(os.fork())
        if not pids[-1]:
            break
    else:
        sys.exit(any([os.waitpid(pid, 0)[1] for pid in pids]))
    dist.init_process_group("gloo", "file://" + path, rank=rank, world_size=size, timeout=60)
    count = 400_000 * size  # several chunks; of the blocks none fits into a slot
    whole, one, two = (torch.empty(count) for _ in range(3))
    part = torch.empty(count // size)
    mine = slice(rank * len(part), (rank + 1) * len(part))
    # Made, used, listed, carried out from the list. A call that finds its communicator busy lists
    # nothing, so there are more rounds than steps.
    for number in range(10):
        value = float(number + rank)
        total = sum(number + other for other in range(size))
        largest = number + size - 1

        for tensor in (whole, one, two):
            tensor.fill_(value)
        for tensor in (whole, one, two):
            dist.all_reduce(tensor)
        for tensor in (whole, one, two):
            assert (tensor == total).all(), "all_reduce"
        whole.fill_(value)
        dist.all_reduce(whole, dist.ReduceOp.MAX)
        assert (whole == largest).all(), "maximum"
        whole.fill_(value)
        dist.reduce(whole, size - 1)
        assert (whole == (total if rank == size - 1 else value)).all(), "reduce"
        whole.fill_(value)
        dist.broadcast(whole, size - 1)
        assert (whole == largest).all(), "broadcast"

        part.fill_(value)
        dist.all_gather_into_tensor(whole, part)
        for other, block in enumerate(whole.chunk(size)):
            assert (block == number + other).all(), "all_gather"
        given = one if number < 3 else two  # beside the same output
        given.copy_(torch.arange(count))
        dist.reduce_scatter_tensor(part, given)
        assert (part == torch.arange(count)[mine] * size).all(), "reduce_scatter"
        # Whose blocks are as long as all others', and goes from and to the same.
        one.copy_(torch.arange(count) + number + 10 * rank)
        dist.all_to_all_single(two, one)
        for other, block in enumerate(two.chunk(size)):
            assert (block == torch.arange(count)[mine] + number + 10 * other).all(), "all_to_all"
    backend = dist.group.WORLD._engine.backend
    # With NVIDIA's driver there it is one for all devices.
    kept = getattr(backend, "by_device", {}).get("cpu", backend).plans._shape.view_cache
    # Three tensors and a maximum, reduce, broadcast, and the three that have blocks.
    assert len(kept._kept) == 9, kept._kept
    dist.destroy_process_group()
    assert not kept._kept
    sys.stdout.write("right\\n")
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.extended), 3])
def test_equal_calls_on_the_same_memory_with_other_numbers(
    tmp_path: Path, size: int, warm_python: WarmPython
) -> None:
    with ranks_of(ROUNDS, 1, tmp_path, size, python=warm_python.command) as (parent,):
        output = parent.communicate(timeout=scaled(60))[0]
    assert parent.returncode == 0
    assert output == "right\n" * size


DISAGREEING = """
    import sys
    import numpy as np
    import aiodist.sync as dist
    from aiodist.collectives import shm_exchange
    from aiodist.p2p import spin_policy

    spin_policy.OVERSUBSCRIBED_SECONDS = 20.0
    shm_exchange.SPIN_BYTES = int(20.0 / spin_policy.BYTE_SECONDS)

    path, rank = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo", "file://" + path, rank=rank, world_size=2, timeout=60)
    block = 400_000  # in float64 more than a slot holds

    # The longest block, which rank 0 keeps, is not rank 1's: they do not take equal steps.
    lengths = [3 * block if rank == 0 else 2 * block, 2 * block][:: 1 - 2 * rank]
    for number in range(4):
        given = [np.full(length, 10.0 * rank + number) for length in lengths]
        found = [np.zeros(length) for length in lengths]
        dist.all_to_all(found, given)
        for other, data in enumerate(found):
            assert (data == 10.0 * other + number).all()

    # A rank that has other lengths than the other one has room for: an error, on both.
    own = np.zeros(2 * block * (1 + rank))
    for _ in range(3):
        group = dist.new_group([0, 1])
        try:
            dist.all_to_all_single(np.zeros_like(own), own, group=group)
        except dist.CollectiveMismatchError as error:
            print(str(error).replace(str(rank), "r"), flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.timeout(120)
def test_blocks_of_lengths_that_differ(tmp_path: Path) -> None:
    with ranks_of(DISAGREEING, 2, tmp_path) as ranks:
        outputs = [rank.communicate(timeout=scaled(60))[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0]
    for output in outputs:
        assert len(output.splitlines()) == 3, output
        assert "all_to_all" in output
