"""The tensors of one call: their memory, and whether they fit together."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.errors import InvalidUsageError
from aiodist.groups.backend import Tensor
from aiodist.tensors import Buffer, buffer_of


def to_write(tensors: Sequence[Tensor], name: str, like: Buffer) -> list[Buffer]:
    """The memory of tensors to write, all of the dtype of ``like``; ``name``: of the argument."""
    return _buffers(tensors, name, like, writable=True)


def to_read(tensors: Sequence[Tensor], name: str, like: Buffer) -> list[Buffer]:
    """The memory of tensors to read, all of the dtype of ``like``; ``name``: of the argument."""
    return _buffers(tensors, name, like, writable=False)


def _buffers(tensors: Sequence[Tensor], name: str, like: Buffer, *, writable: bool) -> list[Buffer]:
    buffers = [
        buffer_of(tensor, f"{name}[{i}]", writable=writable, load=False)
        for i, tensor in enumerate(tensors)
    ]
    for i, buffer in enumerate(buffers):
        check_dtype(buffer, f"{name}[{i}]", like)
    return buffers


def are_staged(*buffers: Buffer) -> bool:
    """Whether any of them is a copy, to be filled before or brought back behind an operation."""
    return any(buffer.is_staged for buffer in buffers)


def check_dtype(buffer: Buffer, name: str, like: Buffer) -> None:
    """Raise InvalidUsageError unless both have one dtype."""
    if buffer.dtype != like.dtype:
        raise InvalidUsageError(
            f"{name} is {buffer.dtype.name}, it must be {like.dtype.name} as the rest of the call"
        )


def check_one_dtype(buffers: Sequence[Buffer], name: str) -> None:
    """Raise InvalidUsageError unless all have one dtype."""
    names = sorted({buffer.dtype.name for buffer in buffers})
    if len(names) > 1:
        raise InvalidUsageError(f"{name} must have one dtype, got {', '.join(names)}")


def check_own(in_list: Buffer, own: Buffer, name: str) -> None:
    """Raise InvalidUsageError unless the own entry of a list is as long as what goes with it."""
    if in_list.count != own.count:
        raise InvalidUsageError(
            f"this rank's own entry of {name} has {in_list.count} elements, the tensor that goes "
            f"with it {own.count}"
        )
