"""Every transport on every loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from aiodist.transport.base_transport import Transport
from aiodist.transport.inproc import InprocHub, InprocTransport
from aiodist.transport.striped import StripedTransport
from aiodist.transport.tcp import TcpTransport
from aiodist.transport.tls import TlsTransport
from aiodist.transport.unix import UnixTransport
from tests.certificates import tls_files

Pair = tuple[Transport, Transport]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session", autouse=True)
def _what_uvloop_opens_once() -> None:
    """uvloop's first loop opens a pipe that the process keeps; no test of ours left it behind."""
    uvloop.new_event_loop().close()


def _tcp() -> Pair:
    return TcpTransport("127.0.0.1"), TcpTransport("127.0.0.1")


def _unix() -> Pair:
    return UnixTransport(), UnixTransport()


def _unix_path() -> Pair:
    return UnixTransport(abstract=False), UnixTransport(abstract=False)


def _tls() -> Pair:
    certificates = tls_files()
    return TlsTransport("127.0.0.1", certificates), TlsTransport("127.0.0.1", certificates)


def _striped() -> Pair:
    return StripedTransport(["127.0.0.1"], 3), StripedTransport(["127.0.0.1", "127.0.0.2"], 3)


def _inproc() -> Pair:
    hub = InprocHub()
    return InprocTransport(hub), InprocTransport(hub)


@pytest.fixture(
    params=[_tcp, _striped, _tls, _unix, _unix_path, _inproc], ids=lambda make: make.__name__[1:]
)
def make_pair(request: pytest.FixtureRequest) -> Callable[[], Pair]:
    make: Callable[[], Pair] = request.param
    return make
