"""Collectives under Horovod's names: values, gradients, process sets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import aiodist.horovod as hvd
import aiodist.sync as dist
from aiodist.errors import InvalidUsageError, NotInitializedError
from aiodist.horovod.handles import Handle
from aiodist.training.sync import GradientReducer

RunHvd = Callable[..., list[Any]]


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (None, 2.0),
        (hvd.Average, 2.0),
        (hvd.Sum, 6.0),
        (hvd.Min, 1.0),
        (hvd.Max, 3.0),
        (hvd.Product, 6.0),
    ],
)
def test_allreduce_reduces_by_its_op_in_all_forms(
    op: Any, expected: float, run_hvd: RunHvd
) -> None:
    def on_rank(rank: int) -> None:
        mine = torch.full((2, 2), rank + 1.0)
        assert hvd.allreduce(mine, op=op, name="x").tolist() == [[expected] * 2] * 2
        handle = hvd.allreduce_async(mine, op=op)
        assert torch.equal(hvd.synchronize(handle), torch.full((2, 2), expected))
        assert hvd.poll(handle)
        assert mine[0, 0] == rank + 1
        several = [mine.clone(), torch.tensor([rank + 1], dtype=torch.int64), mine.double()]
        for reduced in hvd.grouped_allreduce(several, op=op):
            assert reduced.unique().tolist() == [expected]
        hvd.grouped_allreduce_(several, op=op)
        assert [each.flatten()[0].item() for each in several] == [expected] * 3
        assert hvd.allreduce_(mine, op=op) is mine
        assert mine[1, 1] == expected

    run_hvd(3, on_rank)


def test_allreduce_scales_before_and_after(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> None:
        factors = {"prescale_factor": 0.5, "postscale_factor": 3.0}
        assert hvd.allreduce(torch.tensor(4.0), op=hvd.Sum, **factors).item() == 12
        assert hvd.allreduce(torch.tensor([4]), op=hvd.Sum, **factors).tolist() == [12]
        assert hvd.allreduce(torch.tensor(1.0), average=False).item() == 2
        third = hvd.allreduce(torch.tensor([1 / 3]), compression=hvd.Compression.fp16)
        assert third.dtype is torch.float32
        assert third.item() == torch.tensor(1 / 3).half().item()
        with pytest.raises(InvalidUsageError, match="pass op alone"):
            hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)

    run_hvd(2, on_rank)


def test_allgather_takes_any_number_of_rows(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> None:
        mine = torch.full((rank, 2), float(rank))
        everything = hvd.allgather(mine)
        assert everything.tolist() == [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
        assert hvd.allgather(torch.tensor(rank)).tolist() == [0, 1, 2]
        first, second = hvd.synchronize(hvd.grouped_allgather_async([mine, mine[:, :1]]))
        assert torch.equal(first, everything)
        assert second.tolist() == [[1.0], [2.0], [2.0]]
        with pytest.raises(InvalidUsageError, match="equal shapes apart from the first"):
            hvd.allgather(torch.ones(2, rank))

    run_hvd(3, on_rank)


def test_broadcast_copies_the_roots_values(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> None:
        mine = torch.tensor(rank)
        assert hvd.broadcast(mine, root_rank=1, name="epoch").item() == 1
        assert mine.item() == rank
        assert hvd.broadcast_(mine, 1) is mine
        assert mine.item() == 1

    run_hvd(2, on_rank)


def test_alltoall_sends_equal_parts_or_the_given_splits(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> None:
        assert hvd.alltoall(torch.tensor([0, 1]) + 10 * rank).tolist() == [rank, 10 + rank]
        splits = torch.tensor([1, 2] if rank == 0 else [0, 1])
        rows = torch.arange(int(splits.sum())) + 10 * rank
        output, received = hvd.alltoall(rows, splits=splits)
        assert output.tolist() == ([0] if rank == 0 else [1, 2, 10])
        assert received.tolist() == ([1, 0] if rank == 0 else [2, 1])
        with pytest.raises(InvalidUsageError, match="needs splits"):
            hvd.alltoall(torch.ones(3))
        with pytest.raises(InvalidUsageError, match="add up to 3 rows"):
            hvd.alltoall(torch.ones(3), splits=[1, 1])
        with pytest.raises(
            InvalidUsageError, match="none below 0"
        ):  # on the rank that gets -1 rows, too
            hvd.alltoall(torch.ones(3), splits=[4, -1])
        with pytest.raises(TypeError, match=r"splits must be integers, not torch\.float32"):
            hvd.alltoall(torch.ones(3), splits=[1.9, 2.1])  # type: ignore[list-item]
        for divide in (hvd.alltoall, hvd.reducescatter):
            with pytest.raises(InvalidUsageError, match="a scalar, which has no rows"):
                divide(torch.tensor(1.0))

    run_hvd(2, on_rank)


def test_reducescatter_gives_the_first_ranks_one_row_more(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> None:
        rows = torch.arange(5.0)
        part = [0.0, 1.0, 2.0] if rank == 0 else [3.0, 4.0]
        assert hvd.reducescatter(rows).tolist() == part
        doubled = hvd.reducescatter(rows, op=hvd.Sum, postscale_factor=0.5)
        assert doubled.tolist() == part
        assert len(hvd.synchronize(hvd.grouped_reducescatter_async([rows, rows]))) == 2

    run_hvd(2, on_rank)


def test_sparse_tensors_are_averaged(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> None:
        mine = torch.sparse_coo_tensor([[rank, 2]], [[2.0], [4.0]], (3, 1), check_invariants=True)
        mean = hvd.synchronize(hvd.sparse_allreduce_async(mine, "x", hvd.Average))
        assert mean.to_dense().tolist() == [[1.0], [1.0], [4.0]]
        total = hvd.sparse_allreduce_async(mine, "x", hvd.Sum)()  # as Horovod's own optimizer does
        assert total.to_dense().tolist() == [[2.0], [2.0], [8.0]]

    run_hvd(2, on_rank)


def test_the_default_device_may_be_another_one(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> None:
        x = torch.ones(2, requires_grad=True)
        weight = torch.nn.Parameter(torch.ones(2))
        with torch.device("meta"):
            assert hvd.alltoall(x, splits=[1, 1])[1].tolist() == [1, 1]
            hvd.allgather(x).sum().backward()
            reducer = GradientReducer([weight])
            (weight * (rank + 1)).sum().backward()
            reducer.synchronize()
        assert x.grad is not None
        assert x.grad.tolist() == [1.0, 1.0]
        assert weight.grad is not None
        assert weight.grad.tolist() == [1.5, 1.5]

    run_hvd(2, on_rank)


def test_long_integers_keep_their_digits(run_hvd: RunHvd) -> None:
    number = (1 << 40) + 2

    def on_rank(rank: int) -> None:
        dense = torch.tensor([number])
        sparse = torch.sparse_coo_tensor([[rank]], dense, (2,), check_invariants=True)
        total = hvd.synchronize(hvd.sparse_allreduce_async(sparse, op=hvd.Sum))
        assert total.to_dense().tolist() == [number] * 2
        assert hvd.allreduce(dense, op=hvd.Max, prescale_factor=0.5).tolist() == [number // 2]
        assert hvd.allreduce(dense, op=hvd.Max, postscale_factor=3.0).tolist() == [number * 3]

    run_hvd(2, on_rank)


def test_gradients_go_through_collectives(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> None:
        x = torch.full((2,), rank + 1.0, requires_grad=True)

        def grad_of(output: torch.Tensor) -> list[float]:
            x.grad = None
            (output * (rank + 1)).sum().backward()
            assert x.grad is not None
            return x.grad.tolist()

        assert grad_of(hvd.allreduce(x)) == [1.5, 1.5]
        assert grad_of(hvd.allreduce(x, op=hvd.Sum)) == [3.0, 3.0]
        assert grad_of(hvd.allgather(x)) == [1.5, 1.5]
        assert grad_of(hvd.broadcast(x, 1)) == ([1.5, 1.5] if rank == 1 else [0.0, 0.0])
        assert grad_of(hvd.alltoall(x)) == [1.0, 2.0]
        assert grad_of(hvd.reducescatter(x, op=hvd.Sum)) == [2.0, 4.0]
        assert grad_of(hvd.reducescatter(x)) == [1.0, 2.0]

    run_hvd(2, on_rank)


def test_a_process_set_has_some_ranks(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> None:
        ends = hvd.add_process_set(hvd.ProcessSet([2, 0]))
        assert ends.ranks == [0, 2]
        assert ends.included() == (rank != 1)
        assert hvd.global_process_set.size() == 3
        if ends.included():
            assert (ends.size(), ends.rank()) == (2, rank // 2)
            assert hvd.allreduce(torch.tensor(float(rank)), process_set=ends).item() == 1
            assert hvd.broadcast_object({"rank": rank}, 2, process_set=ends) == {"rank": 2}
        else:
            with pytest.raises(InvalidUsageError, match="rank 1 is not in ProcessSet"):
                hvd.allreduce(torch.ones(1), process_set=ends)
        assert hvd.remove_process_set(ends)
        assert not hvd.remove_process_set(ends)
        with pytest.raises(InvalidUsageError, match="add_process_set"):
            hvd.barrier(process_set=ends)

    run_hvd(3, on_rank)


class Options:
    """A class of a script's own: it travels by pickle."""

    def __init__(self, lr: float) -> None:
        self.lr = lr


