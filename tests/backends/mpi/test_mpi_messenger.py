"""What becomes of messages when MPI reports an error, without MPI."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aiodist.backends.mpi.gate import Gate
from aiodist.backends.mpi.mpi_messenger import _HEAD, _KINDS, SHORT, MpiMessenger
from aiodist.backends.mpi.poller import Poller, Request
from aiodist.errors import DistBackendError
from aiodist.groups.contexts import MessageContext
from aiodist.p2p.matching import Recv
from aiodist.p2p.spin_policy import SpinPolicy
from aiodist.wire.frames import OBJECT, TENSOR

FAILED = DistBackendError("MPI failed")


@pytest.fixture
def requests() -> list[Request]:
    """All that MPI was asked for, in order."""
    return []


@pytest.fixture
def messenger(requests: list[Request]) -> MpiMessenger:
    def watch(request: Any, memory: object, nbytes: int = 0, status: Any = None) -> Request:
        requests.append(Request(request, memory, status))
        return requests[-1]

    gate, mpi, poller = Gate(), SimpleNamespace(TAG_UB=0, BYTE=None), SimpleNamespace(watch=watch)
    comm = SimpleNamespace(Get_attr=lambda _: 1 << 20, Isend=lambda *_: None)
    gate.open(mpi, comm, poller)  # type: ignore[arg-type]  # as much of a poller as is needed
    return MpiMessenger([0, 1], gate, None)  # type: ignore[arg-type]  # no rank spins


@pytest.mark.parametrize("failed", [0, 1])
def test_a_long_send_fails_if_its_head_or_its_payload_does(
    messenger: MpiMessenger, requests: list[Request], failed: int
) -> None:
    message = messenger.send(1, (TENSOR, 1, 0), memoryview(bytes(SHORT + 1)), b"")
    requests[failed].fail(FAILED)
    assert message.error is FAILED
    requests[1 - failed].complete(None)
    assert message.error is FAILED


@pytest.mark.parametrize("nbytes", [SHORT, SHORT + 1])
def test_a_send_ends_with_its_last_request(
    messenger: MpiMessenger, requests: list[Request], nbytes: int
) -> None:
    message = messenger.send(1, (TENSOR, 1, 0), memoryview(bytes(nbytes)), b"")
    assert len(requests) == 1 + (nbytes > SHORT)
    for request in requests:
        assert not message.done
        request.complete(None)
    assert message.done
    assert message.error is None


@pytest.mark.parametrize("nbytes", [0, SHORT, SHORT + 1])
def test_a_message_that_came_for_a_cancelled_task_goes_to_the_next_receive(
    messenger: MpiMessenger, nbytes: int
) -> None:
    """Two have come, and are given back in the other order."""
    key, group = (TENSOR, 1, 0), SimpleNamespace(endpoint=None)

    def receive() -> Recv:
        return Recv(key, 1, memoryview(bytearray(nbytes)), b"", lambda *_: None)

    for turn in (2, 1):
        recv = receive()
        recv.into, recv.source, recv.turn = memoryview(bytes([turn]) * nbytes), 1, turn
        context = MessageContext(group, messenger, "recv", 1, 0)  # type: ignore[arg-type]
        context.receiving(recv).complete(1)
        hand_back = context.hand_back()
        assert hand_back is not None
        hand_back()
    for turn in (1, 2):
        recv = messenger.recv(receive())
        assert (recv.done, recv.value, recv.turn) == (True, 1, turn)
        assert recv.into == bytes([turn]) * nbytes


@pytest.mark.parametrize("waits", [False, True], ids=["later", "waiting"])
def test_a_long_message_that_is_coming_goes_to_the_next_receive(
    messenger: MpiMessenger, requests: list[Request], waits: bool
) -> None:
    """Two receives are given up before its payload has come, into memory of the first one."""

    def receive() -> Recv:
        return Recv(
            (OBJECT, 1, 0), 1, None, b"", lambda *_: None, lambda _, n: memoryview(bytearray(n))
        )

    messenger._gate.comm.Irecv = lambda *_: SimpleNamespace(Cancel=lambda: None)
    messenger._gate.mpi.Status = SimpleNamespace
    heads = [messenger.recv(receive()) for _ in range(3 if waits else 1)]
    head = messenger._posted[heads[0]].head
    _HEAD.pack_into(head, 0, SHORT + 1, 0, 0)
    requests[0].status = SimpleNamespace(
        Is_cancelled=lambda: False, Get_source=lambda: 1, Get_tag=lambda: OBJECT
    )
    requests[0].complete(None)
    first, second, third = heads if waits else (heads[0], receive(), receive())
    messenger.withdraw(first)
    if not waits:
        messenger.recv(second)
    messenger.withdraw(second)
    assert first.into is not None
    first.into[:] = bytes([7]) * (SHORT + 1)
    requests[-1].complete(None)
    if not waits:
        messenger.recv(third)
    assert [recv.done for recv in (first, second, third)] == [False, False, True]
    assert third.value == 1
    assert third.into == first.into


def test_the_page_on_mpi_says_which_tags_travel() -> None:
    page = (Path(__file__).parents[3] / "docs" / "mpi.md").read_text()
    for library, largest in (("MPICH", 2**29 - 1), ("Open MPI", 2**31 - 1)):
        assert f"{largest // _KINDS // 10**6} million with {library}" in page


async def test_a_payload_that_mpi_refuses_to_receive_fails_its_receive_alone() -> None:
    """As one that is longer than MPI can count. Another request has ended at the same time."""
    heads: list[bytearray] = []

    def receive(buffer: tuple[Any, Any], source: int, tag: int) -> Any:
        if not isinstance(buffer[0], bytearray):
            raise OverflowError("too long")
        heads.append(buffer[0])
        return SimpleNamespace(Test=lambda status: True)

    def status() -> Any:
        return SimpleNamespace(Is_cancelled=lambda: False, Get_source=lambda: 0)

    mpi: Any = SimpleNamespace(TAG_UB=0, BYTE=None, Exception=SystemError, Status=status)
    poller = Poller(mpi, asyncio.get_running_loop(), SpinPolicy(lambda _: None))
    gate = Gate()
    gate.open(mpi, SimpleNamespace(Get_attr=lambda _: 1 << 20, Irecv=receive), poller)
    messenger = MpiMessenger([0, 1], gate, poller._spin_policy)
    long, short = (
        messenger.recv(
            Recv((TENSOR, 1, tag), 0, memoryview(bytearray(nbytes)), b"", lambda *_: None)
        )
        for tag, nbytes in enumerate((SHORT + 1, SHORT))
    )
    for head, nbytes in zip(heads, (SHORT + 1, SHORT), strict=True):
        _HEAD.pack_into(head, 0, nbytes, 0, 0)
    poller.poll()
    assert isinstance(long.error, OverflowError)
    assert short.done
    assert short.error is None
    assert poller.close()
