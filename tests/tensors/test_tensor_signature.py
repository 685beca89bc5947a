"""Tensors like one that is known are opened in few steps, or left to `buffer_of`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from aiodist.tensors import TensorSignature, buffer_of
from tests.backends.copy_engine import copied_by_thread

Array = np.ndarray[Any, np.dtype[Any]]
Bytes = TensorSignature[memoryview]


def signature_of(tensor: torch.Tensor | Array) -> Bytes | None:
    return buffer_of(tensor, "tensor", writable=True).signature(lambda view: view)


def known(tensor: torch.Tensor | Array) -> Bytes:
    signature = signature_of(tensor)
    assert signature is not None
    return signature


def test_the_memory_is_the_tensors_own() -> None:
    signature = known(torch.zeros(2, 3))
    for tensor in (torch.ones(2, 3), torch.rand(5, 2, 3)[2], torch.rand(2, 3, requires_grad=True)):
        memory = signature.memory(tensor)
        assert memory is not None
        assert bytes(memory) == tensor.detach().numpy().tobytes()
        memory[:4] = np.float32(7).tobytes()
        assert tensor.flatten()[0] == 7


def test_a_view_of_an_address_is_cached() -> None:
    signature, tensor = known(torch.zeros(3)), torch.zeros(3)
    assert signature.memory(tensor) is signature.memory(tensor)
    assert signature.memory(tensor[:]) is signature.memory(tensor)
    many = [torch.full((3,), float(i)) for i in range(200)]
    for i, each in enumerate(many):
        memory = signature.memory(each)
        assert memory is not None
        assert np.frombuffer(memory, np.float32).tolist() == [i] * 3
    assert len(signature.kept) < 100


@pytest.mark.parametrize("nbytes", [0, 20])
def test_a_known_tensor_whose_storage_was_made_smaller_is_known_no_more(nbytes: int) -> None:
    signature, tensor = known(torch.zeros(8)), torch.arange(8.0)
    assert signature.memory(tensor) is not None
    tensor.untyped_storage().resize_(nbytes)
    assert signature.memory(tensor) is None
    tensor.untyped_storage().resize_(32)
    tensor.copy_(torch.arange(8.0))
    memory = signature.memory(tensor)
    assert memory is not None
    assert np.frombuffer(memory, np.float32).tolist() == list(range(8))


def _freed() -> torch.Tensor:
    tensor = torch.zeros(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def _shrunk() -> torch.Tensor:
    tensor = torch.zeros(8)[4:]
    tensor.untyped_storage().resize_(20)
    return tensor


OTHERS: dict[str, Callable[[], torch.Tensor]] = {
    "strides": lambda: torch.zeros(4, 2)[:, 0],
    "negated": lambda: torch._neg_view(torch.zeros(4)),
    "freed": _freed,
    "shrunk": _shrunk,
    "meta": lambda: torch.empty(4, device="meta"),
    "sparse": lambda: torch.zeros(4).to_sparse(),
    "mkldnn": lambda: torch.zeros(4).to_mkldnn(),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_tensor_without_plain_memory_has_no_cached_view(other: str) -> None:
    signature = known(torch.zeros(4))
    with warnings.catch_warnings(action="ignore"):
        tensor = OTHERS[other]()
    try:
        assert signature.memory(tensor) is None
    except RuntimeError:
        assert tensor.layout is not torch.strided


def test_conjugates_are_left_to_others() -> None:
    signature = known(torch.zeros(4, dtype=torch.complex64))
    assert signature.memory(torch.zeros(4, dtype=torch.complex64)) is not None
    assert signature.memory(torch.zeros(4, dtype=torch.complex64).conj()) is None


def test_a_device_tensor_has_no_cached_view() -> None:
    with copied_by_thread():
        assert signature_of(torch.zeros(3)) is None
    assert signature_of(torch.zeros(3)) is not None


def test_tensors_of_nothing_have_no_signature() -> None:
    assert signature_of(torch.zeros(0)) is None
    assert signature_of(np.zeros(0)) is None


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "float16", "float32", "float64", "complex64", "longdouble"]
)
def test_the_memory_of_an_array_is_its_own(dtype: str) -> None:
    signature = known(np.zeros((2, 3), dtype))
    scalar = known(np.zeros((), dtype))
    for array in (np.ones((2, 3), dtype), np.ones((5, 2, 3), dtype)[2]):
        memory = signature.memory(array)
        assert memory is not None
        assert bytes(memory) == array.tobytes()
        memory[: array.itemsize] = np.zeros(1, dtype).tobytes()
        assert array[0, 0] == 0
        assert signature.memory(array[:]) is memory
    one = np.ones((), dtype)
    memory = scalar.memory(one)
    assert memory is not None
    assert bytes(memory) == one.tobytes()


def _read_only() -> Array:
    array = np.zeros(4)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("other", [_read_only(), np.zeros((4, 2))[:, 0], np.zeros(4)[::-1]])
def test_an_array_that_is_read_only_or_has_gaps_has_no_cached_view(other: Array) -> None:
    signature = known(np.zeros(4))
    assert signature.memory(other) is None
    assert signature.memory(np.zeros(4)) is not None
