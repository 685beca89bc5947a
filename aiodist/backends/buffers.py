"""The buffers of one call: their memory, and whether they fit together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from aiodist.backends.sizes import digest_of_numbers
from aiodist.errors import InvalidUsageError
from aiodist.groups.backend import Tensor
from aiodist.tensors import Buffer, DType, buffer_of


class Memory(Protocol):
    """A tensor's memory, as a backend has it."""

    @property
    def dtype(self) -> DType: ...

    @property
    def count(self) -> int:
        """The number of elements."""
        ...


M = TypeVar("M", bound=Memory)


def each_of(
    tensors: Sequence[Tensor],
    name: str,
    open_one: Callable[[Tensor, str], M],
    like: Memory | None = None,
) -> list[M]:
    """Return ``open_one(tensor, its name)`` for each tensor of argument ``name``.

    Raises InvalidUsageError unless all have the dtype of ``like``, or, if that is None, of the
    first.
    """
    found = [open_one(tensor, f"{name}[{number}]") for number, tensor in enumerate(tensors)]
    for number, one in enumerate(found):
        check_dtype(one, f"{name}[{number}]", like or found[0])
    return found


def to_write(tensors: Sequence[Tensor], name: str, like: Buffer | None = None) -> list[Buffer]:
    """Return buffers to write, not loaded; arguments and errors as of `each_of`."""
    return each_of(tensors, name, partial(buffer_of, writable=True, load=False), like)


def to_read(tensors: Sequence[Tensor], name: str, like: Buffer | None = None) -> list[Buffer]:
    """Return buffers to read, not loaded; arguments and errors as of `each_of`."""
    return each_of(tensors, name, partial(buffer_of, writable=False, load=False), like)


def are_staged(*buffers: Buffer) -> bool:
    """Return whether any of them is a copy, to be filled before or written back after an operation."""
    return any(buffer.is_staged for buffer in buffers)


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
