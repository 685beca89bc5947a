"""Functional collectives inside functions that torch.compile has compiled."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional


def traced(rank: int, size: int) -> None:
    group = dist.group.WORLD

    @torch.compile(backend="aot_eager", fullgraph=True)
    def mean_of_squares(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * x, "sum", group) / size

    found = mean_of_squares(torch.full((3,), float(rank)))
    assert torch.equal(found, torch.full((3,), sum(r * r for r in range(size)) / size))


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
