"""Build the error for a lost rank."""

from __future__ import annotations

from aiodist.errors import DistError, PeerLostError, name_of
from aiodist.links.rank_info import RankInfo

_GIVEN_UP = "is this rank, and was given up by the others"

LEFT = "has left: it destroyed its process group or ended"
"""Text for a rank that said goodbye. It follows the rank's name, as the next one does."""

ENDED = "died, ended without destroy_process_group, or was cut off"
"""Text for a rank whose connection has ended without a goodbye."""


def peer_lost(
    rank_info: RankInfo, why: str, noticed_by: int = -1, last: str = "", departure: str = ""
) -> PeerLostError:
    """Return the error that ``rank_info``'s rank is lost; ``why`` follows the rank's name.

    ``departure``: "left", "died", or "" if that is not known.
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
    """Return the error on the rank that the others declared lost; ``why`` is their reason."""
    return peer_lost(rank_info, f"{_GIVEN_UP}: {why}", noticed_by, last, "died")


def own_loss(error: DistError, rank: int) -> DistError:
    """Return ``error`` as it is raised on ``rank``, which may be the rank that it reports as lost."""
    if not isinstance(error, PeerLostError) or error.rank != rank or _GIVEN_UP in error.message:
        return error
    who = name_of(rank, error.host, error.pid)
    what = error.message.removeprefix(f"{who} ")
    if what == error.message:
        what = f"is lost, they say: {error.message}"
    return PeerLostError(f"{who} {_GIVEN_UP}: it {what}", **error.fields)


def without_frames(error: BaseException | None) -> BaseException | None:
    """Return ``error`` without its frames, which hold buffers: a group keeps the error for long."""
    each = error
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return error
