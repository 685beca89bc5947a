"""Operations, groups and sharded training over torch's door."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(
    ("program", "size"),
    [
        ("operations:every_operation", 3),
        ("operations:uneven_all_to_all", 3),
        ("operations:reductions", 3),
        ("operations:other_dtypes", 3),
        ("operations:messages", 3),
        ("operations:objects", 2),
        ("operations:coalescing", 3),
        ("operations:functional_collectives", 3),
        ("compiled:traced", 2),
        ("operations:futures", 3),
        ("operations:errors", 2),
        ("devices:served", 2),
        ("devices:refused", 2),
        ("devices:staged_training", 3),
        ("groups:answers", 2),
        ("groups:subgroups", 4),
        ("groups:splitting", 4),
        ("groups:again", 2),
        ("groups:after_workers_that_died", 3),
        ("groups:back_before_rank_0", 3),
        ("groups:beside_gloo", 3),
        ("groups:destroyed", 2),
        ("groups:monitored_barrier", 3),
        ("groups:forked", 2),
        ("groups:in_an_event_loop", 2),
        ("sharded:fsdp", 3),
        ("sharded:redistribution", 3),
        ("sharded:two_dimensions", 4),
        ("sharded:zero", 3),
        ("sharded:checkpoints", 3),
        ("parallel:pipeline", 3),
        ("parallel:tensor_parallel", 2),
        ("parallel:sharded_replicas", 4),
        ("parallel:autograd", 3),
    ],
)
def test_program(program: str, size: int, run_ranks: Callable[..., None]) -> None:
    run_ranks(program, size)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile makes C++, and there is no compiler here"
)
def test_compiled_to_cpp(run_ranks: Callable[..., None]) -> None:
    run_ranks("compiled:to_cpp", 2)
