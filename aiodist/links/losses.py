"""The error for a lost rank."""

from __future__ import annotations

from aiodist.errors import DistError, PeerLostError, name_of
from aiodist.links.rank_info import RankInfo

_GIVEN_UP = "is this rank, and was given up by the others"

LEFT = "has left: it destroyed its process group or ended"
"""Of a rank that said so. As below, what follows its name."""

ENDED = "died, ended without destroy_process_group, or was cut off"
"""Of a rank whose connection has ended without a goodbye."""


def peer_lost(
    rank_info: RankInfo, why: str, noticed_by: int = -1, last: str = "", departure: str = ""
) -> PeerLostError:
    """``rank_info``'s rank is gone; ``why`` continues a sentence that begins with it.

    ``departure``: "left", "died", or "" where that is not known.
    """
    return PeerLostError(
        f"{rank_info} {why}",
        rank=rank_info.rank,
        departure=departure,
        host=rank_info.host,
        pid=rank_info.pid,
        last=last,
        noticed_by=noticed_by,
    )


def outcast(rank_info: RankInfo, why: str, noticed_by: int, last: str) -> PeerLostError:
    """``rank_info``'s rank is this one, and lost to the others; ``why``: a sentence of theirs."""
    return peer_lost(rank_info, f"{_GIVEN_UP}: {why}", noticed_by, last, "died")


def own_loss(error: DistError, rank: int) -> DistError:
    """``error`` as it is raised on ``rank``, which may be the very one that it says is lost."""
    if not isinstance(error, PeerLostError) or error.rank != rank or _GIVEN_UP in error.message:
        return error
    who = name_of(rank, error.host, error.pid)
    what = error.message.removeprefix(f"{who} ")
    if what == error.message:
        what = f"is lost, they say: {error.message}"
    return PeerLostError(f"{who} {_GIVEN_UP}: it {what}", **error.fields)


def without_frames(error: BaseException | None) -> BaseException | None:
    """``error``, whose frames hold buffers that were being read: a group keeps it for long."""
    each = error
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return error
