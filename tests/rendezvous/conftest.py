"""What torch keeps open from its first store on is opened before the tests look for left-overs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from importlib.util import find_spec

import pytest


@pytest.fixture(scope="session", autouse=True)
def _libuv_pipe() -> None:
    if find_spec("torch"):
        from torch.distributed import TCPStore

        TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def port() -> Iterator[int]:
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]
