"""Ranks as threads of this process, each after `hvd.init`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import aiodist.horovod as hvd
from tests.sync.conftest import run_threads
from tests.training.conftest import _one_thread

__all__ = ["_one_thread", "run_threads"]


@pytest.fixture
def run_hvd(run_threads: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """``run_hvd(size, fn)``: ``fn(rank)`` on each rank; their results."""

    def run(size: int, fn: Callable[[int], Any]) -> list[Any]:
        def on_rank(rank: int) -> Any:
            hvd.init()
            return fn(rank)

        return run_threads(size, on_rank)

    return run
