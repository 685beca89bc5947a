"""The error of a call that several ranks carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aiodist.errors import PeerLostError


class RanksError(ExceptionGroup[Exception]):
    """Errors of the ranks in one call, the first culprit first.

    ``by_rank``: the error of each rank that failed. ``results``: what the other ranks returned.
    """

    by_rank: Mapping[int, Exception]
    results: Mapping[int, Any]

    def derive(self, errors: Sequence[Exception], /) -> RanksError:  # type: ignore[override]  # only errors of ranks are in it
        """Return an error of this class with other errors, as ``split`` and ``subgroup`` need it.

        Args:
            errors: The errors.
        """
        group = RanksError(self.message, errors)
        group.by_rank, group.results = self.by_rank, self.results
        return group


class InterruptedCallError(RuntimeError):
    """A rank's call was ended because another rank failed, or the caller was interrupted."""


def ranks_error(
    errors: Mapping[int, Exception], results: Mapping[int, Any], first: Sequence[int], size: int
) -> RanksError:
    """Return the error of a call: culprits before ranks that were interrupted or lost a peer."""

    def place(rank: int) -> tuple[bool, int]:
        error = errors[rank]
        lost_another = isinstance(error, PeerLostError) and error.rank != rank
        return lost_another or isinstance(error, InterruptedCallError), first.index(rank)

    ordered = sorted(errors, key=place)
    who = "rank" if len(ordered) == 1 else "ranks"
    group = RanksError(
        f"{who} {', '.join(map(str, ordered))} of {size} failed", [errors[rank] for rank in ordered]
    )
    group.by_rank, group.results = {rank: errors[rank] for rank in ordered}, dict(results)
    return group
