"""Numbers and bytes in command lines, and as text."""

from __future__ import annotations

import argparse
import re
from types import MappingProxyType

from aiodist.launch.spec import MOST_RANKS

_SIZE = re.compile(r"(\d+)\s*(|B|K|KiB|M|MiB|G|GiB)")
MOST_BYTES = 1 << 50
"""The most bytes that a command line may name: 1 PiB."""

_FACTORS = MappingProxyType({"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30})


def numbers(text: str) -> list[int]:
    """``8,64``: numbers of ranks, above 0."""
    found = [int(part) for part in text.split(",") if part.isdecimal() and int(part)]
    if len(found) != text.count(",") + 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers above 0: write 8,64,512")
    if max(found) > MOST_RANKS:
        raise argparse.ArgumentTypeError(
            f"a job has at most {MOST_RANKS:,} ranks, not {max(found):,}"
        )
    return found


def sizes(text: str) -> list[int]:
    """``4,64K,16M``: bytes, rounded up to whole float32 elements."""
    found = []
    for part in text.split(","):
        match = _SIZE.fullmatch(part.strip())
        if match is None:
            raise argparse.ArgumentTypeError(f"{part!r} is no number of bytes: write 4, 64K or 16M")
        nbytes = int(match[1]) * _FACTORS[match[2][:1].replace("B", "")]
        if nbytes > MOST_BYTES:
            raise argparse.ArgumentTypeError(f"{part!r} is more than 1 PiB")
        found.append(-(-nbytes // 4) * 4)
    return found


def bytes_text(nbytes: float) -> str:
    """Three digits and a unit: ``0 B``, ``512 B``, ``1.5 KiB``, ``64 MiB``."""
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= 0.9995 * factor:
            value = nbytes / factor
            return f"{value:.2f} {unit}" if value < 9.995 else f"{three_digits(value)} {unit}"
    return f"{nbytes:.0f} B"


def three_digits(value: float) -> str:
    """``0.31``, ``9.99``, ``31.4``, ``1234``."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def count_text(value: float) -> str:
    """``0``, ``9.5``, ``320``, ``1.2 k``, ``3.4 M``."""
    for factor, unit in ((1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value:.1f}".removesuffix(".0") if value < 9.95 else f"{value:.0f}"


def time_text(microseconds: float) -> str:
    """Three digits and a unit: ``9.13 us``, ``214 us``, ``95.2 ms``."""
    if microseconds < 0:
        return f"-{time_text(-microseconds)}"
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= factor * 0.9995:
            return f"{three_digits(microseconds / factor)} {unit}"
    return f"{three_digits(microseconds)} us"
