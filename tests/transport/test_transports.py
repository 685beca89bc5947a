"""Schemes find their transports, and unknown ones are told what is known."""

from __future__ import annotations

import pytest

from aiodist.errors import InvalidUsageError
from aiodist.transport.inproc import InprocHub, InprocTransport
from aiodist.transport.tcp import TcpTransport
from aiodist.transport.transports import Transports
from aiodist.transport.unix import UnixTransport


def test_schemes_find_their_transport() -> None:
    transports = Transports.default("127.0.0.1", hub=InprocHub())
    assert isinstance(transports.get("tcp"), TcpTransport)
    assert isinstance(transports.get("unix"), UnixTransport)
    assert isinstance(transports.get("inproc"), InprocTransport)
    assert transports.schemes == ("tcp", "unix", "inproc")


def test_a_transport_is_made_once() -> None:
    made: list[UnixTransport] = []

    def make() -> UnixTransport:
        made.append(UnixTransport())
        return made[-1]

    transports = Transports({"unix": make})
    assert made == []
    assert transports.get("unix") is transports.get("unix") is made[0]
    assert len(made) == 1


def test_an_unknown_scheme_names_the_known_ones() -> None:
    transports = Transports.default("127.0.0.1")
    with pytest.raises(InvalidUsageError, match="'inproc'; the known ones: tcp, unix"):
        transports.get("inproc")
