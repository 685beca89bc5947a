"""What the ranks of one host do within collectives of several hosts: stretches, one after the other.

Their steps are numbered on from those of the stretches before, and at most one of them uses the slots.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from aiodist.collectives.intra_host import IntraHostShm
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.shm_collective import ShmCollective
from tests.interleavings import ranks
from tests.interleavings.clock import Clock
from tests.interleavings.memory import Bytes
from tests.interleavings.operations import LONG, SHORT, Collective, Sum, any_collective
from tests.interleavings.ranks import Rank
from tests.interleavings.seeds import BLOCKS, WRONG, fails, seeds

pytestmark = pytest.mark.usefixtures("small_collectives")

Stretch = tuple[str, int, int]
"""Operation, bytes, root."""


def contents(number: int, source: int, nbytes: int, target: int = 0) -> bytes:
    first = number * 31 + source * 7 + target * 57
    return bytes((first + 3 * place) % 256 for place in range(nbytes))


def total(number: int, size: int, nbytes: int, target: int = 0) -> bytes:
    columns = zip(*(contents(number, rank, nbytes, target) for rank in range(size)), strict=True)
    return bytes(sum(column) % 256 for column in columns)


async def carry_out(host: IntraHostShm, number: int, stretch: Stretch) -> None:
    """Run a stretch, and compare its results. ``number``: of contents that no other stretch has."""
    operation, nbytes, root = stretch
    rank, size = host.rank, host.size
    own: Any = Bytes(bytearray(contents(number, rank, nbytes)))
    blocks: list[Any] = [Bytes(bytearray(nbytes)) for _ in range(size)]
    blocks[rank] = own
    op: Any = Sum()
    match operation:
        case "broadcast":
            await host.broadcast(root, own)
            assert bytes(own) == contents(number, root, nbytes)
        case "reduce":
            await host.reduce(root, own, op)
            assert rank != root or bytes(own) == total(number, size, nbytes)
        case "all_gather" | "gather":
            gathers = host.all_gather if operation == "all_gather" else partial(host.gather, root)
            await gathers(blocks)
            if operation == "all_gather" or rank == root:
                expected = [contents(number, source, nbytes) for source in range(size)]
                assert list(map(bytes, blocks)) == expected
        case "reduce_scatter":
            given: list[Any] = [
                Bytes(bytearray(contents(number, rank, nbytes, target))) for target in range(size)
            ]
            await host.reduce_scatter(given, own, op)
            assert bytes(own) == total(number, size, nbytes, rank)


def any_stretches(draw: random.Random, size: int) -> Sequence[Stretch]:
    operations = ["broadcast", "reduce", "all_gather", "gather", "reduce_scatter"]
    return [
        (draw.choice(operations), draw.choice([SHORT, LONG]), draw.randrange(size))
        for _ in range(draw.randint(1, 4))
    ]


def start(rank: Rank, number: int, stretches: Sequence[Stretch]) -> Any:
    """Start collective ``number`` of several hosts. Between two stretches its loop may turn."""

    async def body(context: CollectiveContext) -> None:
        assert context.shm is not None
        host = IntraHostShm(context.shm)
        for place, stretch in enumerate(stretches):
            await carry_out(host, number * 8 + place, stretch)
            if place % 2:
                await rank.engine.next_turn()

    return rank.engine.collective(Fingerprint("all_reduce", root=number), body, shares=True)


def mixed(seed: int, clock: Clock) -> None:
    draw = random.Random(seed)
    size = draw.randint(2, 4)
    choices: list[Callable[[random.Random, int], Collective | Sequence[Stretch]]]
    choices = [any_collective, any_stretches]
    collectives = [draw.choice(choices)(draw, size) for _ in range(draw.randint(1, 5))]

    def program(rank: Rank) -> None:
        for number, collective in enumerate(collectives):
            if isinstance(collective, Collective):
                begun = collective.begin(number, rank.number, size)
                rank.finish(rank.start(begun))
                begun.check()
            else:
                work = start(rank, number, collective)
                work.is_completed()  # it is asked for, so it does not warn if the run fails
                rank.finish(work)

    ranks.run(seed, size, clock, program, collectives)


@pytest.mark.parametrize("block", BLOCKS)
def test_stretches_end_with_the_right_results(block: int, clock: Clock) -> None:
    for seed in seeds(block, 150):
        mixed(seed, clock)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("free", id="chunks are used again too early"),
        pytest.param("posted", id="chunks are read too early"),
    ],
)
def test_without_one_step_of_the_protocol_a_run_fails(
    step: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShmCollective, step, lambda *_: None)
    assert fails(lambda seed: mixed(seed, clock), range(300), *WRONG)
