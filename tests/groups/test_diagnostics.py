"""The ranks that an error names, and what it says of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aiodist.errors import PeerLostError
from aiodist.groups.diagnostics import (
    describe_missing,
    describe_waiting,
    explained,
    mismatch,
    missing_of,
    unread_in_words,
)
from aiodist.groups.fingerprint import Fingerprint, differ_in_device_alone
from aiodist.p2p.endpoint_events import StatusAnswer
from aiodist.tensors import dtype_named
from aiodist.wire.frames import COLLECTIVE, TENSOR, Frame, FrameType

ELSEWHERE = StatusAnswer(False, "barrier(), operation 3", "is in no operation")


def test_missing_ranks_are_named_with_what_they_do() -> None:
    missing = missing_of(
        {1: ELSEWHERE, 2: StatusAnswer(True), 4: StatusAnswer(False, "", "is in recv()")}
    )
    assert describe_missing(missing, []) == (
        "ranks 1, 4 did not enter it (rank 1 finished barrier(), operation 3 last, and is in no "
        "operation; rank 4 is in recv())"
    )


def test_ranks_that_do_not_answer_are_named() -> None:
    assert describe_missing(missing_of({1: None}), [1]) == "rank 1 does not answer"
    said = describe_missing({1: ELSEWHERE, 2: None, 5: None}, [])
    assert said.startswith("rank 1 did not enter it (it finished barrier(), operation 3 last, and")
    assert said.endswith("is in no operation), and ranks 2, 5 do not answer")


def test_a_few_of_many_missing_ranks_report_their_activity() -> None:
    said = describe_missing(dict.fromkeys(range(20), ELSEWHERE), [])
    assert ", 18, 19 did not enter it (rank 0 " in said
    assert said.count("is in no operation") == 8
    assert said.endswith("; and 12 more)")


def test_the_ranks_that_a_message_waits_for() -> None:
    assert describe_waiting([1, 2], "", {}) == "still waiting for ranks 1, 2"
    said = describe_waiting([1], ", which is late", {1: ELSEWHERE})
    assert said == "still waiting for rank 1, which is late; it is in no operation"
    said = describe_waiting([1], "", {1: None})
    assert said == "still waiting for rank 1; it does not answer"


def test_waiting_ranks_are_named_where_all_have_entered() -> None:
    assert describe_missing({}, [2]) == "all ranks are in it, still waiting for rank 2"


def test_unclaimed_messages() -> None:
    arrived = [((TENSOR, 9, tag), 1) for tag in (7, 5)]
    others = [((TENSOR, 8, 1), 1), ((COLLECTIVE, 9, 2), 1), ((TENSOR, 9, 3), 2)]
    assert unread_in_words(others, 9, [1]) == ""
    said = unread_in_words([*arrived, *others], 9, [1])
    assert said == ", from where tensors with tag 5, 7 have come that no receive asked for"
    many = [((TENSOR, 9, tag), 1) for tag in range(9)]
    assert "tag 0, 1, 2, 3, 4, ... have" in unread_in_words(many, 9, [1])


MEMORY = "it last finished barrier(), operation 9 of 'g', in shared memory"
MESSAGE = "the last that came from it: tensors with tag 7 in 'g'"
HEARTBEAT = "1.1 s before the loss it was in barrier()"


@pytest.mark.parametrize(
    ("in_memory", "message", "heartbeat", "known"),
    [
        (True, True, HEARTBEAT, f"{MEMORY}; {MESSAGE}; {HEARTBEAT}"),
        (True, False, HEARTBEAT, f"{MEMORY}; {HEARTBEAT}"),
        (False, True, HEARTBEAT, f"{MESSAGE}; {HEARTBEAT}"),
        (False, False, "", ""),
    ],
)
def test_a_heartbeat_does_not_hide_newer_activity(
    in_memory: bool, message: bool, heartbeat: str, known: str
) -> None:
    finished = "finished barrier(), operation 9 of 'g'" if in_memory else ""
    group: Any = SimpleNamespace(group_name="g", last_in_memory=lambda rank: finished)
    frame = Frame(FrameType.EAGER, TENSOR, 4, 7, 0, 0, b"") if message else None
    lost = PeerLostError("rank 1 died", rank=1, last=heartbeat)
    error = explained(lost, frame, {4: group}, 0)
    assert error.last == known
    told = known or "no message ever came from it"
    assert str(error) == f"rank 1 died; {told}; rank 0 noticed"


def test_a_slow_operation_names_no_rank() -> None:
    assert "it needs more time" in describe_missing({}, [])


WAY = " by way of a GPU or another library"
CPU = Fingerprint("broadcast", dtype_named("float32"), root=0, count=4)


@pytest.mark.parametrize("here", [False, True])
def test_fingerprints_that_differ_in_the_device_alone_are_recognised(here: bool) -> None:
    one, other = replace(CPU, elsewhere=here), replace(CPU, elsewhere=not here)
    assert differ_in_device_alone(one.encoded, other.encoded)
    assert not differ_in_device_alone(one.encoded, one.encoded)
    for changed in ({"count": 5}, {"root": 1}, {"operation": "reduce"}):
        assert not differ_in_device_alone(one.encoded, replace(other, **changed).encoded)
    assert not differ_in_device_alone(one.encoded, other.encoded[:-1])


@pytest.mark.parametrize(("mine", "theirs"), [(False, False), (True, True)])
def test_the_location_of_the_tensors_is_omitted_if_equal(mine: bool, theirs: bool) -> None:
    assert "by way of" not in disagreement(mine, theirs)


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        (True, False, f"root 0){WAY}, rank 1 called broadcast(5 x float32, root 0)"),
        (False, True, f"root 0), rank 1 called broadcast(5 x float32, root 0){WAY}"),
    ],
)
def test_the_error_names_the_rank_that_takes_another_path(
    mine: bool, theirs: bool, said: str
) -> None:
    assert disagreement(mine, theirs).endswith(said)


def disagreement(mine: bool, theirs: bool) -> str:
    group: Any = SimpleNamespace(group_name="g", global_rank=0)
    other = replace(CPU, count=5, elsewhere=theirs)
    return str(mismatch(group, 3, replace(CPU, elsewhere=mine), 1, other.encoded))
