"""Codes of tensors, arrays and their relatives inside encoded objects."""

from __future__ import annotations

ARRAY, SCALAR, NUMPY_DTYPE, TENSOR, TORCH_SIZE, TORCH_DTYPE, TORCH_DEVICE = range(64, 71)
"""Codes on the wire; never renumber, only append."""

Encoded = tuple[int, bytes, memoryview | None]
"""A code, the bytes that describe the object, and the object's memory where it has some."""
