"""What a group fails when a member has left in good order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from aiodist.errors import PeerLostError
from aiodist.groups.group_engine import GroupEngine

LEFT = PeerLostError("rank 1 has left")


@pytest.mark.parametrize("ends", [True, False], ids=["it has come", "it never comes"])
def test_what_mpi_still_carries_from_a_member_that_has_left_may_come(ends: bool) -> None:
    """As a message that MPI has, or that rank 1 has got: the word of its end comes by our own streams."""
    later: list[Callable[[], None]] = []
    lost: list[PeerLostError] = []
    active = {0: SimpleNamespace(_waiting_for=lambda: [1])}
    group: Any = SimpleNamespace(
        _active=active,
        _fail_lonely=lambda: None,
        _left=set(),
        _loop=SimpleNamespace(call_later=lambda _, call, *args: later.append(partial(call, *args))),
        _messenger=object(),
        communicator=None,
        peer_lost=lost.append,
    )
    group._fail_waiting = partial(GroupEngine._fail_waiting, group)
    GroupEngine.peer_left(group, 1, LEFT)
    assert lost == []
    if ends:
        active.clear()
    for call in later:
        call()
    assert lost == ([] if ends else [LEFT])
