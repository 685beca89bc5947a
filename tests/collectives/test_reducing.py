"""Every reducing algorithm over ranks x lengths x operations, against numpy, bit for bit."""

from __future__ import annotations

import random

import numpy as np
import pytest

from aiodist.collectives import operations
from aiodist.collectives.cost import COSTS, Case
from aiodist.collectives.partition import WINDOW
from aiodist.collectives.select import Choice

SIZES = [1, 2, 3, 4, 5, 7, 8, 13, 16, 17]
CHUNK = 64
KINDS = ["sum_order", "max_special", "int_sum"]
EVERY_KIND_UP_TO = 13
"""Ranks. More of them take more of the same steps, and a step of each kind has been tried by then."""
SIZES_AND_KINDS = [
    (size, kind) for size in SIZES for kind in KINDS if size <= EVERY_KIND_UP_TO or kind == KINDS[0]
]
PIPELINES = ["ring", "chain", "scatter_gather"]


def algorithms(operation: str) -> list[str]:
    return [algorithm for name, algorithm in COSTS if name == operation]


def lengths(size: int, itemsize: int) -> list[int]:
    """Elements: 0, 1, 2, odd, around the ranks, around one chunk a block, and many chunks."""
    block = CHUNK // itemsize * size
    return sorted({0, 1, 2, 11, size - 1, size + 1, block - 1, block, block + 1, 9 * block + 5})


def inputs(kind: str, size: int, length: int) -> np.ndarray:
    """A row for each rank."""
    rng = np.random.default_rng([size, length])
    if kind == "sum_order":  # magnitudes so far apart that every order of adding gives other bits
        scale = 10.0 ** rng.integers(-6, 7, (size, length))
        return (rng.standard_normal((size, length)) * scale).astype("f4")
    if kind == "max_special":
        return rng.choice(np.array([-0.0, 0.0, np.nan, -np.nan, 1, -1], "f4"), (size, length))
    return rng.integers(-(2**40), 2**40, (size, length))


def operator(reduction, kind):
    ufunc = np.maximum if kind == "max_special" else np.add
    return reduction(ufunc, "i8" if kind == "int_sum" else "f4")


def check(kind: str, given: np.ndarray, result: np.ndarray) -> None:
    if kind == "max_special":
        np.testing.assert_array_equal(result, np.maximum.reduce(given))
    elif kind == "int_sum":
        np.testing.assert_array_equal(result, given.sum(0))
    else:
        bound = np.abs(given).sum(0, dtype="f8") * len(given) * np.finfo("f4").eps
        assert (np.abs(result - given.sum(0, dtype="f8")) <= bound).all()


def view(array: np.ndarray) -> memoryview:
    return memoryview(array.view("u1")) if array.size else memoryview(bytearray())


def check_traffic(net, operation, algorithm, lengths_of, root, itemsize):
    traffic = COSTS[operation, algorithm]
    for rank in range(net.size):
        case = Case(net.size, rank, lengths_of, root, itemsize, CHUNK)
        assert traffic(case) == (net.messages[rank], net.nbytes[rank]), case


@pytest.mark.parametrize(("size", "kind"), SIZES_AND_KINDS)
@pytest.mark.parametrize("algorithm", algorithms("all_reduce"))
def test_all_reduce(network, reduction, algorithm, size, kind):
    op = operator(reduction, kind)
    for length in lengths(size, op.itemsize):
        given = inputs(kind, size, length)
        bits = set()
        for seed in (None, 1):
            data = given.copy()

            def program(line, data=data):
                mine = view(data[line.rank])
                return operations.all_reduce(line, mine, op, line.scratch, Choice(algorithm, CHUNK))

            net = network(size, seed)
            net.run(program)
            bits |= {row.tobytes() for row in data}
            check_traffic(net, "all_reduce", algorithm, [data[0].nbytes], 0, op.itemsize)
        assert len(bits) == 1, f"ranks or runs differ at length {length}"
        check(kind, given, data[0])


@pytest.mark.parametrize(("size", "kind"), SIZES_AND_KINDS)
@pytest.mark.parametrize("algorithm", algorithms("reduce"))
def test_reduce(network, reduction, algorithm, size, kind):
    op = operator(reduction, kind)
    root = size // 2
    for length in lengths(size, op.itemsize):
        given = inputs(kind, size, length)
        bits = set()
        for seed in (None, 1):
            data = given.copy()

            def program(line, data=data):
                return operations.reduce(
                    line, root, view(data[line.rank]), op, line.scratch, Choice(algorithm, CHUNK)
                )

            net = network(size, seed)
            net.run(program)
            bits.add(data[root].tobytes())
            check_traffic(net, "reduce", algorithm, [data[0].nbytes], root, op.itemsize)
            for rank in set(range(size)) - {root}:
                assert data[rank].tobytes() == given[rank].tobytes(), "an input was written to"
        assert len(bits) == 1, f"runs differ at length {length}"
        check(kind, given, data[root])


