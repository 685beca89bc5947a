"""Rank processes that live across calls, for notebooks and other interactive programs."""

from aiodist.rank_processes.cluster import Cluster
from aiodist.rank_processes.ranks_error import RanksError

__all__ = ["Cluster", "RanksError"]
