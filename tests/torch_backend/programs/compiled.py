"""Functional collectives and DDP under torch.compile."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as c10d
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

from tests.torch_backend.programs.ddp import default_store


def traced(rank: int, size: int) -> None:
    group = dist.group.WORLD

    @torch.compile(backend="aot_eager", fullgraph=True)
    def mean_of_squares(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * x, "sum", group) / size

    found = mean_of_squares(torch.full((3,), float(rank)))
    assert torch.equal(found, torch.full((3,), sum(r * r for r in range(size)) / size))


def waits_for_eager_code(rank: int, size: int) -> None:
    """`wait_tensor` of compiled code does; a work that was waited for is forgotten."""
    registered = c10d._get_work_registry_size
    wait_tensor = torch.ops.c10d_functional.wait_tensor
    with functional.allow_inflight_collective_as_graph_input_ctx():
        total = torch.ones(2)
        if rank == 0:
            dist.all_reduce(total, async_op=True)
            assert registered() == 1
            default_store().set("started", "")
        else:
            default_store().wait(["started"])
            dist.all_reduce(total, async_op=True)
        assert wait_tensor(total).tolist() == [size] * 2
        assert registered() == 0
        whole = torch.empty(2 * size)
        work = dist.all_gather_into_tensor(whole, total, async_op=True)
        assert registered() == 1
        assert work.wait()
        assert whole.tolist() == [size] * 2 * size
        again = functional.all_reduce(whole, "max", dist.group.WORLD)
        assert again.tolist() == whole.tolist()
        dist.barrier()
        dist.all_reduce(torch.ones(2))
        entries = torch.sparse_coo_tensor([[rank]], [1.0], (size,), check_invariants=True)
        dist.all_reduce(entries)  # which has no storage to be found by
        assert entries.to_dense().tolist() == [1.0] * size
        assert registered() == 0
    dist.all_reduce(torch.ones(2), async_op=True).wait()
    assert registered() == 0


def forgets_what_failed(rank: int, size: int) -> None:
    """The error of a work is not raised again by the next one on the same tensor."""
    data = torch.ones(2)
    with functional.allow_inflight_collective_as_graph_input_ctx():
        work = dist.all_reduce(data[: 1 + rank], async_op=True)
        with pytest.raises(RuntimeError, match="ranks disagree"):
            work.wait()
        assert c10d._get_work_registry_size() == 0
        assert dist.all_reduce(data, async_op=True).wait()
    assert data.tolist() == [size] * 2


def to_cpp(rank: int, size: int) -> None:
    """Several collectives in one function of C++, called with new numbers."""
    from torch._inductor import config

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TEST_FOLDER"]
    group = dist.group.WORLD

    @torch.compile(backend="inductor", fullgraph=True)
    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(x * x, "sum", group)
        whole = functional.all_gather_tensor(total + x, 0, group)
        part = functional.reduce_scatter_tensor(whole * 2, "sum", 0, group)
        return functional.all_to_all_single(part.repeat(size), None, None, group) + 1

    plain = {
        "compile_threads": 1,
        "cpp_cache_precompile_headers": False,
        # To find out the machine's vector instructions and to optimise is most of the compiler's work.
        "cpp.vec_isa_ok": False,
        "aot_inductor.debug_compile": True,
    }
    with config.patch(plain):
        for number in range(3):
            got = there_and_back(torch.full((5,), float(rank + number)))
            total = sum((r + number) ** 2 for r in range(size))
            expected = [
                2.0 * size * (total + r + number) + 1 for r in range(size) for _ in range(5)
            ]
            assert got.tolist() == expected


def replicas(rank: int, size: int) -> None:
    """DDP inside torch.compile, and a compiled module inside DDP, train as plain DDP does."""
    plain = _trained(rank, lambda wrapped: wrapped)
    assert torch.equal(_trained(rank, partial(torch.compile, backend="aot_eager")), plain)

    def in_place(wrapped: DistributedDataParallel) -> nn.Module:
        wrapped.compile(backend="aot_eager")
        return wrapped

    assert torch.equal(_trained(rank, in_place), plain)


def _trained(rank: int, compiled: Callable[[DistributedDataParallel], nn.Module]) -> torch.Tensor:
    """The weights after a few steps; each rank has rows of its own."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    model = compiled(DistributedDataParallel(layers))
    steps = torch.optim.SGD(layers.parameters(), lr=0.05)
    for step in range(3):  # the reducer lays its buckets out anew after the first
        steps.zero_grad()
        model(torch.full((4, 8), float(rank + step))).sum().backward()
        steps.step()
    return torch.cat([weights.detach().flatten() for weights in layers.parameters()])
