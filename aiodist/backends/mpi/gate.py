"""Operations wait here, in order, until MPI has made their communicator."""

from __future__ import annotations

import sys
from collections.abc import Callable

from aiodist.backends.mpi.library import Mpi, translated
from aiodist.backends.mpi.poller import Poller
from aiodist.completion import Pending


class Gate:
    """Opens once, with a communicator, or stays shut for good, with an error.

    ``mpi``, ``comm``, ``poller`` and ``most_tag`` (the largest tag of MPI) are set when it opens.
    """

    mpi: Mpi
    comm: Mpi
    poller: Poller

    def __init__(self) -> None:
        self.most_tag = sys.maxsize
        self.is_open = False
        self.error: BaseException | None = None
        self._waiting: list[tuple[Callable[[], None], Callable[[BaseException], None]]] = []

    def run(self, start: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        """Call ``start()`` once the gate is open, after earlier calls; ``fail(error)`` if it stays shut."""
        if self.is_open:
            self.call(start, fail)
        elif self.error is not None:
            fail(self.error)
        else:
            self._waiting.append((start, fail))

    def passed(self) -> Pending[None]:
        """Return what is done when the gate is open, after all earlier calls."""
        passing: Pending[None] = Pending()
        self.run(lambda: passing.complete(None), passing.fail)
        return passing

    def open(self, mpi: Mpi, comm: Mpi, poller: Poller) -> None:
        """Open the gate: ``comm`` can be used."""
        self.mpi, self.comm, self.poller = mpi, comm, poller
        self.most_tag = int(comm.Get_attr(mpi.TAG_UB))
        # The gate opens after the last waiting call: a call that comes meanwhile is appended to them.
        while self._waiting:
            self.call(*self._waiting.pop(0))
        self.is_open = self.error is None  # one of them may have shut it

    def call(self, start: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        """Call ``start()``. What it raises goes to ``fail``, as an error of aiodist."""
        try:
            start()
        except Exception as error:  # noqa: BLE001  # whatever it is, its operation reports it
            fail(translated(self.mpi, error))

    def shut(self, error: BaseException) -> None:
        """Fail what waits, and what comes later: there is no communicator, or no longer."""
        self.is_open = False
        if self.error is None:
            self.error = error
        while self._waiting:
            self._waiting.pop(0)[1](self.error)
