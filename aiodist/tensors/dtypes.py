"""Element types: their names, their codes on the wire, and which of numpy's dtypes they are.

One table serves torch and numpy. Names are torch's; numpy agrees wherever it has the type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from aiodist.errors import ProtocolError


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type. ``code`` is a u8 and stands for it on the wire; ``itemsize`` is in bytes.

    There is one object of each, so they are compared and hashed by identity.
    """

    name: str
    code: int
    itemsize: int

    def __repr__(self) -> str:
        return self.name

    def numpy(self) -> np.dtype[np.generic] | None:
        """numpy's dtype of this name, None where numpy has none (bfloat16, float8, ...)."""
        return _NUMPY.get(self.code)


# Codes are part of the wire format: never renumber, only append.
# longdouble's size differs between platforms; ranks that disagree see a message of another length.
_TABLE = (
    ("bool", 1, 1),
    ("uint8", 2, 1),
    ("int8", 3, 1),
    ("int16", 4, 2),
    ("int32", 5, 4),
    ("int64", 6, 8),
    ("uint16", 7, 2),
    ("uint32", 8, 4),
    ("uint64", 9, 8),
    ("float16", 10, 2),
    ("bfloat16", 11, 2),
    ("float32", 12, 4),
    ("float64", 13, 8),
    ("longdouble", 14, np.dtype("longdouble").itemsize),
    ("complex32", 15, 4),
    ("complex64", 16, 8),
    ("complex128", 17, 16),
    ("clongdouble", 18, np.dtype("clongdouble").itemsize),
    ("float8_e4m3fn", 20, 1),
    ("float8_e4m3fnuz", 21, 1),
    ("float8_e5m2", 22, 1),
    ("float8_e5m2fnuz", 23, 1),
    ("float8_e8m0fnu", 24, 1),
    ("float4_e2m1fn_x2", 25, 1),
    ("bits8", 30, 1),
    ("bits16", 31, 2),
    ("bits1x8", 32, 1),
    ("bits2x4", 33, 1),
    ("bits4x2", 34, 1),
    *((f"int{n}", 40 + n, 1) for n in range(1, 8)),
    *((f"uint{n}", 50 + n, 1) for n in range(1, 8)),
)

DTYPES: tuple[DType, ...] = tuple(DType(*row) for row in _TABLE)
"""Every element type that travels."""

_BY_NAME = MappingProxyType({d.name: d for d in DTYPES})
_BY_CODE = MappingProxyType({d.code: d for d in DTYPES})
_NUMPY_NAMES = frozenset({d.name for d in DTYPES if d.code <= 18} - {"bfloat16", "complex32"})
_NUMPY = MappingProxyType({d.code: np.dtype(d.name) for d in DTYPES if d.name in _NUMPY_NAMES})


def _canonical(char: str) -> DType:
    """The DType of one of numpy's type characters; C's int, long and long long share widths."""
    dtype = np.dtype(char)
    if char in "gG":
        return _BY_NAME["longdouble" if char == "g" else "clongdouble"]
    return _BY_NAME[dtype.name]


# Keyed by dtype.num, which is a plain int and hashes faster than a dtype.
_BY_NUMPY_NUM: Mapping[int, DType] = MappingProxyType(
    {np.dtype(char).num: _canonical(char) for char in "?bBhHiIlLqQefdgFDG"}
)


def dtype_named(name: str) -> DType:
    """The DType called ``name``, such as ``"float32"``. Raises TypeError for unknown names."""
    found = _BY_NAME.get(name)
    if found is None:
        raise TypeError(f"no element type is called {name!r}; known: {', '.join(_BY_NAME)}")
    return found


def dtype_of_code(code: int) -> DType:
    """The DType that has ``code`` on the wire. Raises ProtocolError for unknown codes."""
    found = _BY_CODE.get(code)
    if found is None:
        raise ProtocolError(f"element type code {code} is not one of this version's")
    return found


def dtype_of_numpy_num(num: int) -> DType | None:
    """The DType of numpy's type number, None where aiodist has none (objects, strings, dates)."""
    return _BY_NUMPY_NUM.get(num)
