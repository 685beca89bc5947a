"""What simulated runs are shown as: one table an operation, plain or for a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aiodist.collectives.select import Choice
from aiodist.simulate.hosts import (
    FLAT,
    algorithms_over_hosts,
    hosts_of,
    selected_over_hosts,
    simulate_hosts,
    takes_minutes,
)
from aiodist.simulate.loggps import Parameters
from aiodist.simulate.programs import Algorithm
from aiodist.simulate.runs import Outcome, algorithms_of, selected, simulate

HEADER = ("ranks", "bytes", "algorithm", "time", "bytes alone", "messages", "sent", "by formula")
"""The columns. "bytes alone": the time of the busiest rank's bytes on its link. Messages and bytes
are those of that rank, counted and by formula."""

Row = tuple[str, ...]


def rows(
    operation: str,
    ranks: Sequence[int],
    sizes: Sequence[int],
    parameters: Parameters,
    left_out: list[str] | None = None,
) -> Iterable[Row]:
    """For each number of ranks and of bytes, the operation's algorithms, the fastest first.

    The name of the one that the table chooses has a star; it runs with the table's chunks. Where a
    rank sends other than its formula says, the last cell says so.

    ``left_out``: gets a line for each algorithm that would take minutes.
    """
    sizes = [0] if operation == "barrier" else sizes
    for count in ranks:
        for nbytes in sizes:
            choice = selected(operation, count, nbytes)
            done = []
            for algorithm in algorithms_of(operation):
                chunk = _chunk(algorithm, choice)
                outcome = simulate(algorithm, count, nbytes, parameters, chunk)
                if outcome is not None:
                    done.append(outcome)
                elif left_out is not None and algorithm.is_for(count, nbytes):
                    left_out.append(f"{algorithm.name} on {count:,} ranks with {size(nbytes)}")
            done.sort(key=lambda outcome: outcome.seconds)
            yield from (_row(outcome, choice) for outcome in done)


def rows_over_hosts(
    operation: str,
    ranks: Sequence[int],
    per_host: int,
    sizes: Sequence[int],
    parameters: Parameters,
    left_out: list[str],
) -> Iterable[Row]:
    """The same for ranks of which ``per_host`` live on a host; messages and bytes between hosts.

    "Bytes alone" is the time of the busiest host's bytes on its link. ``left_out``: as of `rows`.
    """
    sizes = [0] if operation == "barrier" else sizes
    for count in ranks:
        topology = hosts_of(count, per_host)
        for nbytes in sizes:
            chosen = selected_over_hosts(operation, topology, nbytes)
            outcomes = []
            for name in algorithms_over_hosts(operation, topology):
                if takes_minutes(operation, name, topology, nbytes):
                    left_out.append(f"{name} on {count:,} ranks with {size(nbytes)}")
                else:
                    outcomes.append(simulate_hosts(operation, name, topology, nbytes, parameters))
            for outcome in sorted(outcomes, key=lambda o: o.seconds):
                star = "*" if outcome.algorithm == chosen else ""
                formula = "" if outcome.algorithm == FLAT else size(outcome.sent.nbytes)
                yield (
                    f"{count:,}",
                    size(nbytes),
                    outcome.algorithm + star,
                    duration(outcome.seconds),
                    duration(outcome.sent.nbytes * parameters.per_byte),
                    f"{outcome.sent.messages:,}",
                    size(outcome.sent.nbytes),
                    formula if outcome.agrees else "DIFFERS",
                )


def plain(table: Sequence[Row]) -> str:
    """Return the table in columns for a terminal, with numbers to the right."""
    widths = [max(len(row[i]) for row in (HEADER, *table)) for i in range(len(HEADER))]
    lines = []
    for row in (HEADER, *table):
        cells = [
            cell.ljust(width) if i == 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def markdown(table: Sequence[Row]) -> str:
    """Return the table in Markdown."""
    line = "| " + " | ".join(HEADER) + " |"
    rule = "| " + " | ".join("---" if i == 2 else "---:" for i in range(len(HEADER))) + " |"
    return "\n".join([line, rule, *("| " + " | ".join(row) + " |" for row in table)]) + "\n"


def _chunk(algorithm: Algorithm, choice: Choice) -> int:
    return choice.chunk if choice.algorithm == algorithm.name else Choice(algorithm.name).chunk


def _row(outcome: Outcome, choice: Choice) -> Row:
    star = "*" if outcome.algorithm.name == choice.algorithm else ""
    formula = size(outcome.formula.nbytes) if outcome.agrees else f"{outcome.formula} DIFFERS"
    return (
        f"{outcome.ranks:,}",
        size(outcome.nbytes),
        outcome.algorithm.name + star,
        duration(outcome.seconds),
        duration(outcome.floor),
        f"{outcome.sent.messages:,}",
        size(outcome.sent.nbytes),
        formula,
    )


def duration(seconds: float) -> str:
    """Return three digits, or whole seconds, and a unit."""
    if seconds >= 999.5:
        return f"{seconds:.0f} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * scale:  # what would be rounded to a thousand of the smaller unit
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def size(nbytes: int) -> str:
    """Return a whole number of a unit, or three or four digits and a unit."""
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if round(value) < 1024:
            break
        value, unit = value / 1024, larger
    return (
        f"{value:g} {unit}" if value == int(value) else f"{value:.{3 + (value >= 999.5)}g} {unit}"
    )
