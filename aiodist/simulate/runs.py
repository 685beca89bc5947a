"""One run of one algorithm: what it took by the clock, and whether it sent what its formula says."""

from __future__ import annotations

from dataclasses import dataclass

from aiodist.collectives.cost import COSTS, Case, Traffic
from aiodist.collectives.partition import CHUNK
from aiodist.collectives.select import UNEVEN, Choice, select
from aiodist.errors import InvalidUsageError
from aiodist.simulate.loggps import Parameters
from aiodist.simulate.network import Network, apart
from aiodist.simulate.programs import ALGORITHMS, ITEMSIZE, Algorithm, lengths_of, program

MOST_MESSAGES = 2_000_000
"""The most messages of all simulated ranks: more would take minutes."""

MOST_BLOCKS = 1 << 22
"""The most entries of all lists of blocks: more would take minutes."""


@dataclass(frozen=True)
class Outcome:
    """``seconds``: until the last rank has ended. ``sent``: by the rank that sends most.

    ``formula``: the same out of docs/algorithms.md, where `cost.py` has it as code. ``agrees``:
    whether every rank that was run sent exactly what the formula says of it. ``floor``: seconds
    that the bytes of that rank alone take on its link.
    """

    algorithm: Algorithm
    ranks: int
    nbytes: int
    seconds: float
    sent: Traffic
    formula: Traffic
    agrees: bool
    floor: float


def simulate(
    algorithm: Algorithm,
    ranks: int,
    nbytes: int,
    parameters: Parameters,
    chunk: int = CHUNK,
    together: bool = True,
) -> Outcome | None:
    """Run ``algorithm`` on ``ranks`` ranks and ``nbytes`` bytes, whole elements of 4 bytes.

    ``nbytes`` as in `collectives.cost.Case`. ``chunk``: bytes of a message, in pipelines.
    ``together``: where all ranks do the same, run one for all. None where the algorithm is not
    for these, or holds or sends too much.
    """
    if nbytes < 0 or nbytes % ITEMSIZE:
        raise InvalidUsageError(f"{nbytes} bytes are no elements of {ITEMSIZE} bytes")
    relation = algorithm.relation_for(ranks, nbytes) if together else apart
    places = ranks if relation is apart else 1
    blocks = len(lengths_of(algorithm.operation, ranks, 0))
    if not algorithm.is_for(ranks, nbytes) or places * blocks > MOST_BLOCKS:
        return None
    formulas = _formulas(algorithm, ranks, nbytes, chunk, places)
    if sum(traffic.messages for traffic in formulas) > MOST_MESSAGES:
        return None
    network = Network(ranks, parameters, relation)
    choice = Choice(algorithm.name, chunk)
    seconds = network.run(program(algorithm.operation, nbytes, choice))
    sent = [Traffic(rank.messages, rank.nbytes) for rank in network.ranks]
    busiest = max(range(len(sent)), key=lambda rank: (sent[rank].nbytes, sent[rank].messages))
    return Outcome(
        algorithm,
        ranks,
        nbytes,
        seconds,
        sent[busiest],
        formulas[busiest],
        sent == formulas,
        sent[busiest].nbytes * parameters.per_byte,
    )


def selected(operation: str, ranks: int, nbytes: int) -> Choice:
    """Return what the table of `collectives.select` chooses, asked as the operations ask it."""
    if operation in ("gather", "scatter", "all_to_all"):
        return select(operation, ranks, UNEVEN)
    return select(operation, ranks, 0 if operation == "barrier" else nbytes)


def algorithms_of(operation: str) -> list[Algorithm]:
    """Return the algorithms of ``operation``. Raises InvalidUsageError for an unknown one."""
    found = [each for each in ALGORITHMS if each.operation == operation]
    if not found:
        known = ", ".join(operations())
        raise InvalidUsageError(f"no operation is called {operation!r}; there are {known}")
    return found


def operations() -> list[str]:
    """Return the names of the operations that can be simulated."""
    return list(dict.fromkeys(each.operation for each in ALGORITHMS))


def _formulas(
    algorithm: Algorithm, ranks: int, nbytes: int, chunk: int, places: int
) -> list[Traffic]:
    traffic = COSTS[algorithm.operation, algorithm.name]
    lengths = lengths_of(algorithm.operation, ranks, nbytes)
    itemsize = 1 if algorithm.operation == "broadcast" else ITEMSIZE  # it cuts anywhere
    return [
        traffic(Case(ranks, rank, lengths, itemsize=itemsize, chunk=chunk))
        for rank in range(places)
    ]
