"""What a rank tells the others when they meet: its identity and its addresses."""

from __future__ import annotations

import hashlib
from collections.abc import Container
from dataclasses import dataclass

import msgpack

from aiodist.errors import ProtocolError, name_of

_LOCAL_SCHEMES = ("unix",)
_MASK_BYTES = 1 << 10
"""The longest mask of cores: Linux knows at most 8,192 of them, and other systems have fewer."""


@dataclass(frozen=True)
class RankInfo:
    """What a rank tells the others when they meet."""

    rank: int
    host: str
    """Host name, for messages."""
    host_id: str
    """Equal on ranks that run under one kernel: only those try the transports of one host."""
    pid: int
    addresses: tuple[str, ...]
    """Where the endpoint listens, best address first."""
    heartbeat_addresses: tuple[str, ...] = ()
    """Where its heartbeat thread listens, best address first."""
    segment: str = ""
    """How to map its shared memory; empty if it has none."""
    cores: frozenset[int] = frozenset()
    """Numbers of the cores that it may use."""

    @classmethod
    def absent(cls, rank: int) -> RankInfo:
        """Return the info of a rank that may come later: no process, no addresses."""
        return cls(rank, "", "", 0, ())

    @property
    def is_absent(self) -> bool:
        """Whether no process has ever had this rank."""
        return not self.pid

    def encode(self) -> bytes:
        places = [list(self.addresses), list(self.heartbeat_addresses)]
        cores = sum(1 << core for core in self.cores)
        mask = cores.to_bytes((cores.bit_length() + 7) // 8)
        fields = [self.rank, self.host, self.host_id, self.pid, self.segment, mask, *places]
        packed: bytes = msgpack.packb(fields)
        return packed

    @property
    def mark(self) -> bytes:
        """Return bytes that tell this process from any other process that has the same rank."""
        return hashlib.blake2b(self.encode(), digest_size=8).digest()

    @classmethod
    def decode(cls, data: bytes) -> RankInfo:
        try:
            rank, host, host_id, pid, segment, mask, *places = msgpack.unpackb(data)
            if len(mask) > _MASK_BYTES:
                raise ValueError("more cores than a host has")
            bits = f"{int.from_bytes(mask):b}"
            addresses, heartbeat_addresses = (tuple(map(str, place)) for place in places)
            who = int(rank), str(host), str(host_id), int(pid)
            cores = frozenset(core for core, bit in enumerate(reversed(bits)) if bit == "1")
            return cls(*who, addresses, heartbeat_addresses, str(segment), cores)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise ProtocolError("a rank sent a malformed rank info") from error

    def __str__(self) -> str:
        return name_of(self.rank, self.host, self.pid)


def reachable_at(address: str, there: RankInfo, here: RankInfo, schemes: Container[str]) -> bool:
    """Return whether ``here`` can try ``address`` of ``there`` with transports for ``schemes``."""
    scheme = address.partition(":")[0]
    return scheme in schemes and (scheme not in _LOCAL_SCHEMES or there.host_id == here.host_id)
