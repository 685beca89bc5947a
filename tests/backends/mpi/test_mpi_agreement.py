"""What ranks compare before a collective of MPI, by numbers alone."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aiodist.backends.mpi.mpi_agreement import MpiAgreement, checks, sending
from aiodist.completion import Driver, Pending, completed
from aiodist.errors import CollectiveMismatchError, InvalidUsageError
from aiodist.groups.contexts import CollectiveContext
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.messaging import through_gate


def test_lengths_add_up_to_zero_only_where_they_fit() -> None:
    size = 5
    lengths = {pair: 8 * (pair[0] + 3 * pair[1]) for pair in product(range(size), repeat=2)}
    expected = dict(lengths)

    def balance() -> int:
        sent = sum(sending(*pair, n) for pair, n in lengths.items())
        return (sent - sum(sending(*pair, n) for pair, n in expected.items())) % (1 << 64)

    assert balance() == 0
    for pair in lengths:
        lengths[pair] += 8
        assert balance() != 0
        other = (pair[1], (pair[0] + 1) % size)
        lengths[other] -= 8  # the same total
        assert balance() != 0 or other == pair
        lengths[other] += 8
        lengths[pair] -= 8


def test_the_variable_that_turns_it_off() -> None:
    assert checks({})
    assert checks({"AIODIST_MPI_CHECK": "1"})
    assert not checks({"AIODIST_MPI_CHECK": "0"})
    with pytest.raises(InvalidUsageError, match="AIODIST_MPI_CHECK must be 0 or 1, not 'off'"):
        checks({"AIODIST_MPI_CHECK": "off"})


def test_a_collective_waits_for_all_others_until_all_have_come() -> None:
    """So it fails if one of them has left, and not at its timeout."""
    sums: list[np.ndarray[Any, Any]] = []
    asked: Pending[None] = Pending()
    ended: list[BaseException | None] = []
    gate: Any = SimpleNamespace(
        mpi=SimpleNamespace(IN_PLACE=None, UINT64_T=None, SUM=None),
        comm=SimpleNamespace(Iallreduce=lambda _, buffer, op: sums.append(buffer[0])),
        poller=SimpleNamespace(watch=lambda *_: asked),
    )
    group: Any = SimpleNamespace(rank=0, size=3, ranks=(4, 5, 6), id=1)
    messenger: Any = SimpleNamespace()
    context = CollectiveContext(group, messenger, 0, Fingerprint("barrier"))
    agreement = MpiAgreement(gate, 3, enabled=True)
    Driver(agreement.compare(context), lambda _, error: ended.append(error)).start()
    assert context.waiting_for() == [5, 6]
    sums[0] *= np.uint64(3)
    asked.complete(None)
    assert ended == [None]
    assert context.waiting_for() == []


@pytest.mark.parametrize("error", [ValueError(), CollectiveMismatchError("lengths"), None])
def test_no_collective_begins_behind_one_that_fails(error: Exception | None) -> None:
    """MPI would take it for the one that the other ranks are in, and mix up their memory."""
    gate: Any = SimpleNamespace(passed=lambda: completed(None))
    agreement = MpiAgreement(gate, 3, enabled=False)
    first: Pending[None] = Pending()
    begun: list[int] = []

    def start(sequence: int) -> None:
        async def body(context: Any) -> None:
            begun.append(sequence)
            await first

        context: Any = SimpleNamespace(sequence=sequence, operation="barrier")
        Driver(through_gate(agreement, context, body), lambda *_: None).start()

    start(0)
    start(1)
    assert begun == [0]
    first.complete(None) if error is None else first.fail(error)
    assert begun == ([0, 1] if error is None else [0])
