"""Every operation against numpy, over all the cases of `design`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.operations.batch import check
from tests.operations.design import SIZES, TRANSPORTS, cases


@pytest.mark.timeout(180)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "size"),
    [
        pytest.param(
            transport,
            size,
            id=f"{transport}-{size}",
            # Streams carry the same messages as queues do, so many ranks over queues are enough.
            marks=pytest.mark.extended if transport in ("tcp", "unix") and size > 4 else (),
        )
        for transport in TRANSPORTS
        for size in SIZES
    ],
)
async def test_matrix(transport: str, size: int, scaled: Callable[[float], float]) -> None:
    batch = [case for case in cases() if case.size == size and case.transport == transport]
    await check(size, batch, scaled(30), transport)
