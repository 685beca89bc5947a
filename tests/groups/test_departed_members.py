"""What a group whose messages another library carries fails when a member has left in good order.

The word of a member's end comes by our own streams, and may overtake what it has sent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from aiodist.errors import DistError, PeerLostError
from aiodist.groups.contexts import MessageContext
from aiodist.groups.group_engine import GroupEngine
from aiodist.p2p.matching import Recv
from aiodist.wire.frames import TENSOR

LEFT = PeerLostError("rank 1 has left")
Calls = list[Callable[[], None]]


def group_of(work: Any, later: Calls, failed: list[DistError]) -> Any:
    """Return a group in which ``work`` is under way; its timers add to ``later``."""
    group: Any = SimpleNamespace(
        _fail_without_senders=lambda work: None,
        _left={},
        _loop=SimpleNamespace(call_later=lambda _, call, *args: later.append(partial(call, *args))),
        _messenger=object(),
        communicator=None,
        peer_lost=failed.append,
        under_way=lambda: [work],
    )
    for name in ("_fail_departed", "_fail_departed_later"):
        setattr(group, name, partial(getattr(GroupEngine, name), group))
    return group


@pytest.mark.parametrize("ends", [True, False], ids=["it comes", "it never comes"])
def test_a_collective_may_still_get_what_a_member_has_sent_before_it_left(ends: bool) -> None:
    later: Calls = []
    failed: list[DistError] = []
    waits_for = [1]
    work = SimpleNamespace(_context=None, _waiting_for=lambda: waits_for)
    GroupEngine.peer_left(group_of(work, later, failed), 1, LEFT)
    assert failed == []
    if ends:
        waits_for.clear()
    for call in later:
        call()
    assert failed == ([] if ends else [LEFT])


@pytest.mark.parametrize("ends", [True, False], ids=["it comes", "it never comes"])
def test_a_receive_from_a_member_that_has_left_fails_if_its_message_does_not_come(
    ends: bool,
) -> None:
    later: Calls = []
    failed: list[DistError] = []
    context = MessageContext(SimpleNamespace(), SimpleNamespace(), "recv", 1, 0)  # type: ignore[arg-type]
    recv = context.receiving(Recv((TENSOR, 1, 0), 1, memoryview(b""), b"", lambda *_: None))
    work = SimpleNamespace(_context=context, _fail=failed.append)
    GroupEngine.peer_left(group_of(work, later, failed), 1, LEFT)
    assert failed == []
    if ends:
        recv.complete(1)
    for call in later:
        call()
    assert [str(error) for error in failed] == ([] if ends else [str(LEFT)])
