"""Operations as torch's functions call them, from Python, from C++ and from compiled code."""

from __future__ import annotations

import time
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from tests.torch_backend.programs.ddp import default_store, error_of

DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


def total(size: int) -> int:
    return sum(range(1, size + 1))


def every_operation(rank: int, size: int) -> None:
    """Each with each dtype, blocking and not."""
    for dtype in DTYPES:
        for asynchronous in (False, True):
            _each(rank, size, dtype, asynchronous)


def _each(rank: int, size: int, dtype: torch.dtype, asynchronous: bool) -> None:
    def do(function: Any, *args: Any, **options: Any) -> None:
        work = function(*args, async_op=asynchronous, **options)
        if asynchronous:
            assert work.wait()
            assert work.is_completed()
            assert work.exception() is None

    def mine() -> torch.Tensor:
        return torch.full((2, 3), rank + 1).to(dtype)

    def full(value: int, *shape: int) -> torch.Tensor:
        return torch.full(shape or (2, 3), value).to(dtype)

    def check(found: torch.Tensor, expected: torch.Tensor) -> None:
        assert torch.equal(found, expected), (found, expected)

    everybody = [full(r + 1) for r in range(size)]
    stacked = torch.cat(everybody)

    t = mine()
    do(dist.all_reduce, t)
    check(t, full(total(size)))
    t = mine()
    do(dist.broadcast, t, size - 1)
    check(t, full(size))
    t = mine()
    do(dist.reduce, t, 1)
    check(t, full(total(size))) if rank == 1 else None
    places = [full(0) for _ in range(size)]
    do(dist.all_gather, places, mine())
    check(torch.cat(places), stacked)
    place = full(0, 2 * size, 3)
    do(dist.all_gather_into_tensor, place, mine())
    check(place, stacked)
    places = [full(0) for _ in range(size)]
    do(dist.gather, mine(), places if rank == 0 else None, 0)
    check(torch.cat(places), stacked) if rank == 0 else None
    if hasattr(dist, "gather_single"):  # since torch 2.15
        place = full(0, 2 * size, 3) if rank == 0 else None
        do(dist.gather_single, mine(), place, 0)
        check(place, stacked) if place is not None else None
    t = full(0)
    do(dist.scatter, t, everybody if rank == 0 else None, 0)
    check(t, mine())
    t = full(0)
    do(dist.reduce_scatter, t, everybody)
    check(t, full((rank + 1) * size))
    t = full(0)
    do(dist.reduce_scatter_tensor, t, stacked)
    check(t, full((rank + 1) * size))
    places = [full(0) for _ in range(size)]
    do(dist.all_to_all, places, [mine() for _ in range(size)])
    check(torch.cat(places), stacked)
    place = full(0, 2 * size, 3)
    do(dist.all_to_all_single, place, torch.cat([mine() for _ in range(size)]))
    check(place, stacked)
    do(dist.barrier)


def uneven_all_to_all(rank: int, size: int) -> None:
    """Rank r sends s + 1 rows to rank s; the outputs of the ranks differ in length."""
    rows = [s + 1 for s in range(size)]
    sent = torch.full((sum(rows), 2), float(rank))
    got = torch.zeros((rank + 1) * size, 2)
    dist.all_to_all_single(got, sent, [rank + 1] * size, rows)
    expected = [torch.full((rank + 1, 2), float(s)) for s in range(size)]
    assert torch.equal(got, torch.cat(expected))
    places = [torch.zeros(rank + 1, 2) for _ in range(size)]
    dist.all_to_all(places, list(sent.split(rows)))
    assert torch.equal(torch.cat(places), torch.cat(expected))


