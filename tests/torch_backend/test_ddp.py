"""DistributedDataParallel over the torch backend."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(
    "program",
    [
        "equals_whole_batch",
        "unused_parameters",
        "static_graph",
        "buffers",
        "gradient_accumulation",
        "uneven_inputs",
        "uneven_inputs_with_unused_parameters",
        "uneven_inputs_divided_by_the_ranks_with_data",
        "half_precision_hooks",
        "power_sgd",
        "error_in_a_step",
    ],
)
def test_ddp(program: str, run_ranks: Callable[..., None]) -> None:
    run_ranks(f"ddp:{program}", 3)


def test_communication_overlaps_with_backward(run_ranks: Callable[..., None]) -> None:
    run_ranks("ddp:overlap", 2)


def test_a_lost_rank_raises_in_every_step(run_ranks: Callable[..., None]) -> None:
    run_ranks("ddp:lost_rank", 3, may_die=(2,))
