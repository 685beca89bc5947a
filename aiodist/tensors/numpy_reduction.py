"""Reductions by numpy's ufuncs, straight on the bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Context
from functools import partial
from math import nan
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from aiodist.tensors.dtypes import DType
from aiodist.types import RedOpType

Array = np.ndarray[Any, np.dtype[Any]]
_Scale = Callable[[Array], object]
_Caller = Callable[..., object]

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

_OUT_BY_NAME = frozenset({np.minimum, np.maximum})
"""numpy wants these two to be told by name where the result goes; the others take less time without."""


def _silence() -> Callable[[], _Caller]:
    """What gives what calls a function, and lets numpy say nothing of overflow and NaN meanwhile.

    They are values here, as in torch. numpy 2 keeps what it warns about in the context, and to run
    in one where that is nothing costs far less than `numpy.errstate`. A context runs one call at a
    time, so each has its own copy.
    """
    if int(np.__version__.partition(".")[0]) < 2:
        caller = np.errstate(all="ignore")(_call)
        return lambda: caller
    silent = Context()
    silent.run(np.seterr, all="ignore")
    return lambda: silent.copy().run


def _call(function: Callable[..., object], *args: object, **named: object) -> object:
    return function(*args, **named)


_silent = _silence()


def _silently(function: Callable[..., object], *args: object) -> None:
    _silent()(function, *args)


class NumpyReduction:
    """A `Reduction`: a ufunc, of two arrays and of where its result goes."""

    __slots__ = (
        "_divide",
        "_dtype",
        "_multiply",
        "_op",
        "_operands",
        "_sets_flags",
        "itemsize",
        "needs_finish",
        "needs_prepare",
    )

    def __init__(
        self, op: np.ufunc, dtype: np.dtype[Any], multiply: _Scale | None, divide: _Scale | None
    ) -> None:
        self._op = op
        self._sets_flags = dtype.kind in "fc"  # integers set no floating-point flags
        self._dtype = dtype
        # Parts add up by themselves. numpy's sum of two complex numbers takes the NaN of either,
        # by which of them the result replaces.
        is_sum_of_parts = op is np.add and dtype.kind == "c"
        self._operands = dtype.type(0).real.dtype if is_sum_of_parts else dtype
        self._multiply = multiply
        self._divide = divide
        self.itemsize = dtype.itemsize
        self.needs_prepare = multiply is not None
        self.needs_finish = divide is not None

    def __call__(self, acc: memoryview, other: memoryview, other_first: bool = False) -> None:
        if other_first:
            self.of(other, acc, acc)()
        else:
            self.of(acc, other, acc)()

    def into(self, a: memoryview, b: memoryview, out: memoryview) -> None:
        self.of(a, b, out)()

    def of(self, a: memoryview, b: memoryview, out: memoryview) -> Callable[[], object]:
        if not len(a) == len(b) == len(out):
            raise ValueError(f"cannot reduce {len(a)} and {len(b)} bytes into {len(out)}")
        if not len(out):
            return _nothing
        dtype = self._operands
        if len(out) == dtype.itemsize and (of_one := _OF_ONE.get((self._op, dtype.char))):
            number: Literal["f", "d"] = "f" if dtype.itemsize == 4 else "d"
            return partial(of_one, a.cast(number), b.cast(number), out.cast(number))
        result = np.frombuffer(out, dtype)
        left = result if a is out else np.frombuffer(a, dtype)
        right = result if b is out else np.frombuffer(b, dtype)
        if len(out) == dtype.itemsize and dtype.kind == "c":  # a product; sums add parts
            return partial(_silent(), _multiply_one_complex, left, right, result)
        bound = partial(_silent(), self._op) if self._sets_flags else partial(self._op)
        if self._op in _OUT_BY_NAME:
            return partial(bound, left, right, out=result)
        return partial(bound, left, right, result)

    def prepare(self, data: memoryview) -> None:
        if self._multiply is not None and len(data):
            self._multiply(np.frombuffer(data, self._dtype))

    def finish(self, data: memoryview) -> None:
        if self._divide is not None and len(data):
            self._divide(np.frombuffer(data, self._dtype))


def _add_one(a: memoryview[float], b: memoryview[float], out: memoryview[float]) -> None:
    value = a[0] + b[0]
    out[0] = value if value == value else nan


def _multiply_one(a: memoryview[float], b: memoryview[float], out: memoryview[float]) -> None:
    value = a[0] * b[0]
    out[0] = value if value == value else nan


def _multiply_one_complex(a: Array, b: Array, out: Array) -> None:
    # A ufunc multiplies one number by another loop, which rounds otherwise, if the result replaces an
    # operand or if memory is not aligned. Ranks differ in both. The product of two scalars has one way.
    out[0] = a[0] * b[0]


_OF_ONE: Mapping[tuple[Any, str], Callable[..., object]] = MappingProxyType(
    {
        (ufunc, char): function
        for ufunc, function in ((np.add, _add_one), (np.multiply, _multiply_one))
        for char in "fd"
    }
)
"""What makes one number of two, by the ufunc that does and the dtype: float32 and float64.

A loss, a norm: Python itself is done before a ufunc has looked at its arguments. The bits are the same,
although Python computes with doubles. A sum or product of two float32 may be rounded to double before it
is rounded to float32 (Figueroa, "When is double rounding innocuous?", 1995).
Each NaN becomes the same one. Python would take the first or the second of two NaNs, by how often it has
executed the line, and ranks differ in that.
"""


def _nothing() -> None:
    """The reduction of no element."""


def make(kind: RedOpType, dtype: DType, factor: Any, divisor: int | None) -> NumpyReduction:
    """The reduction ``kind``; ``factor`` of PREMUL_SUM and ``divisor`` of AVG, or None."""
    own = dtype.numpy()
    if own is None:
        raise TypeError(f"numpy has no dtype {dtype.name}")
    multiply = None if factor is None else partial(_silently, _scaler(np.multiply, own, factor))
    divide = None if divisor is None else partial(_silently, _divider(own, divisor))
    return NumpyReduction(_UFUNCS[kind], own, multiply, divide)


def holds(dtype: DType, value: int) -> bool:
    """Whether the integer dtype can represent ``value``."""
    own = dtype.numpy()
    if own is None:
        return False
    limits = np.iinfo(own.name)
    return bool(limits.min <= value <= limits.max)


def _scaler(ufunc: np.ufunc, dtype: np.dtype[Any], number: Any) -> _Scale:
    """What applies ``ufunc`` with ``number`` to each element, in place.

    A real number is applied to the parts of complex ones: that needs no complex arithmetic.
    """
    to_parts = dtype.kind == "c" and not isinstance(number, complex)
    kind = (dtype.type(0).real.dtype if to_parts else dtype).type
    value: Any = _silent()(kind, number)  # a float beyond the range of float32 is infinite

    def scale(data: Array) -> None:
        numbers = data.view(data.real.dtype) if to_parts else data
        ufunc(numbers, value, numbers)

    return scale


def _divider(dtype: np.dtype[Any], size: int) -> _Scale:
    if dtype.kind in "fc":
        return _scaler(np.true_divide, dtype, size)

    # Toward zero, exactly, and for more ranks than an int8 can count.
    wide = np.dtype(np.uint64 if dtype == np.uint64 else np.int64)
    count = wide.type(size)

    def truncate(data: Array) -> None:
        values = data.astype(wide)
        values -= np.fmod(values, count)
        values //= count
        data[:] = values

    return truncate