def short_forms(rank: int, size: int) -> None:
    """A tensor in place of a list, values in place of options: torch's own class takes both."""
    group: Any = dist.group.WORLD
    limit = timedelta(seconds=60)

    def mine() -> torch.Tensor:
        return torch.full((size, 2), rank + 1.0)

    def full(value: float) -> torch.Tensor:
        return torch.full((size, 2), float(value))

    for arguments, options, expected in [
        ((), {}, total(size)),
        ((dist.ReduceOp.MAX,), {}, size),
        ((dist.ReduceOp.MAX, limit), {}, size),
        ((), {"op": dist.ReduceOp.MAX, "timeout": limit}, size),
    ]:
        one, other = mine(), mine()
        group.allreduce(one, *arguments, **options).wait()
        group.allreduce([other], *arguments, **options).wait()
        assert torch.equal(one, full(expected))
        assert torch.equal(other, full(expected))
    one = mine()
    group.broadcast(one, 1, limit).wait()
    assert torch.equal(one, full(2))
    one = mine()
    group.broadcast([one]).wait()
    assert torch.equal(one, full(1))
    one = mine()
    group.reduce(one, root=1).wait()
    assert rank != 1 or torch.equal(one, full(total(size)))
    # As many rows as ranks: a tensor that is taken for a list would go unnoticed.
    gathered = [torch.zeros(size, 2) for _ in range(size)]
    group.allgather(gathered, mine()).wait()
    assert all(torch.equal(each, full(r + 1)) for r, each in enumerate(gathered))
    gathered = [torch.zeros(size, 2) for _ in range(size)] if rank == 1 else []
    group.gather(gathered, mine(), 1).wait()
    assert all(torch.equal(each, full(r + 1)) for r, each in enumerate(gathered))
    options = dist.distributed_c10d.GatherOptions()
    options.rootRank = 1
    place = torch.zeros(size * size, 2) if rank == 1 else None
    group.gather_single(place, mine(), options).wait()
    assert place is None or torch.equal(place, torch.cat([full(r + 1) for r in range(size)]))
    parts = [full(r + 1) for r in range(size)]
    one = torch.zeros(size, 2)
    group.scatter(one, parts if rank == 1 else [], 1).wait()
    assert torch.equal(one, mine())
    one = torch.zeros(size, 2)
    group.reduce_scatter(one, parts, dist.ReduceOp.MAX).wait()
    assert torch.equal(one, mine())
    ones, twos = torch.ones(size), torch.zeros(size)
    group.alltoall_base(twos, ones, [], [], limit).wait()
    assert torch.equal(twos, ones)
    group.barrier(limit).wait()
    group.barrier(timeout=limit).wait()


def keywords(rank: int, size: int) -> None:
    """Parameters have the names that torch's own class has."""
    group: Any = dist.group.WORLD
    limit = timedelta(seconds=60)
    no_splits: dict[str, Any] = {"output_split_sizes": [], "input_split_sizes": []}

    def gives(function: Any, **arguments: Any) -> None:
        """Check that ``function`` writes the first argument, a tensor or a list of some."""
        place = next(iter(arguments.values()))
        function(**arguments).wait()
        while isinstance(place, list):
            (place,) = place
        assert place.tolist() == [1.0], function

    def ones() -> torch.Tensor:
        return torch.ones(1)

    def zeros() -> torch.Tensor:
        return torch.zeros(1)

    gives(group.allreduce, tensors=[ones()], op=dist.ReduceOp.MAX)
    gives(group.allgather, output_tensors=[[zeros()]], input_tensors=[ones()])
    gives(group.allgather, output_tensors=[zeros()], input_tensor=ones(), timeout=limit)
    gives(group._allgather_base, output=zeros(), input=ones())
    gives(group.allgather_coalesced, output_lists=[[zeros()]], input_list=[ones()])
    gives(group.reduce_scatter, output_tensors=[zeros()], input_tensors=[[ones()]])
    gives(group.reduce_scatter, output=zeros(), input=[ones()])
    gives(group._reduce_scatter_base, outputTensor=zeros(), inputTensor=ones())
    gives(group.gather, output_tensors=[[zeros()]], input_tensors=[ones()])
    gives(group.gather, output_tensors=[zeros()], input_tensor=ones(), root=0)
    gives(group.gather_into_tensor, output=zeros(), input=ones())
    refusal = ""
    try:
        group.gather_single(zeros(), ones(), 1)
    except TypeError as error:
        refusal = str(error)
    assert "rootRank" in refusal
    gives(group.scatter, output_tensors=[zeros()], input_tensors=[[ones()]])
    gives(group.alltoall, output_tensors=[zeros()], input_tensors=[ones()])
    gives(group.alltoall_base, output=zeros(), input=ones(), **no_splits, timeout=limit)
    for call in (
        lambda: group.send(tensors=[ones()], dstRank=0, tag=0),
        lambda: group.recv(tensors=[ones()], srcRank=0, tag=0),
    ):
        assert "this rank itself" in error_of(call().wait)


