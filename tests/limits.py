"""Time limits of tests, which a slow or busy machine scales by AIODIST_TEST_TIMEOUT_SCALE."""

from __future__ import annotations

from tests.conftest import timeout_scale


def scaled(seconds: float) -> float:
    """A limit on what usually ends much sooner: ``asyncio.timeout(scaled(5))``."""
    return seconds * timeout_scale()
