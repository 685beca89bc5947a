"""How a call gets to the loop's thread, and how its end gets back to the thread that waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from aiodist.groups.world import current_world
from aiodist.sync.loop_handoff import LoopHandoff


def gate_of(work: Any, handoff: LoopHandoff) -> threading.Lock:
    """What to wait for in a thread that has driven the loop, until ``work`` has ended elsewhere."""
    gate = threading.Lock()
    gate.acquire()
    work._stay_awake()
    work._when_done(partial(_open, gate, handoff))
    handoff.resume()
    return gate


def _open(gate: threading.Lock, handoff: LoopHandoff) -> None:
    gate.release()
    # The caller is likely to call again: be there for it. Not here, in the middle of whatever
    # has ended the operation.
    asyncio.get_running_loop().call_soon(_park, handoff)


class CrossThreadCall:
    """One call from another thread, on its way to the loop's."""

    __slots__ = (
        "_args",
        "_blocks",
        "_function",
        "_handoff",
        "_kwargs",
        "error",
        "gate",
        "returned",
    )

    def __init__(
        self,
        function: Callable[..., Any],
        blocks: bool,
        args: Any,
        kwargs: dict[str, Any],
        handoff: LoopHandoff,
    ) -> None:
        self._handoff = handoff
        self._function = function
        self._blocks = blocks
        self._args = args
        self._kwargs = kwargs
        self.returned: Any = None
        self.error: BaseException | None = None
        self.gate = threading.Lock()
        self.gate.acquire()

    def start(self) -> None:
        """Run it in the loop's thread."""
        self._handoff.arrived()
        returned = self._begin()
        if returned is None or not self._blocks:
            self.gate.release()
            return
        returned._spin()
        if returned.is_completed():
            self.gate.release()
            _park(self._handoff)  # now: in a later turn the caller's next call would be here before
            return
        returned._stay_awake()
        returned._when_done(partial(_open, self.gate, self._handoff))

    def _begin(self) -> Any:
        """Call the function; what it returned, or None where it raised."""
        try:
            self.returned = returned = self._function(*self._args, **self._kwargs)
        except BaseException as error:  # noqa: BLE001  # raised in the thread that called
            traceback = error.__traceback__
            self.error = error.with_traceback(traceback and traceback.tb_next)  # without this frame
            return None
        return returned

    def cancel(self) -> None:
        """Give up what it has started. In the loop's thread."""
        works = self.returned if isinstance(self.returned, list) else [self.returned]
        for work in works:
            if work is not None:
                work.cancel()


def _park(handoff: LoopHandoff) -> None:
    if current_world().may_stand_still:
        handoff.park()
