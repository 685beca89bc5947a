"""One rank's report in a few lines, for a terminal."""

from __future__ import annotations

from aiodist.observe.rank_report import RankReport


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
