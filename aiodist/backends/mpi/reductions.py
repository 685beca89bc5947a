"""The reductions that MPI computes as aiodist does. The others run by aiodist's own algorithms."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from aiodist.backends.mpi.library import Mpi
from aiodist.tensors import DType, Reduction
from aiodist.types import RedOpType, ReduceOp

_DATATYPES = MappingProxyType(
    {
        **{f"{sign}int{bits}": f"{sign}int{bits}_t".upper()
           for sign in ("", "u") for bits in (8, 16, 32, 64)},
        "float32": "FLOAT",
        "float64": "DOUBLE",
        "longdouble": "LONG_DOUBLE",
        "complex64": "C_FLOAT_COMPLEX",
        "complex128": "C_DOUBLE_COMPLEX",
        "clongdouble": "C_LONG_DOUBLE_COMPLEX",
    }
)  # fmt: skip
"""MPI's names of our element types; it has none for the half-precision types."""

_OPS = MappingProxyType(
    {
        RedOpType.SUM: "SUM",
        RedOpType.AVG: "SUM",
        RedOpType.PREMUL_SUM: "SUM",
        RedOpType.PRODUCT: "PROD",
        RedOpType.MIN: "MIN",
        RedOpType.MAX: "MAX",
        RedOpType.BAND: "BAND",
        RedOpType.BOR: "BOR",
        RedOpType.BXOR: "BXOR",
    }
)

_OF_BOOL = MappingProxyType(
    {RedOpType.SUM: "BOR", RedOpType.MAX: "BOR", RedOpType.PRODUCT: "BAND", RedOpType.MIN: "BAND"}
)
"""On bytes of 0 and 1, where they are not bitwise already."""


class Names(NamedTuple):
    """What MPI calls an operation and an element type."""

    op: str
    datatype: str


class MpiReduction:
    """A `tensors.Reduction` that knows which one of MPI does the same, if one does."""

    def __init__(self, reduce: Reduction, op: ReduceOp, dtype: DType) -> None:
        """``reduce``: the reduction ``op`` on ``dtype``, for what MPI cannot do."""
        self.itemsize = reduce.itemsize
        self.needs_prepare = reduce.needs_prepare
        self.needs_finish = reduce.needs_finish
        self.prepare = reduce.prepare
        self.finish = reduce.finish
        self.into = reduce.into
        self.of = reduce.of
        self._reduce = reduce
        self._names = names_of(op.kind, dtype)

    def __call__(self, acc: memoryview, other: memoryview, other_first: bool = False) -> None:
        self._reduce(acc, other, other_first)

    def in_mpi(self, mpi: Mpi) -> tuple[Mpi, Mpi] | None:
        """Return MPI's operation and element type; None if MPI has no such reduction."""
        if self._names is None:
            return None
        datatype = getattr(mpi, self._names.datatype, mpi.DATATYPE_NULL)
        if datatype == mpi.DATATYPE_NULL or datatype.Get_size() != self.itemsize:
            return None
        return getattr(mpi, self._names.op), datatype


def names_of(kind: RedOpType, dtype: DType) -> Names | None:
    """Return MPI's names for a reduction; None if MPI's has another meaning.

    MPI does not define the MIN and MAX of NaN. Those of aiodist propagate it.
    """
    if dtype.name == "bool":
        return Names(_OF_BOOL.get(kind, _OPS[kind]), "UINT8_T")
    datatype = _DATATYPES.get(dtype.name)
    is_integer = dtype.name.startswith(("int", "uint"))
    if datatype is None or (kind in (RedOpType.MIN, RedOpType.MAX) and not is_integer):
        return None
    return Names(_OPS[kind], datatype)
