"""What a group remembers of its last collectives."""

from __future__ import annotations

from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.group_engine import REMEMBERED, CompletedOperations

BARRIER, GATHER = Fingerprint("barrier"), Fingerprint("gather", root=0)


def test_the_last_of_them_are_known_by_number() -> None:
    finished = CompletedOperations()
    assert finished.last() is None
    for number in range(3, REMEMBERED + 5, 2):
        finished.add(number, BARRIER)
    finished.add(4, GATHER)
    last = REMEMBERED + 3
    assert finished.last() == (last, BARRIER)
    assert finished.get(last) is BARRIER
    assert finished.get(4) is GATHER
    assert finished.get(6) is None
    assert finished.get(3) is None, "another one has come in its place"
    assert finished.get(last + REMEMBERED) is None, "which has not ended yet"
    assert len(finished.ring) == REMEMBERED


def test_a_popped_operation_is_forgotten() -> None:
    finished = CompletedOperations()
    finished.add(7, BARRIER)
    assert finished.pop(7 + REMEMBERED) is None
    assert finished.pop(7) is BARRIER
    assert finished.pop(7) is None
    assert finished.get(7) is None
    assert finished.last() is None
