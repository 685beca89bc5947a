"""Operations in torch's profilers: an asynchronous event each, from the call to the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import record_function


def record(name: str) -> Callable[[], None] | None:
    """Begin the event "aiodist:<name>" in the calling thread; returns what ends it, in any thread.

    None where no profiler runs.
    """
    if not _profiler_enabled():
        return None
    # Any's: torch's annotations promise what only a profiler's own class has.
    event: Any = record_function(f"aiodist:{name}")
    ended: torch.futures.Future[bool] = torch.futures.Future()
    with event:
        # The profiler's state belongs to this thread; torch takes it along to where this ends.
        event._call_end_callbacks_on_future(ended)
    return partial(ended.set_result, True)
