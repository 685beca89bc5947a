"""Several tensors as one: the same by torch, as for tensors on GPUs, as by our own reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aiodist.errors import InvalidUsageError
from aiodist.tensors import tensor_lists
from aiodist.tensors.torch_tensor_lists import divide_by_torch, reduced_by_torch
from aiodist.types import ReduceOp
from tests.operations.memory import to_numpy, to_torch
from tests.operations.oracle import values

OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8", "float32", "bfloat16", "complex64"])
@pytest.mark.parametrize("op", OPS)
def test_torch_reduces_as_we_do(op: str, dtype: str) -> None:
    tensors = [to_torch(values(dtype, op, rank, 0, 12), dtype) for rank in range(3)]
    tensors[1] = tensors[1].reshape(4, 3).T
    try:
        expected = tensor_lists.reduced(tensors, getattr(ReduceOp, op))
    except TypeError:
        assert op in ("MIN", "MAX", "BAND", "BOR", "BXOR")
        return
    before = [to_numpy(tensor) for tensor in tensors]
    found = reduced_by_torch(tensors, getattr(ReduceOp, op))
    np.testing.assert_array_equal(to_numpy(found), to_numpy(expected))
    for tensor, old in zip(tensors, before, strict=True):
        np.testing.assert_array_equal(to_numpy(tensor), old)


@pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16", "complex64"])
def test_torch_divides_as_we_do(dtype: str) -> None:
    given = values(dtype, "SUM", 1, 0, 50)
    ours, theirs = to_torch(given, dtype), to_torch(given, dtype)
    tensor_lists.divide(ours, 3)
    divide_by_torch(theirs, 3)
    np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs))


@pytest.mark.parametrize(("dtype", "count"), [("bfloat16", 257), ("float16", 2049)])
def test_short_types_are_divided_by_numbers_that_they_do_not_have(dtype: str, count: int) -> None:
    given = np.full(3, 8192.0)
    ours, theirs = to_torch(given, dtype), to_torch(given, dtype)
    tensor_lists.divide(ours, count)
    divide_by_torch(theirs, count)
    np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs))
    assert theirs[0].item() < 8192 / (count - 1)


@pytest.mark.parametrize(
    ("dtype", "count"), [("int8", 200), ("uint8", 300), ("int32", 3), ("int64", 3)]
)
def test_integers_are_divided_by_more_than_they_can_count(dtype: str, count: int) -> None:
    given = np.array([0, 7, 127], dtype)
    ours, theirs = torch.from_numpy(given.copy()), torch.from_numpy(given.copy())
    tensor_lists.divide(ours, count)
    divide_by_torch(theirs, count)
    assert theirs.tolist() == ours.tolist() == [value // count for value in (0, 7, 127)]


class Divisions(TorchDispatchMode):
    """Notes what is divided by."""

    def __init__(self) -> None:
        super().__init__()
        self.by: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "div" in str(func):
            self.by.append(args[1])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_no_gpu_is_given_a_number_to_divide_exact_types_by(dtype: torch.dtype) -> None:
    """It would multiply by the reciprocal: 5 / 3 then has another last bit than on the CPU."""
    assert np.float32(5) * (np.float32(1) / np.float32(3)) != np.float32(5) / np.float32(3)
    with Divisions() as divisions:
        divide_by_torch(torch.zeros(4, dtype=dtype, device="meta"), 3)
    (divisor,) = divisions.by
    assert isinstance(divisor, torch.Tensor)
    assert divisor.device.type == "meta"
    assert divisor.dtype == (torch.float32 if dtype.is_complex else dtype)


def test_tensors_elsewhere_are_checked_too() -> None:
    here, elsewhere = torch.ones(3), torch.ones(4, device="meta")
    tensor_lists.check_alike([torch.ones(4, device="meta"), elsewhere], "tensors")
    with pytest.raises(InvalidUsageError, match=r"tensors\[1\] is 4 x float32 of torch"):
        tensor_lists.check_alike([here, elsewhere], "tensors")