def test_synchronize_raises_an_error_once_no_operation_is_under_way(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> None:
        data = torch.ones(1)
        failing = dist.all_reduce(torch.ones(2 + rank), async_op=True)
        if rank:
            with pytest.raises(dist.CollectiveMismatchError):
                failing.wait()
            time.sleep(0.05)
            dist.send(data + 1, 0)
        else:
            handle = Handle([failing, dist.irecv(data, 1)], lambda: None)
            with pytest.raises(hvd.HorovodInternalError):
                hvd.synchronize(handle)
            assert hvd.poll(handle)
            assert data.item() == 2

    run_hvd(2, on_rank)


def test_objects_of_any_class_travel(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> None:
        assert hvd.broadcast_object(Options(rank), root_rank=1).lr == 1
        assert [each.lr for each in hvd.allgather_object(Options(rank))] == [0, 1]

    run_hvd(2, on_rank)


def test_ranks_of_one_host_have_numbers_there(run_hvd: RunHvd, monkeypatch: Any) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def on_rank(rank: int) -> tuple[int, ...]:
        assert hvd.is_initialized()
        hvd.init()  # a second time
        assert hvd.is_homogeneous()
        numbers = (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())
        return (*numbers, hvd.cross_rank(), hvd.cross_size())

    assert run_hvd(2, on_rank) == [(0, 2, 0, 2, 0, 1), (1, 2, 1, 2, 0, 1)]


def test_a_process_that_no_launcher_started_is_a_job_of_one_rank(monkeypatch: Any) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(NotInitializedError, match=r"hvd\.init\(\)"):
        hvd.rank()
    hvd.init()
    try:
        assert (hvd.rank(), hvd.size(), hvd.local_size()) == (0, 1, 1)
        assert hvd.allreduce(torch.ones(1)).item() == 1
    finally:
        hvd.shutdown()
    assert not hvd.is_initialized()
    hvd.shutdown()


@pytest.mark.parametrize("value", ["", "0", "1"])
def test_init_makes_torchs_default_group_only_where_it_is_asked_to(
    value: str, monkeypatch: Any
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIODIST_TORCH_GROUP", value)
    hvd.init()
    try:
        assert torch.distributed.is_initialized() == (value == "1")
    finally:
        hvd.shutdown()
    assert not torch.distributed.is_initialized()


def test_missing_names_raise_with_the_replacement_to_use(run_hvd: RunHvd) -> None:
    with pytest.raises(InvalidUsageError, match=r"has no elastic: .*max-restarts"):
        from aiodist.horovod import elastic  # noqa: F401
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = hvd.nonsense
    assert hvd.gloo_built()
    assert not hvd.nccl_built()

    def on_rank(rank: int) -> None:
        with pytest.raises(InvalidUsageError, match="Adasum is not there"):
            hvd.allreduce(torch.ones(1), op=hvd.Adasum)
        with pytest.raises(TypeError, match=r"hvd\.Average"):
            hvd.allreduce(torch.ones(1), op="mean")  # type: ignore[arg-type]

    run_hvd(1, on_rank)


def test_arguments_of_a_wrong_type_are_refused(run_hvd: RunHvd) -> None:
    array, ones = np.ones(2), torch.ones(2)
    needs_tensor = "tensor must be a torch tensor, not ndarray"
    needs_handle = r"such as hvd\.allreduce_async\(\), not int"

    def on_rank(rank: int) -> None:
        for call, said in (
            (lambda: hvd.allreduce(array), needs_tensor),
            (lambda: hvd.allreduce([1.0, 2.0]), "tensor must be a torch tensor, not list"),
            (lambda: hvd.allreduce_(array), needs_tensor),
            (lambda: hvd.grouped_allreduce_async([ones, array]), needs_tensor),
            (lambda: hvd.allgather(array), needs_tensor),
            (lambda: hvd.allgather([1.0]), "tensor must be a torch tensor, not list"),
            (lambda: hvd.broadcast(array, 0), needs_tensor),
            (lambda: hvd.broadcast_(array, 0), needs_tensor),
            (lambda: hvd.alltoall(array), needs_tensor),
            (lambda: hvd.reducescatter(array), needs_tensor),
            (lambda: hvd.reducescatter_async(array), needs_tensor),
            (lambda: hvd.sparse_allreduce_async(array), needs_tensor),
            (
                lambda: hvd.allreduce(ones, compression="fp16"),
                "hvd.Compression.none, .* not 'fp16'",
            ),
            (lambda: hvd.synchronize(5), needs_handle),
            (lambda: hvd.poll(5), needs_handle),
            (lambda: hvd.broadcast_parameters(5, 0), "must be a module, .* not int"),
            (lambda: hvd.broadcast_parameters([5], 0), "each of parameters must be a tensor"),
            (lambda: hvd.broadcast_optimizer_state(5, 0), "torch.optim.Optimizer, not int"),
            (lambda: hvd.DistributedOptimizer(5), "torch.optim.Optimizer, not int"),
            (lambda: hvd.broadcast(ones, "0"), "root_rank must be an int, not str"),
        ):
            with pytest.raises(TypeError, match=said):
                call()

    run_hvd(2, on_rank)


def test_a_root_rank_that_is_not_there_is_refused(run_hvd: RunHvd) -> None:
    def on_rank(rank: int) -> None:
        for call in (
            lambda: hvd.broadcast(torch.ones(1), root_rank=9),
            lambda: hvd.broadcast_object(1, root_rank=9),
            lambda: hvd.broadcast_parameters([torch.ones(1)], root_rank=9),
        ):
            with pytest.raises(InvalidUsageError, match=r"root_rank 9 is out of range: .* 0 to 1"):
                call()

    run_hvd(2, on_rank)


def test_init_takes_process_sets_and_no_communicator(run_threads: Callable[..., list[Any]]) -> None:
    def on_rank(rank: int) -> None:
        with pytest.raises(InvalidUsageError, match="add_process_set"):
            hvd.init(comm=[0])
        only = hvd.ProcessSet([1])
        hvd.init(process_sets=[only])
        assert only.size() == 1
        with pytest.raises(InvalidUsageError, match="in use already"):
            hvd.add_process_set(only)

    run_threads(2, on_rank)


def test_a_process_set_may_be_used_in_the_next_job(run_threads: Callable[..., list[Any]]) -> None:
    def on_rank(rank: int) -> None:
        everybody = hvd.ProcessSet([0])
        for is_last in (False, True):
            hvd.init(process_sets=[everybody])
            assert everybody.size() == everybody.process_set_id == 1
            assert float(hvd.allreduce(torch.ones(1), process_set=everybody)) == 1
            if not is_last:
                hvd.shutdown()
                assert everybody.size() is None

    run_threads(1, on_rank)
