"""``aiodist backends``: which backends can run on this machine, and why the others cannot."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import MappingProxyType

from aiodist.backends.registry import OFFERS, default_backend, why_not
from aiodist.launch.args import Parser
from aiodist.types import Backend

_NOTES = MappingProxyType(
    {Backend.GLOO: 'another name for "aiodist"', Backend.TORCH_NCCL: 'the same as "nccl"'}
)


def backends_main(argv: Sequence[str]) -> int:
    """``aiodist backends``; returns the exit code."""
    parser = Parser(
        prog="aiodist backends",
        description="Say which backends can run on this machine, and why not where they cannot.",
    )
    parser.read(argv)
    sys.stdout.write(report())
    return 0


def report() -> str:
    """A line for each backend: its name, whose tensors it takes, and whether it can run here."""
    rows = [("BACKEND", "TENSORS", "HERE", "")]
    for name, offer in OFFERS.items():
        reason = why_not(name)
        note = reason or _NOTES.get(Backend(name), "")
        rows.append((str(name), ", ".join(offer.devices), "no" if reason else "yes", note))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]
    lines += ["", f"default: {default_backend()}"]
    return "".join(f"{line.rstrip()}\n" for line in lines)
