"""How the rows of one tensor are divided among ranks; several tensors' lengths as one number."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.errors import InvalidUsageError
from aiodist.groups.argument_checks import check_int, check_list
from aiodist.groups.naming import digest


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
    """56 bits that are equal on ranks with equal lists of numbers."""
    return digest(",".join(map(str, numbers)), 7)


def unequal(counts: Sequence[int]) -> int:
    """In a fingerprint's place for a root: -1 where ``counts`` are equal, else lower, by digest.

    Lists of one total would pass each other's blocks off as their own.
    """
    if all(count == counts[0] for count in counts):
        return -1
    return digest_as_root(counts)


def digest_as_root(numbers: Sequence[int]) -> int:
    """Return a digest of ``numbers`` for a fingerprint's place for a root, below -1."""
    return -2 - (digest_of_numbers(numbers) & 0x3FFFFFFF)
