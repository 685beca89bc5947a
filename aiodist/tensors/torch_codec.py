"""torch's objects inside objects. Imported at the first of them, because it imports torch."""

from __future__ import annotations

import re
from typing import Any

import torch

from aiodist.copying import copy
from aiodist.errors import ProtocolError
from aiodist.tensors.buffer import buffer_of, empty_like_message
from aiodist.tensors.codes import TENSOR, TORCH_DEVICE, TORCH_DTYPE, TORCH_SIZE, Encoded
from aiodist.tensors.meta import decode_meta, encode_meta
from aiodist.tensors.torch_memory import TORCH_DTYPES

_REQUIRES_GRAD, _PARAMETER = 1, 2
_SIZE = re.compile(rb"(-?[0-9]{1,19}(,-?[0-9]{1,19})*)?")


def encode(obj: Any) -> Encoded | None:
    """As `TensorExtension.encode`, None for what is not torch's. Subclasses of Tensor are not."""
    cls = type(obj)
    if cls is torch.Tensor or cls is torch.nn.Parameter:
        flags = _PARAMETER if cls is torch.nn.Parameter else 0
        flags |= _REQUIRES_GRAD if obj.requires_grad else 0
        buffer = buffer_of(obj, "tensor", writable=False)
        return TENSOR, bytes((flags,)) + encode_meta(buffer), buffer.view
    if cls is torch.Size:
        return TORCH_SIZE, ",".join(str(int(size)) for size in obj).encode(), None
    if cls is torch.dtype:
        return TORCH_DTYPE, str(obj).removeprefix("torch.").encode(), None
    if cls is torch.device:
        return TORCH_DEVICE, str(obj).encode(), None
    return None


def decode(code: int, data: bytes, memory: memoryview | None, owned: bool) -> Any:
    """As `TensorExtension.decode`, for the codes of torch's objects."""
    if code == TENSOR:
        return _decode_tensor(data, memory, owned)
    if code == TORCH_SIZE:
        if not _SIZE.fullmatch(data):
            raise ProtocolError("a torch.Size has the wrong form")
        return torch.Size(int(size) for size in data.split(b",") if size)
    text = data.decode("ascii", "replace")
    if code == TORCH_DTYPE:
        dtype = getattr(torch, text, None)
        if not isinstance(dtype, torch.dtype):
            raise ProtocolError(f"{text!r} is no dtype of this torch")
        return dtype
    try:
        return torch.device(text)
    except RuntimeError as exc:
        raise ProtocolError(f"{text!r} is no device of this torch") from exc


def _decode_tensor(data: bytes, memory: memoryview | None, owned: bool) -> torch.Tensor:
    flags = data[0] if data else 0
    kind, dtype, shape = decode_meta(data[1:])
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    if kind != "torch" or memory is None or nbytes != len(memory):
        raise ProtocolError(f"a tensor of shape {shape} has {nbytes} bytes of memory")
    tensor: torch.Tensor
    own_dtype = TORCH_DTYPES.get(dtype)
    if owned and nbytes and own_dtype is not None:
        tensor = torch.frombuffer(memory, dtype=own_dtype).reshape(shape)
    else:
        buffer = empty_like_message("torch", dtype, shape)
        copy(buffer.view, memory)
        tensor = buffer.owner
    requires_grad = bool(flags & _REQUIRES_GRAD)
    if requires_grad and not (tensor.is_floating_point() or tensor.is_complex()):
        raise ProtocolError(f"a {dtype.name} tensor cannot require grad")
    if flags & _PARAMETER:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)
