"""A communicator that is being made: what needs it waits, in order."""

from __future__ import annotations

import sys
from collections.abc import Callable

from aiodist.backends.mpi.library import Mpi, translated
from aiodist.backends.mpi.poller import Poller
from aiodist.completion import Pending


class Gate:
    """Opens once, with a communicator; or stays shut for good, with an error.

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
        """Call ``start()`` once it is open, after all that came before; or ``fail(error)``."""
        if self.is_open:
            self.call(start, fail)
        elif self.error is not None:
            fail(self.error)
        else:
            self._waiting.append((start, fail))

    def passed(self) -> Pending[None]:
        """Done when it is open, after all that came before."""
        passing: Pending[None] = Pending()
        self.run(lambda: passing.complete(None), passing.fail)
        return passing

    def open(self, mpi: Mpi, comm: Mpi, poller: Poller) -> None:
        """The communicator is there."""
        self.mpi, self.comm, self.poller = mpi, comm, poller
        self.most_tag = int(comm.Get_attr(mpi.TAG_UB))
        # Not open before the last has gone: a call that comes now comes after them.
        while self._waiting:
            self.call(*self._waiting.pop(0))
        self.is_open = self.error is None  # one of them may have shut it

    def call(self, start: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        """Call ``start()`` now that MPI is there. What it raises goes to ``fail``, as an error of ours."""
        try:
            start()
        except Exception as error:  # noqa: BLE001  # whatever it is, its operation reports it
            fail(translated(self.mpi, error))

    def shut(self, error: BaseException) -> None:
        """There will be none, or no more."""
        self.is_open = False
        if self.error is None:
            self.error = error
        while self._waiting:
            self._waiting.pop(0)[1](self.error)
