"""Connect to a torch TCPStore that torchrun's agent or torch's default group serves.

Only torch's own client speaks its protocol.
"""

from __future__ import annotations

import importlib
import sys
from datetime import timedelta
from typing import Any

from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError
from aiodist.rendezvous.meeting_plan import TORCH_GROUP, Master

_LONGEST_TIMEOUT = timedelta(days=30)


def agent_client(master: Master, deadline: Deadline) -> Any:
    """Return a torch TCPStore that is connected to ``master``. Blocks, up to ``deadline``.

    Raises DistNetworkError if no torch store answers there.
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
            f"{master.server} at {master} cannot be reached: {error}. See whether the process "
            "that serves it, on the first node, still runs"
        ) from error


def torchs_store() -> tuple[Master, int, int] | None:
    """Return where torch's default group has met, with its rank and size.

    Returns None if torch has no default group, or if that group did not meet at a TCPStore.
    """
    torch = sys.modules.get("torch.distributed")
    if torch is None or not torch.is_available() or not torch.is_initialized():
        return None
    store = torch.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if not isinstance(store, torch.TCPStore):
        return None
    master = Master(store.host, store.port, TORCH_GROUP)
    return master, torch.get_rank(), torch.get_world_size()
