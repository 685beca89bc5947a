"""The page's section about backend "mpi": its time beside a direct call's in the same job."""

from __future__ import annotations

from collections.abc import Iterator

from aiodist.bench.cases import Case, size_text
from benchmarks.peers import label
from benchmarks.peers.mpi import OVER
from benchmarks.results import Report, Result
from benchmarks.table import NOTHING, markdown_row, ratio_text, time_text


def overhead_words() -> str:
    """How to read the table."""
    return (
        "The async API over backend `mpi`, and the same MPI called directly through mpi4py, in "
        "the same processes and in turn: medians, at the smallest and the largest size of the run."
    )


def overhead_rows(report: Report) -> Iterator[str]:
    """The table; nothing where the run has no MPI."""
    libraries = [peer.removesuffix(OVER) for peer in report.peers if peer.endswith(OVER)]
    rows = [
        markdown_row([label(library), str(ranks), operation, *cells])
        for library in libraries
        for ranks in report.rank_counts()
        for operation in report.operations(ranks)
        if (cells := _cells(report, ranks, operation, library))
    ]
    if rows:
        small = ["smallest", "direct", "through aiodist", "added"]
        large = ["largest", "direct", "through aiodist", "ratio"]
        yield markdown_row(["library", "ranks", "operation", *small, *large])
        yield markdown_row(["---", "---:", "---", *["---:"] * 8])
        yield from rows


def _cells(report: Report, ranks: int, operation: str, library: str) -> list[str]:
    pairs = [
        (case, direct, over)
        for case, row in report.rows(ranks, operation)
        if (direct := _median(row, library)) and (over := _median(row, library + OVER))
    ]
    if not pairs:
        return []
    (small, direct, over), (large, most, most_over) = pairs[0], pairs[-1]
    first = [_size(small), time_text(direct), time_text(over), time_text(over - direct)]
    last = [_size(large), time_text(most), time_text(most_over), ratio_text(most_over / most)]
    return first + (last if large != small else [NOTHING] * 4)


def _median(row: dict[str, Result], peer: str) -> float | None:
    result = row.get(peer)
    return result.summary.median if result is not None and result.summary is not None else None


def _size(case: Case) -> str:
    return size_text(case.nbytes) if case.nbytes else NOTHING
