"""The finding of an examination."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OK = "ok"
WARNING = "warning"
PROBLEM = "problem"
_RANK = (OK, WARNING, PROBLEM)


@dataclass(frozen=True)
class Finding:
    """``level``: "ok", "warning" (it works and could be better) or "problem" (ranks will fail).

    ``advice``: what to set or do, "" if there is nothing to do.
    """

    level: str
    area: str
    what: str
    advice: str = ""

    def __str__(self) -> str:
        line = f"{self.level:<8} {self.area}: {self.what}"
        return f"{line}\n{'':<8} -> {self.advice}" if self.advice else line


def worst(findings: Iterable[Finding]) -> str:
    """Return the worst level among ``findings``, "ok" without any."""
    return max((finding.level for finding in findings), key=_RANK.index, default=OK)
