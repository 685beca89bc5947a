"""For users' tests: in-process ranks, and conformance checks for transports and stores."""

from aiodist.testing.check_store import check_store
from aiodist.testing.check_transport import TRANSPORT_CHECKS, check_transport
from aiodist.testing.in_process import run_ranks

__all__ = ["TRANSPORT_CHECKS", "check_store", "check_transport", "run_ranks"]
