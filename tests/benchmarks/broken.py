"""Peers with mistakes, which a run must not let pass."""

from __future__ import annotations

from collections.abc import Callable

from aiodist.bench.measured_operations import Call
from aiodist.bench.peers.gloo import Gloo
from aiodist.bench.peers.measured_peer import UnsupportedError


class Idle(Gloo):
    """Its all_reduce does nothing."""

    def bind(self, call: Call) -> Callable[[], object]:
        return (lambda: None) if call.operation == "all_reduce" else super().bind(call)


class Limited(Gloo):
    """Has no all_reduce."""

    def bind(self, call: Call) -> Callable[[], object]:
        if call.operation == "all_reduce":
            raise UnsupportedError("it has only a barrier")
        return super().bind(call)
