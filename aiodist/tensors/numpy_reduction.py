"""Reductions by numpy's ufuncs, straight on the bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from aiodist.tensors.dtypes import DType
from aiodist.types import RedOpType

Array = np.ndarray[Any, np.dtype[Any]]
_Scale = Callable[[Array], None]

_UFUNCS: Mapping[RedOpType, np.ufunc] = MappingProxyType(
    {
        RedOpType.SUM: np.add,
        RedOpType.AVG: np.add,
        RedOpType.PREMUL_SUM: np.add,
        RedOpType.PRODUCT: np.multiply,
        RedOpType.MIN: np.minimum,
        RedOpType.MAX: np.maximum,
        RedOpType.BAND: np.bitwise_and,
        RedOpType.BOR: np.bitwise_or,
        RedOpType.BXOR: np.bitwise_xor,
    }
)

# Overflow and NaN are values here, as in torch. Without this numpy warns about them.
_quiet = np.errstate(all="ignore")


class NumpyReduction:
    """A `Reduction` of a dtype that sets no floating-point flags: integers and bool."""

    __slots__ = (
        "_divide",
        "_dtype",
        "_multiply",
        "_op",
        "itemsize",
        "needs_finish",
        "needs_prepare",
    )

    def __init__(
        self, op: np.ufunc, dtype: np.dtype[Any], multiply: _Scale | None, divide: _Scale | None
    ) -> None:
        self._op = op
        self._dtype = dtype
        self._multiply = multiply
        self._divide = divide
        self.itemsize = dtype.itemsize
        self.needs_prepare = multiply is not None
        self.needs_finish = divide is not None

    def __call__(self, acc: memoryview, other: memoryview, other_first: bool = False) -> None:
        if len(acc) != len(other):
            raise ValueError(f"cannot reduce {len(other)} bytes into {len(acc)}")
        if not len(acc):
            return
        mine = np.frombuffer(acc, self._dtype)
        theirs = np.frombuffer(other, self._dtype)
        if other_first:
            self._op(theirs, mine, out=mine)
        else:
            self._op(mine, theirs, out=mine)

    def into(self, a: memoryview, b: memoryview, out: memoryview) -> None:
        if not len(a) == len(b) == len(out):
            raise ValueError(f"cannot reduce {len(a)} and {len(b)} bytes into {len(out)}")
        if len(out):
            dtype = self._dtype
            left, right = np.frombuffer(a, dtype), np.frombuffer(b, dtype)
            self._op(left, right, out=np.frombuffer(out, dtype))

    def prepare(self, data: memoryview) -> None:
        if self._multiply is not None and len(data):
            self._multiply(np.frombuffer(data, self._dtype))

    def finish(self, data: memoryview) -> None:
        if self._divide is not None and len(data):
            self._divide(np.frombuffer(data, self._dtype))


class _QuietReduction(NumpyReduction):
    """The same for floats and complex numbers. Silence costs 0.4 us a call: not for integers."""

    __slots__ = ()

    __call__ = _quiet(NumpyReduction.__call__)
    into = _quiet(NumpyReduction.into)
    prepare = _quiet(NumpyReduction.prepare)
    finish = _quiet(NumpyReduction.finish)


def make(kind: RedOpType, dtype: DType, factor: Any, divisor: int | None) -> NumpyReduction:
    """The reduction ``kind``; ``factor`` of PREMUL_SUM and ``divisor`` of AVG, or None."""
    own = dtype.numpy()
    if own is None:
        raise TypeError(f"numpy has no dtype {dtype.name}")
    cls = _QuietReduction if own.kind in "fc" else NumpyReduction
    multiply = None if factor is None else _multiplier(own, factor)
    divide = None if divisor is None else _divider(own, divisor)
    return cls(_UFUNCS[kind], own, multiply, divide)


def holds(dtype: DType, value: int) -> bool:
    """Whether the integer dtype can represent ``value``."""
    own = dtype.numpy()
    if own is None:
        return False
    limits = np.iinfo(own.name)
    return bool(limits.min <= value <= limits.max)


def _parts(data: Array) -> Array:
    """Complex numbers as pairs of reals: scaling by a real number needs no complex arithmetic."""
    return data.view(data.real.dtype)


def _multiplier(dtype: np.dtype[Any], factor: Any) -> _Scale:
    if dtype.kind == "c" and not isinstance(factor, complex):
        real = np.dtype(dtype.type(0).real).type(factor)

        def scale_parts(data: Array) -> None:
            parts = _parts(data)
            np.multiply(parts, real, parts)

        return scale_parts
    value = dtype.type(factor)

    def scale(data: Array) -> None:
        np.multiply(data, value, data)

    return scale


def _divider(dtype: np.dtype[Any], size: int) -> _Scale:
    if dtype.kind == "f":
        value = dtype.type(size)

        def divide(data: Array) -> None:
            np.true_divide(data, value, data)

        return divide
    if dtype.kind == "c":
        real = np.dtype(dtype.type(0).real).type(size)

        def divide_parts(data: Array) -> None:
            parts = _parts(data)
            np.true_divide(parts, real, parts)

        return divide_parts

    # Toward zero, exactly, and for more ranks than an int8 can count.
    wide = np.dtype(np.uint64 if dtype == np.uint64 else np.int64)
    count = wide.type(size)

    def truncate(data: Array) -> None:
        values = data.astype(wide)
        values -= np.fmod(values, count)
        values //= count
        data[:] = values

    return truncate
