"""The algorithms of ``collectives/`` under a simulated clock, at numbers of ranks nobody has here.

The files that run over sockets run here unchanged: only their `Channel` is another one. It moves
no bytes; it says when they would have arrived. ``aiodist simulate`` is its command line.
"""

from aiodist.simulate.hosts import (
    FLAT,
    HostsOutcome,
    algorithms_over_hosts,
    hosts_of,
    selected_over_hosts,
    simulate_hosts,
)
from aiodist.simulate.network import Network
from aiodist.simulate.parameters import NETWORKS, Parameters
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
