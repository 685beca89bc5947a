"""Collectives of ranks on several hosts, under the simulated clock: by hosts, or flat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiodist.collectives.calls import Run
from aiodist.collectives.cost import Traffic
from aiodist.collectives.cost_hosts import INTER_HOST_RUNS, HostsCase, inter_host_traffic
from aiodist.collectives.host_topology import HostTopology
from aiodist.collectives.multi_host import MultiHostContext
from aiodist.collectives.select import HOSTS_RULES, MANY, Choice, Rule, Rules, select
from aiodist.errors import InvalidUsageError
from aiodist.simulate.board import Memory, SimulatedShm
from aiodist.simulate.loggps import NETWORKS, Parameters
from aiodist.simulate.network import Network, Rank
from aiodist.simulate.programs import ITEMSIZE, call_of, lengths_of, program
from aiodist.simulate.runs import MOST_BLOCKS

MOST_STEPS = 1 << 15
"""The most pieces of all ranks together: more would take minutes."""

FLAT = "flat"
"""As if there were no hosts: what the table for all ranks chooses."""


@dataclass(frozen=True)
class HostsOutcome:
    """``seconds``: until the last rank has ended. ``sent``: to other hosts, by all ranks of the host
    that sends most. ``agrees``: whether every rank sent to others what its formula says."""

    algorithm: str
    seconds: float
    sent: Traffic
    agrees: bool


def simulate_hosts(
    operation: str, algorithm: str, topology: HostTopology, nbytes: int, parameters: Parameters
) -> HostsOutcome:
    """Run ``operation`` on ``nbytes`` in all, with root 0, over ``topology``.

    ``parameters``: of the one link that each host has. In a host `FLAT` sends messages too, and the
    others share memory. Raises InvalidUsageError for an algorithm that the operation does not have.
    """
    size = sum(map(len, topology.hosts))
    lengths = [0] if operation == "barrier" else lengths_of(operation, size, nbytes)
    flat = algorithm == FLAT
    if algorithm not in algorithms_over_hosts(operation, topology):
        raise InvalidUsageError(f"{operation} has no algorithm {algorithm!r} over these hosts")
    network = Network(size, parameters, topology=topology, intra_host=NETWORKS["host"])
    if flat:
        run = program(operation, nbytes, select(operation, size, nbytes))
    else:
        piece = _piece(operation, algorithm, topology, nbytes)
        run = _program(operation, Choice(algorithm, piece), topology, nbytes)
    seconds = network.run(run)
    crossed = [Traffic(*rank.inter_host_traffic) for rank in network.ranks]
    formula = crossed
    if not flat:
        itemsize = 1 if operation == "broadcast" else ITEMSIZE
        cases = [
            HostsCase(topology, rank, lengths, 0, itemsize, piece=piece) for rank in range(size)
        ]
        formula = [inter_host_traffic(operation, algorithm, case) for case in cases]
    by_host = [
        Traffic(
            sum(crossed[rank].messages for rank in ranks), sum(crossed[r].nbytes for r in ranks)
        )
        for ranks in topology.hosts
    ]
    sent = max(by_host, key=lambda traffic: (traffic.nbytes, traffic.messages))
    return HostsOutcome(algorithm, seconds, sent, crossed == formula)


def takes_minutes(operation: str, algorithm: str, topology: HostTopology, nbytes: int) -> bool:
    """Return whether `simulate_hosts` would take minutes for this."""
    size = sum(map(len, topology.hosts))
    if size * len(lengths_of(operation, size, 0)) > MOST_BLOCKS:
        return True
    pieces = 0 if algorithm == FLAT else nbytes // _piece(operation, algorithm, topology, nbytes)
    return size * (1 + pieces) > MOST_STEPS


def algorithms_over_hosts(operation: str, topology: HostTopology) -> list[str]:
    """Those that `simulate_hosts` knows for ``operation`` over ``topology``, `FLAT` among them.

    "columns" runs flat where hosts have different numbers of ranks, so it is left out there.
    Raises InvalidUsageError for an all_to_all, which neither runs flat nor is simulated.
    """
    if operation == "all_to_all":
        raise InvalidUsageError(
            "an all_to_all over hosts with several ranks is not simulated: leave out --per-host"
        )
    names = [name for known, name in INTER_HOST_RUNS if known == operation]
    return [FLAT, *(name for name in names if name != "columns" or topology.is_even)]


def hosts_of(ranks: int, per_host: int) -> HostTopology:
    """``ranks`` in their order on hosts with ``per_host`` each; the last may have fewer."""
    return HostTopology([rank // per_host for rank in range(ranks)])


def selected_over_hosts(operation: str, topology: HostTopology, nbytes: int) -> str:
    """Return what the table of `collectives.select` chooses over ``topology``."""
    return _selected(operation, topology, nbytes).algorithm


def _selected(operation: str, topology: HostTopology, nbytes: int) -> Choice:
    """Ask the table as `collectives.calls` asks it."""
    if operation not in HOSTS_RULES:
        return Choice(FLAT)
    choice = topology.select(operation, nbytes, HOSTS_RULES)
    return Choice(FLAT) if choice.algorithm == "columns" and not topology.is_even else choice


def _piece(operation: str, algorithm: str, topology: HostTopology, nbytes: int) -> int:
    """Return the table's length of a piece for ``algorithm``, for these bytes if the table chooses it."""
    selected = _selected(operation, topology, nbytes)
    if selected.algorithm == algorithm:
        return selected.chunk
    rules = HOSTS_RULES[operation]
    return next(rule.choice.chunk for rule in rules if rule.choice.algorithm == algorithm)


def _program(
    operation: str, choice: Choice, topology: HostTopology, nbytes: int
) -> Callable[[Rank], Run]:
    memories = [Memory(len(ranks)) for ranks in topology.hosts]
    rules: Rules = {operation: [Rule(MANY, MANY, choice)]}

    def build(rank: Rank) -> Run:
        number = topology.host_of(rank.rank)
        here = topology.hosts[number]
        shm = SimulatedShm(memories[number], here.index(rank.rank), rank)
        view = MultiHostContext(rank, topology, shm if len(here) > 1 else None, rank.memory)
        run = call_of(operation, rank, nbytes).over_hosts(view, rules)
        assert run is not None  # it is one of `INTER_HOST_RUNS`
        return run

    return build
