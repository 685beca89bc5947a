"""What an examination finds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OK = "ok"
WARNING = "warning"
PROBLEM = "problem"
_RANK = (OK, WARNING, PROBLEM)


@dataclass(frozen=True)
class Finding:
    """``level``: "ok"; "warning", it works and could be better; "problem", ranks will fail.

    ``advice`` says what to set or do, "" where there is nothing to do.
    """

    level: str
    area: str
    what: str
    advice: str = ""

    def __str__(self) -> str:
        line = f"{self.level:<8} {self.area}: {self.what}"
        return f"{line}\n{'':<8} -> {self.advice}" if self.advice else line


def worst(findings: Iterable[Finding]) -> str:
    """The worst level among them; "ok" for none."""
    return max((finding.level for finding in findings), key=_RANK.index, default=OK)
