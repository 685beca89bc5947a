"""What ranks compare before a collective of MPI, by numbers alone."""

from __future__ import annotations

from itertools import product

import pytest

from aiodist.backends.mpi.mpi_agreement import checks, sending
from aiodist.errors import InvalidUsageError


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