def reductions(rank: int, size: int) -> None:
    mine = torch.tensor([rank + 1, 6 - rank])
    expected = {
        dist.ReduceOp.SUM: [total(size), 6 * size - total(size) + size],
        dist.ReduceOp.MIN: [1, 7 - size],
        dist.ReduceOp.MAX: [size, 6],
    }
    for op, numbers in expected.items():
        t = mine.clone()
        dist.all_reduce(t, op)
        assert t.tolist() == numbers, op
    t = mine.double()
    dist.all_reduce(t, dist.ReduceOp.AVG)
    assert t[0].item() == total(size) / size
    t = mine.double()
    dist.all_reduce(t, dist._make_nccl_premul_sum(0.5))
    assert t[0].item() == total(size) / 2
    sparse = torch.sparse_coo_tensor([[rank, size]], [1.0, 2.0], (size + 1,), check_invariants=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dist.all_reduce(sparse)
    assert sparse.is_coalesced()
    assert sparse.to_dense().tolist() == [1.0] * size + [2.0 * size]
    with torch.inference_mode():
        sparse = torch.sparse_coo_tensor([[rank]], [1.0], (size,), check_invariants=True)
        dist.all_reduce(sparse)
        assert sparse.to_dense().tolist() == [1.0] * size
    for dense in ((), (2,)):  # no dimension is sparse
        nowhere = torch.zeros((0, 1), dtype=torch.int64)
        sparse = torch.sparse_coo_tensor(nowhere, torch.ones((1, *dense)), dense)
        dist.all_reduce(sparse)
        assert sparse.to_dense().tolist() == torch.full(dense, float(size)).tolist()


def sparse_mismatches(rank: int, size: int) -> None:
    """A rank whose tensor is dense, or sparse in another way, is named on all ranks at once."""
    last = rank == size - 1

    def one_entry(*shape: int, dense: int = 0) -> torch.Tensor:
        places = torch.zeros((len(shape) - dense, 1), dtype=torch.int64)
        return torch.sparse_coo_tensor(
            places, torch.ones((1, *shape[len(shape) - dense :])), shape, check_invariants=True
        )

    for tensor in (
        torch.ones(2, 3) if last else one_entry(2, 3),
        one_entry(3, 2) if last else one_entry(2, 3),
        one_entry(2, 3, dense=1) if last else one_entry(2, 3),
    ):
        text = said(dist.all_reduce, tensor)
        assert f"rank {size - 1} called" in text, text
        assert "sparse_all_reduce(6 x float32, SUM, shape and sparse dimensions with" in text, text
        assert float(tensor.sum()) == (
            6 if tensor.layout is torch.strided else tensor.values().numel()
        )
        t = torch.ones(1)
        dist.all_reduce(t)
        assert t.item() == size


def other_dtypes(rank: int, size: int) -> None:
    """Dtypes that only travel, or that have few reductions."""
    flags = torch.tensor([rank == 0, False])
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    assert flags.tolist() == [True, False]
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32):
        t = torch.tensor([1, 2]).to(dtype) if rank == 0 else torch.zeros(2).to(dtype)
        dist.broadcast(t, 0)
        assert t.float().tolist() == [1.0, 2.0], dtype
    bits = torch.tensor([1 << rank, 7])
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    assert bits.tolist() == [(1 << size) - 1, 7]
    bits = torch.tensor([3, 7 - rank])
    dist.all_reduce(bits, dist.ReduceOp.BXOR)
    assert bits[0].item() == (3 if size % 2 else 0)


def messages(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    got = torch.zeros(4)
    sending = dist.isend(torch.full((4,), float(rank)), right, tag=3)
    assert dist.recv(got, left, tag=3) == left
    sending.wait()
    assert torch.equal(got, torch.full((4,), float(left)))
    got.zero_()
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((4,), float(rank)), right),
            dist.P2POp(dist.irecv, got, left),
        ]
    )
    for work in works:
        work.wait()
    assert torch.equal(got, torch.full((4,), float(left)))
    if rank == 0:
        sources = {dist.recv(got) for _ in range(size - 1)}
        assert sources == set(range(1, size))
    else:
        dist.send(torch.ones(4), 0)
    receiving = dist.irecv(got, left, tag=5)
    plus = receiving.get_future().then(lambda future: future.value()[0] + 1)
    dist.send(torch.full((4,), float(rank)), right, tag=5)
    assert torch.equal(plus.wait(), torch.full((4,), float(left + 1)))


def objects(rank: int, size: int) -> None:
    found: list[Any] = [None] * size
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": r} for r in range(size)]
    several = [rank, "text"] if rank == 0 else [None, None]
    dist.broadcast_object_list(several, 0)
    assert several == [0, "text"]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(size)] if rank == 0 else None, 0)
    assert mine == [f"for {rank}"]
    dist.gather_object(rank, found if rank == 1 else None, 1)
    assert rank != 1 or found == list(range(size))
    if rank == 0:
        dist.send_object_list([{1, 2}], 1)
    elif rank == 1:
        got: list[Any] = [None]
        dist.recv_object_list(got, 0)
        assert got == [{1, 2}]


