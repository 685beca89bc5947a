"""Which cases the matrix runs.

Every (operation, world size, length) has a case of its own, since they decide which algorithm and
which protocol run. The other dimensions are chosen so that every pair of values, of any two
dimensions, that may stand together does so in at least one case. Generated, without chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations, islice, product
from typing import NamedTuple

SIZES = (1, 2, 3, 4, 5, 8)

MOVING = (
    "isend_irecv",
    "recv_any_source",
    "recv_without_buffer",
    "batch_isend_irecv",
    "broadcast",
    "all_gather",
    "all_gather_uneven",
    "all_gather_into_tensor",
    "all_gather_coalesced",
    "gather",
    "gather_uneven",
    "gather_single",
    "scatter",
    "scatter_uneven",
    "all_to_all",
    "all_to_all_uneven",
    "all_to_all_single",
    "all_to_all_single_uneven",
    "all_gather_object",
    "broadcast_object_list",
)
REDUCING = (
    "all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_uneven",
    "reduce_scatter_tensor",
)
LENGTHS = (
    "none",
    "one",
    "odd",
    "chunk-1",
    "chunk",
    "chunk+1",
    "eager-1",
    "eager",
    "eager+1",
    "large",
)
"""chunk: the bytes of one message of a pipeline; eager: of the longest message sent unasked."""

NO_OP = "-"
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
TRANSPORTS = ("inproc", "tcp", "unix", "shm", "hosts")
"""hosts: "shm" on two hosts, the first with a rank more where they are odd."""
KINDS = ("torch", "numpy", "mixed")

INTEGERS = ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64", "longdouble")
COMPLEX = ("complex32", "complex64", "complex128", "clongdouble")
DTYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEX)
TORCH_ONLY = ("bfloat16", "complex32")
NUMPY_ONLY = ("longdouble", "clongdouble")

LAYOUTS = (
    "contiguous",
    "offset",
    "strided",
    "transposed",
    "reversed",
    "channels_last",
    "requires_grad",
    "conjugate",
    "zero_dim",
)
TORCH_LAYOUTS = ("channels_last", "requires_grad", "conjugate")


class Case(NamedTuple):
    """One call on all ranks."""

    operation: str
    size: int
    length: str
    dtype: str
    op: str
    transport: str
    kind: str
    layout: str

    def __str__(self) -> str:
        op = "" if self.op == NO_OP else f" {self.op}"
        return (
            f"{self.operation}{op} of {self.length} {self.dtype}, {self.kind}, {self.layout}, "
            f"{self.size} ranks over {self.transport}"
        )


DIMENSIONS = (MOVING + REDUCING, SIZES, LENGTHS, DTYPES, (NO_OP, *OPS), TRANSPORTS, KINDS, LAYOUTS)
OPERATION, SIZE, LENGTH, DTYPE, OP, TRANSPORT, KIND, LAYOUT = range(8)

Pair = tuple[int, object, int, object]


def may_be(case: Case) -> bool:
    """Whether the values of a case may stand together."""
    if (case.op == NO_OP) == (case.operation in REDUCING):
        return False
    if case.dtype in TORCH_ONLY and case.kind != "torch":
        return False
    if case.dtype in NUMPY_ONLY and case.kind != "numpy":
        return False
    if case.op in ("BAND", "BOR", "BXOR") and case.dtype in FLOATS + COMPLEX:
        return False
    if case.op in ("MIN", "MAX") and case.dtype in COMPLEX:
        return False
    if case.op in ("AVG", "PREMUL_SUM") and case.dtype == "bool":
        return False
    if case.layout in TORCH_LAYOUTS and case.kind != "torch":
        return False
    if case.layout == "reversed" and case.kind != "numpy":
        return False
    if case.layout == "requires_grad" and case.dtype not in FLOATS + COMPLEX:
        return False
    if case.layout == "conjugate" and case.dtype not in COMPLEX:
        return False
    return case.layout != "zero_dim" or case.length == "one"


def pairs_of(case: Case) -> list[Pair]:
    return [(i, case[i], j, case[j]) for i, j in combinations(range(len(DIMENSIONS)), 2)]


@cache
def tails(reducing: bool) -> tuple[tuple[str, str, str, str], ...]:
    """Every (dtype, op, kind, layout) that operations with or without a reduction allow."""
    operation = REDUCING[0] if reducing else MOVING[0]
    return tuple(
        tail
        for tail in product(DTYPES, OPS if reducing else (NO_OP,), KINDS, LAYOUTS)
        if may_be(Case(operation, 1, "one", tail[0], tail[1], "inproc", *tail[2:]))
    )


def possible_pairs() -> set[Pair]:
    """Every pair of values that some valid case has."""
    found: set[Pair] = set()
    # Sizes and transports stand with everything, and operations with every size and length.
    for free in (SIZE, TRANSPORT):
        for other in set(range(len(DIMENSIONS))) - {free}:
            i, j = sorted((free, other))
            found.update((i, a, j, b) for a, b in product(DIMENSIONS[i], DIMENSIONS[j]))
    found.update(
        (OPERATION, a, LENGTH, b) for a, b in product(DIMENSIONS[OPERATION], DIMENSIONS[LENGTH])
    )
    for operations in (MOVING, REDUCING):
        for tail in tails(operations is REDUCING):
            values = dict(zip((DTYPE, OP, KIND, LAYOUT), tail, strict=True))
            found.update((i, values[i], j, values[j]) for i, j in combinations(values, 2))
            for d, value in values.items():
                found.update((OPERATION, operation, d, value) for operation in operations)
                lengths = ("one",) if tail[3] == "zero_dim" else LENGTHS
                found.update((LENGTH, length, d, value) for length in lengths)
    return found


@cache
def cases() -> tuple[Case, ...]:
    """The cases, the same at every run."""
    return tuple(_generate())


def _generate() -> Iterator[Case]:
    missing = possible_pairs()
    # How often a value has been taken breaks ties, so that the rest is spread evenly.
    taken = {(d, value): 0 for d, values in enumerate(DIMENSIONS) for value in values}

    def fitting(number: int, operation: str, size: int, length: str) -> Iterator[Case]:
        known = tails(operation in REDUCING)
        # A few are enough to choose from; the step is prime to spread them.
        for k in range(number, number + 12):
            dtype, op, kind, layout = known[k * 101 % len(known)]
            if layout == "zero_dim" and length != "one":
                layout = "contiguous"
            transport = TRANSPORTS[k % len(TRANSPORTS)]
            yield Case(operation, size, length, dtype, op, transport, kind, layout)

    def worth(case: Case) -> tuple[int, int]:
        new = sum(pair in missing for pair in pairs_of(case))
        return new, -sum(taken[d, case[d]] for d in range(DTYPE, len(case)))

    def take(case: Case) -> Case:
        missing.difference_update(pairs_of(case))
        for d, value in enumerate(case):
            taken[d, value] += 1
        return case

    for number, head in enumerate(product(*DIMENSIONS[:3])):
        yield take(max(fitting(number, *head), key=worth))
    while missing:
        yield take(max(islice(_holding(min(missing, key=repr)), 64), key=worth))


def _holding(pair: Pair) -> Iterator[Case]:
    """Cases with this pair in them, small ones where the pair leaves the choice."""
    i, a, j, b = pair
    for operations in (MOVING, REDUCING):
        for operation, tail in product(operations, tails(operations is REDUCING)):
            length = "one" if tail[3] == "zero_dim" else "odd"
            values = [operation, 2, length, tail[0], tail[1], "inproc", *tail[2:]]
            values[i], values[j] = a, b
            case = Case(*values)
            if may_be(case):
                yield case