@pytest.mark.parametrize(
    ("algorithm", "size", "kind"),
    [
        (algorithm, size, kind)
        for algorithm in algorithms("reduce_scatter")
        for size, kind in SIZES_AND_KINDS
        if algorithm != "halving" or not size & (size - 1)
    ],
)
def test_reduce_scatter(network, reduction, algorithm, size, kind):
    op = operator(reduction, kind)
    rng = random.Random(size)
    chunk = CHUNK // op.itemsize
    for counts in (
        [0] * size,
        [1] * size,
        [chunk + 1] * size,
        [9 * chunk] * size,
        [rng.choice([0, 1, 2, chunk, 5 * chunk + 3]) for _ in range(size)],
    ):
        ends = np.cumsum(counts)
        given = inputs(kind, size, int(ends[-1]))
        bits = set()
        # The second time the output is this rank's own block in the input.
        for seed, in_place in ((None, False), (1, False), (2, True)):
            data = given.copy()
            blocks = [np.split(row, ends[:-1]) for row in data]
            outs = [blocks[r][r] if in_place else np.empty_like(blocks[r][r]) for r in range(size)]

            def program(line, blocks=blocks, outs=outs):
                return operations.reduce_scatter(
                    line,
                    [view(block) for block in blocks[line.rank]],
                    view(outs[line.rank]),
                    op,
                    line.scratch,
                    Choice(algorithm, CHUNK),
                )

            net = network(size, seed)
            net.run(program)
            result = np.concatenate(outs)
            bits.add(result.tobytes())
            sizes = [count * op.itemsize for count in counts]
            check_traffic(net, "reduce_scatter", algorithm, sizes, 0, op.itemsize)
            if not in_place:
                assert data.tobytes() == given.tobytes(), "an input was written to"
        assert len(bits) == 1, f"runs differ with blocks {counts}"
        check(kind, given, result)


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize(
    ("operation", "algorithm"),
    [(operation, algorithm) for operation, algorithm in COSTS if algorithm in PIPELINES],
)
def test_scratch_of_a_pipeline_is_bounded(network, reduction, operation, algorithm, size):
    op = reduction(np.add, "f4")
    chunk = 256
    length = 100 * chunk * size

    def program(line):
        data = memoryview(bytearray(length))
        choice = Choice(algorithm, chunk)
        if operation == "all_reduce":
            return operations.all_reduce(line, data, op, line.scratch, choice)
        if operation == "reduce":
            return operations.reduce(line, 0, data, op, line.scratch, choice)
        if operation == "broadcast":
            return operations.broadcast(line, 0, data, choice)
        blocks = [data[i * 100 * chunk : (i + 1) * 100 * chunk] for i in range(size)]
        if operation == "all_gather":
            return operations.all_gather(line, blocks, line.scratch, choice)
        return operations.reduce_scatter(line, blocks, blocks[0], op, line.scratch, choice)

    net = network(size)
    net.run(program)
    result = length // size if algorithm == "scatter_gather" else 0
    assert max(net.scratch) <= 2 * WINDOW * chunk + result


class First:
    """op(a, b) = a, which shows the order of operands: the lowest rank's data must win."""

    itemsize = 1

    def __call__(self, acc, other, other_first=False):
        if other_first:
            acc[:] = other

    def into(self, a, b, out):
        out[:] = a


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", ["doubling", "halving_doubling"])
def test_lower_ranks_come_first_in_all_reduce(network, algorithm, size):
    data = [memoryview(bytearray([rank]) * 20) for rank in range(size)]
    network(size).run(
        lambda line: operations.all_reduce(
            line, data[line.rank], First(), line.scratch, Choice(algorithm)
        )
    )
    assert data == [bytes(20)] * size


@pytest.mark.parametrize("algorithm", ["binomial", "chain"])
def test_ranks_count_from_the_root_in_reduce(network, algorithm):
    data = [memoryview(bytearray([rank]) * 200) for rank in range(7)]
    network(7).run(
        lambda line: operations.reduce(
            line, 3, data[line.rank], First(), line.scratch, Choice(algorithm, CHUNK)
        )
    )
    assert data[3] == bytes([3]) * 200


def test_lower_ranks_come_first_in_reduce_scatter_by_halving(network):
    outs = [memoryview(bytearray(3)) for _ in range(8)]

    def program(line):
        blocks = [memoryview(bytearray([line.rank]) * 3)] * 8
        out = outs[line.rank]
        return operations.reduce_scatter(
            line, blocks, out, First(), line.scratch, Choice("halving")
        )

    network(8).run(program)
    assert outs == [bytes(3)] * 8


@pytest.mark.parametrize("operation", ["all_reduce", "reduce", "reduce_scatter"])
def test_an_unknown_algorithm_is_refused(network, reduction, operation):
    op, data, choice = reduction(np.add, "f4"), memoryview(bytearray(4)), Choice("magic")

    def program(line):
        if operation == "all_reduce":
            return operations.all_reduce(line, data, op, line.scratch, choice)
        if operation == "reduce":
            return operations.reduce(line, 0, data, op, line.scratch, choice)
        return operations.reduce_scatter(line, [data], data, op, line.scratch, choice)

    with pytest.raises(ValueError, match=f"{operation} has no algorithm named 'magic'"):
        network(1).run(program)
