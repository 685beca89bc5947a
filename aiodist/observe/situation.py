"""What the reports of a job say together, in lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiodist.observe.comparing import GroupStory
from aiodist.observe.rank_report import RankReport
from aiodist.observe.report_text import overview, sentences
from aiodist.observe.wait_graph import judge


def situation(
    parts: Mapping[int, RankReport], silent: Mapping[int, str], told: Sequence[GroupStory]
) -> list[str]:
    """Return text for each rank's operation, then disagreements, then the ranks others wait for."""
    verdict = judge(parts)
    disagreements = [story.disagreement for story in told if story.disagreement]
    return [
        "",
        overview(verdict, parts, silent),
        "",
        *disagreements,
        *sentences(verdict, parts, silent),
    ]
