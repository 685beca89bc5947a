"""A call that one thread hands to the loop's thread, and waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from aiodist.groups.world import current_world
from aiodist.sync.loop_handoff import LoopHandoff


def gate_of(work: Any, handoff: LoopHandoff) -> threading.Lock:
    """Return a lock that is released when ``work`` has ended, for a thread that has driven the loop."""
    gate = threading.Lock()
    gate.acquire()
    work._stay_awake()
    work._when_done(partial(_open, gate, handoff))
    handoff.resume()
    return gate


def _open(gate: threading.Lock, handoff: LoopHandoff) -> None:
    gate.release()
    # The caller is likely to call again, so the loop parks for it: in a callback of its own, not in
    # the middle of the one that has ended the operation.
    asyncio.get_running_loop().call_soon(_park, handoff)


class CrossThreadCall:
    """One call from another thread, on its way to the loop's."""

    __slots__ = (
        "_blocks",
        "_function",
        "_handoff",
        "error",
        "gate",
        "returned",
    )

    def __init__(
        self,
        function: Callable[[], Any],
        blocks: bool,
        handoff: LoopHandoff,
    ) -> None:
        self._handoff = handoff
        self._function = function
        self._blocks = blocks
        self.returned: Any = None
        self.error: BaseException | None = None
        self.gate = threading.Lock()
        self.gate.acquire()

    def start(self) -> None:
        """Start the function; the loop's thread calls this."""
        self._handoff.arrived()
        returned = self._begin()
        if returned is None or not self._blocks:
            self.gate.release()
            return
        returned._spin()
        if returned.is_completed():
            self.gate.release()
            _park(self._handoff)  # now: the caller's next call would come before a later callback
            return
        returned._stay_awake()
        returned._when_done(partial(_open, self.gate, self._handoff))

    def _begin(self) -> Any:
        """Call the function; return its result, or None if it raised."""
        try:
            self.returned = returned = self._function()
        except BaseException as error:  # noqa: BLE001  # raised in the thread that called
            traceback = error.__traceback__
            self.error = error.with_traceback(traceback and traceback.tb_next)  # without this frame
            return None
        return returned

    def cancel(self) -> None:
        """Cancel what the function has started; the loop's thread calls this."""
        works = self.returned if isinstance(self.returned, list) else [self.returned]
        for work in works:
            if work is not None:
                work.cancel()


def _park(handoff: LoopHandoff) -> None:
    if current_world().may_stand_still:
        handoff.park()
