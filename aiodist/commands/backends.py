"""``aiodist backends``: which backends run here, why others do not, and which function works with which."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import MappingProxyType

from aiodist.backends.registry import OFFERS, default_backend, has_gpu, why_not
from aiodist.backends.support_table import COLUMNS, FUNCTIONS
from aiodist.launch.args import Parser
from aiodist.observe.text_table import table
from aiodist.types import Backend

_NOTES = MappingProxyType(
    {Backend.GLOO: 'another name for "aiodist"', Backend.TORCH_NCCL: 'the same as "nccl"'}
)


def parser() -> Parser:
    """Return a new parser of the command's options."""
    return Parser(
        prog="aiodist backends",
        description="Say which backends can run on this machine, why not where they cannot, and "
        "which function works here with which backend on which device.",
        examples=("aiodist backends",),
    )


def main(argv: Sequence[str]) -> int:
    """``aiodist backends``; returns the exit code."""
    parser().read(argv)
    sys.stdout.write(report())
    return 0


def report() -> str:
    """A line for each backend: its name, whose tensors it takes, and whether it can run here.

    Then the table of functions, with "no" for what this machine lacks.
    """
    rows = [("BACKEND", "TENSORS", "HERE", "")]
    for name, offer in OFFERS.items():
        reason = why_not(name)
        note = reason or _NOTES.get(Backend(name), "")
        rows.append((str(name), ", ".join(offer.devices), "no" if reason else "yes", note))
    return f"{table(rows)}\n\ndefault: {default_backend()}\n\n{table(_functions())}\n"


def _functions() -> list[tuple[str, ...]]:
    """Return the table of `aiodist.backends.support_table`, as it is on this machine."""
    gpu = has_gpu()
    here = [(gpu or device != "cuda") and not why_not(backend) for backend, device in COLUMNS]
    rows = [("FUNCTION", *(f"{backend}, {device}" for backend, device in COLUMNS))]
    for name, cells in FUNCTIONS.items():
        row = [cell if is_here else "no" for cell, is_here in zip(cells, here, strict=True)]
        rows.append((name, *row))
    return rows
