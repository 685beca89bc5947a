"""Ranks of the torch backend, forked from one process that imports torch once for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.forked_ranks import ForkServer, failures


@pytest.fixture(scope="session")
def _server() -> Iterator[ForkServer]:
    with ForkServer("tests.torch_backend.ranks") as server:
        yield server


@pytest.fixture
def run_ranks(_server: ForkServer) -> Callable[..., None]:
    """``run_ranks("ddp:equals_whole_batch", 3)``; fails with the tracebacks of the ranks."""

    def run(program: str, size: int, may_die: tuple[int, ...] = ()) -> None:
        if failed := failures(_server.run(program, size), may_die):
            pytest.fail(failed, pytrace=False)

    return run
