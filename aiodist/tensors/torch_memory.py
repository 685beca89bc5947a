"""torch tensors as bytes. Imported at the first torch tensor, because it imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from aiodist.errors import InvalidUsageError
from aiodist.tensors.dtypes import DTYPES, DType
from aiodist.tensors.memory_overlap import overlaps_itself
from aiodist.tensors.raw_memory import bytes_at
from aiodist.tensors.staging import CudaStaging, Staging
from aiodist.tensors.tensor_signature import M, TensorSignature

TORCH_DTYPES: Mapping[DType, torch.dtype] = MappingProxyType(
    {
        d: getattr(torch, d.name)
        for d in DTYPES
        if isinstance(getattr(torch, d.name, None), torch.dtype)
    }
)
"""Which torch dtype each DType is; what this version of torch lacks is absent."""

_DTYPE_OF: Mapping[torch.dtype, DType] = MappingProxyType({t: d for d, t in TORCH_DTYPES.items()})
_SUB_BYTE = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))
# What torch cannot copy but as bytes.
_UNCOPYABLE = frozenset(t for d, t in TORCH_DTYPES.items() if d.name in _SUB_BYTE)
_STRIDED = torch.strided
_PLAIN: frozenset[type] = frozenset({Tensor, torch.nn.Parameter})


def open_tensor(
    tensor: Tensor, name: str, writable: bool, load: bool
) -> tuple[DType, memoryview, Tensor | None, Staging | None]:
    """(dtype, bytes in C order, staged copy or None, and what fills that copy in the background).

    Arguments as in `buffer_of`.
    """
    dtype = _DTYPE_OF.get(tensor.dtype)
    if (
        dtype is None
        or not tensor.is_cpu
        or tensor.layout is not _STRIDED
        or tensor.is_nested
        or type(tensor) not in _PLAIN
    ):
        if tensor.is_cuda:
            return open_staged(tensor, name, writable, load, CudaStaging)
        dtype = _check(tensor, name)
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return dtype, _bytes_of(tensor, dtype, name), None, None
    if writable:
        refuse_overlaps(tensor, name)
    staged = _new(tensor.shape, tensor.dtype)
    if load:
        assign(staged, tensor)
    return dtype, _bytes_of(staged, dtype, name), staged, None


def signature_of(
    tensor: Tensor, nbytes: int, make: Callable[[memoryview], M]
) -> TensorSignature[M] | None:
    """The form of tensors like ``tensor``, of ``nbytes``; None where it has no memory of its own."""
    if type(tensor) not in _PLAIN or not nbytes:
        return None
    itemsize, is_complex = tensor.itemsize, tensor.is_complex()

    def address_of(tensor: Tensor) -> int:
        if (
            not tensor.is_cpu
            or not tensor.is_contiguous()
            or tensor.is_neg()
            or (is_complex and tensor.is_conj())
        ):
            return 0
        return tensor.data_ptr()

    # Asked once for each address, since these are the slowest questions. A storage that was resized to
    # nothing has no address. One that was made too small for its tensor has another one: if that is a
    # known one by chance, we write beyond it, as torch's operations on such a tensor always do.
    def open_at(tensor: Tensor, address: int) -> memoryview | None:
        if tensor.untyped_storage().nbytes() < tensor.storage_offset() * itemsize + nbytes:
            return None
        return bytes_at(address, nbytes)

    return TensorSignature(address_of, open_at, make, Tensor.data_ptr)


def open_staged(
    tensor: Tensor, name: str, writable: bool, load: bool, stage: Callable[[Tensor], Staging]
) -> tuple[DType, memoryview, Tensor, Staging]:
    """As `open_tensor`, for memory that only ``stage(tensor)`` can copy."""
    dtype = dtype_of_tensor(tensor, name)
    if writable:
        refuse_overlaps(tensor, name)
    staging = stage(tensor)
    staged = staging.host.view(tensor.shape)
    if load:
        assign(staged, tensor)
    return dtype, _bytes_of(staged, dtype, name), staged, staging


def refuse_overlaps(tensor: Tensor, name: str) -> None:
    """Raise InvalidUsageError if two elements of ``tensor``, which is to be written, share memory."""
    if not tensor.is_contiguous() and overlaps_itself(tensor.shape, tensor.stride(), 1):
        raise InvalidUsageError(
            f"{name} has elements that share memory (an expanded tensor?), so it cannot be "
            f"written; pass a copy: {name}.clone()"
        )


def dtype_of_tensor(tensor: Tensor, name: str) -> DType:
    """The DType of a dense tensor on any device. Raises TypeError, InvalidUsageError for others."""
    dtype = _DTYPE_OF.get(tensor.dtype)
    if dtype is None or type(tensor) not in _PLAIN or _has_other_layout(tensor):
        _refuse_wrapper(tensor, name)
        return _check_kind(tensor, name)
    return dtype


def assign(owner: Tensor, staged: Tensor) -> None:
    """Copy the elements of one tensor to another of its dtype, through strides and conj bits."""
    target, source = owner.detach(), staged.detach()
    if target.dtype in _UNCOPYABLE:
        target.view(torch.uint8).copy_(source.view(torch.uint8))
    elif target.dtype is torch.complex32:
        pairs = _pairs(target)
        pairs.copy_(_pairs(source))
        if target.is_conj() != source.is_conj():
            pairs[..., 1].neg_()
    else:
        target.copy_(source)


def empty(dtype: DType, shape: tuple[int, ...]) -> Tensor | None:
    """A new tensor, None where this torch has no such dtype."""
    found = TORCH_DTYPES.get(dtype)
    return None if found is None else _new(shape, found)


def _pairs(tensor: Tensor) -> Tensor:
    """Complex numbers as they are stored; copying complex32 itself warns of being experimental."""
    return torch.view_as_real(tensor.conj() if tensor.is_conj() else tensor)


def _new(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    # The device is named because torch.set_default_device may say another.
    if dtype is torch.complex32:  # asked for directly, it warns of being experimental
        return torch.view_as_complex(torch.empty((*shape, 2), dtype=torch.half, device="cpu"))
    return torch.empty(shape, dtype=dtype, device="cpu")


def _bytes_of(tensor: Tensor, dtype: DType, name: str) -> memoryview:
    nbytes = tensor.nbytes
    if nbytes == 0:
        return memoryview(bytearray())
    end = tensor.storage_offset() * dtype.itemsize + nbytes
    try:
        # A storage may have been shrunk under its tensors, as FSDP does with freed parameters.
        address = 0 if tensor.untyped_storage().nbytes() < end else tensor.data_ptr()
    except NotImplementedError:  # a tensor that grad, jvp or vmap traces has no storage
        address = 0
    # A tensor that functionalize traces has a storage with a size, and no memory in it.
    if not address:
        raise InvalidUsageError(
            f"{name} has no memory. If its storage was freed or resized, allocate it first. If it is "
            "a tensor inside a transform of torch, such as torch.func.grad, vmap or functionalize, "
            "call the operation outside the transform"
        )
    return bytes_at(address, nbytes, tensor)


def _has_other_layout(tensor: Tensor) -> bool:
    return tensor.layout is not _STRIDED or tensor.is_nested


def _check(tensor: Tensor, name: str) -> DType:
    """The DType of a tensor off the beaten track, or the error that says why it cannot travel."""
    _refuse_wrapper(tensor, name)
    if tensor.device.type != "cpu":
        kind = tensor.device.type
        remedy = (
            f'there is no data to send; make it by torch.empty_like({name}, device="cpu")'
            if kind == "meta"
            else f"pass {name}.cpu(), or make a group with the backend that serves {kind} tensors"
        )
        raise InvalidUsageError(
            f'{name} is on {tensor.device}; backend "aiodist" serves cpu and cuda tensors: {remedy}'
        )
    return _check_kind(tensor, name)


def _refuse_wrapper(tensor: Tensor, name: str) -> None:
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise TypeError(
            f"{name} is a {type(tensor).__name__}, which wraps other tensors; pass the plain "
            "tensor inside (a DTensor gives it with to_local(), an AsyncCollectiveTensor with wait())"
        )


def _check_kind(tensor: Tensor, name: str) -> DType:
    if tensor.is_quantized:
        raise InvalidUsageError(
            f"{name} is quantized; pass {name}.int_repr() with its scale, or {name}.dequantize()"
        )
    if _has_other_layout(tensor):
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise InvalidUsageError(
            f"{name} has layout {kind}, and only dense tensors travel; pass its parts or a "
            f"dense tensor"
        )
    dtype = _DTYPE_OF.get(tensor.dtype)
    if dtype is None:
        raise InvalidUsageError(f"{name} has dtype {tensor.dtype}, which cannot travel")
    return dtype
