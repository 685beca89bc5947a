"""Check that the tensors of one operation fit together, in every kind of memory that a backend has.

Also divide the rows of one tensor among ranks, and describe several lengths by one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from aiodist.errors import InvalidUsageError
from aiodist.groups.argument_checks import check_int, check_list
from aiodist.groups.naming import digest
from aiodist.tensors import DType


class Memory(Protocol):
    """A tensor's memory, as a backend has it."""

    @property
    def dtype(self) -> DType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def count(self) -> int:
        """The number of elements."""

    @property
    def nbytes(self) -> int: ...

    @property
    def extent(self) -> tuple[int, int] | None:
        """The addresses where it begins and ends; None if it is empty, or a copy of the tensor."""


M = TypeVar("M", bound=Memory)
Opens = TypeVar("Opens", bound=Memory, covariant=True)


class Open(Protocol[Opens]):
    """Open a tensor: `aiodist.tensors.buffer_of`, or what another backend has for that."""

    def __call__(self, tensor: Any, name: str, *, writable: bool) -> Opens: ...


def each_of(
    tensors: Sequence[Any],
    name: str,
    open_one: Open[M],
    like: Memory | None = None,
    *,
    writable: bool,
) -> list[M]:
    """Return ``open_one(tensor, its name, writable=...)`` for each tensor of argument ``name``.

    Raises InvalidUsageError unless all have the dtype of ``like``; without it, that of the first tensor.
    """
    found = [
        open_one(tensor, f"{name}[{number}]", writable=writable)
        for number, tensor in enumerate(tensors)
    ]
    for number, one in enumerate(found):
        check_dtype(one, f"{name}[{number}]", like or found[0])
    return found


def digest_of_counts(tensors: Sequence[Memory]) -> int:
    """Return 56 bits that are equal on ranks whose lists of tensors have equal lengths, one by one.

    The total is not enough: lists of equal total but different lengths would mix up their data.
    """
    return digest_of_numbers([tensor.count for tensor in tensors])


def check_dtype(one: Memory, name: str, like: Memory) -> None:
    """Raise InvalidUsageError unless both have one dtype."""
    if one.dtype != like.dtype:
        raise InvalidUsageError(
            f"{name} is {one.dtype.name}, it must be {like.dtype.name} as the rest of the call"
        )


def check_apart(
    written: Sequence[Memory], name: str, read: Sequence[Memory] = (), read_name: str = ""
) -> None:
    """Raise InvalidUsageError if two of ``written`` share memory, or one of them and one of ``read``.

    A tensor of which a copy takes part in the operation is not compared.
    """
    stretches = [(*at, True, number) for number, one in enumerate(written) if (at := one.extent)]
    stretches += [(*at, False, number) for number, one in enumerate(read) if (at := one.extent)]
    stretches.sort()
    # Invariant: all stretches so far begin before the next one, so it overlaps one of them if it begins
    # before the one that ends last has ended.
    end_of_written = end_of_read = last_written = 0
    for start, end, is_written, number in stretches:
        if is_written and start < end_of_written:
            raise InvalidUsageError(
                f"{name}[{last_written}] and {name}[{number}] share memory, which cannot hold what "
                "comes for both; make a tensor for each"
            )
        if start < (end_of_read if is_written else end_of_written):
            raise InvalidUsageError(
                f"{name} and {read_name} share memory, so what comes would overwrite what is still to "
                "be sent; pass another output"
            )
        if is_written:
            end_of_written, last_written = end, number
        elif end > end_of_read:
            end_of_read = end


def check_own(in_list: Memory, own: Memory, name: str) -> None:
    """Raise InvalidUsageError unless the own entry of a list is as long as what goes with it."""
    if in_list.count != own.count:
        raise InvalidUsageError(
            f"this rank's own entry of {name} has {in_list.count} elements, the tensor that goes "
            f"with it {own.count}"
        )


def check_times(whole: Memory, whole_name: str, part: Memory, part_name: str, size: int) -> None:
    """Raise InvalidUsageError unless ``whole`` is ``size`` times as long as ``part``."""
    check_dtype(whole, whole_name, part)
    if whole.count != part.count * size:
        raise InvalidUsageError(
            f"{whole_name} has {whole.count} elements; it must have {size} (the group's size) "
            f"times the {part.count} of {part_name}"
        )


def check_kept(rank: int, sent: int, expected: int) -> None:
    """Raise InvalidUsageError unless what ``rank`` sends itself is as long as what it expects."""
    if sent != expected:
        raise InvalidUsageError(
            f"what rank {rank} sends itself has {sent} bytes, what it expects from itself "
            f"{expected}: the splits do not fit together"
        )


def split_lengths(
    shape: Sequence[int], nbytes: int, name: str, splits: Sequence[int] | None, size: int
) -> list[int]:
    """Return the bytes for each of ``size`` ranks: ``splits[r]`` rows of a tensor's first dimension.

    None means equal shares. Raises InvalidUsageError where the splits do not add up.
    """
    rows = shape[0] if shape else 1
    row = nbytes // rows if rows else 0
    if splits is not None:
        splits = check_list(splits, f"{name}_split_sizes")
    if not splits:
        if rows % size:
            raise InvalidUsageError(
                f"{name} has {rows} rows, which {size} ranks cannot share equally; pass "
                f"{name}_split_sizes"
            )
        return [rows // size * row] * size
    if len(splits) != size:
        raise InvalidUsageError(
            f"{name}_split_sizes has {len(splits)} entries; the group has {size} ranks"
        )
    splits = [check_int(split, f"each of {name}_split_sizes") for split in splits]
    if any(split < 0 for split in splits) or sum(splits) != rows:
        raise InvalidUsageError(
            f"{name}_split_sizes {splits} must be non-negative and add up to the {rows} "
            f"rows of {name}"
        )
    return [split * row for split in splits]


def digest_of_numbers(numbers: Sequence[int]) -> int:
    """Return 56 bits that are equal on ranks with equal lists of numbers."""
    return digest(",".join(map(str, numbers)), 7)


def unequal(counts: Sequence[int]) -> int:
    """Return what a fingerprint has in place of a root: -1 if ``counts`` are equal, else a digest below -1.

    Ranks whose lists differ but have one total would take each other's blocks for their own.
    """
    if all(count == counts[0] for count in counts):
        return -1
    return digest_as_root(counts)


def digest_as_root(numbers: Sequence[int]) -> int:
    """Return a digest of ``numbers`` below -1, which a fingerprint has in place of a root."""
    return -2 - (digest_of_numbers(numbers) & 0x3FFFFFFF)
