"""The store by TLS."""

from __future__ import annotations

import pytest

from aiodist.deadline import Deadline
from aiodist.errors import DistStoreError
from aiodist.store import Store, TcpStore, TcpStoreServer
from aiodist.testing.check_store import check_store
from tests.certificates import tls_files


async def test_a_tls_store_conforms() -> None:
    files = tls_files()
    async with await TcpStoreServer.start("127.0.0.1", secret=b"s", certificates=files) as server:

        async def make() -> Store:
            return await TcpStore.connect(
                "127.0.0.1", server.port, Deadline(20), secret=b"s", certificates=files
            )

        await check_store(make)


async def test_strangers_to_the_authority_are_refused_at_once() -> None:
    files, another = tls_files(), tls_files("another")
    untrusted = type(files)(another.cert, another.key, files.ca)
    async with await TcpStoreServer.start("127.0.0.1", certificates=files) as server:
        for theirs in (another, untrusted):
            with pytest.raises(DistStoreError, match="cannot be reached by TLS"):
                await TcpStore.connect("127.0.0.1", server.port, Deadline(300), certificates=theirs)
        assert server.clients == 0
