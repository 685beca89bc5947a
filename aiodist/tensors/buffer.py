"""A tensor's memory as bytes: what the engine sends from, receives into and reduces."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from aiodist.errors import ProtocolError
from aiodist.tensors import numpy_memory
from aiodist.tensors.dtypes import DType
from aiodist.tensors.raw_memory import address_of
from aiodist.tensors.tensor_signature import M, TensorSignature

if TYPE_CHECKING:
    from aiodist.tensors.staging import Staging

Kind = Literal["torch", "numpy"]


class Buffer:
    """The memory of one tensor or array.

    ``owner``: the caller's object, of ``kind`` ``"torch"`` or ``"numpy"``.
    ``dtype``, ``shape``, ``count`` (elements) and ``nbytes`` describe it.
    ``view``: its bytes in C order, format ``'B'``. That is the owner's own memory where the owner
    is contiguous, else a staged copy, which `write_back` brings into the owner. ``view`` keeps
    the memory alive for as long as anyone holds it. It is read-only where a numpy owner is.
    ``staging``: what copies in the background between the owner and ``view``, where the owner is
    on a device; else None.
    """

    __slots__ = ("_staged", "count", "dtype", "kind", "nbytes", "owner", "shape", "staging", "view")

    def __init__(
        self,
        owner: Any,
        kind: Kind,
        dtype: DType,
        shape: tuple[int, ...],
        view: memoryview,
        count: int,
        staged: Any = None,
        staging: Staging | None = None,
    ) -> None:
        self.owner = owner
        self.kind = kind
        self.dtype = dtype
        self.shape = shape
        self.view = view
        self.count = count
        self.nbytes = count * dtype.itemsize
        self.staging = staging
        self._staged = staged

    @property
    def is_staged(self) -> bool:
        """Whether ``view`` is a copy, so that a receive has to end with `write_back`."""
        return self._staged is not None

    @property
    def extent(self) -> tuple[int, int] | None:
        """Where the owner's memory begins and ends; None if it is empty or ``view`` is a copy of it."""
        if self._staged is not None or not self.nbytes:
            return None
        start = address_of(self.view)
        return start, start + self.nbytes

    def signature(self, make: Callable[[memoryview], M]) -> TensorSignature[M] | None:
        """What opens tensors of the owner's type, dtype and shape in few steps.

        None if none can be opened so, as in a device's memory. ``make``: as of `TensorSignature`.
        """
        if self.staging is not None:
            return None
        memory: Any = numpy_memory if self.kind == "numpy" else _torch_memory()
        signature: TensorSignature[M] | None = memory.signature_of(self.owner, self.nbytes, make)
        return signature

    def write_back(self) -> None:
        """Copy staged bytes into the owner; nothing where ``view`` is the owner's own memory."""
        for _ in self._copy_parts(self.nbytes, into_owner=True):
            pass  # one part is all

    def write_back_parts(self, nbytes: int) -> Iterator[None]:
        """As `write_back`, about ``nbytes`` at a time; yields between them."""
        return self._copy_parts(nbytes, into_owner=True)

    def load_parts(self, nbytes: int) -> Iterator[None]:
        """Fill a staged copy that was opened with ``load=False``, as `write_back_parts` goes."""
        return self._copy_parts(nbytes, into_owner=False)

    def _copy_parts(self, nbytes: int, into_owner: bool) -> Iterator[None]:
        if self._staged is None:
            return
        owner, staged, assign = self.owner, self._staged, numpy_memory.assign
        if self.kind == "torch":
            owner, assign = owner.detach(), _torch_memory().assign
        target, source = (owner, staged) if into_owner else (staged, owner)
        if self.nbytes <= nbytes:
            assign(target, source)
            return
        axis = max(range(len(self.shape)), key=self.shape.__getitem__)
        step = max(1, self.shape[axis] * nbytes // self.nbytes)
        for start in range(0, self.shape[axis], step):
            if start:
                yield
            part = (slice(None),) * axis + (slice(start, start + step),)
            assign(target[part], source[part])

    def __repr__(self) -> str:
        return f"<Buffer {self.kind} {self.dtype.name}{list(self.shape)}>"


def buffer_of(obj: Any, name: str, *, writable: bool, load: bool = True) -> Buffer:
    """The memory of ``obj``, a torch.Tensor on the CPU or a CUDA device, or a numpy.ndarray.

    ``name`` is the argument's name, for messages. ``writable``: the memory will be written, so
    read-only arrays and tensors whose elements overlap are refused. ``load=False``: it will only
    be written, so a staged copy need not be filled with the owner's values.

    Tensors that require grad, have any strides, no element or no dimension work. Raises TypeError
    for other objects and for element types that cannot travel, InvalidUsageError (a ValueError)
    for tensors whose memory cannot be used.
    """
    if isinstance(obj, np.ndarray):
        array, dtype, view, staged = numpy_memory.open_array(obj, name, writable, load)
        return Buffer(array, "numpy", dtype, obj.shape, view, obj.size, staged)
    # A torch tensor exists only where torch has been imported already.
    if "torch" in sys.modules:
        torch_memory = _torch_memory()
        if isinstance(obj, torch_memory.Tensor):
            dtype, view, staged, staging = torch_memory.open_tensor(obj, name, writable, load)
            shape, count = tuple(obj.shape), len(view) // dtype.itemsize
            return Buffer(obj, "torch", dtype, shape, view, count, staged, staging)
    numbers = isinstance(obj, (list, tuple, int, float, complex, np.generic))
    hint = "; make one: torch.tensor(...) or numpy.array(...)" if numbers else ""
    raise TypeError(
        f"{name} must be a torch.Tensor or numpy.ndarray, not {type(obj).__name__}{hint}"
    )


def is_tensor(obj: Any) -> bool:
    """Whether `buffer_of` is for such an object."""
    if isinstance(obj, np.ndarray):
        return True
    return "torch" in sys.modules and isinstance(obj, _torch_memory().Tensor)


def empty_like_message(kind: Kind, dtype: DType, shape: tuple[int, ...]) -> Buffer:
    """A new, uninitialised tensor for a message that brought its own description.

    numpy lacks some of torch's dtypes and the reverse; the sender's ``kind`` decides, and
    ProtocolError is raised where that kind has no such dtype.
    """
    make: Callable[[DType, tuple[int, ...]], Any]
    make = _torch_memory().empty if kind == "torch" else numpy_memory.empty
    owner = make(dtype, shape)
    if owner is None:
        raise ProtocolError(f"{kind} has no element type {dtype.name}")
    return buffer_of(owner, "tensor", writable=True, load=False)


def scratch(nbytes: int) -> memoryview:
    """``nbytes`` writable, uninitialised bytes, format ``'B'``."""
    return np.empty(nbytes, np.uint8).data


@cache
def _torch_memory() -> ModuleType:
    """The module that knows torch, imported at the first tensor and not before."""
    from aiodist.tensors import torch_memory

    return torch_memory
