"""What is said of a lost rank, and how it is said to the rank itself."""

from __future__ import annotations

import pytest

from aiodist.errors import CollectiveError, DistError, PeerLostError
from aiodist.links.losses import outcast, own_loss, peer_lost
from aiodist.links.rank_info import RankInfo


def rank_info(rank: int) -> RankInfo:
    return RankInfo(rank, "host", "id", 7, ("tcp:127.0.0.1:1",))


def test_a_rank_that_is_told_its_own_loss_raises_it() -> None:
    told = peer_lost(
        rank_info(1), "is lost: nothing was heard of it for 2 s", 3, "was in barrier()"
    )
    own = own_loss(told, 1)
    assert str(own) == (
        "rank 1 (process 7 on host) is this rank, and was given up by the others: it is lost: "
        "nothing was heard of it for 2 s"
    )
    assert isinstance(own, PeerLostError)
    assert own.fields == told.fields


@pytest.mark.parametrize(
    "error",
    [
        peer_lost(rank_info(2), "died or was cut off: reset", 0),
        outcast(rank_info(1), "nothing was heard of it for 2 s", 3, ""),
        CollectiveError("the operation failed", rank=1),
    ],
)
def test_the_rest_is_said_as_it_was_told(error: DistError) -> None:
    assert own_loss(error, 1) is error


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("rank 1 cannot be reached: no route", "cannot be reached: no route"),
        ("the cable of rank 1 was pulled", "is lost, they say: the cable of rank 1 was pulled"),
    ],
)
def test_a_rank_of_unknown_process_and_a_sentence_that_begins_otherwise(
    told: str, said: str
) -> None:
    own = own_loss(PeerLostError(told, rank=1), 1)
    assert str(own) == f"rank 1 is this rank, and was given up by the others: it {said}"
