"""Every algorithm but the reducing ones over ranks x lengths x roots, and what each sends."""

from __future__ import annotations

import random
from types import MappingProxyType

import pytest

from aiodist.collectives import operations
from aiodist.collectives.all_gather_ring import all_gather_new
from aiodist.collectives.broadcast_binomial import broadcast_new
from aiodist.collectives.cost import COSTS, Case
from aiodist.collectives.gather_linear import gather_new
from aiodist.collectives.scatter_linear import scatter_new
from aiodist.collectives.select import Choice

SIZES = [1, 2, 3, 4, 5, 7, 8, 13, 16, 17]
CHUNK = 64
SEEDS = [None, 1, 2]


def algorithms(operation: str) -> list[str]:
    return [algorithm for name, algorithm in COSTS if name == operation]


def payload(length: int, *seed: int) -> bytearray:
    return bytearray(random.Random(str(seed)).randbytes(length))


def roots(size: int) -> list[int]:
    return sorted({0, size // 2, size - 1})


def lengths(size: int) -> list[int]:
    return sorted({0, 1, 2, size - 1, size + 1, CHUNK - 1, CHUNK, CHUNK + 1, 11 * CHUNK + 5})


def uneven(size: int) -> list[list[int]]:
    """Block lengths by rank: equal ones, none, and uneven ones with empty ones among them."""
    rng = random.Random(size)
    return [
        [0] * size,
        [5] * size,
        [CHUNK + 1] * size,
        [rng.choice([0, 1, 3, 17, 200]) for _ in range(size)],
    ]


def check_cost(net, operation, algorithm, lengths_of, root=0):
    traffic = COSTS[operation, algorithm]
    for rank in range(net.size):
        case = Case(net.size, rank, lengths_of(rank), root, 1, CHUNK)
        assert traffic(case) == (net.messages[rank], net.nbytes[rank]), case


@pytest.mark.parametrize("size", SIZES)
def test_barrier(network, size):
    for seed in SEEDS:
        net = network(size, seed)
        net.run(operations.barrier)
        check_cost(net, "barrier", "dissemination", lambda rank: [0])


@pytest.mark.parametrize("late", range(5))
def test_no_rank_leaves_a_barrier_before_the_last_has_entered(network, late):
    net = network(5)
    left = []

    async def program(line):
        if line.rank == late:
            await line.recv((late + 1) % 5, memoryview(bytearray(1)))  # never comes
        await operations.barrier(line)
        left.append(line.rank)

    with pytest.raises(AssertionError, match=f"rank {late} waits for 1 messages from rank"):
        net.run(program)
    assert left == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", algorithms("broadcast"))
def test_broadcast(network, algorithm, size):
    for length in lengths(size):
        for root in roots(size):
            for seed in SEEDS:
                data = [payload(length, rank) for rank in range(size)]
                wanted = bytes(data[root])

                def program(line, data=data, root=root):
                    view = memoryview(data[line.rank])
                    if line.rank == root:  # a user may pass memory that cannot be written
                        view = view.toreadonly()
                    return operations.broadcast(line, root, view, Choice(algorithm, CHUNK))

                net = network(size, seed)
                net.run(program)
                assert all(got == wanted for got in data)
                check_cost(net, "broadcast", algorithm, lambda _, n=length: [n], root)
                assert not any(net.scratch)


@pytest.mark.parametrize(
    ("algorithm", "size"),
    [
        (algorithm, size)
        for algorithm in algorithms("all_gather")
        for size in SIZES
        if algorithm != "doubling" or not size & (size - 1)
    ],
)
def test_all_gather(network, algorithm, size):
    for sizes in uneven(size):
        own = [bytes(payload(length, rank)) for rank, length in enumerate(sizes)]
        for seed in SEEDS:
            blocks = [[bytearray(length) for length in sizes] for _ in range(size)]
            for rank in range(size):
                blocks[rank][rank][:] = own[rank]

            def program(line, blocks=blocks):
                views = [memoryview(block) for block in blocks[line.rank]]
                return operations.all_gather(line, views, line.scratch, Choice(algorithm))

            net = network(size, seed)
            net.run(program)
            assert all(got == own for got in blocks)
            check_cost(net, "all_gather", algorithm, lambda _, s=sizes: s)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", algorithms("gather"))
def test_gather(network, algorithm, size):
    for sizes in uneven(size):
        equal = len(set(sizes)) == 1
        if algorithm == "binomial" and not equal:
            continue
        own = [bytes(payload(length, rank)) for rank, length in enumerate(sizes)]
        for root in roots(size):
            for seed in SEEDS:
                blocks = [bytearray(length) for length in sizes]

                def program(line, root=root, blocks=blocks, own=own):
                    views = [memoryview(block) for block in blocks]
                    return operations.gather(
                        line,
                        root,
                        memoryview(own[line.rank]),
                        views if line.rank == root else None,
                        line.scratch,
                        choice=Choice(algorithm),
                    )

                net = network(size, seed)
                net.run(program)
                assert blocks == own
                check_cost(net, "gather", algorithm, lambda _, s=sizes: s, root)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", algorithms("scatter"))
def test_scatter(network, algorithm, size):
    for sizes in uneven(size):
        equal = len(set(sizes)) == 1
        if algorithm == "binomial" and not equal:
            continue
        blocks = [bytes(payload(length, rank)) for rank, length in enumerate(sizes)]
        for root in roots(size):
            for seed in SEEDS:
                outs = [bytearray(length) for length in sizes]

                def program(line, root=root, blocks=blocks, outs=outs):
                    return operations.scatter(
                        line,
                        root,
                        [memoryview(block) for block in blocks] if line.rank == root else None,
                        memoryview(outs[line.rank]),
                        line.scratch,
                        choice=Choice(algorithm),
                    )

                net = network(size, seed)
                net.run(program)
                assert outs == blocks
                check_cost(net, "scatter", algorithm, lambda _, s=sizes: s, root)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", algorithms("all_to_all"))
def test_all_to_all(network, algorithm, size):
    rng = random.Random(size)
    shapes = [[[length] * size] * size for length in (0, 1, 5, CHUNK + 1)]
    if algorithm == "pairwise":
        shapes.append([[rng.choice([0, 1, 3, 70]) for _ in range(size)] for _ in range(size)])
    for shape in shapes:
        inputs = [
            [bytes(payload(shape[src][dst], src, dst)) for dst in range(size)]
            for src in range(size)
        ]
        for seed in SEEDS:
            outputs = [[bytearray(shape[src][dst]) for src in range(size)] for dst in range(size)]

            def program(line, inputs=inputs, outputs=outputs):
                return operations.all_to_all(
                    line,
                    [memoryview(block) for block in inputs[line.rank]],
                    [memoryview(block) for block in outputs[line.rank]],
                    line.scratch,
                    choice=Choice(algorithm),
                )

            net = network(size, seed)
            net.run(program)
            assert outputs == [list(column) for column in zip(*inputs, strict=True)]
            check_cost(net, "all_to_all", algorithm, lambda rank, s=shape: s[rank])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", SIZES)
def test_unknown_lengths(network, size, seed):
    own = [bytes(payload(3 * rank % 7 * 50, rank)) for rank in range(size)]
    for root in roots(size):

        def broadcast(line, root=root):
            return broadcast_new(line, root, memoryview(own[root]) if line.rank == root else None)

        def gather(line, root=root):
            return gather_new(line, root, memoryview(own[line.rank]))

        def scatter(line, root=root):
            blocks = [memoryview(block) for block in own] if line.rank == root else None
            return scatter_new(line, root, blocks)

        assert network(size, seed).run(broadcast) == [own[root]] * size
        gathered = network(size, seed).run(gather)
        assert gathered == [own if rank == root else None for rank in range(size)]
        assert network(size, seed).run(scatter) == own
    everything = network(size, seed).run(
        lambda line: all_gather_new(line, memoryview(own[line.rank]))
    )
    assert everything == [own] * size


CALLS = MappingProxyType(
    {
        "barrier": lambda line, view, choice: operations.barrier(line, choice),
        "broadcast": lambda line, view, choice: operations.broadcast(line, 0, view, choice),
        "all_gather": lambda line, view, choice: operations.all_gather(
            line, [view], line.scratch, choice
        ),
        "gather": lambda line, view, choice: operations.gather(
            line, 0, view, [view], line.scratch, choice=choice
        ),
        "scatter": lambda line, view, choice: operations.scatter(
            line, 0, [view], view, line.scratch, choice=choice
        ),
        "all_to_all": lambda line, view, choice: operations.all_to_all(
            line, [view], [view], line.scratch, choice=choice
        ),
    }
)


@pytest.mark.parametrize("operation", CALLS)
def test_an_unknown_algorithm_is_refused(network, operation):
    with pytest.raises(ValueError, match=f"{operation} has no algorithm named 'magic'"):
        network(1).run(
            lambda line: CALLS[operation](line, memoryview(bytearray(4)), Choice("magic"))
        )
