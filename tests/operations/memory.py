"""Tensors and arrays of every dtype and memory layout, compared with numpy arrays.

The values of a test are numpy arrays of `carrier` dtype. Each layout places them in a larger piece
of memory where it can, so that writes outside the tensor show.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import isqrt, prod
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]
FILLER = 1


def carrier(dtype: str) -> np.dtype[Any]:
    """numpy's dtype, or the smallest that holds what numpy has no dtype for."""
    return np.dtype({"bfloat16": "float32", "complex32": "complex64"}.get(dtype, dtype))


def pairs_of(tensor: torch.Tensor) -> torch.Tensor:
    """A complex32 tensor as it is stored: torch warns where its own operations see that dtype."""
    return torch.view_as_real(tensor.conj() if tensor.is_conj() else tensor)


def assign(tensor: Any, values: Array) -> None:
    """Put values of `carrier` dtype into a tensor or array."""
    values = values.reshape(tuple(tensor.shape))
    if isinstance(tensor, np.ndarray):
        tensor[...] = values
    elif tensor.dtype is torch.complex32:
        stored = values.conj() if tensor.is_conj() else values
        pairs_of(tensor).copy_(torch.from_numpy(np.stack([stored.real, stored.imag], -1)))
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the values are read-only: they are only read
            source = torch.from_numpy(np.asarray(values, order="C"))
        tensor.copy_(source)


def to_torch(values: Array, dtype: str) -> torch.Tensor:
    """A new contiguous tensor."""
    if dtype == "complex32":
        tensor = torch.view_as_complex(torch.empty((*values.shape, 2), dtype=torch.half))
    else:
        tensor = torch.empty(values.shape, dtype=getattr(torch, dtype))
    assign(tensor, values)
    return tensor


def filler(shape: tuple[int, ...], dtype: str, *, is_torch: bool) -> Any:
    """A new tensor or array full of `FILLER`."""
    if is_torch and dtype != "complex32":
        return torch.full(shape, FILLER, dtype=getattr(torch, dtype))
    full = np.full(shape, FILLER, carrier(dtype))
    return to_torch(full, dtype) if is_torch else full


def to_numpy(tensor: Any) -> Array:
    """A new array of `carrier` dtype."""
    if isinstance(tensor, np.ndarray):
        return tensor.copy()
    plain = tensor.detach()
    if plain.dtype is torch.complex32:
        pairs = pairs_of(plain).float().numpy()
        values = (pairs[..., 0] + np.complex64(1j) * pairs[..., 1]).astype(np.complex64)
        return values.conj() if plain.is_conj() else values
    if plain.dtype is torch.bfloat16:
        plain = plain.float()
    return plain.resolve_conj().clone(memory_format=torch.contiguous_format).numpy()


def seen(tensor: Any) -> Array:
    """As `to_numpy`, for looking at it only: the tensor's own memory where that can be seen."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if tensor.dtype in (torch.complex32, torch.bfloat16):
        return to_numpy(tensor)
    return tensor.detach().resolve_conj().numpy()


def fold(shape: tuple[int, ...], dimensions: int) -> tuple[int, ...]:
    """A shape of more dimensions for as many elements; shapes of several dimensions stay."""
    if dimensions == 1 or len(shape) != 1:
        return shape
    count = shape[0]
    wide = next((k for k in range(isqrt(count), 1, -1) if count % k == 0), 1)
    return (1,) * (dimensions - 2) + (wide, count // wide)


def _offset(base: Any, shape: tuple[int, ...]) -> Any:
    return base[3 : 3 + prod(shape)].reshape(shape)


def _strided(base: Any, shape: tuple[int, ...]) -> Any:
    return base[..., 1::2]


def _transposed(base: Any, shape: tuple[int, ...]) -> Any:
    inner = base[1:]
    axes = tuple(reversed(range(len(shape))))
    return inner.transpose(axes) if isinstance(inner, np.ndarray) else inner.permute(axes)


def _reversed(base: Any, shape: tuple[int, ...]) -> Any:
    return base[2:-2][tuple(slice(None, None, -1) for _ in shape)]


def _channels_last(base: Any, shape: tuple[int, ...]) -> Any:
    return base[1:].permute(0, 3, 1, 2)


def _whole(base: Any, shape: tuple[int, ...]) -> Any:
    return base


Shape = tuple[int, ...]
_LAYOUTS: dict[str, tuple[Callable[[Shape], Shape], Callable[[Any, Shape], Any], int]] = {
    # the base's shape, the tensor in it, the dimensions that a flat shape is folded to
    "contiguous": (lambda s: s, _whole, 1),
    "offset": (lambda s: (prod(s) + 7,), _offset, 1),
    "strided": (lambda s: (*s[:-1], 2 * s[-1] + 1), _strided, 1),
    "transposed": (lambda s: (s[-1] + 1, *s[-2::-1]), _transposed, 2),
    "reversed": (lambda s: (s[0] + 4, *s[1:]), _reversed, 2),
    "channels_last": (lambda s: (s[0] + 1, s[2], s[3], s[1]), _channels_last, 4),
    "requires_grad": (lambda s: s, _whole, 1),
    "conjugate": (lambda s: s, lambda base, _: base.conj(), 1),
    "zero_dim": (
        lambda s: s,
        lambda base, shape: base.reshape(()) if prod(shape) == 1 else base,
        1,
    ),
}


class Block:
    """A tensor in its layout, and the memory around it as it was."""

    def __init__(self, values: Array, dtype: str, kind: str, layout: str) -> None:
        """``values`` in the shape to have; of one dimension where the layout may choose."""
        base_shape, self._place, dimensions = _LAYOUTS[layout]
        self._shape = fold(values.shape, dimensions)
        self._base_shape = base_shape(self._shape)
        self._is_torch = kind == "torch"
        self._dtype = dtype
        self._base = filler(self._base_shape, dtype, is_torch=self._is_torch)
        self.tensor = self._place(self._base, self._shape)
        assign(self.tensor, values)
        if layout == "requires_grad":
            self.tensor.requires_grad_()

    def wrong(self, expected: Array) -> str | None:
        """What is wrong, if the tensor is not ``expected`` or memory around it has changed."""
        found = seen(self.tensor).reshape(-1)
        expected = expected.reshape(-1)
        if found.dtype != expected.dtype or found.shape != expected.shape:
            return f"is {found.dtype}{found.shape}, not {expected.dtype}{expected.shape}"
        if self.tensor is self._base:
            if np.array_equal(found, expected):
                return None
        else:
            right = filler(self._base_shape, self._dtype, is_torch=self._is_torch)
            assign(self._place(right, self._shape), expected)
            if np.array_equal(seen(right), seen(self._base)):
                return None
        if not np.array_equal(found, expected):
            where = np.flatnonzero(found != expected)
            at = where[0]
            return (
                f"differs in {len(where)} of {len(found)} elements, first at {at}: "
                f"{found[at]} instead of {expected[at]}"
            )
        return "is right, and memory around it was written"
