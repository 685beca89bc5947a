"""What waits for a communicator, without MPI."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from aiodist.backends.mpi.gate import Gate
from aiodist.errors import DistBackendError


def test_a_gate_that_is_shut_by_what_waited_for_it_stays_shut() -> None:
    gate, error = Gate(), DistBackendError("the group is closed")
    failures: list[BaseException] = []
    gate.run(lambda: gate.shut(error), failures.append)
    gate.run(lambda: failures.append(AssertionError()), failures.append)
    mpi: Any = SimpleNamespace(TAG_UB=0)
    comm: Any = SimpleNamespace(Get_attr=lambda _: 1)
    gate.open(mpi, comm, comm)
    assert not gate.is_open
    gate.run(lambda: failures.append(AssertionError()), failures.append)
    assert failures == [error, error]
