"""The loop's thread parks, so that a blocked thread can drive the engine itself.

Otherwise a blocking call is a hop to the loop's thread and one back: two wake-ups, which cost more
than a small message. After a blocking call has ended, the loop's thread waits a moment inside a
callback instead of going back to sleep in its selector. A parked loop is a set of objects that any
one thread may use. The next call starts its operation in the calling thread and polls for the
answer there, and often gets it before another thread would have woken up. If the answer takes
longer, the loop's thread goes on, and the call waits for it.

Parking is bounded: five milliseconds without a call, ten at most in a row. The loop does not park
while other operations are under way, where another thread calls, or where ranks share a process.
Shorter times cost more than they give. A loop that wakes up to decide whether to go on takes the
core. A call that comes after that takes the hop, which is expensive where ranks outnumber cores.
"""

from __future__ import annotations

# signal.signal converts to enums and back, which takes ten times as long as the call itself.
import _signal  # type: ignore[import-not-found]  # typeshed leaves it out
import threading
from collections import deque
from time import perf_counter
from typing import Any

_SIGINT = int(_signal.SIGINT)
_getsignal, _signal_to = _signal.getsignal, _signal.signal
_raise_interrupt = _signal.default_int_handler
_get_ident = threading.get_ident

_LINGER = 5e-3
_LONGEST = 10e-3


class LoopHandoff:
    """The right to use the objects of one loop: its own thread has it, or for a moment another one."""

    def __init__(self) -> None:
        self.interrupts = Interrupts(threading.main_thread().ident)
        self._turn = threading.Lock()  # held by the thread that drives
        self._wake = threading.Lock()  # released to wake the loop's thread
        self._wake.acquire()
        self._parked = False
        self._recalled = False
        self._coming: deque[None] = deque()  # calls on their way to the loop, which must not park
        self._used = 0.0
        self._until = 0.0

    def park(self) -> None:
        """Park the loop, in one of its callbacks, until it is recalled or no call comes."""
        self._used = now = perf_counter()
        self._until = now + _LONGEST
        self._parked = True
        if self._coming:  # after _parked is set: this sees the call, or `expect` sees _parked
            self._parked = self._recalled = False
            return
        while True:
            woken = self._wake.acquire(timeout=_LINGER)
            # Looked at without the turn: taken now, it would be missing to the very next call.
            if not woken and not self._recalled and (self._turn.locked() or self._was_used()):
                continue
            with self._turn:  # waits for a thread that is driving
                if woken or self._recalled or not self._was_used():
                    self._parked = False
                    if self._recalled and not woken:
                        self._wake.acquire(blocking=False)
                    self._recalled = False
                    return

    def _was_used(self) -> bool:
        return perf_counter() - self._used <= _LINGER

    def acquire(self) -> bool:
        """Return whether the calling thread may drive now; it then calls `give_back` or `resume`."""
        if not self._parked or not self._turn.acquire(False):
            return False
        if self._parked and not self._recalled and perf_counter() < self._until:
            return True
        self._turn.release()
        return False

    def give_back(self) -> None:
        """End driving; the loop stays parked a little longer."""
        self._used = perf_counter()
        self._turn.release()

    def resume(self) -> None:
        """End driving and wake the loop, which has something to do."""
        self._turn.release()
        self.recall()

    def expect(self) -> None:
        """Note that a call is handed to the loop, where `arrived` follows. Any thread."""
        self._coming.append(None)
        self.recall()

    def arrived(self) -> None:
        """Note that the call of `expect` has started."""
        self._coming.popleft()

    def recall(self) -> None:
        """Wake the loop, if it is parked. Any thread."""
        if self._parked and not self._recalled:
            self._recalled = True
            if self._wake.locked():
                self._wake.release()


class Interrupts:
    """Ctrl-C waits while a thread drives the engine: it must not strike in the middle of it.

    Where it would raise KeyboardInterrupt, as Python has it, a handler of ours does that, from the first
    `hold` until `retire`: two system calls for each blocking call were a tenth of the time of a small one.
    A handler of the program's own is put aside for each call, and back.
    """

    __slots__ = ("_came", "_held", "_main_thread", "_note", "_ours", "_previous")

    def __init__(self, main_thread: int | None) -> None:
        self._main_thread = main_thread
        self._came: dict[int, Any] = {}
        self._held = False  # by `_ours`
        self._ours = self._struck
        self._note = self._came.setdefault  # instead of the program's own; called as it would be
        self._previous: Any = None

    def hold(self) -> bool:
        """Hold Ctrl-C back until `release`.

        False where there is nothing to do: in threads that it never strikes, and where it is held
        already, as in a call that another signal's handler makes.
        """
        if _get_ident() != self._main_thread:
            return False
        handler = _getsignal(_SIGINT)
        if handler is not self._ours:
            # None: of a handler that is not Python's we could not put back what was.
            if handler is None or handler is self._note:
                return False
            if handler is not _raise_interrupt:
                self._previous = handler
                _signal_to(_SIGINT, self._note)
                return True
            _signal_to(_SIGINT, self._ours)
        if self._held:
            return False
        self._held = True
        return True

    def release(self) -> None:
        """End `hold`, and deliver an interrupt that came meanwhile."""
        if self._previous is None:
            self._held = False
        else:
            _signal_to(_SIGINT, self._previous)
            self._previous = None
        if self._came:
            self._came.clear()
            _signal.raise_signal(_SIGINT)

    def retire(self) -> None:
        """Restore Python's own handler, if this is the main thread: no thread drives any more."""
        if _get_ident() == self._main_thread and _getsignal(_SIGINT) is self._ours:
            _signal_to(_SIGINT, _raise_interrupt)

    def _struck(self, number: int, frame: Any) -> None:
        if self._held:
            self._came[number] = frame
        else:
            _raise_interrupt(number, frame)
