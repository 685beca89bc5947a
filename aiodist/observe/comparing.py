"""Compare dumps: the ranks that are behind, and the first operation in which ranks differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aiodist.observe.rank_report import RankReport
from aiodist.observe.recorder import DONE, FAILED, Operation
from aiodist.observe.text_table import ranks


@dataclass(frozen=True)
class GroupReports:
    """A group as the reports of its members describe it. ``started``: by rank, for ranks with a report.

    ``first_difference``: the lowest sequence number in which members differ, or None. They differ
    if they started different calls, if only some started it, or if it ended differently. A difference
    that the program has handled does not count: it failed on a member, and all members finished an
    operation that they called after it.
    """

    name: str
    members: tuple[int, ...]
    started: Mapping[int, int]
    first_difference: int | None
    calls: Mapping[str, tuple[int, ...]]
    """At that number: each call with its ranks and how it ended; ranks without a call stand there too."""
    disagreement: str = ""
    """A sentence, if ranks called different operations at that number; else empty."""

    @property
    def behind(self) -> tuple[int, ...]:
        """The ranks that have started the fewest collectives, if the numbers differ."""
        fewest = min(self.started.values())
        if fewest == max(self.started.values()):
            return ()
        return tuple(rank for rank, count in sorted(self.started.items()) if count == fewest)

    def __str__(self) -> str:
        lines = [f"group {self.name!r} of {ranks(self.members)}:"]
        counts: dict[int, list[int]] = {}
        for rank, count in sorted(self.started.items()):
            counts.setdefault(count, []).append(rank)
        for count, members in sorted(counts.items(), reverse=True):
            late = "  <- behind" if tuple(members) == self.behind else ""
            lines.append(f"  {ranks(members)}: {count} collectives started{late}")
        if self.first_difference is None:
            lines.append("  the ranks do not differ in what they remember")
        else:
            lines.append(f"  first difference at operation {self.first_difference}:")
            lines += [f"    {ranks(members)}: {call}" for call, members in self.calls.items()]
        return "\n".join(lines)


def group_reports(parts: Mapping[int, RankReport]) -> list[GroupReports]:
    """Return the story of each group that a report knows, the default group first."""
    known = {state.id: state for part in parts.values() for state in part.groups}
    told = []
    for state in known.values():
        members = {
            rank: parts[rank]
            for rank in state.ranks
            if rank in parts and any(mine.id == state.id for mine in parts[rank].groups)
        }
        told.append(_story(state.id, state.name, state.ranks, members))
    return told


def _story(
    group: int, name: str, ranks_of_group: tuple[int, ...], members: Mapping[int, RankReport]
) -> GroupReports:
    remembered = {
        rank: {
            each.sequence: each
            for each in part.operations
            if each.group_id == group and each.sequence >= 0
        }
        for rank, part in members.items()
    }
    started = {rank: part.started(group) for rank, part in members.items()}
    numbers = sorted({number for mine in remembered.values() for number in mine})
    agreed = max(
        (
            number
            for number in numbers
            if all(_is_done(mine, number) for mine in remembered.values())
        ),
        default=-1,
    )
    for number in numbers:
        calls: dict[str, list[int]] = {}
        errors: dict[str, str] = {}
        asked: dict[str, list[int]] = {}
        for rank, mine in remembered.items():
            if number in mine:
                call = f"{mine[number].call}: {mine[number].state}"
                calls.setdefault(call, []).append(rank)
                errors.setdefault(call, mine[number].error)
                asked.setdefault(mine[number].call, []).append(rank)
            elif number >= started[rank]:
                calls.setdefault("has not entered it", []).append(rank)
        if len(calls) > 1 and not _is_past(number, agreed, remembered):
            told = {
                f"{call}, {errors[call]}" if errors.get(call) else call: tuple(callers)
                for call, callers in calls.items()
            }
            sentence = _disagreement(name, number, asked)
            return GroupReports(name, ranks_of_group, started, number, told, sentence)
    return GroupReports(name, ranks_of_group, started, None, {})


def _is_done(mine: Mapping[int, Operation], number: int) -> bool:
    return number in mine and mine[number].state == DONE


def _is_past(number: int, agreed: int, remembered: Mapping[int, Mapping[int, Operation]]) -> bool:
    """Return whether all ranks called operation ``agreed`` after operation ``number`` had failed."""
    if number >= agreed:
        return False
    calls = [(mine[number], mine[agreed]) for mine in remembered.values() if number in mine]
    return any(call.state == FAILED for call, _ in calls) and all(
        0 < call.finished < later.created for call, later in calls
    )


def _disagreement(name: str, number: int, asked: Mapping[str, list[int]]) -> str:
    if len(asked) < 2:
        return ""
    told = "; ".join(f"{ranks(callers)} called {call}" for call, callers in asked.items())
    return f"The ranks disagree about operation {number} of group {name!r}: {told}."
