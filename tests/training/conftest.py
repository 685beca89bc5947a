"""One thread for torch: the ranks share the cores. Ranks of the blocking API as in tests/sync."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.sync.conftest import run_threads

__all__ = ["run_threads"]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
