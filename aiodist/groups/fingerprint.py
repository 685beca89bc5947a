"""What every message of a collective says about the collective it belongs to.

Ranks that disagree about an operation find out by comparing a few bytes, and the error can show
both sides in words.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aiodist.errors import DistError
from aiodist.tensors import DType, dtype_of_code
from aiodist.types import RedOpType, ReduceOp

_LAYOUT = struct.Struct("<BBBiQ")

SPARSE_ALL_REDUCE = "sparse_all_reduce"
_COALESCED = ("all_reduce_coalesced", "all_gather_coalesced")
_OPERATIONS = (
    "barrier",
    "broadcast",
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "broadcast_object_list",
    "all_gather_object",
    "gather_object",
    "scatter_object_list",
    "new_group",
    *_COALESCED,
    "monitored_barrier",
    "broadcast_new",
    "all_gather_new",
    "broadcast_object",
    SPARSE_ALL_REDUCE,
)
_NONE = 255
_ELSEWHERE = 0x80


Words = tuple[int, int]
"""An encoded fingerprint as two words of shared memory."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """An operation as all its ranks must agree on it. -1, None: not part of the agreement."""

    operation: str
    dtype: DType | None = None
    op: ReduceOp | None = None
    root: int = -1
    count: int = -1
    """Elements; or a digest of what the ranks must agree on, for several tensors and for none."""
    shape: tuple[int, ...] | None = field(default=None, compare=False)
    """This rank's own tensor's, for messages here: the ranks need not agree on it."""
    elsewhere: bool = False
    """Whether the tensors go another way than those of the CPU do: by another library, in a device's
    memory, or through copies of it. All ranks of an operation go the same way."""

    encoded: bytes = field(init=False, repr=False, compare=False)
    """As it goes with every message."""
    words: Words = field(init=False, repr=False, compare=False)
    """The same as it stands in shared memory."""

    def __post_init__(self) -> None:
        encoded = _LAYOUT.pack(
            _OPERATIONS.index(self.operation) | (_ELSEWHERE if self.elsewhere else 0),
            _NONE if self.dtype is None else self.dtype.code,
            _NONE if self.op is None else self.op.kind.value,
            self.root,
            self.count + 1,
        )
        object.__setattr__(self, "encoded", encoded)
        words = int.from_bytes(encoded[:8], "little"), int.from_bytes(encoded[8:], "little")
        object.__setattr__(self, "words", words)

    @property
    def tensor(self) -> str:
        """This rank's tensor in words; empty where the operation has none, or several."""
        if self.dtype is None or self.operation in _COALESCED:
            return ""
        if self.shape is not None:
            return tensor_in_words(self.dtype, self.shape)
        return self.dtype.name

    def __str__(self) -> str:
        op = None if self.op is None else self.op.name
        dtype = None if self.dtype is None else self.dtype.name
        return _describe(self.operation, dtype, op, self.root, self.count)


def tensor_in_words(dtype: DType, shape: Sequence[int]) -> str:
    """Return ``6 x int16, shape (2, 3)``."""
    return f"{math.prod(shape)} x {dtype.name}, shape {tuple(shape)}"


def encoded_of(words: Words) -> bytes:
    """Return the encoded fingerprint of two words."""
    low, high = words
    return (low.to_bytes(8, "little") + high.to_bytes(8, "little"))[: _LAYOUT.size]


def differ_in_device_alone(one: bytes, other: bytes) -> bool:
    """Return whether two encoded fingerprints differ in `Fingerprint.elsewhere` alone."""
    if len(one) != len(other) or one[1:] != other[1:]:
        return False
    return one[0] ^ other[0] == _ELSEWHERE


def is_elsewhere(encoded: bytes) -> bool:
    """Return `Fingerprint.elsewhere` of an encoded fingerprint."""
    return len(encoded) == _LAYOUT.size and bool(encoded[0] & _ELSEWHERE)


def describe(encoded: bytes) -> str:
    """Return a fingerprint that arrived, in words."""
    if len(encoded) != _LAYOUT.size:
        return f"something unknown ({len(encoded)} bytes)"
    operation, dtype, op, root, count = _LAYOUT.unpack(encoded)
    number = operation & ~_ELSEWHERE
    if number >= len(_OPERATIONS):
        return f"an operation this version does not know ({operation})"
    return _describe(
        _OPERATIONS[number],
        None if dtype == _NONE else _name(dtype_of_code, dtype),
        None if op == _NONE else _name(RedOpType, op),
        root,
        count - 1,
    )


def _name(find: Callable[[int], DType | RedOpType], code: int) -> str:
    try:
        return find(code).name
    except (LookupError, ValueError, DistError):
        return f"unknown ({code})"


def _describe(operation: str, dtype: str | None, op: str | None, root: int, count: int) -> str:
    facts = []
    if operation in _COALESCED:
        facts.append(f"{dtype}, lengths with digest {count:x}")
    elif dtype:
        facts.append(dtype if count < 0 else f"{count} x {dtype}")
    elif count > 0:
        facts.append(f"digest {count:x}")
    if op:
        facts.append(op)
    if root >= 0:
        facts.append(f"root {root}")
    elif root < -1:
        what = "shape and sparse dimensions" if operation == SPARSE_ALL_REDUCE else "lengths"
        facts.append(f"{what} with digest {-2 - root:x}")
    return f"{operation}({', '.join(facts)})"
