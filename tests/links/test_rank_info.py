"""What a rank tells the others about itself."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest

from aiodist.errors import ProtocolError
from aiodist.links.rank_info import RankInfo

RANK_INFO = RankInfo(3, "node7", "boot", 42, ("tcp:10.0.0.1:5",), ("tcp:10.0.0.1:6",), "/name")


@pytest.mark.parametrize("cores", [(), (0,), (1, 8, 63, 300)])
def test_a_rank_info_comes_over_as_it_is(cores: tuple[int, ...]) -> None:
    rank_info = replace(RANK_INFO, cores=frozenset(cores))
    assert RankInfo.decode(rank_info.encode()) == rank_info


def test_a_malformed_rank_info_is_refused() -> None:
    fields = msgpack.unpackb(RANK_INFO.encode())
    fields[5] = b"\xff" * 1025  # more cores than a host has
    for malformed in (msgpack.packb(fields), msgpack.packb(7), b""):
        with pytest.raises(ProtocolError, match="malformed rank info"):
            RankInfo.decode(malformed)
