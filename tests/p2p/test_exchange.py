"""Inbox and outbox of two ranks together: every message once, in order, within the window."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from aiodist.p2p import outbox, shm_sender
from aiodist.shm.process_memory import ProcessMemory
from tests.p2p.conftest import SetClock
from tests.p2p.exchange import A_MESSAGE_IN_IT, Exchange, use_small_sizes

READ = ProcessMemory.read


@pytest.fixture(autouse=True)
def _small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_sizes(monkeypatch)


def refused_after(times: int) -> Callable[[ProcessMemory, int, int, int], None]:
    """`ProcessMemory.read` on a system that forbids it after some pieces."""
    read, left = READ, itertools.count(times, -1)

    def limited(memory: ProcessMemory, there: int, here: int, nbytes: int) -> None:
        if next(left) <= 0:
            raise PermissionError
        read(memory, there, here, nbytes)

    return limited


@pytest.mark.parametrize(
    "way",
    [
        "streams",
        "streams of forgetful senders",
        "read directly",
        "read directly, in turns",
        "read directly until it is refused",
        "messages in rings",
    ],
)
@pytest.mark.parametrize(
    "block", [0, 1, *(pytest.param(block, marks=pytest.mark.extended) for block in (2, 3))]
)
def test_every_message_arrives_once_in_order_and_within_the_window(
    block: int, way: str, monkeypatch: pytest.MonkeyPatch, set_clock: SetClock
) -> None:
    stalls = 0
    shared_bytes = 0 if way.startswith("streams") else 1 << 20
    if way == "streams of forgetful senders":
        monkeypatch.setattr(outbox, "MOST_WANTED", 1)
    if way == "messages in rings":  # full at times, not for all messages
        monkeypatch.setattr(shm_sender, "RING_BYTES", A_MESSAGE_IN_IT)
    if way == "read directly, in turns":
        set_clock(6e-4)  # two pieces, and other callbacks have their turn
    for seed in range(block * 60, block * 60 + 60):
        if way == "read directly until it is refused":
            monkeypatch.setattr(ProcessMemory, "read", refused_after(seed % 9))
        exchange = Exchange(seed, shared_bytes)
        for side in exchange.sides:
            side.spin_policy.active = bool(seed % 2)
        try:
            exchange.run(150)
            for side in exchange.sides:
                shm = side.peer.outbox.shm
                assert shm is not None and shm.ring is not None if shared_bytes else shm is None
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            exchange.pair.close()
        stalls += exchange.stalls
    assert stalls > 0, "no run went beyond the credit: the test has lost its point"
