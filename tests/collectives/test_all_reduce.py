"""Every all_reduce over ranks x lengths x operations, against numpy and bit for bit across ranks."""

from __future__ import annotations

import numpy as np
import pytest

from aiodist.collectives.operations import all_reduce
from aiodist.collectives.select import Choice

SIZES = [1, 2, 3, 4, 5, 7, 8, 13, 16, 17]
CHUNK = 64
ALGORITHMS = ["doubling", "ring", "halving_doubling"]


def lengths(size: int) -> list[int]:
    """0, 1, 2, odd, around the ranks, around a chunk a block, and many chunks."""
    block = CHUNK // 4 * size
    return sorted({0, 1, 2, 11, size - 1, size + 1, block - 1, block, block + 1, 9 * block + 5})


def inputs(kind: str, size: int, length: int) -> list[np.ndarray]:
    rng = np.random.default_rng([size, length])
    if kind == "sum_order":  # magnitudes so far apart that every order of adding gives other bits
        scale = 10.0 ** rng.integers(-6, 7, (size, length))
        return list((rng.standard_normal((size, length)) * scale).astype("f4"))
    if kind == "max_special":
        return list(rng.choice(np.array([-0.0, 0.0, np.nan, -np.nan, 1, -1], "f4"), (size, length)))
    return list(rng.integers(-(2**40), 2**40, (size, length)))


@pytest.mark.parametrize("kind", ["sum_order", "max_special", "int_sum"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_reduce(network, reduction, algorithm, size, kind):
    ufunc = np.maximum if kind == "max_special" else np.add
    for length in lengths(size):
        given = inputs(kind, size, length)
        bits = set()
        for seed in (None, 1):
            arrays = [array.copy() for array in given]
            op = reduction(ufunc, arrays[0].dtype)

            def program(line, arrays=arrays, op=op):
                array = arrays[line.rank]
                data = memoryview(array).cast("B") if array.size else EMPTY
                return all_reduce(line, data, op, line.scratch, Choice(algorithm, CHUNK))

            network(size, seed).run(program)
            bits |= {array.tobytes() for array in arrays}
        assert len(bits) == 1, f"ranks or runs differ at length {length}"
        check(kind, given, arrays[0])


EMPTY = memoryview(bytearray())


def check(kind: str, given: list[np.ndarray], result: np.ndarray) -> None:
    stacked = np.stack(given)
    if kind == "max_special":
        np.testing.assert_array_equal(result, np.maximum.reduce(stacked))
    elif kind == "int_sum":
        np.testing.assert_array_equal(result, stacked.sum(0))
    else:
        bound = np.abs(stacked).sum(0, dtype="f8") * len(given) * np.finfo("f4").eps
        assert (np.abs(result - stacked.sum(0, dtype="f8")) <= bound).all()