def coalescing(rank: int, size: int) -> None:
    tensors = [torch.full((n,), float(rank + 1)) for n in (1, 5, 3)]
    with dist._coalescing_manager():
        for t in tensors:
            dist.all_reduce(t)
    assert all(torch.equal(t, torch.full_like(t, total(size))) for t in tensors)
    places = [torch.zeros(2 * size), torch.zeros(3 * size)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for place in places:
            mine = torch.full((len(place) // size,), float(rank))
            dist.all_gather_into_tensor(place, mine)
    manager.wait()
    assert places[1].tolist() == [float(r) for r in range(size) for _ in range(3)]
    t = torch.full((2,), float(rank))
    with dist._coalescing_manager(device=torch.get_default_device()):
        dist.broadcast(t, 0)
        dist.all_reduce(t)
    assert t.tolist() == [0.0, 0.0]
    rows = [[torch.zeros(2), torch.zeros(3)] for _ in range(size)]
    mine = [torch.full((n,), float(rank)) for n in (2, 3)]
    future = dist.all_gather_coalesced(rows, mine, async_op=True)
    assert [[t.tolist() for t in row] for row in future.wait()] == [
        [[r] * 2, [r] * 3] for r in range(size)
    ]
    future = dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)], async_op=True)
    assert [v.tolist() for v in future.wait()] == [[size] * 2, [size] * 3]


def coalesced_and_blocking(rank: int, size: int) -> None:
    """Several operations of one call that waits itself."""
    targets, sources = [torch.zeros(1), torch.zeros(1)], [torch.ones(size), torch.ones(size) * 5]
    with dist._coalescing_manager():
        for target, source in zip(targets, sources, strict=True):
            dist.reduce_scatter_tensor(target, source)
    assert [target.item() for target in targets] == [size, 5 * size]
    group, options = dist.group.WORLD, dist.distributed_c10d.AllgatherOptions()
    assert group is not None
    options.asyncOp = False
    outs = [torch.zeros(size), torch.zeros(2 * size)]
    mine = [torch.full((n,), float(rank)) for n in (1, 2)]
    for _ in range(20):
        group.allgather_into_tensor_coalesced(outs, mine, options).wait()
        assert outs[1].tolist() == [float(r) for r in range(size) for _ in range(2)]
    assert group.allgather_into_tensor_coalesced([], []).wait(timedelta(seconds=20))


def ordered(rank: int, size: int) -> None:
    """A call that waits starts after one before it that did not."""
    for step in range(200):
        first, second = torch.full((4,), 10.0 * step + 1), torch.full((4,), 10.0 * step + 2)
        if step % size == rank:
            time.sleep(0.003)  # the loop's thread sleeps then
        work = dist.all_reduce(first, async_op=True)
        dist.all_reduce(second)
        work.wait()
        assert first.tolist() == [size * (10.0 * step + 1)] * 4
        assert second.tolist() == [size * (10.0 * step + 2)] * 4


def functional_collectives(rank: int, size: int) -> None:
    """Operators in C++, which call the group."""
    group = dist.group.WORLD
    mine = torch.full((size, 2), float(rank + 1))
    assert torch.equal(
        functional.all_reduce(mine, "sum", group) + 0, torch.full((size, 2), float(total(size)))
    )
    gathered = functional.all_gather_tensor(mine, 0, group) + 0
    assert gathered[:, 0].tolist() == [r + 1.0 for r in range(size) for _ in range(size)]
    assert (functional.reduce_scatter_tensor(mine, "sum", 0, group) + 0).tolist() == [
        [total(size)] * 2
    ]
    exchanged = functional.all_to_all_single(mine, None, None, group) + 0
    assert exchanged[:, 0].tolist() == [r + 1.0 for r in range(size)]
    assert (functional.broadcast(mine, 1, group) + 0)[0, 0].item() == 2.0
    many = functional.all_gather_into_tensor_coalesced([mine, mine[:1].clone()], group)
    assert [(t + 0).shape[0] for t in many] == [size * size, size]
    many = functional.all_reduce_coalesced([mine, mine[:1].clone()], "max", group)
    assert [(t + 0).max().item() for t in many] == [size, size]


