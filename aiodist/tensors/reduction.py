"""How the elements of several ranks become one: SUM, MAX and the others over bytes in memory.

numpy does the dtypes it has: its loops run at memory speed, on one thread, and a call costs a
third of torch's. float16, bfloat16 and complex32 go through torch (numpy's float16 is 30 times
slower). Which of the two serves a dtype is fixed, so that all ranks compute the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

from aiodist.errors import InvalidUsageError
from aiodist.tensors import numpy_reduction
from aiodist.tensors.dtypes import DType
from aiodist.types import RedOpType, ReduceOp

_BITWISE = frozenset({RedOpType.BAND, RedOpType.BOR, RedOpType.BXOR})
_ORDERING = frozenset({RedOpType.MIN, RedOpType.MAX})
_TORCH_NAMES = frozenset({"float16", "bfloat16", "complex32"})


class Reduction(Protocol):
    """An operation and a dtype, ready to run. Immutable; may be used from several threads.

    All views are bytes of whole elements, and views of one call have the same length (ValueError
    otherwise). Operands keep their places, since for NaN and -0.0 the order shows in the bits.
    """

    itemsize: int
    """Bytes of one element."""
    needs_prepare: bool
    """Whether `prepare` does anything."""
    needs_finish: bool
    """Whether `finish` does anything."""

    def __call__(self, acc: memoryview, other: memoryview, other_first: bool = False) -> None:
        """``acc = op(acc, other)``, or ``op(other, acc)`` when ``other_first``."""

    def into(self, a: memoryview, b: memoryview, out: memoryview) -> None:
        """``out = op(a, b)``; ``out`` is memory of its own or exactly ``a`` or ``b``."""

    def of(self, a: memoryview, b: memoryview, out: memoryview) -> Callable[[], object]:
        """`into` of these very views, to be called again and again, by one thread at a time."""

    def prepare(self, data: memoryview) -> None:
        """PREMUL_SUM: multiply this rank's input by the factor, in place, before the rest."""

    def finish(self, data: memoryview) -> None:
        """AVG: divide the sum by the number of ranks, in place (integers truncate toward 0)."""


def reduction(op: ReduceOp, dtype: DType, size: int) -> Reduction:
    """The reduction ``op`` on elements of ``dtype`` over ``size`` ranks.

    bool: SUM is or, PRODUCT is and. Integers wrap around. MIN and MAX propagate NaN.

    Raises TypeError if the operation has no meaning for the dtype, or if a PREMUL_SUM factor is no
    number of the dtype's kind. Raises InvalidUsageError for a factor outside its range.
    """
    if op.kind is RedOpType.PREMUL_SUM:
        _check(op.kind, dtype)
        return _make(op.kind, dtype, size, factor_of(op.factor, dtype))
    return _cached(op.kind, dtype, size)


@lru_cache(maxsize=256)
def _cached(kind: RedOpType, dtype: DType, size: int) -> Reduction:
    _check(kind, dtype)
    return _make(kind, dtype, size, None)


def _make(kind: RedOpType, dtype: DType, size: int, factor: Any) -> Reduction:
    divisor = size if kind is RedOpType.AVG else None
    if dtype.name in _TORCH_NAMES:
        from aiodist.tensors import torch_reduction

        return torch_reduction.make(kind, dtype, factor, divisor)
    return numpy_reduction.make(kind, dtype, factor, divisor)


def _check(kind: RedOpType, dtype: DType) -> None:
    if dtype.numpy() is None and dtype.name not in _TORCH_NAMES:
        raise TypeError(
            f"{kind.name} is not defined for {dtype.name}, which has no arithmetic; "
            f"convert to float32, float16 or bfloat16 first"
        )
    is_float = dtype.name.startswith(("float", "bfloat", "longdouble"))
    is_complex = dtype.name.startswith(("complex", "clongdouble"))
    if kind in _BITWISE and (is_float or is_complex):
        reason = "bitwise operations take integers and bool"
    elif kind in _ORDERING and is_complex:
        reason = "complex numbers have no order"
    elif kind in (RedOpType.AVG, RedOpType.PREMUL_SUM) and dtype.name == "bool":
        reason = "convert to a number first"
    else:
        return
    raise TypeError(f"{kind.name} is not defined for {dtype.name}: {reason}")


def factor_of(value: complex, dtype: DType) -> complex:
    """Return the PREMUL_SUM factor ``value`` as it multiplies ``dtype``, which must be able to hold it."""
    is_integer = dtype.name.startswith(("int", "uint"))
    if isinstance(value, complex) and not dtype.name.startswith(("complex", "clongdouble")):
        raise TypeError(f"the complex factor {value} cannot multiply {dtype.name}")
    if is_integer and not isinstance(value, int):
        raise TypeError(f"the factor {value} is not an integer and cannot multiply {dtype.name}")
    if is_integer and not numpy_reduction.holds(dtype, int(value.real)):
        raise InvalidUsageError(f"the factor {value} does not fit into {dtype.name}")
    # A long double has more range than Python's float.
    if isinstance(value, int) and not is_integer and "longdouble" not in dtype.name:
        try:
            return float(value)
        except OverflowError:
            # Without its digits, which Python refuses to print where there are very many.
            raise InvalidUsageError(f"the factor is too large for {dtype.name}") from None
    return value
