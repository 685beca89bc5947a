"""Reports as text: one rank's in a few lines, and those of a job as sentences and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiodist.observe.comparing import GroupReports
from aiodist.observe.rank_report import RankReport
from aiodist.observe.recorder import FAILED, Operation
from aiodist.observe.text_table import ranges, ranks, table
from aiodist.observe.wait_graph import Diagnosis, Wait, diagnose


def summary(part: RankReport) -> str:
    """Return text for the operations a rank is in, and for the last that it finished."""
    where = f", {part.standpoint}" if str(part.standpoint) else ""
    lines = [f"aiodist: {part.identity} of {part.identity.size}{where} ({part.reason})"]
    running = part.running()
    for each in running:
        waiting = ", ".join(map(str, each.waiting_for)) or "no rank"
        seconds = (part.clock - each.created) / 1e9
        idle = "" if each.awaited else "; it is not awaited"
        lines.append(f"  in {each} for {seconds:.1f} s, waiting for {waiting}{idle}")
    if not running:
        lines.append("  in no operation")
    for each in part.operations:
        if each.finished:
            seconds = (part.clock - each.finished) / 1e9
            end = f": {each.error}" if each.error else ""
            lines.append(f"  {each.state} {seconds:.1f} s ago: {each}{end}")
    return "".join(f"{line}\n" for line in lines)


def situation(
    parts: Mapping[int, RankReport], silent: Mapping[int, str], told: Sequence[GroupReports]
) -> list[str]:
    """Return text for each rank's operation, then disagreements, then the ranks others wait for."""
    diagnosis = diagnose(parts)
    disagreements = [story.disagreement for story in told if story.disagreement]
    return [
        "",
        overview(diagnosis, parts, silent),
        "",
        *disagreements,
        *sentences(diagnosis, parts, silent),
    ]


def sentences(
    diagnosis: Diagnosis, parts: Mapping[int, RankReport], silent: Mapping[int, str]
) -> list[str]:
    """Return sentences about the ranks that others wait for.

    ``silent``: ranks without a report, and what is known of each.
    """
    told = [_of_root(root, diagnosis, parts, silent) for root in diagnosis.roots]
    told += [_of_cycle(cycle, diagnosis) for cycle in diagnosis.cycles]
    told += [
        f"{ranks([rank], capital=True)} does not answer ({why})."
        for rank, why in sorted(silent.items())
        if rank not in diagnosis.roots
    ]
    return told or ["No rank waits for another."]


def _of_root(
    root: int, diagnosis: Diagnosis, parts: Mapping[int, RankReport], silent: Mapping[int, str]
) -> str:
    waiting = sorted(diagnosis.reach[root])
    wait = "wait" if len(waiting) > 1 else "waits"
    direct = [wait for wait in diagnosis.waits if root in wait.on]
    first = min(direct, key=lambda wait: (not wait.absent, wait.operation.sequence, wait.rank))
    facts = []
    if root in silent:
        facts.append(f"does not answer ({silent[root]})")
    elif root not in parts:
        facts.append("has written no part")
    if first.absent and root in parts:
        facts.append(f"has not entered {first.operation}")
        last = _last_finished(parts[root], first.operation.group_id)
        if last is not None:
            facts.append(f"has last finished {last}")
    else:
        facts.append(f"is waited for in {first.operation}")
    if root in parts and str(parts[root].standpoint):
        facts.append(f"is {parts[root].standpoint}".replace("is its", "says that its"))
    return f"{ranks(waiting, capital=True)} {wait} for rank {root}, which {_listed(facts)}."


def _last_finished(part: RankReport, group: int) -> Operation | None:
    ended = [
        each
        for each in part.operations
        if each.sequence >= 0 and each.group_id == group and each.finished
    ]
    return max(ended, key=lambda each: each.sequence, default=None)


def _of_cycle(cycle: Sequence[int], diagnosis: Diagnosis) -> str:
    steps = [
        _step(rank, cycle[(place + 1) % len(cycle)], diagnosis) for place, rank in enumerate(cycle)
    ]
    calls = {(wait.operation.group_id, wait.operation.sequence) for wait in steps}
    if len(calls) == 1 and steps[0].operation.sequence >= 0:
        return (
            f"All its ranks are in {steps[0].operation}, and wait for each other's messages, which "
            "are on their way or lost."
        )
    told = ", ".join(f"rank {wait.rank} in {wait.operation}" for wait in steps)
    way = " -> ".join(map(str, [*cycle, cycle[0]]))
    return f"{ranks(sorted(cycle), capital=True)} wait for each other ({way}): {told}."


def _step(rank: int, other: int, diagnosis: Diagnosis) -> Wait:
    return next(wait for wait in diagnosis.waits if wait.rank == rank and other in wait.on)


def overview(
    diagnosis: Diagnosis, parts: Mapping[int, RankReport], silent: Mapping[int, str]
) -> str:
    """Return a table with a row for each rank and for each operation in which it waits."""
    rows = [("rank", "process", "waits for", "since", "in", "stands")]
    for rank in sorted(parts.keys() | silent.keys()):
        if rank not in parts:
            rows.append((str(rank), "", "?", "", "no answer", silent[rank]))
            continue
        part = parts[rank]
        place = (str(rank), f"{part.identity.pid} on {part.identity.host}")
        waits = [wait for wait in diagnosis.waits if wait.rank == rank]
        where = str(part.standpoint)
        if not waits:
            rows.append((*place, "no rank", "", _doing(part), where))
        for wait in waits:
            on = ranges(wait.on) + (" to enter" if wait.absent else "")
            failed = " (failed)" if wait.operation.state == FAILED else ""
            rows.append((*place, on, f"{wait.seconds:.1f} s", f"{wait.operation}{failed}", where))
            place, where = ("", ""), ""
    return table(rows)


def _doing(part: RankReport) -> str:
    running = part.running()
    if running:
        return str(running[-1])
    ended = [each for each in part.operations if each.finished]
    if not ended:
        return "no operation yet"
    last = max(ended, key=lambda each: each.finished)
    return f"nothing; last {last} {(part.clock - last.finished) / 1e9:.1f} s ago"


def _listed(facts: Sequence[str]) -> str:
    return facts[0] if len(facts) == 1 else f"{', '.join(facts[:-1])} and {facts[-1]}"
