"""Rank processes that live across calls, for notebooks and other interactive programs."""

from aiodist.rank_processes.cluster import Cluster, RanksError

__all__ = ["Cluster", "RanksError"]
