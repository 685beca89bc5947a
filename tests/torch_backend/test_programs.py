"""Operations, groups and sharded training over the torch backend."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

pytestmark = pytest.mark.timeout(120)

TORCH = TorchVersion(torch.__version__)


def since(version: str, program: str, size: int) -> Any:
    """A program of what torch has, or has without errors of its own, since ``version``."""
    late = pytest.mark.skipif(version > TORCH, reason=f"needs torch {version}, this is {TORCH}")
    return pytest.param(program, size, marks=late)


@pytest.mark.parametrize(
    ("program", "size"),
    [
        ("operations:every_operation", 3),
        ("operations:uneven_all_to_all", 3),
        ("operations:short_forms", 3),
        ("operations:keywords", 1),
        ("operations:reductions", 3),
        ("operations:sparse_mismatches", 3),
        ("operations:other_dtypes", 3),
        ("operations:messages", 3),
        ("operations:objects", 2),
        ("operations:coalescing", 3),
        ("operations:coalesced_and_blocking", 2),
        ("operations:ordered", 2),
        ("operations:functional_collectives", 3),
        ("operations:results_in_progress", 3),
        ("compiled:traced", 2),
        ("compiled:waits_for_eager_code", 2),
        ("compiled:forgets_what_failed", 2),
        ("compiled:replicas", 2),
        ("operations:futures", 3),
        ("operations:futures_of_finished_works", 3),
        ("operations:errors", 2),
        ("devices:served", 2),
        ("devices:refused", 2),
        ("devices:staged_training", 3),
        ("groups:answers", 2),
        ("groups:later_timeout", 2),
        ("groups:sequence_numbers", 2),
        ("groups:subgroups", 4),
        since("2.7", "groups:splitting", 4),
        since("2.15", "groups:split_by_torch", 4),
        ("groups:again", 2),
        ("groups:after_workers_that_died", 3),
        ("groups:back_before_rank_0", 3),
        ("groups:beside_gloo", 3),
        ("groups:destroyed", 2),
        ("groups:dropped", 2),
        ("groups:part_dropped", 2),
        ("groups:monitored_barrier", 3),
        ("groups:forked", 2),
        ("groups:in_an_event_loop", 2),
        since("2.7", "sharded:fsdp", 3),
        ("sharded:redistribution", 3),
        ("sharded:gathered", 3),
        ("sharded:two_dimensions", 4),
        ("sharded:zero", 3),
        ("sharded:checkpoints", 3),
        pytest.param(
            "parallel:pipeline",
            3,
            marks=pytest.mark.skipif(
                TORCH < "2.7" or "2.9" <= TORCH < "2.10",
                reason=f"pipelines of torch {TORCH} fail on CPU tensors, over Gloo too",
            ),
        ),
        ("parallel:tensor_parallel", 2),
        since("2.7", "parallel:sharded_replicas", 4),
        ("parallel:autograd", 3),
    ],
)
def test_program(program: str, size: int, run_ranks: Callable[..., None]) -> None:
    run_ranks(program, size)


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.skipif(TORCH < "2.7", reason="needs settings of torch's compiler that came with 2.7")
@pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile makes C++, and there is no compiler here"
)
def test_compiled_to_cpp(run_ranks: Callable[..., None]) -> None:
    run_ranks("compiled:to_cpp", 2)
