"""What numpy says: inputs by rank, and their reductions.

Inputs are small whole numbers, which every dtype holds exactly, so that sums and products do not
depend on the order; how floats round is another test's subject.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache, reduce

import numpy as np

from tests.operations.memory import Array, carrier, to_numpy, to_torch

_UFUNCS = {
    "SUM": np.add,
    "AVG": np.add,
    "PREMUL_SUM": np.add,
    "PRODUCT": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}


@cache
def _pattern(rank: int, piece: int, op: str) -> Array:
    # A prime length: what is shifted or swapped shows.
    rng = np.random.default_rng([rank, piece])
    if op == "PRODUCT":
        return rng.choice([-1, 1, 2], 4099)
    return rng.integers(-6, 7, 4099)


@lru_cache(maxsize=64)
def values(dtype: str, op: str, rank: int, piece: int, count: int) -> Array:
    """``count`` elements of rank ``rank``; ``piece`` tells one rank's several inputs apart."""
    pattern = _pattern(rank, piece, op)
    kind = carrier(dtype)
    if kind.kind == "b":
        pattern = pattern > 0
    elif kind.kind == "u":
        pattern = np.abs(pattern)
    elif kind.kind == "c":
        pattern = pattern + 1j * np.roll(pattern, 1)
    result = np.resize(pattern.astype(kind), count)
    result.flags.writeable = False  # several ranks look at it
    return result


def factor(rank: int) -> int:
    """Each rank's own factor of a PREMUL_SUM."""
    return 1 + rank % 2


def reduced(inputs: Sequence[Array], op: str, dtype: str) -> Array:
    """All ranks' inputs as one."""
    if op == "PREMUL_SUM":
        inputs = [array * array.dtype.type(factor(rank)) for rank, array in enumerate(inputs)]
    result: Array = reduce(_UFUNCS[op], inputs)
    if op != "AVG":
        return result
    size = len(inputs)
    if result.dtype.kind in "iu":
        return np.trunc(result / size).astype(result.dtype)
    if dtype in ("float16", "bfloat16", "complex32"):  # through a wider type, rounded once
        wide = result.astype("c8" if result.dtype.kind == "c" else "f4")
        parts = wide.view("f4") / np.float32(size)
        return to_numpy(to_torch(parts.view(wide.dtype).astype(result.dtype), dtype))
    real = result.real.dtype.type
    return (result.view(real) / real(size)).view(result.dtype)
