"""Every operation against numpy, over all the cases of `design`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.operations.batch import check
from tests.operations.design import SIZES, TRANSPORTS, cases


@pytest.mark.timeout(180)
@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_matrix(transport: str, size: int, scaled: Callable[[float], float]) -> None:
    batch = [case for case in cases() if case.size == size and case.transport == transport]
    await check(size, batch, scaled(30), transport)
