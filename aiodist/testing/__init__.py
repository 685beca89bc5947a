"""For users' tests: in-process ranks, conformance checks for transports and stores, faults."""

from aiodist.testing.check_store import check_store
from aiodist.testing.check_transport import TRANSPORT_CHECKS, check_transport
from aiodist.testing.faults import Faults, FaultyConnection, FaultyTransport
from aiodist.testing.in_process import run_ranks

__all__ = [
    "TRANSPORT_CHECKS",
    "Faults",
    "FaultyConnection",
    "FaultyTransport",
    "check_store",
    "check_transport",
    "run_ranks",
]
