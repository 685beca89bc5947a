"""Lists of numbers and of bytes, as command lines have them."""

from __future__ import annotations

import argparse
import re
from types import MappingProxyType

_SIZE = re.compile(r"(\d+)\s*(|B|K|KiB|M|MiB|G|GiB)")
_FACTORS = MappingProxyType({"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30})


def numbers(text: str) -> list[int]:
    """``8,64``: numbers above 0."""
    found = [int(part) for part in text.split(",") if part.isdecimal() and int(part)]
    if len(found) != text.count(",") + 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers above 0: write 8,64,512")
    return found


def sizes(text: str) -> list[int]:
    """``4,64K,16M``: bytes, rounded up to whole float32 elements."""
    found = []
    for part in text.split(","):
        match = _SIZE.fullmatch(part.strip())
        if match is None:
            raise argparse.ArgumentTypeError(f"{part!r} is no number of bytes: write 4, 64K or 16M")
        nbytes = int(match[1]) * _FACTORS[match[2][:1].replace("B", "")]
        found.append(-(-nbytes // 4) * 4)
    return found
