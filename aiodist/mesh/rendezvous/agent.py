"""The store of torchrun's agent, a torch TCPStore: only torch's own client speaks to it."""

from __future__ import annotations

import importlib
from datetime import timedelta
from typing import Any

from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError
from aiodist.mesh.rendezvous.plan import Master

_LONGEST_TIMEOUT = timedelta(days=30)


def agent_client(master: Master, deadline: Deadline) -> Any:
    """A torch TCPStore that is connected to the agent. Blocks, up to ``deadline``.

    Raises DistNetworkError if nothing of torch's answers there.
    """
    torch = importlib.import_module("torch.distributed")
    timeout = _LONGEST_TIMEOUT
    if deadline.remaining() < timeout.total_seconds():
        timeout = timedelta(seconds=max(deadline.remaining(), 0.001))
    try:
        return torch.TCPStore(
            master.host, master.port, is_master=False, timeout=timeout, wait_for_workers=False
        )
    except RuntimeError as error:
        raise DistNetworkError(
            f"torchrun's store at {master} cannot be reached: {error}. Its agent on the first "
            "node serves it; see whether that still runs"
        ) from error
