"""How many streams go to each other rank."""

from __future__ import annotations

import pytest

from aiodist.api.settings import streams_from, with_bundles
from aiodist.errors import InvalidUsageError
from aiodist.transport.tcp import TcpTransport
from aiodist.transport.unix import UnixTransport


@pytest.mark.parametrize(
    ("streams", "hosts", "bundled"),
    [
        (0, ["127.0.0.1"], False),
        (1, ["127.0.0.1"], False),
        (4, ["127.0.0.1"], True),
        (0, ["127.0.0.1", "127.0.0.2"], True),
        (1, ["127.0.0.1", "127.0.0.2"], False),
    ],
)
def test_bundles_stand_before_tcp_where_there_are_several_streams(
    streams: int, hosts: list[str], bundled: bool
) -> None:
    ways = with_bundles([UnixTransport(), TcpTransport(hosts[0])], hosts, streams)
    wanted = ["unix", "stripes", "tcp"] if bundled else ["unix", "tcp"]
    assert [way.scheme for way in ways] == wanted
    assert with_bundles([UnixTransport()], hosts, streams)[1:] == []


def test_the_variable() -> None:
    assert streams_from({}, ["tcp"]) == 0
    assert streams_from({"AIODIST_STREAMS": " 4 "}, ["shm", "tcp"]) == 4
    assert streams_from({"AIODIST_STREAMS": "1"}, ["unix", "tls"]) == 1
    with pytest.raises(InvalidUsageError, match="is for TCP, which is not among"):
        streams_from({"AIODIST_STREAMS": "2"}, ["unix", "tls"])
