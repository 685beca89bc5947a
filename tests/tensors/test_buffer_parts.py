"""Writing back a piece at a time gives what writing back at once gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aiodist.tensors import buffer_of

SHAPES = [(64, 3), (3, 64), (5, 7, 11), (1, 100), (100, 1), (2, 2)]


@pytest.mark.parametrize("nbytes", [1, 100, 1 << 20])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_transposed_array(shape: tuple[int, ...], nbytes: int) -> None:
    owner = np.zeros(shape[::-1], np.int32).T
    buffer = buffer_of(owner, "tensor", writable=True, load=False)
    values = np.arange(owner.size, dtype=np.int32)
    buffer.view[:] = values.tobytes()
    steps = len(list(buffer.write_back_parts(nbytes)))
    assert (owner == values.reshape(shape)).all()
    if nbytes == 1 and buffer.is_staged:
        assert steps == max(shape) - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint16, torch.bool])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_transposed_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    owner = torch.zeros(shape[::-1], dtype=dtype).permute(*reversed(range(len(shape))))
    buffer = buffer_of(owner, "tensor", writable=True, load=False)
    source = buffer_of(torch.arange(owner.numel()).to(dtype), "source", writable=False)
    buffer.view[:] = source.view
    for _ in buffer.write_back_parts(50):
        pass
    again = buffer_of(owner, "tensor", writable=False)
    assert bytes(again.view) == bytes(source.view)


@pytest.mark.parametrize("nbytes", [1, 100, 1 << 20])
@pytest.mark.parametrize("shape", SHAPES)
def test_loading_a_piece_at_a_time(shape: tuple[int, ...], nbytes: int) -> None:
    values = np.arange(np.prod(shape), dtype=np.int32).reshape(shape[::-1])
    for owner in (values.T, torch.from_numpy(values).permute(*reversed(range(len(shape))))):
        buffer = buffer_of(owner, "tensor", writable=False, load=False)
        for _ in buffer.load_parts(nbytes):
            pass
        assert bytes(buffer.view) == values.T.tobytes()


def test_a_tensor_that_requires_grad() -> None:
    owner = torch.zeros(4, 6).t().requires_grad_()
    buffer = buffer_of(owner, "tensor", writable=True, load=False)
    buffer.view[:] = np.arange(24, dtype=np.float32).tobytes()
    for _ in buffer.write_back_parts(16):
        pass
    assert owner.detach().flatten().tolist() == list(range(24))


def test_nothing_to_do_for_contiguous_memory() -> None:
    buffer = buffer_of(np.zeros(1000), "tensor", writable=True)
    assert list(buffer.write_back_parts(8)) == []
