"""docs/performance.md, from the results alone: no figure in it is typed by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType

from aiodist.bench.cases import size_text
from benchmarks.goals import where_of
from benchmarks.machine import busy
from benchmarks.page_goals import goal_rows, goal_words
from benchmarks.page_mpi import overhead_rows, overhead_words
from benchmarks.peers import label
from benchmarks.peers.mpi import OVER
from benchmarks.plots import figure_name, plotted
from benchmarks.results import Report, Result
from benchmarks.steps.cases import DDP_STEP, FLOOR, FSDP_STEP
from benchmarks.steps.results import step_rows
from benchmarks.table import NOTHING, markdown_row, ratio_text, spread_text, summary_text
from benchmarks.targets import FOUR_HOSTS, HOST, NETWORK

FIRST_CASES = (
    ("all_reduce", 4),
    ("all_reduce", 1 << 16),
    ("all_reduce", 1 << 20),
    ("all_reduce", 1 << 24),
    ("all_reduce", 100 << 20),
    ("broadcast", 1 << 20),
    ("all_gather", 1 << 20),
    ("all_to_all", 1 << 20),
    ("send_recv", 1 << 20),
    ("barrier", 0),
)
"""What a reader wants to know first."""

FIRST_PEERS = MappingProxyType(
    {
        HOST: ("async", "blocking", "openmpi"),
        NETWORK: ("async-tcp", "blocking-tcp"),
        FOUR_HOSTS: ("async", "blocking"),
    }
)
"""Beside the first peer, by where a run was."""

_TITLES = MappingProxyType(
    {
        HOST: "# Performance",
        NETWORK: "# Performance between hosts",
        FOUR_HOSTS: "# Performance between four hosts of two ranks",
    }
)
_WRAPPERS = MappingProxyType({DDP_STEP: "DDP", FSDP_STEP: "FSDP2"})

_COMMANDS = MappingProxyType({HOST: "bench", NETWORK: "bench-network", FOUR_HOSTS: "bench-hosts"})


def render(report: Report, folder: str = "performance") -> str:
    """Return the page as Markdown: a figure, ten numbers and the goals.

    ``folder``: where the figures, the tables and the data are, beside the page.
    """
    ranks = report.rank_counts()[0]
    parts = [
        _title(report),
        f"{_made_by(report, folder)} [All tables, the machine and the method]({folder}/tables.md) "
        "stand on a page of their own.",
    ]
    if ranks in plotted(report):
        parts.append(f"![Time over bytes, {ranks} ranks]({folder}/{figure_name(ranks)})")
    parts += [
        f"Medians of {ranks} ranks; in brackets the ratio to {label(report.peers[0])} in the same "
        "run, below 1 is faster.",
        "\n".join(_first_numbers(report, ranks)),
        "## Goals",
        goal_words(report),
        "\n".join(goal_rows(report)),
    ]
    return "\n\n".join(parts) + "\n"


def render_tables(report: Report) -> str:
    """Return the page behind it, which is in the same folder as the figures."""
    parts = [
        f"{_title(report)}: all tables",
        _made_by(report, "."),
        "## The machine",
        "\n".join(_machine(report)),
        "## How it is measured",
        _method(report),
        "## At a glance",
        _summary_text(report),
    ]
    parts += ["\n".join(_summary(report, ranks)) for ranks in report.rank_counts()]
    for ranks in report.rank_counts():
        parts += [f"## {ranks} ranks"]
        if ranks in plotted(report):
            parts.append(f"![Time over bytes, {ranks} ranks]({figure_name(ranks)})")
        for operation in report.operations(ranks):
            parts += [f"### {operation}, {ranks} ranks", "\n".join(_rows(report, ranks, operation))]
    if overheads := list(overhead_rows(report)):
        parts += ["## What backend mpi adds", overhead_words(), "\n".join(overheads)]
    if report.steps:
        parts += ["## A training step", _step_words(report), "\n".join(_steps(report))]
    return "\n\n".join(parts) + "\n"


def _title(report: Report) -> str:
    return _TITLES[where_of(report)]


def _made_by(report: Report, folder: str) -> str:
    command = "bench-mpi" if _has_mpi(report) else _COMMANDS[where_of(report)]
    return (
        f"Made by `make {command}` out of [results.json]({folder}/results.json); "
        "run it to get this page for your machine."
    )


def _first_numbers(report: Report, ranks: int) -> Iterator[str]:
    against = report.peers[0]
    shown = [
        against,
        *(peer for peer in FIRST_PEERS[where_of(report)] if peer in report.peers),
    ]
    yield markdown_row(["operation", *map(label, shown)])
    yield markdown_row(["---", *["---:"] * len(shown)])
    for operation, nbytes in FIRST_CASES:
        for case, row in report.rows(ranks, operation):
            if case.nbytes == nbytes:
                size = f", {size_text(nbytes)}" if nbytes else ""
                yield markdown_row([operation + size, *_medians(report, row, shown)])


def _medians(report: Report, row: dict[str, Result], peers: Sequence[str]) -> Iterator[str]:
    for peer in peers:
        median, _ = spread_text(row.get(peer))
        ratio = report.ratio(row, peer)
        yield median if ratio is None or peer == peers[0] else f"{median} ({ratio_text(ratio)})"


def _machine(report: Report) -> Iterator[str]:
    machine, settings = report.machine, report.settings
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    loads = ", ".join(f"{load:.2f}" for load in machine["load_average"])
    if busy(machine):
        loads += ": it was busy with something else, and figures of a busy machine mislead"
    aiodist = machine["aiodist"]
    lines = {
        "processor": machine["cpu"],
        "cores": machine["cores"],
        "memory": f"{machine['memory_gib']} GiB",
        "system": machine["system"],
        "load before the run (1, 5, 15 minutes)": loads,
        "Python": machine["python"],
        "aiodist": f"{aiodist['version']}, commit {aiodist['commit']}",
        "others": versions,
        "measured": f"{machine['date']}, in {settings['seconds']} s, suite {settings['suite']}",
        "ranks on cores": "each kept on its share" if settings["pinned"] else "not pinned",
        "network interface": settings["interface"],
    }
    if control := settings.get("congestion") or machine.get("congestion_control"):
        lines["TCP's congestion control"] = (
            f"{control} of all peers: the ranks take the namespaces for hosts"
            if "ranks_per_host" in settings and where_of(report) != HOST
            else f"{control}; streams within one kernel have reno in aiodist and in no library"
        )
    yield "| | |"
    yield "| --- | --- |"
    for name, value in lines.items():
        yield f"| {name} | {value} |"


def _method(report: Report) -> str:
    effort = report.settings["effort"]
    text = (
        "The same processes hold all peers, and in each round every peer has one turn, forwards "
        "and backwards by turns. A turn is one call or, where calls are short, up to eight in a "
        "row, of which the first is not counted. Before each call the buffers are rewritten and "
        "all ranks meet in a barrier of the same peer. They meet again after the call, so that no "
        "rank takes a core from one whose time runs. Then each element of the result is compared "
        "with the expected value. A time is that of the slowest rank; for send_recv it is half "
        "a round trip. Tables show the median. In brackets is the ratio of medians to "
        f"{label(report.peers[0])} in the same run; below 1 is faster. Below stand the 10th to 90th "
        "percentile, the mean and the 99th percentile. "
        f"Each case has {effort['fewest']} to {effort['most']} rounds within about "
        f"{effort['budget']:.2g} s{_passes(report)}. Bytes are those of a rank's larger tensor, in "
        "float32. One thread a rank; garbage collection is off while the time runs."
    )
    if _has_mpi(report):
        text += (
            " MPI needs jobs of its own. Jobs follow each other block by block (all sizes of one "
            "operation), forwards and backwards, so the turns are coarser there."
        )
    return text


def _passes(report: Report) -> str:
    passes = report.settings.get("jobs", 1)  # older results had one
    if passes == 1:
        return ""
    return (
        f", in each of {passes} passes over all cases. Each pass has processes of its own, so a "
        "property of one process, such as its core, affects one pass only"
    )


def _has_mpi(report: Report) -> bool:
    return any(peer.endswith(OVER) for peer in report.peers)


def _summary_text(report: Report) -> str:
    first = label(report.peers[0])
    return (
        f"Median over that of {first}: the smallest to the largest ratio over all sizes. "
        "Peers marked TCP do not use the faster transports of one host."
    )


def _summary(report: Report, ranks: int) -> Iterator[str]:
    _, *peers = report.shown(ranks, *report.operations(ranks))
    yield markdown_row([f"{ranks} ranks", *map(label, peers)])
    yield markdown_row(["---", *["---:"] * len(peers)])
    for operation in report.operations(ranks):
        cells = [operation]
        for peer in peers:
            ratios = [
                ratio
                for _, row in report.rows(ranks, operation)
                if (ratio := report.ratio(row, peer)) is not None
            ]
            cells.append(_range(ratios))
        yield markdown_row(cells)


def _range(ratios: list[float]) -> str:
    if not ratios:
        return NOTHING
    low, high = ratio_text(min(ratios)), ratio_text(max(ratios))
    return low if low == high else f"{low} to {high}"


def _rows(report: Report, ranks: int, operation: str) -> Iterator[str]:
    peers = report.shown(ranks, operation)
    yield markdown_row(["bytes", *map(label, peers)])
    yield markdown_row(["---:"] * (1 + len(peers)))
    reasons: dict[str, str] = {}
    for case, row in report.rows(ranks, operation):
        cells = [size_text(case.nbytes) if case.nbytes else NOTHING]
        for peer in peers:
            result = row.get(peer)
            median, spread = spread_text(result)
            if result is not None and result.unsupported:
                reasons[peer] = result.unsupported
            if spread and peer != report.peers[0]:
                median = f"{median} ({ratio_text(report.ratio(row, peer))})"
            cells.append(f"{median}<br><sub>{spread}</sub>" if spread else median)
        yield markdown_row(cells)
    for peer, reason in reasons.items():
        yield f"\n{label(peer)}: {reason}."


def _step_words(report: Report) -> str:
    models = {result.case.model for result in report.steps}
    sizes = "; ".join(
        f"{model.name}: {model.layers} linear layers of {model.width} by {model.width}, "
        f"{model.rows} rows of input a rank"
        for model in sorted(models, key=lambda model: model.parameters)
    )
    bare = ""
    if any(FLOOR in result.communication for result in report.steps):
        bare = (
            ' "No library" is DDP with a hook that adds up each bucket in the thread of backward, '
            "as the program without a library does it: the copying and the sum, and nothing else."
        )
    return (
        "DistributedDataParallel and `fully_shard` (FSDP2) of stock PyTorch, on groups of the "
        "backends `gloo` and `aiodist` in the same processes: forward, backward and SGD, one thread "
        "a rank. In each round every backend has one step on the same data, and so has a third copy "
        "of the model whose gradients stay on their rank: DDP under `no_sync`, or the model alone "
        "beside FSDP2. A step's communication is its time less that of the same round's step "
        "without: what backward did not hide, with the wrapper's own copying. FSDP2 gathers each "
        f"layer's parameters twice and reduces its gradients once.{bare} Losses and parameters are "
        f"compared at the end, of backends up to rounding, of ranks bit for bit. {sizes}."
    )


def _steps(report: Report) -> Iterator[str]:
    by_result = [{name: rest for name, *rest in step_rows(result)} for result in report.steps]
    names = list(max(by_result, key=len))
    yield markdown_row(["step", "model", "ranks", *names])
    yield markdown_row(["---", "---", "---:", *["---:"] * len(names)])
    for result, rows in zip(report.steps, by_result, strict=True):
        cells = [_WRAPPERS[result.case.kind], result.case.model.name, str(result.case.ranks)]
        for name in names:
            if name not in rows:
                cells.append(NOTHING)
                continue
            summary, ratio = rows[name]
            median, spread = summary_text(summary)
            mark = "" if ratio is None else f" ({ratio_text(ratio)})"
            cells.append(f"{median}{mark}<br><sub>{spread}</sub>")
        yield markdown_row(cells)