def results_in_progress(rank: int, size: int) -> None:
    """What a functional collective returns may be passed on before it is waited for."""
    group: Any = dist.group.WORLD

    def unfinished() -> torch.Tensor:
        result = functional.all_reduce(torch.ones(size), "sum", group)
        assert type(result) is functional.AsyncCollectiveTensor
        return result

    inout = unfinished()
    dist.all_reduce(inout)
    assert (inout + 0).tolist() == [size**2] * size
    places = [torch.zeros(size) for _ in range(size)]
    dist.all_gather(places, unfinished())
    assert torch.equal(torch.cat(places), torch.full((size**2,), float(size)))
    total = torch.zeros(size)
    dist.reduce_scatter(total, [unfinished() for _ in range(size)])
    assert total.tolist() == [size**2] * size
    got = torch.zeros(size)
    group.alltoall_base(
        output=got, input=unfinished(), output_split_sizes=[], input_split_sizes=[]
    ).wait()
    assert got.tolist() == [size] * size
    if rank == 0:
        dist.send(unfinished(), 1)
    else:
        result = unfinished()
        if rank == 1:
            dist.recv(got.zero_(), 0)
            assert torch.equal(got, result + 0)


def futures(rank: int, size: int) -> None:
    """Callbacks that start collectives and wait for them, while later ones have been asked for."""
    results = []
    for number in range(20):
        t = torch.full((3,), float(rank + number))

        def again(future: torch.futures.Future[Any]) -> torch.Tensor:
            value = future.value()[0].clone()
            return dist.all_reduce(value, async_op=True).get_future().wait()[0]

        future = dist.all_reduce(t, async_op=True).get_future()
        results.append(future.then(again).then(lambda f: f.value() + 1))
    for number, future in enumerate(results):
        expected = (sum(range(size)) + number * size) * size + 1
        assert torch.equal(future.wait(), torch.full((3,), float(expected)))


def futures_of_finished_works(rank: int, size: int) -> None:
    """After `wait` the future has a value, asked for before or after it."""
    for number in range(20):
        before, after = torch.full((4,), float(number)), torch.full((4,), float(number))
        work = dist.all_reduce(before, async_op=True)
        future = work.get_future()
        work.wait()
        assert future.done()
        assert torch.equal(future.value()[0], torch.full((4,), float(size * number)))
        work = dist.all_reduce(after, async_op=True)
        work.wait()
        assert torch.equal(work.get_future().value()[0], before)
        if rank < 2:
            value = torch.full((4,), float(number))
            message = dist.irecv(value, 0) if rank else dist.isend(value, 1)
            future = message.get_future()
            message.wait()
            assert torch.equal(future.value()[0], value)

    def waits_within(future: torch.futures.Future[Any]) -> Any:
        inner = dist.all_reduce(future.value()[0], async_op=True)
        value = inner.get_future()
        inner.wait()
        outer.wait()  # its future has this callback in progress
        return value.value()[0]

    ones = torch.ones(2)
    outer = dist.all_reduce(ones, async_op=True)
    last = outer.get_future().then(waits_within)
    assert last.wait()[0] == size**2


def said(function: Any, *args: Any, **options: Any) -> str:
    try:
        function(*args, **options)
    except (RuntimeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was raised")


def errors(rank: int, size: int) -> None:
    """They come when the operation is waited for, and the group goes on after them."""
    work = dist.all_reduce(torch.ones(2 + (rank == 1)), async_op=True)
    text = said(work.wait)
    assert text.startswith("CollectiveMismatchError: ranks disagree about operation"), text
    assert "rank 1 called all_reduce(3 x float32, SUM)" in text, text
    assert not work.is_success()
    assert said(work.wait) == text
    work = dist.all_reduce(torch.ones(2 + (rank == 1)), async_op=True)
    text = said(work.get_future().wait)
    assert "rank 1 called all_reduce(3 x float32, SUM)" in text, text
    # An invalid argument fails on this rank alone, and takes no sequence number.
    text = said(dist.all_gather, [torch.ones(2)] * (size - 1), torch.ones(2))
    assert "InvalidUsageError" in text, text
    text = said(dist.all_reduce, torch.ones(3, device="meta"))
    assert "meta" in text, text
    if rank == 0:
        late = dist.barrier(async_op=True)
        text = said(late.wait, timedelta(seconds=0.2))
        assert "CollectiveTimeoutError" in text, text
        assert "rank 1" in text, text
    store = default_store()
    store.add("all", 1)
    while store.add("all", 0) < size:
        pass
    if rank:
        assert "timed out" in said(dist.barrier)
    t = torch.ones(1)
    dist.all_reduce(t)
    assert t.item() == size
