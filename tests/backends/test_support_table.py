"""The table of backends: what it says is so, and the documentation shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

import aiodist as dist
from aiodist.backends.registry import OFFERS
from aiodist.backends.support_table import COLUMNS, FUNCTIONS, UNSEEN, YES
from aiodist.testing.in_process import run_ranks
from tests.operations.design import MOVING, NO_OP, REDUCING, Case
from tests.operations.programs import PROGRAMS, Rank

ROOT = Path(__file__).parents[2]
PROGRAMS_OF = {
    "send, recv, isend, irecv": ["isend_irecv"],
    "recv from any rank": ["recv_any_source"],
    "recv without a tensor": ["recv_without_buffer"],
    "objects: send, recv, broadcast, gather, all_gather, scatter": [
        "all_gather_object",
        "broadcast_object_list",
    ],
}


def programs_of(function: str) -> list[str]:
    return PROGRAMS_OF.get(function, [function.replace(", uneven", "_uneven")])


def test_the_documentation_shows_the_table() -> None:
    head = ["function", *(f"{backend}, {device}" for backend, device in COLUMNS)]
    rows = [head, ["---"] * len(head), *([name, *cells] for name, cells in FUNCTIONS.items())]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    assert table in (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")


def test_every_operation_and_every_backend_has_its_place() -> None:
    listed = {name for function in FUNCTIONS for name in programs_of(function)}
    assert listed - {"barrier"} == set(MOVING + REDUCING)
    assert all(len(cells) == len(COLUMNS) for cells in FUNCTIONS.values())
    for backend, device in COLUMNS:
        assert device in OFFERS[backend].devices


@pytest.mark.parametrize(
    "backend", [name for name, device in COLUMNS if device == "cpu" and name != "mpi"]
)
@pytest.mark.parametrize("function", list(FUNCTIONS))
async def test_the_backend_table_matches_the_backends(backend: str, function: str) -> None:
    """On the CPU; the column of MPI is tested under ``mpiexec`` in ``tests/backends/mpi``."""
    assert FUNCTIONS[function][COLUMNS.index((backend, "cpu"))] == YES
    wrong: list[str] = []

    async def body(number: int) -> None:
        for name in programs_of(function):
            if name == "barrier":
                await dist.barrier()
                continue
            op = "SUM" if name in REDUCING else NO_OP
            rank = Rank(
                Case(name, 3, "odd", "float32", op, "inproc", "torch", "contiguous"), number
            )
            await PROGRAMS[name](rank)
            wrong.extend(rank.wrong())

    await run_ranks(3, body, backend=backend)
    assert not wrong


def test_nothing_is_claimed_of_devices_that_no_test_has_seen() -> None:
    for function, cells in FUNCTIONS.items():
        for (backend, device), cell in zip(COLUMNS, cells, strict=True):
            of_the_host = function.startswith("objects") and backend == "aiodist"
            assert device == "cpu" or cell == UNSEEN or of_the_host
