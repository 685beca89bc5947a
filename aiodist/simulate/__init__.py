"""Simulate the algorithms of ``collectives/`` for more ranks than one host can run.

The files that run over sockets run here unchanged, with another `Channel`. It moves no bytes; it
computes on a simulated clock when they would arrive. ``aiodist simulate`` is its command line.
"""

from aiodist.simulate.hosts import (
    FLAT,
    HostsOutcome,
    algorithms_over_hosts,
    hosts_of,
    selected_over_hosts,
    simulate_hosts,
)
from aiodist.simulate.loggps import NETWORKS, Parameters
from aiodist.simulate.network import Network
from aiodist.simulate.programs import ALGORITHMS, Algorithm
from aiodist.simulate.runs import Outcome, algorithms_of, operations, selected, simulate

__all__ = [
    "ALGORITHMS",
    "FLAT",
    "NETWORKS",
    "Algorithm",
    "HostsOutcome",
    "Network",
    "Outcome",
    "Parameters",
    "algorithms_of",
    "algorithms_over_hosts",
    "hosts_of",
    "operations",
    "selected",
    "selected_over_hosts",
    "simulate",
    "simulate_hosts",
]
